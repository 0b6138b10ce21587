"""A map of the store: rows on the disk, and above them layers of puts that are not on the disk yet.

A put goes into the top layer, as it is; it is encoded when it is committed, and only if nothing has replaced
it by then. `freeze` makes the top layer one that never changes again, which a commit takes to the
disk, or a snapshot looks at, while new puts go into the next. A layer leaves when the disk has it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from operator import gt, itemgetter, lt
from typing import Any, Final, Generic, TypeVar

from sortedcontainers import SortedList

from kvstore.machine.ordered import Marks, Ordered, Table
from kvstore.storage import checksum
from kvstore.storage.errors import DamagedRow
from kvstore.storage.rows import Pair, Rows, chunks

K = TypeVar("K", bound=Ordered)
V = TypeVar("V")

ABSENT_MAX: Final = 1 << 16
"""Keys that a layer remembers not to be below it."""

DECODED_BYTES: Final = 16 << 10
"""Rows of a range are decoded when so many bytes of them are wanted: the caller may need few of many."""

_UNKNOWN: Final[Any] = object()


class Layer(Generic[K, V]):
    """What was put (None: deleted) between two moments."""

    __slots__ = ("_ordered", "_unordered", "absent", "is_ordered", "rows")

    def __init__(self) -> None:
        self.rows: dict[K, V | None] = {}
        self.absent: set[K] = set()
        """Keys that are known not to be below: to delete one of them is to forget it."""
        self.is_ordered = False
        """Whether the keys were asked for in order: then every put must go through `put`."""
        self._ordered: SortedList[K] | None = None
        """The keys in order, without those that are still unordered. Few layers are ever asked for them."""
        self._unordered: list[K] = []

    def put(self, key: K, value: V | None) -> None:
        """Give a key a value, or mark it deleted."""
        rows = self.rows
        if self._ordered is not None and key not in rows:
            self._unordered.append(key)
        rows[key] = value

    def forget(self, key: K) -> bool:
        """Undo a put, if the key is not below and the keys were never ordered."""
        if key not in self.absent or self._ordered is not None:
            return False
        self.rows.pop(key, None)
        return True

    def range(self, start: K, end: K | None, *, reverse: bool) -> Iterator[tuple[K, V | None]]:
        """A part of it, in order."""
        if self._ordered is None:
            self._ordered, self.is_ordered = SortedList(self.rows), True
        elif self._unordered:
            self._ordered.update(self._unordered)
            self._unordered.clear()
        rows = self.rows
        for key in self._ordered.irange(start, end, (True, False), reverse=reverse):
            yield key, rows[key]


def combine(layers: Sequence[Layer[K, V]]) -> Layer[K, V]:
    """What layers, the oldest first, amount to."""
    if len(layers) == 1:
        return layers[0]
    whole: Layer[K, V] = Layer()
    for layer in layers:
        whole.rows.update(layer.rows)
        whole.absent |= layer.absent
    return whole


class StoredMap(Generic[K, V]):
    """An `OrderedMap` of one group and table."""

    __slots__ = ("_below", "_lower", "_rows", "_seed", "_table", "_top", "_where")

    def __init__(self, table: Table[K, V], rows: Rows, where: str, seed: int) -> None:
        """`seed` stands for the group and the table in the checksums of rows."""
        self._table = table
        self._where = where
        self._seed = seed
        self._below = rows
        self._lower: tuple[Layer[K, V], ...] = ()
        """Frozen layers, the newest first."""
        self._top: Layer[K, V] = Layer()
        self._rows = self._top.rows

    def get(self, key: K) -> V | None:
        """The value of a key, if it has one."""
        value = self._rows.get(key, _UNKNOWN)
        return self._find(key) if value is _UNKNOWN else value

    def _find(self, key: K) -> V | None:
        for layer in self._lower:
            value = layer.rows.get(key, _UNKNOWN)
            if value is not _UNKNOWN:
                return value
        absent = self._top.absent
        if key in absent:
            return None
        encoded = self._table.encode_key(key)
        stored = self._below.get(encoded)
        if stored is None:
            if len(absent) < ABSENT_MAX:
                absent.add(key)
            return None
        return self._decode(encoded, stored)

    def _decode(self, key: bytes, stored: bytes) -> V:
        data = stored[4:]
        seed = zlib.crc32(key, self._seed)
        if zlib.crc32(data, seed) != int.from_bytes(stored[:4], "big"):
            checksum.unseal(stored, f"{self._where}, {key.hex()}", seed)
        try:
            return self._table.decode(data)
        except Exception as error:
            raise DamagedRow(f"{self._where}, {key.hex()}: {error}") from error

    def put(self, key: K, value: V) -> None:
        """Give a key a value."""
        if self._top.is_ordered:
            self._top.put(key, value)
        else:
            self._rows[key] = value

    def insert(self, key: K, value: V) -> None:
        """Give a value to a key that has none. If it is deleted soon, it is never written."""
        if key not in self._rows:
            for layer in self._lower:
                if key in layer.rows:
                    break  # it is to be deleted from the disk
            else:
                absent = self._top.absent
                if len(absent) < ABSENT_MAX:
                    absent.add(key)
        self.put(key, value)

    def delete(self, key: K) -> None:
        """Remove a key, if it is there."""
        if not self._top.forget(key):
            self._top.put(key, None)

    def items(self, start: K, end: K | None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Keys from `start` up to, not including, `end`, or to the last; or the same backwards."""
        over = self._over(start, end, reverse=reverse)
        before = gt if reverse else lt
        key, value = next(over, _END)
        for stored in self._stored(start, end, reverse=reverse):
            if key is _UNKNOWN or before(stored[-1][0], key):
                yield from stored
                continue
            for row in stored:
                while key is not _UNKNOWN and not before(row[0], key):
                    if value is not None:
                        yield key, value
                    replaced = key == row[0]
                    key, value = next(over, _END)
                    if replaced:
                        break
                else:
                    yield row
        while key is not _UNKNOWN:
            if value is not None:
                yield key, value
            key, value = next(over, _END)

    def marks(self, start: K, end: K | None, every: int, most: int) -> Marks[K]:
        """Every so-many-th of the first keys of a range, as far as they are below all layers."""
        first = self._table.encode_key(start)
        last = None if end is None else self._table.encode_key(end)
        found = self._below.marks(first, last, every, most)
        keys = tuple(self._key(key) for key in found.keys)
        return Marks(keys, found.rest, None if found.last is None else self._key(found.last))

    def _over(self, start: K, end: K | None, *, reverse: bool) -> Iterator[tuple[K, V | None]]:
        """A range of all layers."""
        layers = [layer for layer in (self._top, *self._lower) if layer.rows]
        ranges = [layer.range(start, end, reverse=reverse) for layer in layers]
        if len(ranges) < 2:
            return ranges[0] if ranges else iter(())
        return _first_of_each(merge(*ranges, key=itemgetter(0), reverse=reverse))

    def _stored(self, start: K, end: K | None, *, reverse: bool) -> Iterator[list[tuple[K, V]]]:
        """A range of what is below all layers."""
        table = self._table
        first = table.encode_key(start)
        last = None if end is None else table.encode_key(end)
        for chunk in chunks(self._below, first, last, reverse=reverse):
            begin = size = 0
            for index, (_, stored) in enumerate(chunk):
                if size > DECODED_BYTES:
                    yield self._rows_of(chunk[begin:index])
                    begin, size = index, 0
                size += len(stored)
            yield self._rows_of(chunk[begin:])

    def _rows_of(self, chunk: Sequence[Pair]) -> list[tuple[K, V]]:
        """Rows of bytes, decoded. Long scans live here, so a bad row is looked for only if there is one."""
        decode_key, decode, crc32, number, seed = (
            self._table.decode_key,
            self._table.decode,
            zlib.crc32,
            int.from_bytes,
            self._seed,
        )
        try:
            rows = [
                (decode_key(key), decode(data))
                for key, stored in chunk
                if crc32(data := stored[4:], crc32(key, seed)) == number(stored[:4], "big")
            ]
        except Exception:  # noqa: BLE001 - it is raised again, by name
            rows = []
        if len(rows) < len(chunk):
            return [(self._key(key), self._decode(key, stored)) for key, stored in chunk]
        return rows

    def _key(self, key: bytes) -> K:
        try:
            return self._table.decode_key(key)
        except Exception as error:
            raise DamagedRow(f"{self._where}, the key {key.hex()}: {error}") from error

    # For commits and snapshots

    @property
    def layers(self) -> tuple[Layer[K, V], ...]:
        """The frozen layers, the newest first."""
        return self._lower

    @property
    def below(self) -> Rows:
        """What all layers lie on."""
        return self._below

    def freeze(self) -> Layer[K, V] | None:
        """The top layer, which never changes again; None if it has nothing."""
        if not self._rows:
            return None
        frozen = self._top
        self._lower = (frozen, *self._lower)
        self._start()
        return frozen

    def _start(self) -> None:
        self._top = Layer()
        self._rows = self._top.rows

    def drop(self, layers: Iterable[Layer[K, V]]) -> None:
        """The disk has these layers."""
        gone = set(map(id, layers))
        self._lower = tuple(layer for layer in self._lower if id(layer) not in gone)

    def replace(self, rows: Rows) -> None:
        """Nothing is left but these rows."""
        self._lower = ()
        self._below = rows
        self._start()

    def rebase(self, rows: Rows, stored: Rows) -> None:
        """Read from the disk from now on, which has these rows."""
        if self._below is rows:
            self._below = stored

    def encode(self, layer: Layer[K, V], keys: Iterable[K]) -> tuple[list[Pair], list[bytes]]:
        """What a layer puts and deletes, of these keys."""
        encode_key, encode, crc32, seed = self._table.encode_key, self._table.encode, zlib.crc32, self._seed
        pairs = [(key, layer.rows[key]) for key in keys]
        puts = [
            (row := encode_key(key), crc32(data := encode(value), crc32(row, seed)).to_bytes(4, "big") + data)
            for key, value in pairs
            if value is not None
        ]
        absent = layer.absent
        deletes = [encode_key(key) for key, value in pairs if value is None and key not in absent]
        return puts, deletes

    def check_sums(self, pairs: Iterable[Pair]) -> None:
        """Raise `DamagedRow` unless these rows have the right checksums."""
        for key, stored in pairs:
            seed = zlib.crc32(key, self._seed)
            if zlib.crc32(stored[4:], seed) != int.from_bytes(stored[:4], "big"):
                checksum.unseal(stored, f"{self._where}, {key.hex()}", seed)

    def check(self, key: bytes, stored: bytes) -> None:
        """Raise `DamagedRow` unless this is a valid row of the table."""
        self._key(key)
        self._decode(key, stored)


_END: Final[Any] = (_UNKNOWN, None)


def _first_of_each(rows: Iterable[tuple[K, V]]) -> Iterator[tuple[K, V]]:
    """Of rows in order, the first of each key."""
    last: Any = _UNKNOWN
    for row in rows:
        if last is _UNKNOWN or row[0] != last:
            yield row
            last = row[0]
