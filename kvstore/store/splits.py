"""Divide ranges into pieces of about equally many keys, for parallel scans.

Every so-many-th key is sampled. When there are too many samples to keep, every other one is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kvstore.machine.request import Range
from multicast.types import GroupId

EVERY: Final = 64
KEPT: Final = 4096
LOOKED_AT: Final = 8192
"""Keys that a replica looks at for one answer: a slice of its loop. A multiple of all strides."""


class Split(NamedTuple):
    """A piece of a range."""

    group: GroupId
    keys: Range
    size: int
    """About how many keys there are."""


class Spread:
    """Where one group's keys of a range are."""

    def __init__(self, asked: Range) -> None:
        self.left: Range | None = asked
        """The rest of the range, which is not sampled yet."""
        self.every = EVERY
        self._asked = asked
        self._keys: list[bytes] = []
        self._rest = 0

    @property
    def count(self) -> int:
        """About how many keys there are."""
        return len(self._keys) * self.every + self._rest

    def add(self, keys: Sequence[bytes], rest: int, last: bytes | None) -> None:
        """Add the next samples."""
        start, end = self._asked
        above = self._keys[-1] if self._keys else start
        for key in keys:
            if above < key and (end is None or key < end):  # of long keys only the beginning is known
                self._keys.append(key)
                above = key
        self._rest += rest
        start = (last or b"") + b"\0"
        self.left = None if last is None or (end is not None and start >= end) else Range(start, end)
        while len(self._keys) > KEPT and self.every < LOOKED_AT:
            self._rest += self.every * (len(self._keys) % 2)
            del self._keys[::2]
            self.every *= 2

    def cut(self, pieces: int) -> Iterator[tuple[Range, int]]:
        """Yield that many pieces, or fewer if there are few keys."""
        marks = len(self._keys)
        pieces = max(min(pieces, marks), 1)
        start, end = self._asked
        for i in range(1, pieces):
            upto = self._keys[i * marks // pieces]
            yield Range(start, upto), self.count // pieces
            start = upto
        yield Range(start, end), self.count // pieces


def divide(spreads: Mapping[GroupId, Spread], pieces: int) -> list[Split]:
    """About so many pieces of all groups together, at least one of each."""
    total = sum(spread.count for spread in spreads.values()) or 1
    return [
        Split(group, keys, count)
        for group, spread in spreads.items()
        for keys, count in spread.cut(round(pieces * spread.count / total))
    ]
