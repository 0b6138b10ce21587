"""The ordered map that all of the machine's data lives in, and the one in memory.

A host that keeps the machine's data on a disk provides other maps, and commits their changes together with
the machine's `MachineState`, in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from sortedcontainers import SortedList


class Ordered(Protocol):
    """What can be a key."""

    def __hash__(self) -> int: ...
    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=Ordered)
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class ReadableMap(Protocol[K, V_co]):
    """A map in the order of its keys, which is read. Nothing is changed while it is iterated."""

    def get(self, key: K) -> V_co | None:
        """The value of a key, if it has one."""

    def items(self, start: K, end: K | None, *, reverse: bool = False) -> Iterator[tuple[K, V_co]]:
        """Keys from `start` up to, not including, `end`, or to the last; or the same backwards."""


class OrderedMap(ReadableMap[K, V], Protocol[K, V]):
    """A map in the order of its keys. Nothing is changed while it is iterated."""

    def put(self, key: K, value: V) -> None:
        """Give a key a value."""

    def insert(self, key: K, value: V) -> None:
        """Give a value to a key that is known to have none, which spares the map work."""

    def delete(self, key: K) -> None:
        """Remove a key, if it is there."""

    def marks(self, start: K, end: K | None, every: int, most: int) -> Marks[K]:
        """Every so-many-th of the first keys of a range: roughly, for a map that is on a disk."""


class Marks(NamedTuple, Generic[K]):
    """Where keys are."""

    keys: tuple[K, ...]
    """Every so-many-th."""
    rest: int
    """How many there were after the last of these."""
    last: K | None
    """The last that was looked at, if there may be more after it."""


def marks_of(keys: Iterable[K], every: int, most: int) -> Marks[K]:
    """Of keys in order. Makes no list of them."""
    found: list[K] = []
    count = 0
    key = None
    for key in islice(keys, most):
        count += 1
        if count % every == 0:
            found.append(key)
    return Marks(tuple(found), count % every, key if count == most else None)


class Table(NamedTuple, Generic[K, V]):
    """How a map's rows are encoded, for disks and snapshots."""

    name: str
    """The attribute of `Store`."""
    encode_key: Callable[[K], bytes]
    """Keeps the order."""
    decode_key: Callable[[bytes], K]
    encode: Callable[[V], bytes]
    decode: Callable[[bytes], V]


class MemoryMap(Generic[K, V]):
    """An ordered map in memory. Keys are sorted only when a range is read."""

    __slots__ = ("_fresh", "_ordered", "_rows", "get")

    def __init__(self, rows: dict[K, V] | None = None) -> None:
        self._rows: dict[K, V] = dict(rows or {})
        self._ordered: SortedList[K] = SortedList()
        self._fresh = set(self._rows)
        """Keys that are not in order yet."""
        self.get = self._rows.get

    def put(self, key: K, value: V) -> None:
        """Give a key a value."""
        rows = self._rows
        if key not in rows:
            self._fresh.add(key)
        rows[key] = value

    insert = put

    def delete(self, key: K) -> None:
        """Remove a key, if it is there."""
        if key in self._rows:
            del self._rows[key]
            if key in self._fresh:
                self._fresh.remove(key)
            else:
                self._ordered.remove(key)

    def items(self, start: K, end: K | None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Keys from `start` up to, not including, `end`, or to the last; or the same backwards."""
        if self._fresh:
            self._ordered.update(self._fresh)
            self._fresh.clear()
        rows = self._rows
        for key in self._ordered.irange(start, end, (True, False), reverse=reverse):
            yield key, rows[key]

    def marks(self, start: K, end: K | None, every: int, most: int) -> Marks[K]:
        """Every so-many-th of the first keys of a range."""
        return marks_of((key for key, _ in self.items(start, end)), every, most)

    def rows(self) -> ItemsView[K, V]:
        """All keys and their values, in the order of the first puts."""
        return self._rows.items()

    def copy(self) -> MemoryMap[K, V]:
        """An independent copy."""
        return MemoryMap(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryMap) and self._rows == other._rows

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"MemoryMap({self._rows})"
