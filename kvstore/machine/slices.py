"""Bounded steps: how many rows one step of the loop looks at, and the rows of a range in such steps.

Work on ranges is done in *slices*. Between two of them the loop goes on, and other transactions are executed.
How work is cut into slices has no influence on its result: what a slice reads is as of a revision, or is
locked. So slices may differ between replicas, unlike the limits of `Limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from heapq import merge
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from kvstore.machine.ordered import K, Marks, MemoryMap, OrderedMap, ReadableMap, V, marks_of

SLICE_ROWS: Final = 500
"""Rows that the reads of a replica look at in one step, at most."""
RUN_ROWS: Final = 500
"""Rows that its long transactions look at in one step, at most."""
AT_ONCE_ROWS: Final = 32
"""Rows that they look at between two steps, when they are delivered: enough for short ranges. What is longer
waits for the next step, however much is delivered at once.
"""
ROW_BYTES: Final = 4096
"""A large value counts as one more row for each of these."""
RANGE_ROWS: Final = 8
"""Rows that a range counts for, beside its own: to find where it begins is work, too."""
CHANGES: Final = 8
"""Changes of a row of history that count as a row: the row is decoded as a whole."""

REMOVED: Final = 2
"""Keys to write whose old versions are at hand that count as a row."""

T = TypeVar("T")
_UNKNOWN: Final[Any] = object()


class Meter:
    """The rows that may still be looked at in a step."""

    __slots__ = ("left",)

    def __init__(self, rows: int = SLICE_ROWS) -> None:
        self.left = rows


def unmetered() -> Meter:
    """Return a meter that never ends a step."""
    return Meter(1 << 62)


def finish(work: Generator[None, None, T]) -> T:
    """Do all of the work in one step, with a meter that does not end it, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


def rows_in_slices(
    rows: OrderedMap[bytes, V],
    start: bytes,
    end: bytes | None,
    meter: Meter,
    cost: Callable[[V], int],
    *,
    reverse: bool = False,
) -> Iterator[tuple[bytes, V] | None]:
    """The rows of a range, and None wherever the meter ends a step: then the map may be changed, though not
    in the range. The caller pauses there until the meter has rows again.
    """
    if meter.left <= 0:
        yield None
    meter.left -= RANGE_ROWS
    while True:
        for key, value in rows.items(start, end, reverse=reverse):
            if meter.left <= 0:
                break
            meter.left -= cost(value)
            yield key, value
        else:
            return
        if reverse:
            end = key + b"\0"
        else:
            start = key
        yield None


class Overlay(Generic[K, V]):
    """A map over another: has what a transaction writes until it is executed as a whole."""

    __slots__ = ("_below", "_over", "_target")

    def __init__(self, target: OrderedMap[K, V], below: ReadableMap[K, V] | None = None) -> None:
        """`below` is what the transaction reads of the map that it writes to; without it, that map."""
        self._target = target
        self._below = target if below is None else below
        self._over: MemoryMap[K, tuple[V | None]] = MemoryMap()

    def get(self, key: K) -> V | None:
        """The value of a key, if it has one."""
        found = self._over.get(key)
        return self._below.get(key) if found is None else found[0]

    def put(self, key: K, value: V) -> None:
        """Give a key a value."""
        self._over.put(key, (value,))

    insert = put

    def delete(self, key: K) -> None:
        """Remove a key, if it is there."""
        self._over.put(key, (None,))

    def items(self, start: K, end: K | None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Keys from `start` up to, not including, `end`, or to the last; or the same backwards."""
        below = self._below.items(start, end, reverse=reverse)
        if not self._over.rows():
            yield from below
            return
        over = self._over.items(start, end, reverse=reverse)
        under = ((key, (value,)) for key, value in below)
        last: Any = _UNKNOWN
        for key, (value,) in merge(over, under, key=itemgetter(0), reverse=reverse):
            if last is _UNKNOWN or key != last:
                last = key
                if value is not None:
                    yield key, value

    def marks(self, start: K, end: K | None, every: int, most: int) -> Marks[K]:
        """Every so-many-th of the first keys of a range."""
        return marks_of((key for key, _ in self.items(start, end)), every, most)

    def apply(self) -> None:
        """Write everything."""
        for key, (value,) in self._over.rows():
            if value is None:
                self._target.delete(key)
            else:
                self._target.put(key, value)
