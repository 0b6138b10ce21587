"""Check all rows of an environment that no process uses: checksums, order, and that none is missing.

What is not noticed: rows that are older than they should be, with all that belongs to them (a disk that did
not write what it said it had written), and a log that lacks its last rows.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import traceback
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import lmdb
import msgspec

from kvstore.storage import checksum, keys
from kvstore.storage.environment import DATABASES_MAX, Transaction
from kvstore.storage.errors import DamagedRow, NotChecked, StorageError
from kvstore.storage.keys import LOG_BASES, LOG_ROWS, STORE_NODES
from kvstore.storage.log import log_seed
from kvstore.storage.rows import HEAD
from multicast.types import GroupId

Handles: TypeAlias = Mapping[bytes, Any]
"""LMDB's databases, by their names."""

FINDINGS_MAX: Final = 20
"""Bad rows that are named of one table; more are counted."""


UNREADABLE: Final = 3
"""The exit status of a check that has failed because of what it read."""

_DIED: Final = frozenset(
    -number for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
)
"""How a process ends that LMDB, or damaged pages, have ended."""

_NOT_PAGES: Final = (MemoryError, lmdb.DiskError, lmdb.LockError, lmdb.MemoryError)
"""Errors of the machine, or of the operating system."""


class Finding(NamedTuple):
    """A row that is wrong, or rows that are missing."""

    database: str
    group: GroupId | None
    """None if it is unknown, or concerns all groups."""
    problem: str

    def __str__(self) -> str:
        return f"{self.database}{'' if self.group is None else f', group {self.group}'}: {self.problem}"


class TableReport(NamedTuple):
    """What the check of one table found."""

    database: str
    rows: dict[GroupId, int]
    """The number of sound rows of each group."""
    findings: list[Finding]
    bad: int
    """The number of findings, also of those that are not named."""


def scrub(path: Path) -> list[TableReport]:
    """Check all tables of the environment in this directory. Raises `StorageError` if it cannot be read, and
    `NotChecked` if that is not known.

    Its file must be as long as its meta page says: see `meta_page`. Another process does this, since LMDB may
    abort a process that reads damaged pages.
    """
    arguments = [sys.executable, "-m", __name__, str(path)]
    found = subprocess.run(arguments, capture_output=True, check=False)  # noqa: S603 - our own module
    if found.returncode == 0:
        try:
            return msgspec.json.decode(found.stdout, type=list[TableReport])
        except msgspec.MsgspecError as error:
            raise NotChecked(f"{path} cannot be checked: {error}") from error
    lines = found.stderr.decode(errors="replace").strip().splitlines()
    reason = lines[-1] if lines else f"exit status {found.returncode}"
    if found.returncode == UNREADABLE or found.returncode in _DIED:
        raise StorageError(f"{path} cannot be read: {reason}")
    raise NotChecked(f"{path} cannot be checked: {reason}")


def main(path: Path) -> int:
    """Check an environment, and write the reports as JSON."""
    try:
        reports = msgspec.json.encode(list(walk(path)))
    except _NOT_PAGES as error:
        sys.stderr.write(f"{error!r}\n")
        return 1
    except StorageError as error:
        sys.stderr.write(f"{error}\n")
        return 1 if isinstance(error.__cause__, _NOT_PAGES) else UNREADABLE
    except Exception:  # noqa: BLE001 - of what it has read, be it what it may
        traceback.print_exc()
        return UNREADABLE
    sys.stdout.buffer.write(reports)
    return 0


def walk(path: Path) -> Iterator[TableReport]:
    """Check all tables in this process."""
    try:
        with lmdb.open(str(path), max_dbs=DATABASES_MAX, lock=False, readonly=True, create=False) as env:
            with env.begin() as transaction:
                names = list(transaction.cursor().iternext(values=False))
            databases = {name: env.open_db(name, create=False) for name in names}
            with env.begin() as transaction:
                yield from _scrub(transaction, databases)
    except lmdb.Error as error:
        raise StorageError(f"{path} cannot be read: {error}") from error


