"""A node's disk: the log that promises wait for, and the state that deliveries make, each in LMDB.

Nothing here makes the loop that calls it wait, but for small commits of the log, if it may wait for those.
Both stores gather what they are given; `pump`, at the end of each turn of the loop, begins a transaction if
none is under way, and does its puts in the loop (py-lmdb gives up the interpreter lock at every put, so that
a thread that did them would starve beside a busy loop). Then one thread for each store commits it. What is
gathered meanwhile goes with the next commit. Callbacks come *from those threads*: the receiver passes them on
to its loop, which pumps.

A disk that fails (it is full, it gives errors) is not tried again: after a failed sync nobody knows what is
on it. The store says so once to `on_failure`, and then at every call. What was durable is there at the next
start.
"""

from kvstore.storage.deliveries import LmdbState
from kvstore.storage.disk import Disk, create, open  # noqa: A004 - read as `storage.open`
from kvstore.storage.errors import BadSnapshot, LostDisk, StorageError
from kvstore.storage.identity import Identity
from kvstore.storage.log import LmdbLog
from kvstore.storage.ports import GroupCheckpoint
from kvstore.storage.store import StoreState

__all__ = [
    "BadSnapshot",
    "Disk",
    "GroupCheckpoint",
    "Identity",
    "LmdbLog",
    "LmdbState",
    "LostDisk",
    "StorageError",
    "StoreState",
    "create",
    "open",
]
