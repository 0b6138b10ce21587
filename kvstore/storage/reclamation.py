"""Give free pages back to the file system: LMDB's files do not shrink by themselves.

Done while no process has the disk open, by the process that is about to open it. Each environment's pages in
use are copied to a new file; when that is complete and durable, it takes the place of the old one by its name
alone. So a crash at any moment leaves the old file or the new one, whole, under that name.

A mark says that a copy is being made. If a process finds it, the last one died of the copy or was killed, and
the node starts once with the files as they are. What is left of a copy is removed by every start.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import lmdb

from kvstore.config.private import open_private
from kvstore.storage import meta_page
from kvstore.storage.disk import lock_disk, remove_copies
from kvstore.storage.environment import DATABASES_MAX, Usage, usage_of
from kvstore.storage.errors import StorageError
from kvstore.storage.identity import COPY, LOG, STATE, sync_directory
from kvstore.storage.meta_page import DATA
from kvstore.storage.space import FULL_BYTES, free_bytes

logger = logging.getLogger(__name__)

MARK: Final = "reclaiming"

LEAST: Final = 1 << 20
"""With fewer free bytes a file is left as it is."""


def reclaim(path: Path) -> dict[str, Usage]:
    """Shrink the files of a disk to what is in use. Return what their use was, of those that have shrunk.

    Raises `StorageError`, and leaves a file as it was, if there is no room for its copy, or if it cannot be
    read.
    """
    lock = lock_disk(path)
    mark = path / MARK
    try:
        if mark.exists():
            remove_copies(path)
            mark.unlink()
            raise StorageError(
                f"{path}: the last attempt to reclaim space did not end; it is not repeated now"
            )
        os.close(open_private(mark, os.O_WRONLY | os.O_CREAT))
        sync_directory(path)
        try:
            found = {name: _shrink(path / name) for name in (STATE, LOG)}
        except StorageError:
            mark.unlink()
            raise
        mark.unlink()
        return {name: usage for name, usage in found.items() if usage is not None}
    except OSError as error:
        raise StorageError(f"{path}: cannot reclaim space: {error}") from error
    finally:
        os.close(lock)


def _shrink(path: Path) -> Usage | None:
    """Shrink one environment, if it is there and has something to give back."""
    if not (path / DATA).exists():
        return None  # what the start does about it, it does without us
    if meta_page.missing_bytes(path):
        raise StorageError(f"{path / DATA} was cut short: it is damaged, and left as it is")
    new = path / COPY
    try:
        with _opened(path / DATA) as env:
            usage, entries = _contents(path / DATA, env)
            if usage.free < LEAST:
                return None
            _check_space(path, usage)
            _copy(env, new)
        with _opened(new) as env:
            copied = _contents(new, env)[1]
        _check_same(new, entries, copied)
        _swap(new, path / DATA)
    except (lmdb.Error, OSError) as error:
        new.unlink(missing_ok=True)
        raise StorageError(f"{path / DATA} cannot be copied to reclaim its space: {error}") from error
    except StorageError:
        new.unlink(missing_ok=True)
        raise
    logger.info("%s: %d bytes were given back, %d are in use", path / DATA, usage.free, usage.used)
    return usage


def _opened(file: Path) -> lmdb.Environment:
    return lmdb.open(
        str(file), subdir=False, readonly=True, lock=False, create=False, max_dbs=DATABASES_MAX,
        map_size=max(2 * file.stat().st_size, 1 << 20),
    )  # fmt: skip


def _contents(file: Path, env: lmdb.Environment) -> tuple[Usage, dict[bytes, int]]:
    """Return what of the file is in use, and how many rows each database has."""
    with env.begin() as transaction:
        names = [name for name, _ in transaction.cursor()]
        databases = {name: env.open_db(name, transaction, create=False) for name in names}
        rows = {name: transaction.stat(database)["entries"] for name, database in databases.items()}
        return usage_of(str(file), env, transaction, databases.values()), rows


def _check_space(path: Path, usage: Usage) -> None:
    free, needed = free_bytes(path), usage.used + FULL_BYTES
    if free < needed:
        raise StorageError(
            f"{path / DATA}: to reclaim {usage.free} bytes, {needed} bytes must be free for a copy, and "
            f"{free} are; free some space, or move the disk to a larger file system"
        )


def _check_same(new: Path, entries: dict[bytes, int], copied: dict[bytes, int]) -> None:
    if copied != entries:
        raise StorageError(f"{new} has other rows than the file that it is a copy of; that one stays")


def _copy(env: lmdb.Environment, new: Path) -> None:
    """Copy the pages in use to a new file, durably."""
    file = open_private(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        env.copyfd(file, compact=True)
        os.fsync(file)
    finally:
        os.close(file)


def _swap(new: Path, file: Path) -> None:
    """Let the new file take the place of the old one, durably."""
    sync_directory(file.parent)
    new.replace(file)
    sync_directory(file.parent)
