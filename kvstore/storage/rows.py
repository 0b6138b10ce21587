"""Rows of bytes in the order of their keys: a map's data below its layers.

LMDB limits keys to 511 bytes; a store's keys may be longer. The row of a long key has the first `HEAD` bytes
of the key and a mark as its key, and the number of a *node* as its value. The rest of the key is a row of
that node, in another database, and so on. So keys stay in order however long a prefix they share, and short
keys cost nothing more: no short key has the length of a marked one.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from operator import gt, lt
from typing import Final, Protocol, TypeAlias

import lmdb

from kvstore.machine.ordered import Marks, marks_of
from kvstore.storage import checksum, keys
from kvstore.storage.environment import Environment, Puts, Transaction
from kvstore.storage.errors import DamagedRow, StorageError
from kvstore.storage.keys import STORE_NODES
from multicast.types import GroupId

HEAD: Final = 480
MARK: Final = b"\0"
CHUNK_BYTES: Final = 256 << 10
"""Values that are read at once: several rows only up to this."""
CHUNK_FIRST: Final = 16
CHUNK_MAX: Final = 1024
"""Number of rows that are read at once: few at first, since most ranges are short."""

Pair: TypeAlias = tuple[bytes, bytes]
"""A key and its value as stored, with the checksum."""


class Rows(Protocol):
    """Rows below the layers of a map."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, if it has one."""

    def chunk(
        self, start: bytes, end: bytes | None, count: int, *, reverse: bool = False
    ) -> tuple[Sequence[Pair], bool]:
        """Return the first rows of a range, or the last in reverse, and whether there may be more."""

    def marks(self, start: bytes, end: bytes | None, every: int, most: int) -> Marks[bytes]:
        """Return every `every`-th of the first keys of a range."""


def chunks(rows: Rows, start: bytes, end: bytes | None, *, reverse: bool = False) -> Iterator[Sequence[Pair]]:
    """Yield a range in chunks. No transaction or cursor is held between two of them."""
    count, more = CHUNK_FIRST, True
    while more:
        found, more = rows.chunk(start, end, count, reverse=reverse)
        if found:
            yield found
            last = found[-1][0]
            if reverse:
                end = last
            else:
                start = last + b"\0"
        count = min(4 * count, CHUNK_MAX)


