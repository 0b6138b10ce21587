"""Set a damaged log aside, so that the replicas whose promises it has lost can begin anew.

A replica that lacks promises is not the same replica any more (departure 20): it gets another incarnation,
begins with an empty log, and takes part when its group has admitted it in place of the former one. The
replicas of other groups keep their logs, their promises and their incarnations.

The old log is never deleted. It is kept beside the new one, as it was, with the `disk.json` of that time.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import lmdb

from kvstore.config.addresses import new_incarnation
from kvstore.storage import checksum, keys
from kvstore.storage.environment import open_environment
from kvstore.storage.errors import StorageError
from kvstore.storage.identity import DISK, LOG, Identity, read_disk, sync_directory, write_disk
from kvstore.storage.keys import INCARNATION, LOG_BASES, LOG_DATABASES, META
from kvstore.storage.log import LmdbLog
from multicast.types import BEGUN_MAX, GroupId

NEXT: Final = "log.new"
"""The new log, until it takes the place of the old one."""

DAMAGED: Final = f"{LOG}.damaged-"
"""How the names of logs that were set aside begin."""


def create_environment(path: Path, databases: Iterable[bytes], identity: Identity) -> None:
    """Create an empty environment of a disk, durably."""
    _create(path, databases, identity, ())
    sync_directory(path)


def _create(
    path: Path, databases: Iterable[bytes], identity: Identity, bases: Sequence[tuple[bytes, bytes]]
) -> None:
    env = open_environment(path, "fsync", create=True)
    try:
        # The bases have payloads whole that were staged in the old log, each group's its own.
        env.set_mapsize(env.info()["map_size"] + 2 * sum([len(value) for _, value in bases]))
        with env.begin(write=True) as transaction:  # a single one, since each waits for the disk
            made = {name: env.open_db(name, transaction) for name in databases}
            value = checksum.seal_number(identity.incarnation, checksum.seed_of(META, INCARNATION))
            transaction.put(INCARNATION, value, db=made[META])
            if LOG_BASES in made:
                for group, times in identity.begun.items():
                    key = keys.begun_key(group)
                    value = checksum.seal_number(times, checksum.seed_of(META, key))
                    transaction.put(key, value, db=made[META])
                for key, value in bases:
                    transaction.put(key, value, db=made[LOG_BASES])
    except lmdb.Error as error:
        raise StorageError(f"{path} cannot be created: {error}") from error
    finally:
        env.close()


def set_log_aside(path: Path, groups: Iterable[GroupId], *, readable: bool) -> Path:
    """Give the replicas of these groups, and of all others whose records are damaged, another incarnation
    and an empty log. Return where the old log is kept. Unless it is `readable`, these are all groups.

    The caller has locked the disk. A crash leaves the old log, or the new one; or the new incarnations with
    the old log, whose records then count as damaged, since they are not of these incarnations.
    """
    identity, left = read_disk(path)
    bad = set(groups)
    shutil.rmtree(path / NEXT, ignore_errors=True)
    bases: list[tuple[bytes, bytes]] = []
    if readable:
        log = LmdbLog(path / LOG, identity, _nothing, _nothing)
        try:
            bad |= log.damaged.keys()
            log.damaged.update(dict.fromkeys(bad, "set aside"))
            bases = list(log.bases())
        finally:
            log.close()
    begun = dict(identity.begun) | {group: identity.begun.get(group, 0) + 1 for group in bad}
    if max(begun.values(), default=0) > BEGUN_MAX:
        raise StorageError(f"{path}: a replica has begun anew {BEGUN_MAX} times; the node needs a new disk")
    renewed = dataclasses.replace(identity, begun=begun)
    kept = path / f"{DAMAGED}{new_incarnation():x}"
    try:
        _create(path / NEXT, LOG_DATABASES, renewed, bases)
        sync_directory(path / NEXT)
        shutil.copy2(path / DISK, path / LOG / DISK)
        write_disk(path, renewed, left)
        (path / LOG).rename(kept)
        (path / NEXT).rename(path / LOG)
        sync_directory(path)
    except OSError as error:
        raise StorageError(f"{path / LOG} cannot be set aside: {error.strerror}") from error
    return kept


def finish(path: Path) -> None:
    """Put the new log in its place, if a crash came when only the old one had been set aside."""
    if (path / NEXT).is_dir() and not (path / LOG).exists() and list(path.glob(f"{DAMAGED}*")):
        os.rename(path / NEXT, path / LOG)
        sync_directory(path)


def kept_logs(path: Path) -> list[Path]:
    """Return the logs of this disk that were set aside."""
    return sorted(path.glob(f"{DAMAGED}*"))


def _nothing(*_: object) -> None:
    """No commit is made, so there is nothing to report."""
