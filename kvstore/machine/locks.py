"""Deterministic locking: who may execute, as a function of what was delivered in which order.

A transaction claims all its keys and ranges at once, at delivery. It is granted when no earlier claim that
conflicts with it is held, so every wait is for a lower global timestamp, and there is no deadlock.

A claim waits for the *last* earlier ones on each key only: those wait for the ones before them. Claims on
ranges stand in segments, cut at the ends of all claimed ranges, so that a key finds the ranges around it by
one search. Keys are put in order only when a range asks for them: without ranges a claim is O(1) per key.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict, SortedSet

from kvstore.machine.request import Footprint, Range
from multicast.errors import InvariantBroken
from multicast.types import NO_TIMESTAMP, Timestamp


class _Claim:
    __slots__ = ("footprint", "gts", "waiters", "waits")

    def __init__(self, gts: Timestamp, footprint: Footprint, waits: int) -> None:
        self.gts = gts
        self.footprint = footprint
        self.waits = waits
        """How many claims must be released first."""
        self.waiters: list[_Claim] = []


class _Segment:
    """The claims on the keys from one cut up to the next, and how many claimed ranges are cut here."""

    __slots__ = ("claims", "cuts")

    def __init__(self, claims: dict[Timestamp, bool]) -> None:
        self.claims = claims
        """Whether exclusive, by claim."""
        self.cuts = 0


class LockTable:
    """All claims that are held or wait."""

    __slots__ = ("_claims", "_keys", "_last", "_readers", "_segments", "_unordered", "_writers")

    def __init__(self) -> None:
        self._claims: dict[Timestamp, _Claim] = {}
        self._last = NO_TIMESTAMP
        self._writers: dict[bytes, Timestamp] = {}
        """The last claim to write each key."""
        self._readers: dict[bytes, dict[Timestamp, None]] = {}
        """The claims to read each key that came after that."""
        self._segments: SortedDict[bytes, _Segment] = SortedDict()
        self._keys: SortedSet[bytes] = SortedSet()
        """Claimed keys in order, without those that are still unordered."""
        self._unordered: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def blockers(self, footprint: Footprint) -> list[Timestamp]:
        """The last claims that conflict with this one; empty if it would be granted now."""
        if not self._claims:
            return []
        found: set[Timestamp] = set()
        writers, readers, segments = self._writers, self._readers, self._segments
        for key in footprint.writes:
            if key in writers:
                found.add(writers[key])
            if key in readers:
                found.update(readers[key])
            if segments:
                found.update(self._around(key))
        for key in footprint.reads:
            if key in writers:
                found.add(writers[key])
            if segments:
                found.update(gts for gts, exclusive in self._around(key).items() if exclusive)
        for asked in footprint.write_ranges:
            for key in self._keys_in(asked):
                if key in writers:
                    found.add(writers[key])
                found.update(readers.get(key, ()))
            for segment in self._segments_of(asked):
                found.update(segment.claims)
        for asked in footprint.read_ranges:
            found.update(writers[key] for key in self._keys_in(asked) if key in writers)
            for segment in self._segments_of(asked):
                found.update(gts for gts, exclusive in segment.claims.items() if exclusive)
        return sorted(found)

    def claim(self, gts: Timestamp, footprint: Footprint) -> bool:
        """Claim everything, after all earlier claims. True if it is granted at once."""
        if gts <= self._last:
            raise InvariantBroken(f"claim {gts} after {self._last}")
        self._last = gts
        blockers = self.blockers(footprint)
        claim = self._claims[gts] = _Claim(gts, footprint, len(blockers))
        for blocker in blockers:
            self._claims[blocker].waiters.append(claim)
        for key in footprint.writes:
            self._readers.pop(key, None)
            self._writers[key] = gts
            self._note(key)
        for key in footprint.reads:
            self._readers.setdefault(key, {})[gts] = None
            self._note(key)
        for asked in footprint.read_ranges:
            self._cover(gts, asked, exclusive=False)
        for asked in footprint.write_ranges:
            self._cover(gts, asked, exclusive=True)
        return not blockers

    def release(self, gts: Timestamp) -> list[Timestamp]:
        """The claim was executed. Returns the claims that are granted now, lowest first."""
        claim = self._claims.pop(gts)
        if claim.waits:
            raise InvariantBroken(f"claim {gts} is released while it waits for {claim.waits} others")
        footprint = claim.footprint
        writers, readers = self._writers, self._readers
        for key in footprint.writes:
            if writers.get(key) == gts:
                del writers[key]
                self._drop(key)
        for key in footprint.reads:
            others = readers.get(key)
            if others is not None and gts in others:
                del others[gts]
                if not others:
                    del readers[key]
                    self._drop(key)
        for asked in footprint.read_ranges + footprint.write_ranges:
            self._uncover(gts, asked)
        granted = []
        for waiter in claim.waiters:
            waiter.waits -= 1
            if not waiter.waits:
                granted.append(waiter.gts)
        granted.sort()
        return granted

    def _note(self, key: bytes) -> None:
        if key not in self._keys:
            self._unordered[key] = None

    def _drop(self, key: bytes) -> None:
        if key not in self._writers and key not in self._readers:
            self._unordered.pop(key, None)
            self._keys.discard(key)

    def _keys_in(self, asked: Range) -> Iterator[bytes]:
        if self._unordered:
            self._keys.update(self._unordered)
            self._unordered.clear()
        return self._keys.irange(asked.start, asked.end, (True, False))

    def _around(self, key: bytes) -> dict[Timestamp, bool]:
        """Claims on ranges that cover the key."""
        at = self._segments.bisect_right(key)
        return self._segments.peekitem(at - 1)[1].claims if at else {}

    def _segments_of(self, asked: Range) -> Iterator[_Segment]:
        segments = self._segments
        first = max(segments.bisect_right(asked.start) - 1, 0)
        for start in segments.islice(first):
            if asked.end is not None and start >= asked.end:
                return
            yield segments[start]

    def _cut(self, at: bytes) -> None:
        if at not in self._segments:
            self._segments[at] = _Segment(dict(self._around(at)))
        self._segments[at].cuts += 1

    def _cover(self, gts: Timestamp, asked: Range, *, exclusive: bool) -> None:
        self._cut(asked.start)
        if asked.end is not None:
            self._cut(asked.end)
        for segment in self._segments_of(asked):
            segment.claims[gts] = exclusive or segment.claims.get(gts, False)

    def _uncover(self, gts: Timestamp, asked: Range) -> None:
        for segment in self._segments_of(asked):
            segment.claims.pop(gts, None)
        for cut in asked:
            if cut is not None:
                segment = self._segments[cut]
                segment.cuts -= 1
                if not segment.cuts:
                    del self._segments[cut]