def _scrub(transaction: Transaction, databases: Handles) -> Iterator[TableReport]:
    for name in databases:
        if name == STORE_NODES:
            continue  # its rows belong to tables
        walk = _Walk(transaction, databases, name)
        walk.check()
        yield TableReport(walk.name, walk.rows, walk.findings, walk.bad)


class _Walk:
    """The check of one database."""

    def __init__(self, transaction: Transaction, databases: Handles, database: bytes) -> None:
        self._transaction = transaction
        self._databases = databases
        self._database = database
        self.name = database.decode()
        self.rows: dict[GroupId, int] = {}
        self.findings: list[Finding] = []
        self.bad = 0
        self._bases: dict[bytes, int] = {}
        self._previous: dict[bytes, int] = {}
        """Of the log: the number of its base, and of the last row, by the group's key."""

    def note(self, group: GroupId | None, problem: str) -> None:
        """Note a finding."""
        self.bad += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(self.name, group, problem))

    def check(self) -> None:
        """Check all rows, and that there are as many as LMDB has counted."""
        database = self._database
        count, last = 0, b""
        try:
            for key, value in self._transaction.cursor(self._databases[database]):
                count += 1
                if count > 1 and key <= last:
                    self.note(None, f"{key.hex()} comes after {last.hex()}")
                last = key
                self._check_row(key, value)
            entries = self._transaction.stat(self._databases[database])["entries"]
            if entries != count:
                self.note(None, f"it has {count} rows, but LMDB has counted {entries}")
        except lmdb.Error as error:
            self.note(None, f"its pages are damaged after {last.hex()}: {error}")

    def _check_row(self, key: bytes, value: bytes) -> None:
        group: GroupId | None = None
        try:
            if self._database in (keys.META, keys.LOG_STAGED):
                checksum.unseal(value, key.decode(errors="replace"), checksum.seed_of(self._database, key))
                return
            group = keys.group_of_key(key, "a row")
            if self._database.startswith(b"table ") and len(key) == 2 + HEAD + 1:
                self._check_node(group, self._database, key, value, key[2:-1])
                return
            if self._database == LOG_ROWS:
                self._check_log_row(key, value)
            else:
                checksum.unseal(value, key[2:].hex(), checksum.seed_of(self._database, key))
        except DamagedRow as error:
            self.note(group, str(error))
        else:
            self.rows[group] = self.rows.get(group, 0) + 1

    def _check_log_row(self, key: bytes, value: bytes) -> None:
        """Check a row of the log, unless a base has replaced it."""
        group = key[:2]
        number = keys.number_of_key(key, "a row")
        if group not in self._bases:
            base = self._transaction.get(group, db=self._databases[LOG_BASES])
            self._bases[group] = self._previous[group] = int.from_bytes((base or b"")[4:12], "big")
        if number > self._bases[group]:
            previous, self._previous[group] = self._previous[group], number
            checksum.unseal(value, f"row {number}", log_seed(key, previous))

    def _check_node(self, group: GroupId, database: bytes, row: bytes, value: bytes, before: bytes) -> None:
        """Check the rows of long keys, which are in a node."""
        node = checksum.unseal_node(value, f"{row.hex()}", checksum.seed_of(database, row))
        seed = checksum.seed_of(self._database, keys.group_key(group))
        cursor = self._transaction.cursor(self._databases[STORE_NODES])
        found, count = cursor.set_range(node), 0
        while found and cursor.key().startswith(node):
            count += 1
            key, stored = cursor.item()
            rest = key[len(node) :]
            if len(rest) == HEAD + 1:
                self._check_node(group, STORE_NODES, key, stored, before + rest[:-1])
            else:
                full = before + rest
                checksum.unseal(stored, full.hex(), zlib.crc32(full, seed))
                self.rows[group] = self.rows.get(group, 0) + 1
            found = cursor.next()
        if not count:
            raise DamagedRow(f"{row.hex()}: the rows of its long keys are missing")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
