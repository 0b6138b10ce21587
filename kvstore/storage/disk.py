"""A node's disk as a whole: created once, used by one process at a time."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, overload

from kvstore.config.addresses import NodeId, new_incarnation
from kvstore.config.private import make_private, open_private, tighten
from kvstore.machine.ordered import Table
from kvstore.storage import lives, meta_page
from kvstore.storage.deliveries import LmdbState
from kvstore.storage.environment import OnFailure
from kvstore.storage.errors import DamagedLog, DamagedRow, DamagedState, NotChecked, StorageError
from kvstore.storage.identity import (
    COPY,
    DISK,
    LOCK,
    LOG,
    STATE,
    Identity,
    Left,
    boot_id,
    check_lost,
    check_owner,
    read_disk,
    sync_directory,
    write_disk,
)
from kvstore.storage.keys import DELIVERIES_DATABASES, LOG_DATABASES, STORE_DATABASES
from kvstore.storage.lazy import OnCommitted
from kvstore.storage.log import LmdbLog
from kvstore.storage.renewal import create_environment, finish, set_log_aside
from kvstore.storage.scrub import TableReport, scrub
from kvstore.storage.space import Space
from kvstore.storage.store import StoreState
from multicast.types import GroupId

logger = logging.getLogger(__name__)

REPAIR: Final = "`wbkv repair` says what can be done"
"""What an operator is told beside damage."""

S = TypeVar("S", bound="LmdbState | StoreState")


class Disk(Generic[S]):
    """An open disk of a node, locked by this process."""

    def __init__(self, path: Path, identity: Identity, log: LmdbLog, state: S, lock: int) -> None:
        self.path = path
        self.identity = identity
        self.log = log
        self.state = state
        self.space = Space(path)
        self._lock = lock

    def settle(self) -> None:
        """Note that this process has run for long enough not to have died of its disk."""
        lives.settle(self.path)

    def close(self) -> None:
        """Write what was gathered, and mark the disk as clean, unless it has failed. Waits for the disk.

        No callback is called any more.
        """
        if self._lock < 0:
            return
        try:
            whole = self.log.close()
            if whole:
                self.state.log_durable(self.log.durable)
            whole = self.state.close() and whole
            if whole:
                write_disk(self.path, self.identity, Left(clean=True, boot=boot_id()))
                lives.settle(self.path)
            elif self.state.unreadable:
                lives.suspect(self.path)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a process forked from this one may hold it too
            os.close(self._lock)
            self._lock = -1


def create(path: Path, identity: Identity) -> None:
    """Create a disk in this directory, which may exist, but must not contain one."""
    try:
        make_private(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be created: {error.strerror}") from error
    for name in (DISK, LOG, STATE):
        if (path / name).exists():
            raise StorageError(f"{path} contains a disk already, or remains of one: {name}")
    lock = lock_disk(path)
    try:
        state = STORE_DATABASES if identity.keeps == "store" else DELIVERIES_DATABASES
        for name, databases in ((LOG, LOG_DATABASES), (STATE, state)):
            create_environment(path / name, databases, identity)
        write_disk(path, identity, Left())
        sync_directory(path.parent)
    finally:
        os.close(lock)


def check(path: Path) -> dict[str, list[TableReport] | StorageError]:
    """Check all rows of a disk that no process uses. Return what was found in its log and in its state."""
    lock = lock_disk(path)
    try:
        read_disk(path)
        return {name: _checked(path / name) for name in (LOG, STATE)}
    finally:
        os.close(lock)


def begun(path: Path) -> Mapping[GroupId, int]:
    """Return how often the replicas of groups have begun anew on a disk."""
    return read_disk(path)[0].begun


def _checked(path: Path) -> list[TableReport] | StorageError:
    try:
        missing = meta_page.missing_bytes(path)
        size = (path / meta_page.DATA).stat().st_size
        if not missing:
            return scrub(path)
        meta_page.extend(path)
        try:
            return scrub(path)
        finally:
            os.truncate(path / meta_page.DATA, size)
    except StorageError as error:
        return error


def replace_state(path: Path) -> Path:
    """Give a disk an empty state, in place of a damaged one. Return where the old one is kept.

    The log stays: by it the replicas know what they have reported as executed, and they take part in nothing
    before other members have restored that much.
    """
    lock = lock_disk(path)
    try:
        identity, _ = read_disk(path)
        kept = path / f"{STATE}.damaged-{new_incarnation():x}"
        if (path / STATE).exists():
            (path / STATE).rename(kept)
        databases = STORE_DATABASES if identity.keeps == "store" else DELIVERIES_DATABASES
        create_environment(path / STATE, databases, identity)
        sync_directory(path)
    except OSError as error:
        raise StorageError(f"{path / STATE} cannot be replaced: {error.strerror}") from error
    finally:
        os.close(lock)
    return kept


def renew(path: Path, groups: Iterable[GroupId], *, readable: bool) -> Path:
    """Set the log aside, and let the replicas of these groups begin anew: see `renewal.set_log_aside`."""
    lock = lock_disk(path)
    try:
        return set_log_aside(path, groups, readable=readable)
    finally:
        os.close(lock)


@overload
def open(  # noqa: A001 - read as `storage.open`
    path: Path,
    cluster: str,
    node: NodeId,
    *,
    on_durable: Callable[[int], None],
    on_committed: OnCommitted,
    on_failure: OnFailure,
) -> Disk[LmdbState]: ...
@overload
def open(  # noqa: A001 - read as `storage.open`
    path: Path,
    cluster: str,
    node: NodeId,
    *,
    tables: Mapping[str, Table[Any, Any]],
    on_durable: Callable[[int], None],
    on_committed: OnCommitted,
    on_failure: OnFailure,
) -> Disk[StoreState]: ...
def open(  # noqa: A001 - read as `storage.open`
    path: Path,
    cluster: str,
    node: NodeId,
    *,
    tables: Mapping[str, Table[Any, Any]] | None = None,
    on_durable: Callable[[int], None],
    on_committed: OnCommitted,
    on_failure: OnFailure,
) -> Disk[LmdbState] | Disk[StoreState]:
    """Open a node's disk: with tables, a store's; without, one for bare multicast.

    `on_durable` gets the number of the log's last durable batch, maybe the same one again. `on_committed`
    gets the executed positions of a commit of the state. `on_failure` gets the error of the log or of the
    state, once each. They may be called from any thread.

    Raises `LostDisk` if durable records may be lost, `DamagedLog` if records are damaged, `DamagedState` if
    only the state cannot be used, and `StorageError` if the disk is another node's, is in use, or cannot be
    read.
    """
    if not path.is_dir():
        raise StorageError(f"{path} has no disk: no such directory")
    lock = lock_disk(path)
    tighten(path, path.rglob("*"))
    opened: list[LmdbLog | LmdbState | StoreState] = []
    try:
        identity, left = read_disk(path)
        boot = boot_id()
        check_owner(path, identity, cluster, node, "deliveries" if tables is None else "store")
        check_lost(path, identity, left, boot)
        deaths = lives.begin(path)
        finish(path)
        remove_copies(path)
        _check_file(path / LOG, DamagedLog)
        _check_file(path / STATE, DamagedState)
        if lives.is_check_due(deaths):
            _check_pages(path / LOG, StorageError, deaths)
            _check_pages(path / STATE, DamagedState, deaths)
        try:
            opened.append(log := LmdbLog(path / LOG, identity, on_durable, on_failure))
        except DamagedRow as error:
            raise DamagedLog(f"{error}; {REPAIR}") from error
        _check_log(log)
        disk: Disk[LmdbState] | Disk[StoreState]
        try:
            if tables is None:
                opened.append(plain := LmdbState(path / STATE, identity, on_committed, on_failure))
                disk = Disk(path, identity, log, plain, lock)
            else:
                opened.append(store := StoreState(path / STATE, identity, on_committed, on_failure, tables))
                disk = Disk(path, identity, log, store, lock)
        except DamagedRow as error:
            raise DamagedState(f"{error}; {REPAIR}") from error
        write_disk(path, identity, Left(clean=False, boot=boot))
    except BaseException:
        for each in opened:
            each.close()
        os.close(lock)
        raise
    return disk


def _check_log(log: LmdbLog) -> None:
    """Reject a log that has damaged records."""
    if log.damaged:
        raise DamagedLog(f"{'; '.join(log.damaged.values())}; {REPAIR}", dict(log.damaged))


def _check_file(path: Path, error: type[StorageError]) -> None:
    """Reject an environment whose file was cut short.

    A sound file may lack pages that nothing refers to (`meta_page.missing_bytes`), so all rows are checked.
    """
    try:
        missing = meta_page.missing_bytes(path)
    except StorageError as damage:
        if isinstance(damage.__cause__, OSError):
            raise  # that it cannot be read now does not mean that it is damaged
        raise error(f"{damage}; {REPAIR}") from damage
    if not missing:
        return
    size = (path / meta_page.DATA).stat().st_size
    meta_page.extend(path)
    try:
        problems = [str(finding) for report in scrub(path) for finding in report.findings]
    except NotChecked:
        os.truncate(path / meta_page.DATA, size)
        raise
    except StorageError as damage:
        problems = [str(damage)]
    if problems:
        os.truncate(path / meta_page.DATA, size)  # the next start finds the same
        raise error(
            f"{path / meta_page.DATA} was truncated: {missing} bytes are missing at its end ({problems[0]}); "
            f"{REPAIR}"
        )


def _check_pages(path: Path, error: type[StorageError], deaths: int) -> None:
    """Reject an environment that LMDB cannot read, before it ends this process, too.

    A row with a wrong checksum is not rejected here: the replica of its group steps aside when it is read.
    What kills nodes may kill the check, too (an operator, a machine without memory): that proves nothing.
    """
    logger.warning("%s: its node has died %d times in a row; all its pages are checked", path, deaths)
    try:
        problems = [str(each) for report in scrub(path) for each in report.findings if each.group is None]
    except NotChecked as reason:
        logger.warning("%s; its node starts all the same", reason)
        return
    except StorageError as damage:
        problems = [str(damage)]
    if problems:
        raise error(f"{path} cannot be read safely: {problems[0]}; {REPAIR}")


def remove_copies(path: Path) -> None:
    """Remove what is left of copies that were not finished."""
    for name in (LOG, STATE):
        (path / name / COPY).unlink(missing_ok=True)


def lock_disk(path: Path) -> int:
    """Lock the disk against other processes, until this one closes the file or ends."""
    file = path / LOCK
    try:
        lock = open_private(file, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise StorageError(f"{file} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        owner = os.pread(lock, 20, 0).decode(errors="replace") or "unknown"
        os.close(lock)
        raise StorageError(f"{path} is in use by process {owner}") from None
    except OSError as error:
        os.close(lock)
        raise StorageError(f"{file} cannot be locked: {error.strerror}") from error
    return lock
