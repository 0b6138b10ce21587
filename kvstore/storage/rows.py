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
from typing import Final, NamedTuple, Protocol, TypeAlias

import lmdb

from kvstore.machine.ordered import Marks, marks_of
from kvstore.storage import checksum, keys
from kvstore.storage.environment import Environment, Puts, Transaction
from kvstore.storage.errors import DamagedRow, StorageError
from kvstore.storage.keys import STORE_NODES
from multicast.types import GroupId

HEAD: Final = 480
MARK: Final = b"\0"
_BEYOND: Final = b"\xff" * 512
"""Above the key of every row."""
CHUNK_BYTES: Final = 256 << 10
"""Values that are read at once: several rows only up to this."""
CHUNK_FIRST: Final = 16
CHUNK_MAX: Final = 128
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


class _Node(NamedTuple):
    """A part of a table whose rows begin alike: all rows of a group, or long keys that share a head."""

    database: bytes
    prefix: bytes
    """Of its rows."""
    head: bytes
    """Of its keys: what its rows leave out."""


class LmdbRows:
    """The rows of one table and one group, in LMDB."""

    __slots__ = ("_database", "_env", "_gap", "_handle", "_prefix", "_table_seed", "_top", "_where")

    def __init__(self, env: Environment, database: bytes, group: GroupId) -> None:
        self._env = env
        self._database = database
        self._handle = env[database]
        self._prefix = keys.group_key(group)
        self._top = _Node(database, self._prefix, b"")
        self._table_seed = checksum.seed_of(database, b"")
        self._where = f"{env.path}, group {group}, {database.decode()}"
        self._gap = (b"", b"", -1)
        """Two rows that were found sound and side by side, and the number of the commit where that was so."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, if it has one. Raises `DamagedRow` if it is missing beside bad rows."""
        try:
            transaction = self._env.read()
            if len(key) <= HEAD:
                row = self._prefix + key
                before, after, commit = self._gap
                if before < row < after and commit == transaction.id():
                    return None
                value = transaction.get(row, db=self._handle)
                if value is None:
                    self._gap = (*self._check_beside(transaction, self._top, row), transaction.id())
                return value
            return self._get_long(transaction, key)
        except lmdb.Error as error:
            raise self._broken(error) from error

    def _get_long(self, transaction: Transaction, key: bytes) -> bytes | None:
        path = self._path(transaction, key)
        database, row = path[-1]
        value = transaction.get(row, db=self._env[database])
        if value is None:
            head = key[: HEAD * (len(path) - 1)]
            node = _Node(database, row[: keys.NODE_BYTES], head) if head else self._top
            self._check_beside(transaction, node, row)
        return value

    def _broken(self, error: lmdb.Error) -> StorageError:
        """Return what an error of LMDB means: that its pages are damaged, unless the disk is closed."""
        self._env.check()
        return DamagedRow(f"{self._where}: {error}")

    def _check_beside(self, transaction: Transaction, node: _Node, row: bytes) -> tuple[bytes, bytes]:
        """Raise `DamagedRow` unless the rows beside a missing one are sound, and in order. Return their keys:
        whatever lies between them is missing, too, since they are where they always were.

        LMDB searches a page by halves. A search that a single changed key misleads, be it the key of the row
        itself or any other, ends beside that key. A search that is misled between pages ends where the rows
        on both sides are not in order.
        """
        cursor = transaction.cursor(self._env[node.database])
        before, after = b"", _BEYOND
        found = cursor.set_range(row)
        if found:
            after = cursor.key()
            self._check_side(cursor, node, row, after=True)
            if cursor.key() != after:  # it has looked further, at rows of others
                cursor = transaction.cursor(self._env[node.database])
                cursor.set_range(row)
        if cursor.prev() if found else cursor.last():
            before = cursor.key()
            self._check_side(cursor, node, row, after=False)
        if not before.startswith(node.prefix):
            self._check_edge(transaction, node, row, after=False)
        if not after.startswith(node.prefix):
            self._check_edge(transaction, node, row, after=True)
        return before, after

    # A cursor that has a place does not search as one without, from the root. So each check has its own.

    def _check_after(self, transaction: Transaction, node: _Node, bound: bytes) -> None:
        cursor = transaction.cursor(self._env[node.database])
        if cursor.set_range(bound):
            self._check_side(cursor, node, bound, after=True)
        else:
            self._check_end(transaction, node, bound, after=True)

    def _check_before(self, transaction: Transaction, node: _Node, bound: bytes) -> None:
        cursor = transaction.cursor(self._env[node.database])
        if _before(cursor, bound):
            self._check_side(cursor, node, bound, after=False)
        else:
            self._check_end(transaction, node, bound, after=False)

    def _check_end(self, transaction: Transaction, node: _Node, bound: bytes, *, after: bool) -> None:
        """Raise `DamagedRow` unless there is no row at or after a bound; or none before it.

        A cursor that comes to a page whose rows are lost says that there are no more.
        """
        cursor = transaction.cursor(self._env[node.database])
        if not (cursor.last() if after else cursor.first()):
            lost = transaction.stat(self._env[node.database])["entries"] > 0
        else:
            lost = cursor.key() >= bound if after else cursor.key() < bound
        if lost:
            side = "after" if after else "before"
            raise DamagedRow(f"{self._where}: rows {side} {bound.hex()} cannot be found")

    def _check_edge(self, transaction: Transaction, node: _Node, row: bytes, *, after: bool) -> None:
        """Raise `DamagedRow` unless all rows of a node are before a row that is missing; or all after it.

        What a page that has lost its rows has in their place is no row of this node, but proves nothing.
        """
        cursor = transaction.cursor(self._env[node.database])
        prefix = node.prefix
        found = _before(cursor, _next(prefix)) if after else cursor.set_range(prefix)
        if found and cursor.key().startswith(prefix) and (cursor.key() > row) == after:
            side = "after" if after else "before"
            raise DamagedRow(f"{self._where}: rows {side} {row.hex()} cannot be found")

    def _check_side(self, cursor: lmdb.Cursor[bytes], node: _Node, bound: bytes, *, after: bool) -> None:
        """Raise `DamagedRow` unless the rows from the cursor on, away from a bound, are as they should be.

        The first row must be sound, and on this side of the bound, if it is of this node. Rows of other
        groups and nodes are theirs to check: if one of them is bad, this one is not. But its key may have
        misled the search, or have been a key of this node. So the next row is looked at, too.
        """
        stray: Pair | None = None
        found = True
        while found:
            key, value = cursor.item()
            if not key:  # LMDB has none: the page has lost its rows
                raise DamagedRow(f"{self._where}: a row beside {bound.hex()} has lost its key")
            wrong = key < bound if after else key >= bound
            own = key.startswith(node.prefix)
            if own and not self._fits(node, key, value):
                raise DamagedRow(
                    f"{self._where}: the checksum of the row {key[len(node.prefix) :].hex()} is wrong"
                )
            if not own and node is self._top and self._was_own(node, key, value):
                raise DamagedRow(f"{self._where}: the key of the row {key.hex()} has changed")
            if wrong and (own or stray is not None):
                raise DamagedRow(f"{self._where}: {key.hex()} is on the wrong side of {bound.hex()}")
            if stray is not None and (own or (key < stray[0]) == after) and self._was_own(node, *stray):
                raise DamagedRow(f"{self._where}: the key of the row {stray[0].hex()} has changed")
            if own or stray is not None:
                return
            stray = key, value
            found = cursor.next() if after else cursor.prev()

    def _fits(self, node: _Node, row: bytes, value: bytes) -> bool:
        """Whether the checksum is that of a row of this node."""
        cut = len(node.prefix)
        if node is self._top:
            seed = zlib.crc32(row, self._table_seed)
        elif len(row) == cut + HEAD + 1:
            seed = checksum.seed_of(STORE_NODES, row)
        else:
            seed = zlib.crc32(node.head + row[cut:], zlib.crc32(self._prefix, self._table_seed))
        return zlib.crc32(value[4:], seed) == int.from_bytes(value[:4], "big")

    def _was_own(self, node: _Node, row: bytes, value: bytes) -> bool:
        """Whether the row would be sound, and of this node, had its key another beginning."""
        return self._fits(node, node.prefix + row[len(node.prefix) :], value)

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
                if not (key.startswith(self._prefix) or self._was_own(self._top, key, value)):
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
        try:
            more = self._collect(self._env.read(), self._top, start, end, count, found, reverse=reverse)
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
        self._collect(transaction, self._top, b"", None, count, found, reverse=False)
        return found

    def _collect(
        self,
        transaction: Transaction,
        node: _Node,
        start: bytes,
        end: bytes | None,
        count: int,
        found: list[Pair],
        *,
        reverse: bool,
    ) -> bool:
        """Add rows of a node until there are enough. Return whether there were."""
        database, prefix, before = node
        cursor = transaction.cursor(self._env[database])
        low = _bound(prefix, start)
        high = _next(prefix) if end is None else _bound(prefix, end)
        if end is not None and len(end) > HEAD:
            high += b"\0"  # a mark may hide some below it
        if reverse:
            self._check_after(transaction, node, high)
            rows = cursor.iterprev() if _before(cursor, high) else iter(())
        else:
            self._check_before(transaction, node, low)
            rows = cursor.iternext() if cursor.set_range(low) else iter(())
        cut, marked, size = len(prefix), len(prefix) + HEAD + 1, 0
        key: bytes | None = None
        for key, value in rows:
            ends = key < low if reverse else key >= high
            if ends or not key.startswith(prefix):  # a key that has changed must not end the range
                self._check_side(cursor, node, low if reverse else high, after=not reverse)
                if ends:
                    break
                continue
            if len(key) != marked:
                found.append((before + key[cut:], value))
                size += len(value)
            else:
                full = self._collect(
                    transaction,
                    _Node(STORE_NODES, self._node(value, database, key), before + key[cut:-1]),
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
        else:
            if key is None:
                key = high if reverse else low
            elif not reverse:
                key += b"\0"
            self._check_end(transaction, node, key, after=not reverse)
        return False


def _before(cursor: lmdb.Cursor[bytes], row: bytes) -> bool:
    """Move to the last row before this one; return whether there is any."""
    return cursor.prev() if cursor.set_range(row) else cursor.last()


def _next(prefix: bytes) -> bytes:
    """Return the prefix behind this one."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


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
