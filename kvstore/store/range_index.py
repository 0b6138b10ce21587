"""Ranges of keys, and which of them a key is in: in a few steps, however many ranges there are.

The ranges are laid over a tree of the bounds that occur in them: each range is stored at the few nodes that
together are exactly the range, and a key is in the ranges on the path from its leaf to the root. The tree is
built anew only after the number of ranges has grown or shrunk by a fraction; until then, new ranges are
compared one by one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from kvstore.machine.request import Range

NEW_MIN: Final = 16
"""Ranges that are compared one by one before a tree is built."""

T = TypeVar("T", bound=Hashable)


class RangeIndex(Generic[T]):
    """Owners, and the ranges of each."""

    __slots__ = ("_bounds", "_leaves", "_new", "_nodes", "_owners", "_removed", "_size")

    def __init__(self) -> None:
        self._owners: dict[T, Sequence[Range]] = {}
        self._size = 0
        """How many ranges there are in all."""
        self._new: list[tuple[Range, T]] = []
        self._removed = 0
        """How many ranges of the tree have no owner any more."""
        self._bounds: list[bytes] = []
        self._leaves = 1
        self._nodes: list[list[T]] = []

    def __len__(self) -> int:
        return self._size

    def add(self, owner: T, ranges: Sequence[Range]) -> None:
        """Add an owner."""
        self._owners[owner] = ranges
        self._size += len(ranges)
        self._new += [(each, owner) for each in ranges]

    def remove(self, owner: T) -> None:
        """Remove an owner."""
        ranges = self._owners.pop(owner)
        self._size -= len(ranges)
        new = [each for each in self._new if each[1] is not owner]
        if len(new) == len(self._new):
            self._removed += len(ranges)
        self._new = new

    def owners(self, key: bytes) -> Iterator[T]:
        """The owners of the ranges that a key is in: one of several such ranges comes as often."""
        if len(self._new) > NEW_MIN + self._size // 8 or self._removed > NEW_MIN + self._size:
            self._build()
        for (start, end), owner in self._new:
            if start <= key and (end is None or key < end):
                yield owner
        if self._bounds:
            node = self._leaves + bisect_right(self._bounds, key) - 1
            if node >= self._leaves:
                while node:
                    for owner in self._nodes[node]:
                        if owner in self._owners:
                            yield owner
                    node >>= 1

    def _build(self) -> None:
        ranges = [(each, owner) for owner, ranges in self._owners.items() for each in ranges]
        self._new, self._removed = [], 0
        bounds = {each.start for each, _ in ranges}
        bounds.update(each.end for each, _ in ranges if each.end is not None)
        self._bounds = sorted(bounds)
        self._leaves = 1 << (len(self._bounds) - 1).bit_length() if self._bounds else 1
        self._nodes = [[] for _ in range(2 * self._leaves)]
        for (start, end), owner in ranges:
            low = self._leaves + bisect_left(self._bounds, start)
            high = 2 * self._leaves if end is None else self._leaves + bisect_left(self._bounds, end)
            while low < high:  # the nodes that make up the leaves from `low` up to `high`
                if low & 1:
                    self._nodes[low].append(owner)
                    low += 1
                if high & 1:
                    high -= 1
                    self._nodes[high].append(owner)
                low >>= 1
                high >>= 1
