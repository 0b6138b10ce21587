"""Deterministic locking: which transaction may execute, as a function of the delivered order.

A transaction claims all its keys and ranges at once, at delivery; a read when it comes. A claim is granted
when no earlier one that conflicts with it is held: every wait is for an earlier one, so there is no deadlock.

A claim waits for the *last* earlier ones on each key only: those wait for the ones before them. Claims on
ranges stand in segments, cut at the ends of all claimed ranges, so that a key finds the ranges around it by
one search. Keys are put in order only when a range asks for them: without ranges a claim is O(1) per key.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict, SortedSet

from kvstore.machine.request import Footprint, Range
from multicast.errors import InvariantBroken


class _Claim:
    __slots__ = ("footprint", "number", "owner", "waiters", "waits")

    def __init__(self, owner: int, number: int, footprint: Footprint, waits: int) -> None:
        self.owner = owner
        self.number = number
        """Its position in the order of claims."""
        self.footprint = footprint
        self.waits = waits
        """How many claims must be released first."""
        self.waiters: list[_Claim] = []


class _Segment:
    """The claims on the keys from one cut up to the next, and how many claimed ranges are cut here."""

    __slots__ = ("claims", "cuts")

    def __init__(self, claims: dict[int, bool]) -> None:
        self.claims = claims
        """Whether exclusive, by claim."""
        self.cuts = 0


class LockTable:
    """All claims that are held or wait, by their owners."""

    __slots__ = ("_claims", "_keys", "_number", "_readers", "_segments", "_unordered", "_writers")

    def __init__(self) -> None:
        self._claims: dict[int, _Claim] = {}
        self._number = 0
        self._writers: dict[bytes, int] = {}
        """The last claim to write each key."""
        self._readers: dict[bytes, dict[int, None]] = {}
        """The claims to read each key that came after that."""
        self._segments: SortedDict[bytes, _Segment] = SortedDict()
        self._keys: SortedSet[bytes] = SortedSet()
        """Claimed keys in order, without those that are still unordered."""
        self._unordered: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def blockers(self, footprint: Footprint) -> set[int]:
        """Return the owners of the last conflicting claims; empty if the claim would be granted now."""
        found: set[int] = set()
        if not self._claims:
            return found
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
                found.update(owner for owner, exclusive in self._around(key).items() if exclusive)
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
                found.update(owner for owner, exclusive in segment.claims.items() if exclusive)
        return found

    def claim(self, owner: int, footprint: Footprint) -> bool:
        """Claim everything, after all earlier claims. True if it is granted at once."""
        if owner in self._claims:
            raise InvariantBroken(f"{owner} has a claim already")
        blockers = self.blockers(footprint)
        self._number += 1
        claim = self._claims[owner] = _Claim(owner, self._number, footprint, len(blockers))
        for blocker in blockers:
            self._claims[blocker].waiters.append(claim)
        for key in footprint.writes:
            self._readers.pop(key, None)
            self._writers[key] = owner
            self._note(key)
        for key in footprint.reads:
            self._readers.setdefault(key, {})[owner] = None
            self._note(key)
        for asked in footprint.read_ranges:
            self._cover(owner, asked, exclusive=False)
        for asked in footprint.write_ranges:
            self._cover(owner, asked, exclusive=True)
        return not blockers

    def is_waited_for(self, owner: int) -> bool:
        """Whether later claims wait for this one."""
        claim = self._claims.get(owner)
        return claim is not None and bool(claim.waiters)

    def release(self, owner: int) -> list[int]:
        """Release a claim. Returns the owners whose claims are granted now, earliest first."""
        claim = self._claims.pop(owner)
        if claim.waits:
            raise InvariantBroken(f"claim {owner} is released while it waits for {claim.waits} others")
        footprint = claim.footprint
        writers, readers = self._writers, self._readers
        for key in footprint.writes:
            if writers.get(key) == owner:
                del writers[key]
                self._drop(key)
        for key in footprint.reads:
            others = readers.get(key)
            if others is not None and owner in others:
                del others[owner]
                if not others:
                    del readers[key]
                    self._drop(key)
        for asked in footprint.read_ranges + footprint.write_ranges:
            self._uncover(owner, asked)
        return self._granted(claim.waiters)

    def narrow(self, owner: int, kept: Footprint) -> list[int]:
        """Give up a part of a claim that was granted. `kept` is a part of its footprint, with all its writes.

        Returns the owners whose claims are granted now, earliest first.
        """
        claim = self._claims[owner]
        if claim.waits:
            raise InvariantBroken(f"claim {owner} is narrowed while it waits for {claim.waits} others")
        footprint, claim.footprint = claim.footprint, kept
        if footprint == kept:
            return []
        stay = set(kept.reads)
        for key in footprint.reads:
            others = self._readers.get(key)
            if key not in stay and others is not None and owner in others:
                del others[owner]
                if not others:
                    del self._readers[key]
                    self._drop(key)
        for asked in footprint.read_ranges + footprint.write_ranges:
            self._uncover(owner, asked)
        for asked in kept.read_ranges:
            self._cover(owner, asked, exclusive=False)
        for asked in kept.write_ranges:
            self._cover(owner, asked, exclusive=True)
        held = LockTable()
        held.claim(owner, kept)
        waiters, claim.waiters = claim.waiters, []
        freed = []
        for waiter in waiters:
            if held.blockers(waiter.footprint):
                claim.waiters.append(waiter)
            else:
                freed.append(waiter)
        return self._granted(freed)

    def _granted(self, waiters: list[_Claim]) -> list[int]:
        """Note that these wait for one claim less. Returns the owners of those that wait no longer."""
        granted = []
        for waiter in waiters:
            waiter.waits -= 1
            if not waiter.waits:
                granted.append(waiter)
        granted.sort(key=lambda waiter: waiter.number)
        return [waiter.owner for waiter in granted]

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

    def _around(self, key: bytes) -> dict[int, bool]:
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

    def _cover(self, owner: int, asked: Range, *, exclusive: bool) -> None:
        self._cut(asked.start)
        if asked.end is not None:
            self._cut(asked.end)
        for segment in self._segments_of(asked):
            segment.claims[owner] = exclusive or segment.claims.get(owner, False)

    def _uncover(self, owner: int, asked: Range) -> None:
        for segment in self._segments_of(asked):
            segment.claims.pop(owner, None)
        for cut in asked:
            if cut is not None:
                segment = self._segments[cut]
                segment.cuts -= 1
                if not segment.cuts:
                    del self._segments[cut]