class LmdbRows:
    """The rows of one table and one group, in LMDB."""

    __slots__ = ("_database", "_env", "_handle", "_prefix", "_table_seed", "_where")

    def __init__(self, env: Environment, database: bytes, group: GroupId) -> None:
        self._env = env
        self._database = database
        self._handle = env[database]
        self._prefix = keys.group_key(group)
        self._table_seed = checksum.seed_of(database, b"")
        self._where = f"{env.path}, group {group}, {database.decode()}"

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, if it has one. Raises `DamagedRow` if it is missing beside bad rows."""
        try:
            transaction = self._env.read()
            if len(key) <= HEAD:
                row = self._prefix + key
                value = transaction.get(row, db=self._handle)
                if value is None:
                    self._check_beside(transaction, row)
                return value
            *_, (database, row) = self._path(transaction, key)
            return transaction.get(row, db=self._env[database])
        except lmdb.Error as error:
            raise self._broken(error) from error

    def _broken(self, error: lmdb.Error) -> StorageError:
        """Return what an error of LMDB means: that its pages are damaged, unless the disk is closed."""
        self._env.check()
        return DamagedRow(f"{self._where}: {error}")

    def _check_beside(self, transaction: Transaction, row: bytes) -> None:
        """Raise `DamagedRow` unless the rows beside a missing one are sound, and in order.

        LMDB searches a page by halves. A search that a single changed key misleads, be it the key of the row
        itself or any other, ends beside that key. A search that is misled between pages ends where the rows
        on both sides are not in order.
        """
        cursor = transaction.cursor(self._handle)
        found = cursor.set_range(row)
        if found:
            key, value = cursor.item()
            self._check_neighbour(key, value)
            if key <= row:
                raise DamagedRow(f"{self._where}: {key.hex()} comes after {row.hex()}")
        if cursor.prev() if found else cursor.last():
            key, value = cursor.item()
            self._check_neighbour(key, value)
            if key >= row:
                raise DamagedRow(f"{self._where}: {key.hex()} comes before {row.hex()}")

    def _check_outside(self, cursor: lmdb.Cursor[bytes], bound: bytes, *, reverse: bool) -> None:
        """Raise `DamagedRow` unless the row before the first of a range is sound, and outside the range."""
        key, value = cursor.item()
        self._check_neighbour(key, value)
        if key < bound if reverse else key >= bound:
            raise DamagedRow(f"{self._where}: {key.hex()} is on the wrong side of {bound.hex()}")

    def _check_neighbour(self, row: bytes, value: bytes) -> None:
        cut = len(self._prefix)
        if zlib.crc32(value[4:], zlib.crc32(row, self._table_seed)) != int.from_bytes(value[:4], "big"):
            raise DamagedRow(f"{self._where}: the checksum of the row {row[cut:].hex()} is wrong")

    def _path(self, transaction: Transaction, key: bytes, *, make: bool = False) -> list[tuple[bytes, bytes]]:
        """Return databases and keys of the rows that lead to a key; the last is the key's own.

        Without `make`, the path ends at the row of the first missing node.
        """
        database, prefix = self._database, self._prefix
        path = []
        made = 0
        while len(key) > HEAD:
            row = prefix + key[:HEAD] + MARK
            path.append((database, row))
            node = transaction.get(row, db=self._env[database])
            if node is None:
                if not make:
                    return path
                made = max(made + 1, self._new_node(transaction))
                node = checksum.seal_number(made, checksum.seed_of(database, row))
                transaction.put(row, node, db=self._env[database])
            database, prefix, key = STORE_NODES, self._node(node, database, row), key[HEAD:]
        path.append((database, prefix + key))
        return path

    def _node(self, value: bytes, database: bytes, row: bytes) -> bytes:
        return checksum.unseal_node(value, self._where, checksum.seed_of(database, row))

    def _new_node(self, transaction: Transaction) -> int:
        """Return a free number: above the last, since every node has rows, except those being made."""
        with transaction.cursor(self._env[STORE_NODES]) as cursor:
            return keys.number_of_node(cursor.key()) + 1 if cursor.last() else 1

    def put(self, transaction: Transaction, pairs: Sequence[Pair]) -> None:
        """Put rows, replacing those of the same keys."""
        short = [(self._prefix + key, value) for key, value in pairs if len(key) <= HEAD]
        if short:
            with transaction.cursor(self._env[self._database]) as cursor:
                cursor.putmulti(short)
        if len(short) < len(pairs):
            for key, value in pairs:
                if len(key) > HEAD:
                    *_, (database, row) = self._path(transaction, key, make=True)
                    transaction.put(row, value, db=self._env[database])

    def delete(self, transaction: Transaction, key: bytes) -> None:
        """Delete a row, if it exists, and the nodes that it leaves empty."""
        path = self._path(transaction, key)
        database, row = path.pop()
        transaction.delete(row, db=self._env[database])
        while path:
            node = row[: keys.NODE_BYTES]
            with transaction.cursor(self._env[STORE_NODES]) as cursor:
                if cursor.set_range(node) and cursor.key().startswith(node):
                    return
            database, row = path.pop()
            transaction.delete(row, db=self._env[database])

    def clear(self, transaction: Transaction) -> Puts:
        """Delete all rows, although some may be damaged.

        A search cannot be relied on, so this looks at all rows of the table, also those of other groups. Rows
        of long keys that damage has cut off stay, and are never found.
        """
        marked = len(self._prefix) + HEAD + 1
        with transaction.cursor(self._handle) as cursor:
            found = cursor.first()
            while found:
                key, value = cursor.item()
                if not key.startswith(self._prefix):
                    found = cursor.next()
                else:
                    if len(key) == marked:
                        self._clear_node(transaction, self._database, key, value)
                    found = cursor.delete()
                yield 1

    def _clear_node(self, transaction: Transaction, database: bytes, row: bytes, value: bytes) -> None:
        try:
            node = self._node(value, database, row)
        except DamagedRow:
            return
        with transaction.cursor(self._env[STORE_NODES]) as cursor:
            found = cursor.set_range(node)
            while found and cursor.key().startswith(node):
                key, value = cursor.item()
                if len(key) == len(node) + HEAD + 1:
                    self._clear_node(transaction, STORE_NODES, key, value)
                    found = cursor.set_range(key)
                found = found and cursor.delete()

    def chunk(
        self, start: bytes, end: bytes | None, count: int, *, reverse: bool = False
    ) -> tuple[Sequence[Pair], bool]:
        """Return the first rows of a range, or the last in reverse, and whether there may be more."""
        found: list[Pair] = []
        node = self._database, self._prefix, b""
        try:
            more = self._collect(self._env.read(), node, start, end, count, found, reverse=reverse)
        except lmdb.Error as error:
            raise self._broken(error) from error
        order = [key for key, _ in found]
        if not all(map(gt if reverse else lt, order, islice(order, 1, None))):
            raise DamagedRow(f"{self._where}: the rows from {order[0].hex()} on are not in order")
        return found, more

    def marks(self, start: bytes, end: bytes | None, every: int, most: int) -> Marks[bytes]:
        """Return every `every`-th of the first keys of a range. Long keys with one head count as one."""
        low = _bound(self._prefix, start)
        high = self._end() if end is None else _bound(self._prefix, end)
        cursor = self._env.read().cursor(self._handle)
        found = cursor.iternext(values=False) if cursor.set_range(low) else iter(())
        marks = marks_of(takewhile(high.__gt__, found), every, most)
        cut = len(self._prefix)
        heads = tuple(key[cut : cut + HEAD] for key in marks.keys)
        return Marks(heads, marks.rest, None if marks.last is None else marks.last[cut:])

    def _end(self) -> bytes:
        return (int.from_bytes(self._prefix, "big") + 1).to_bytes(len(self._prefix), "big")

    def first(self, transaction: Transaction, count: int) -> list[Pair]:
        """Return the first rows, as the transaction sees them."""
        found: list[Pair] = []
        self._collect(
            transaction, (self._database, self._prefix, b""), b"", None, count, found, reverse=False
        )
        return found

    def _collect(
        self,
        transaction: Transaction,
        node: tuple[bytes, bytes, bytes],
        start: bytes,
        end: bytes | None,
        count: int,
        found: list[Pair],
        *,
        reverse: bool,
    ) -> bool:
        """Add rows of a node (database, prefix of its rows, head of its keys) until there are enough. Return
        whether there were.
        """
        database, prefix, before = node
        cursor = transaction.cursor(self._env[database])
        low = _bound(prefix, start)
        if end is None:
            high = (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
        else:
            high = _bound(prefix, end) + (b"\0" if len(end) > HEAD else b"")  # a mark may hide some below it
        checked = database == self._database
        beyond = cursor.set_range(high if reverse else low)
        if reverse:
            if checked and beyond:
                self._check_outside(cursor, high, reverse=True)
            rows = cursor.iterprev() if (cursor.prev() if beyond else cursor.last()) else iter(())
        else:
            if checked and (cursor.prev() if beyond else cursor.last()):
                self._check_outside(cursor, low, reverse=False)
                beyond = cursor.next()
            elif checked and beyond:
                cursor.first()
            rows = cursor.iternext() if beyond else iter(())
        cut, marked, size = len(prefix), len(prefix) + HEAD + 1, 0
        for key, value in rows:
            if key < low if reverse else key >= high:
                if checked:
                    self._check_neighbour(key, value)  # a key that has changed must not end the range
                break
            if len(key) != marked:
                found.append((before + key[cut:], value))
                size += len(value)
            else:
                full = self._collect(
                    transaction,
                    (STORE_NODES, self._node(value, database, key), before + key[cut:-1]),
                    start[HEAD:] if len(start) > HEAD and key == low else b"",
                    end[HEAD:] if end is not None and len(end) > HEAD and key == high[:-1] else None,
                    count,
                    found,
                    reverse=reverse,
                )
                if full:
                    return True
            if len(found) >= count or size >= CHUNK_BYTES:
                return True
        return False


def _bound(prefix: bytes, key: bytes) -> bytes:
    """Return the row of a key, or the mark that leads to it."""
    return prefix + key if len(key) <= HEAD else prefix + key[:HEAD] + MARK


class MemoryRows:
    """Immutable rows in memory: those of a snapshot that is not yet committed."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: list[bytes], values: list[bytes]) -> None:
        self.keys = keys
        """Sorted."""
        self.values = values

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, if it has one."""
        at = bisect_left(self.keys, key)
        return self.values[at] if at < len(self.keys) and self.keys[at] == key else None

    def chunk(
        self, start: bytes, end: bytes | None, count: int, *, reverse: bool = False
    ) -> tuple[Sequence[Pair], bool]:
        """Return the first rows of a range, or the last in reverse, and whether there may be more."""
        low, high = self._between(start, end)
        part = slice(max(low, high - count), high) if reverse else slice(low, min(low + count, high))
        found = list(zip(self.keys[part], self.values[part], strict=True))
        if reverse:
            found.reverse()
        return found, high - low > count

    def marks(self, start: bytes, end: bytes | None, every: int, most: int) -> Marks[bytes]:
        """Return every `every`-th of the first keys of a range."""
        low, high = self._between(start, end)
        return marks_of(islice(self.keys, low, high), every, most)

    def _between(self, start: bytes, end: bytes | None) -> tuple[int, int]:
        low = bisect_left(self.keys, start)
        return low, len(self.keys) if end is None else max(low, bisect_left(self.keys, end))
