"""A node's disk: the log, which acknowledgements wait for, and the state, which deliveries make, in LMDB.

Other packages use the names below, and `ports` (what an application needs of its disk). Reading order:
`disk` (create and open), `environment` (LMDB and its thread), `log`, `lazy` (commits of a state); then the
states, `deliveries` (bare multicast) and `store` (its `maps` on `rows`, and `views` for snapshots). Formats:
`identity`, `keys`, `checksum`, `records`, `runs`, `run_format`, `delivery_snapshot`, `checkpoint_format`.
Damage: `meta_page` (files that were cut short), `scrub` (all rows of an environment), `renewal` (a damaged
log is set aside), `lives` (a process that dies of its disk), `marks` (what a restart must know of a group's
state); `space` (a full disk), `reclamation` (files shrink).

The calling loop never waits for the disk, except in small commits of the log, if it permits that. Log and
state gather writes; `pump`, at the end of each turn of the loop, begins a transaction if none is under way,
and does its puts in the loop (py-lmdb releases the interpreter lock at every put, so a thread that did them
would starve beside a busy loop). Then one thread each commits it. Writes that are gathered meanwhile go with
the next commit. Callbacks come *from those threads*: the receiver passes them on to its loop, which pumps.

A commit that finds no space is repeated until there is some; meanwhile nothing is durable, and reads go on.
A disk that fails in any other way is not retried: after a failed sync its contents are unknown.
Log or state report the failure once to `on_failure`, and then at every call. What was durable is there at the
next start.
"""

from kvstore.storage.deliveries import LmdbState
from kvstore.storage.disk import Disk, begun, check, create, open, renew, replace_state  # noqa: A004 - read as `storage.open`
from kvstore.storage.environment import Usage
from kvstore.storage.errors import BadSnapshot, DamagedLog, DamagedRow, DamagedState, LostDisk, StorageError
from kvstore.storage.identity import Identity
from kvstore.storage.log import LmdbLog
from kvstore.storage.ports import GroupCheckpoint
from kvstore.storage.reclamation import reclaim
from kvstore.storage.store import StoreState

__all__ = [
    "BadSnapshot",
    "DamagedLog",
    "DamagedRow",
    "DamagedState",
    "Disk",
    "GroupCheckpoint",
    "Identity",
    "LmdbLog",
    "LmdbState",
    "LostDisk",
    "StorageError",
    "StoreState",
    "Usage",
    "begun",
    "check",
    "create",
    "open",
    "reclaim",
    "renew",
    "replace_state",
]
