"""The log: the durable records behind acknowledgements."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from kvstore.config.checks import Durability
from kvstore.storage import checksum, keys
from kvstore.storage.environment import Environment, OnFailure, Puts, Transaction
from kvstore.storage.errors import StorageError
from kvstore.storage.identity import Identity
from kvstore.storage.keys import LOG_BASES, LOG_DATABASES, LOG_ROWS
from kvstore.storage.records import decode, encode, payload_bytes
from multicast.durable import Durable, Record
from multicast.errors import InvariantBroken
from multicast.types import GroupId

FOLD_BYTES: Final = 4 << 20
"""Rows of a group beyond this, and beyond four times the size of its base, are folded into a new base."""

ROW_BYTES: Final = 512
"""The least that a row counts for: many small rows take long to load."""

SLICE: Final = 200
"""Folded rows that one commit deletes."""

AT_ONCE_BYTES: Final[Mapping[Durability, int]] = {"fsync": 4 << 10, "os": 64 << 10}
"""The largest commit that the loop makes, if it may wait. A small commit gains nothing from the thread, which
costs as much as the commit itself; a large one does, while the disk syncs."""

COMMIT_BYTES: Final = 4 << 20
"""Bytes of payloads that end a commit."""

SLOW_S: Final = 0.02
PATIENCE_S: Final = 1.0
"""After a commit in the loop that takes SLOW_S, the thread makes all commits for PATIENCE_S."""


@dataclass(slots=True)
class _Rows:
    """The rows of a group: what they amount to, and their size."""

    fold: Durable = field(default_factory=Durable)
    base_bytes: int = 0
    row_bytes: int = 0
    """Of the rows after the base, each at least `ROW_BYTES`."""
    last: int = 0
    """The number of the last row, or of the base if none follows it."""


def log_seed(key: bytes, previous: int) -> int:
    """Return the seed of a row's checksum, which stands for the number of the row before it too.

    So a row that is missing is noticed, unless it was the last.
    """
    return zlib.crc32(keys.NUMBER.pack(previous), checksum.seed_of(LOG_ROWS, key))


class LmdbLog:
    """The log of all groups of a node. See `kvstore.node.ports.Log`.

    One commit writes one row for a group. Now and then the rows of a group are folded into an equivalent one,
    its base, so that the log grows with the messages in flight, not with all that were ever delivered. A base
    is written at once, which stalls the loop for some ten milliseconds per megabyte in flight. The rows that
    it replaces are deleted in slices.
    """

    def __init__(
        self, path: Path, identity: Identity, on_durable: Callable[[int], None], on_failure: OnFailure
    ) -> None:
        self._env = Environment(path, LOG_DATABASES, identity, on_failure)
        self._on_durable = on_durable
        self._at_once_bytes = AT_ONCE_BYTES[identity.durability]
        self._slow_until = 0.0
        self._groups: dict[GroupId, _Rows] = {}
        self._gathered: deque[tuple[int, Mapping[GroupId, Sequence[Record]]]] = deque()
        self._loaded: dict[GroupId, Durable] = {}
        """What `load` has read, until the next write."""
        self._folded: dict[GroupId, int] = {}
        """Rows up to this number may be deleted."""
        self._starting = 0
        """Bytes of the commit under way."""
        try:
            self._number = self._started = self.durable = self._last()
        except StorageError:
            self._env.close()
            raise

    def _last(self) -> int:
        """Return the highest number on the disk."""
        highest = 0
        transaction = self._env.read()
        for key, value in transaction.cursor(self._env[LOG_BASES]):
            group = keys.group_of_key(key, f"{self._env.path}, bases")
            seed = checksum.seed_of(LOG_BASES, key)
            number, _ = checksum.unseal_base(value, self._where(group, "base"), seed)
            highest = max(highest, number)
            self._folded[group] = number
        cursor = transaction.cursor(self._env[LOG_ROWS])
        found = cursor.first()
        while found:
            group = keys.group_of_key(cursor.key(), f"{self._env.path}, rows")
            found = cursor.set_range(keys.row_key(GroupId(group + 1), 0))
            if cursor.prev() if found else cursor.last():
                highest = max(highest, keys.number_of_key(cursor.key(), self._where(group, "rows")))
            found = found and cursor.next()
        return highest

    def _where(self, group: GroupId, what: str) -> str:
        return f"{self._env.path}, group {group}, {what}"

    def load(self, group: GroupId) -> Durable:
        """Return what the durable records of a group amount to. They are read once, until the next write."""
        if group not in self._loaded:
            rows = self._load(group)
            self._groups.setdefault(group, rows)
            self._loaded[group] = rows.fold.copy()
        return self._loaded[group]

    def _load(self, group: GroupId) -> _Rows:
        rows = _Rows()
        fold = rows.fold
        base = 0
        where = self._where(group, "base")
        try:
            transaction = self._env.read()
            prefix = keys.group_key(group)
            value = transaction.get(prefix, db=self._env[LOG_BASES])
            if value is not None:
                rows.base_bytes = len(value)
                base, data = checksum.unseal_base(value, where, checksum.seed_of(LOG_BASES, prefix))
                decode(data, fold, where)
            rows.last = base
            cursor = transaction.cursor(self._env[LOG_ROWS])
            found = cursor.set_range(keys.row_key(group, base + 1))
            while found and cursor.key().startswith(prefix):
                key, value = cursor.item()
                number = keys.number_of_key(key, self._where(group, "rows"))
                where = self._where(group, f"row {number}")
                decode(checksum.unseal(value, where, log_seed(key, rows.last)), fold, where)
                rows.last = number
                rows.row_bytes += max(len(value), ROW_BYTES)
                found = cursor.next()
        except InvariantBroken as error:
            raise StorageError(f"{where}: {error}") from error
        return rows

    def write(self, records: Mapping[GroupId, Sequence[Record]]) -> int:
        """Gather a batch, for the next commit that `pump` begins. Return its number."""
        self._env.check()
        self._loaded.clear()
        self._number += 1
        self._gathered.append((self._number, records))
        return self._number

    def pump(self, *, may_wait: bool = False) -> bool:
        """Begin a commit of the gathered batches, if none is under way. Called at the end of each turn.

        If the caller may wait, small commits are made at once. Return whether `durable` has advanced.
        """
        env, before = self._env, self.durable
        while True:
            while self._advance() if may_wait else env.advance():
                pass
            if env.busy:
                return False
            self.durable = self._started
            if self._started == self._number:
                return self.durable > before
            self._start()

    def _advance(self) -> bool:
        began = time.monotonic()
        at_once = self._starting <= self._at_once_bytes and began >= self._slow_until
        more = self._env.advance(at_once=at_once)
        now = time.monotonic()
        if at_once and now - began > SLOW_S:
            self._slow_until = now + PATIENCE_S
        return more

    def _start(self) -> None:
        number, gathered = self._take()
        try:
            rows = [self._row(group, number, records) for group, records in gathered.items()]
        except BaseException as error:  # some groups may have been folded, but none is written
            self._env.fail(error)
            raise
        self._started = number
        self._starting = sum(len(value) for _, _, value in rows)
        self._env.start(partial(self._puts, rows), partial(self._done, number))

    def _take(self) -> tuple[int, dict[GroupId, list[Record]]]:
        """Return the records of the next commit, and the number of its last batch.

        A commit has all gathered batches, but ends behind a large one: the loop writes a commit in one go.
        """
        number, size = self._started, 0
        taken: dict[GroupId, list[Record]] = {}
        while self._gathered and size < COMMIT_BYTES:
            number, records = self._gathered.popleft()
            for group, batch in records.items():
                taken.setdefault(group, []).extend(batch)
                size += payload_bytes(batch)
        return number, taken

    def _row(self, group: GroupId, number: int, records: Sequence[Record]) -> tuple[bytes, bytes, bytes]:
        """Return a database, a key and a value: a row of these records, or a new base."""
        rows = self._groups.get(group)
        if rows is None:
            rows = self._groups[group] = self._load(group)
        data = encode(records, rows.fold)
        rows.row_bytes += max(len(data) + checksum.SEAL_BYTES, ROW_BYTES)
        previous, rows.last = rows.last, number
        if rows.row_bytes <= max(FOLD_BYTES, 4 * rows.base_bytes):
            key = keys.row_key(group, number)
            return LOG_ROWS, key, checksum.seal(data, log_seed(key, previous))
        key = keys.group_key(group)
        seed = checksum.seed_of(LOG_BASES, key)
        base = checksum.seal_base(number, encode(rows.fold.records(), Durable()), seed)
        rows.base_bytes, rows.row_bytes = len(base), 0
        self._folded[group] = number
        return LOG_BASES, key, base

    def _puts(self, rows: Sequence[tuple[bytes, bytes, bytes]], transaction: Transaction) -> Puts:
        for database, key, value in rows:
            transaction.put(key, value, db=self._env[database])
        yield len(rows)
        left = SLICE
        for group, number in list(self._folded.items()):
            last = keys.row_key(group, number)
            with transaction.cursor(self._env[LOG_ROWS]) as cursor:
                found = cursor.set_range(keys.group_key(group))
                while found and left and cursor.key() <= last:
                    cursor.delete()
                    found = bool(cursor.key())
                    left -= 1
            if left:
                del self._folded[group]
        yield SLICE - left

    def _done(self, number: int, whole: bool) -> None:  # noqa: FBT001 - an outcome
        """Report a commit, in the thread. The next `pump` repeats one that did not fit into the map."""
        self._on_durable(number if whole else self.durable)

    @property
    def stalled(self) -> bool:
        """Whether a commit finds no space; it is repeated until there is."""
        return self._env.stalled

    def close(self) -> bool:
        """Write the gathered batches, and close. Waits for the disk. Return whether all are durable."""
        while not self._env.failed:
            self._env.wait()
            try:
                self.pump()
            except StorageError:
                break
            if self._env.stalled:
                break
            if not self._env.busy:
                self.durable = self._number
                break
        return self._env.close()
