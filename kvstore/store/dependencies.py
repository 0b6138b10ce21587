"""For each key and range of keys: on which multi-group message its last users depend.

Only what is not closed yet is here. A dependency is always the global timestamp of a multi-group message, so
that everything that depends on it is forgotten with it, and nothing is ever searched for what has become old.
"""

from __future__ import annotations

from typing import Final

from sortedcontainers import SortedDict, SortedList

from kvstore.machine.request import Footprint, Range
from multicast.types import NO_TIMESTAMP, Timestamp

_BEYOND: Final = b"\xff" * (1 << 16)
"""Above every key: keys are much shorter."""


class Dependencies:
    """Two transactions conflict if one writes what the other touches: writers and readers are kept apart."""

    __slots__ = ("_readers", "_writers")

    def __init__(self) -> None:
        self._writers = _Highest()
        self._readers = _Highest()

    def of(self, footprint: Footprint) -> Timestamp:
        """The highest dependency of all that conflict with a transaction that touches this."""
        return Timestamp(
            max(
                self._writers.of(footprint.reads, footprint.read_ranges),
                self._writers.of(footprint.writes, footprint.write_ranges),
                self._readers.of(footprint.writes, footprint.write_ranges),
            )
        )

    def add(self, footprint: Footprint, dependency: Timestamp) -> None:
        """Note a dependency of all that conflicts with this footprint from now on."""
        self._writers.raise_to(dependency, footprint.writes, footprint.write_ranges)
        self._readers.raise_to(dependency, footprint.reads, footprint.read_ranges)

    def forget(self, dependency: Timestamp) -> None:
        """Forget a dependency that is closed."""
        self._writers.forget(dependency)
        self._readers.forget(dependency)

    def __len__(self) -> int:
        return len(self._writers) + len(self._readers)


class _Highest:
    """The highest dependency of each key: of single keys, and of disjoint pieces of the key space.

    A range takes the place of all pieces it covers, with the highest dependency among them. That may be too
    high for some of them, which is safe, and every piece is made and removed once. Keys in order cost more
    than all the rest, so they are kept so only from when a range is asked for until there are none.
    """

    __slots__ = ("_keys", "_keys_by_dependency", "_order", "_pieces", "_pieces_by_dependency")

    def __init__(self) -> None:
        self._keys: dict[bytes, Timestamp] = {}
        self._order: SortedList[bytes] | None = None
        self._pieces: SortedDict[bytes, tuple[bytes, Timestamp]] = SortedDict()
        self._keys_by_dependency: dict[Timestamp, list[bytes]] = {}
        self._pieces_by_dependency: dict[Timestamp, list[bytes]] = {}

    def of(self, keys: tuple[bytes, ...], ranges: tuple[Range, ...]) -> Timestamp:
        """The highest dependency of any of these."""
        highest = NO_TIMESTAMP
        if self._keys:
            for key in keys:
                highest = max(highest, self._keys.get(key, NO_TIMESTAMP))
            for first, end in ranges:
                if self._order is None:
                    self._order = SortedList(self._keys)
                for key in self._order.irange(first, end or _BEYOND, (True, False)):
                    highest = max(highest, self._keys[key])
        if self._pieces:
            for key in keys:
                for _, _, dependency in self._overlapping(key, key + b"\0"):
                    highest = max(highest, dependency)
            for first, end in ranges:
                for _, _, dependency in self._overlapping(first, end or _BEYOND):
                    highest = max(highest, dependency)
        return highest

    def raise_to(self, dependency: Timestamp, keys: tuple[bytes, ...], ranges: tuple[Range, ...]) -> None:
        """These depend on this much, or more."""
        for key in keys:
            before = self._keys.get(key, NO_TIMESTAMP)
            if before < dependency:
                if self._order is not None and not before:
                    self._order.add(key)
                self._keys[key] = dependency
                self._keys_by_dependency.setdefault(dependency, []).append(key)
        for first, last in ranges:
            end = last or _BEYOND
            if first >= end:
                continue
            highest = dependency
            for piece, piece_end, other in self._overlapping(first, end):
                highest = max(highest, other)
                del self._pieces[piece]
                if piece < first:
                    self._put(piece, first, other)
                if end < piece_end:
                    self._put(end, piece_end, other)
            self._put(first, end, highest)

    def forget(self, dependency: Timestamp) -> None:
        """Nothing depends on this any more. What has been raised since stays."""
        for key in self._keys_by_dependency.pop(dependency, ()):
            if self._keys.get(key) == dependency:
                del self._keys[key]
                if self._order is not None:
                    self._order.remove(key)
        if not self._keys:
            self._order = None
        for first in self._pieces_by_dependency.pop(dependency, ()):
            if first in self._pieces and self._pieces[first][1] == dependency:
                del self._pieces[first]

    def _put(self, first: bytes, end: bytes, dependency: Timestamp) -> None:
        self._pieces[first] = (end, dependency)
        self._pieces_by_dependency.setdefault(dependency, []).append(first)

    def _overlapping(self, first: bytes, end: bytes) -> list[tuple[bytes, bytes, Timestamp]]:
        pieces = self._pieces
        before = pieces.bisect_right(first) - 1
        found = []
        if before >= 0:
            piece, (piece_end, dependency) = pieces.peekitem(before)
            if first < piece_end:
                found.append((piece, piece_end, dependency))
        found.extend((piece, *pieces[piece]) for piece in pieces.irange(first, end, (False, False)))
        return found

    def __len__(self) -> int:
        return len(self._keys) + len(self._pieces)
