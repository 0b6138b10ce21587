"""The changes of a set of groups, for all watchers of it on a node: read, merged and divided once.

A hub takes each group's changes in order, merges them, and gives every *audience*, the watchers of the same
ranges, the events in its ranges. An audience's latest pieces are kept in a bounded buffer. A watcher is a
position in it: the revision up to which it has everything, and the next piece. A watcher that fell behind
the buffer reads history until it is past what was dropped.

A hub does no I/O and knows no time: `kvstore.store.watches` asks replicas, and wakes watchers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvstore.machine.request import Range
from kvstore.store.feeds import Batch, FeedPosition, MergedFeed, Piece
from kvstore.store.questions import Changes, Event
from kvstore.store.range_index import RangeIndex
from multicast.types import GroupId

BUFFER_BYTES: Final = 16 << 20
"""Bytes of pieces that a hub keeps for watchers that are a little behind. As many may wait in it for a group
that is behind the others; beyond, watchers read history.
"""

FEW: Final = 4
"""Audiences that are compared one by one."""


class Audience:
    """The watchers of the same ranges."""

    __slots__ = (
        "begun", "first", "hub", "pieces", "ranges", "rounds", "since", "taken", "waiting", "watchers",
        "whole",
    )  # fmt: skip

    def __init__(self, hub: Hub, ranges: tuple[Range, ...], since: int) -> None:
        self.hub = hub
        self.ranges = ranges
        self.whole = Range(b"", None) in ranges
        self.since = since
        """All pieces of transactions above this revision are in `pieces`."""
        self.pieces: deque[Piece] = deque()
        self.first = 0
        """The number of the first of them."""
        self.begun = 0
        """The revision of a transaction of which some pieces have come, but not the last."""
        self.taken: tuple[tuple[int, ...], Batch, int] | None = None
        """What the last watcher took from where, and which piece it took next."""
        self.watchers = 0
        self.waiting: dict[Any, None] = {}
        """Watchers that wait for pieces: `kvstore.store.watches` wakes them."""
        self.rounds = 0
        """How often it has woken them."""

    def drop_first(self) -> int:
        """Drop the oldest piece. Returns its size."""
        piece = self.pieces.popleft()
        self.first += 1
        self.since = max(self.since, piece.revision)
        return piece.size


@dataclass(slots=True)
class Cursor:
    """A watcher's position."""

    audience: Audience
    at: int
    """The watcher has everything up to this revision."""
    next: int
    """The number of the next piece."""

    @property
    def behind(self) -> bool:
        """Whether pieces were dropped that the watcher has not taken."""
        return self.next < self.audience.first and self.at < self.audience.since

    @property
    def due(self) -> bool:
        """Whether there are pieces that the watcher has not taken."""
        return self.next < self.audience.first + len(self.audience.pieces)

    def take(self, limit_bytes: int) -> Batch:
        """Take the next pieces, at least one if there is any, and move on. The watcher is not behind.

        Watchers at the same position get the same batch.
        """
        audience = self.audience
        key = (self.next, self.at, limit_bytes, audience.first + len(audience.pieces), audience.hub.upto)
        if audience.taken is None or audience.taken[0] != key:
            batch = self._take(limit_bytes)
            audience.taken = key, batch, self.next
        else:
            _, batch, self.next = audience.taken
            self.at = batch.revision
        return batch

    def _take(self, limit_bytes: int) -> Batch:
        audience = self.audience
        found: list[Piece] = []
        self.next = max(self.next, audience.first)
        index = self.next - audience.first
        while index < len(audience.pieces) and limit_bytes > 0:
            piece = audience.pieces[index]
            index += 1
            if piece.revision > self.at:
                found.append(piece)
                limit_bytes -= piece.size
                if piece.last:
                    self.at = piece.revision
        self.next = index + audience.first
        if index == len(audience.pieces):
            self.at = max(self.at, audience.hub.upto)
        return Batch(self.at, tuple(found))


class Hub:
    """See the module."""

    def __init__(
        self, positions: Mapping[GroupId, FeedPosition], *, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        """`positions` are those that the groups' feeds have reached."""
        self._buffer_bytes = buffer_bytes
        self._merged = MergedFeed(positions)
        self.start = _start(positions)
        """Transactions above this revision are whole here."""
        self._audiences: dict[tuple[Range, ...], Audience] = {}
        self._index: RangeIndex[Audience] = RangeIndex()
        self._begun: dict[Audience, None] = {}
        """Audiences that have some pieces of a transaction, but not the last."""
        self._order: deque[Audience] = deque()
        """Whose piece is the oldest, the next oldest, and so on."""
        self._size = 0
        self._count = 0
        """How many pieces are kept, and their bytes."""
        self.dirty: dict[Audience, None] = {}
        """Audiences that got pieces: the caller removes them."""

    @property
    def groups(self) -> tuple[GroupId, ...]:
        """The groups."""
        return tuple(self._merged.upto)

    @property
    def upto(self) -> int:
        """The revision up to which everything was passed on."""
        return max(self._merged.complete, self.start)

    @property
    def wanted(self) -> int:
        """A revision that all groups must pass before what waits can be passed on."""
        return max(self._merged.wanted, self.start)

    @property
    def size(self) -> int:
        """Bytes that are kept: counted again for each audience that has them."""
        return self._size + self._merged.size

    def passed(self, group: GroupId) -> int:
        """Return the revision up to which a group's changes are known."""
        return self._merged.upto[group]

    def join(self, ranges: tuple[Range, ...]) -> Audience:
        """Add a watcher to the audience of these ranges. It must `leave`."""
        audience = self._audiences.get(ranges)
        if audience is None:
            # The first pieces of a transaction that has begun were not kept for it.
            since = max(self.upto, self._merged.begun)
            audience = self._audiences[ranges] = Audience(self, ranges, since)
            self._index.add(audience, ranges)
        audience.watchers += 1
        return audience

    def leave(self, audience: Audience) -> None:
        """Remove a watcher of an audience."""
        audience.watchers -= 1
        if not audience.watchers:
            del self._audiences[audience.ranges]
            self._index.remove(audience)
            self._begun.pop(audience, None)
            self.dirty.pop(audience, None)
            self._size -= sum(piece.size for piece in audience.pieces)
            self._count -= len(audience.pieces)
            audience.pieces.clear()
            audience.taken = None
            if len(self._order) > 2 * self._count + 64:
                self._order = deque(each for each in self._order if each.watchers)

    def cursor(self, audience: Audience, at: int) -> Cursor | None:
        """Return the position of a watcher that has everything up to a revision; None if it is behind."""
        if at < audience.since:
            return None
        index = len(audience.pieces)
        while index and audience.pieces[index - 1].revision > at:
            index -= 1
        return Cursor(audience, at, audience.first + index)

    def take(self, group: GroupId, changes: Changes) -> None:
        """Take a group's next changes, and divide what may be passed on among the audiences."""
        self._merged.take(group, changes)
        for piece in self._merged.drain():
            if piece.revision > self.start:
                self._divide(piece)
        if self._merged.size > self._buffer_bytes:
            self.start_over(self._merged.positions)

    def start_over(self, positions: Mapping[GroupId, FeedPosition]) -> None:
        """Forget everything, and go on after these positions. Watchers are behind until they pass them."""
        self._merged = MergedFeed(positions)
        self.start = max(self.start, _start(positions))
        for audience in self._audiences.values():
            while audience.pieces:
                audience.drop_first()
            audience.first += 1  # nobody goes on where it was
            audience.since, audience.begun = max(audience.since, self.start), 0
            self.dirty[audience] = None
        self._begun.clear()
        self._order.clear()
        self._size = self._count = 0

    def _divide(self, piece: Piece) -> None:
        """Give each audience the events of a piece that are in its ranges."""
        if piece.events:
            self._share(piece)
        if piece.last:
            for audience in list(self._begun):
                self._append(audience, Piece(piece.revision, (), first=False))
        while self._size > self._buffer_bytes and self._order:
            oldest = self._order.popleft()
            if oldest.pieces:  # else it has left
                self._size -= oldest.drop_first()
                self._count -= 1

    def _share(self, piece: Piece) -> None:
        shares: dict[Audience, list[Event]] = {}
        if len(self._audiences) <= FEW:
            for audience in self._audiences.values():
                if not audience.whole:
                    ranges = audience.ranges
                    shares[audience] = [e for e in piece.events if any(r.covers(e.key) for r in ranges)]
        else:
            owners = self._index.owners
            for event in piece.events:
                for audience in owners(event.key):
                    share = shares.setdefault(audience, [])
                    if not share or share[-1] is not event:
                        share.append(event)
        for audience in self._audiences.values() if len(self._audiences) <= FEW else list(shares):
            if audience.whole or len(shares[audience]) == len(piece.events):
                self._append(audience, piece)
            elif shares[audience]:
                first = audience.begun != piece.revision
                share_of = Piece(piece.revision, tuple(shares[audience]), first=first, last=piece.last)
                self._append(audience, share_of)

    def _append(self, audience: Audience, piece: Piece) -> None:
        if piece.first != (audience.begun != piece.revision):
            piece = Piece(piece.revision, piece.events, first=not piece.first, last=piece.last)
        audience.pieces.append(piece)
        self._order.append(audience)
        self._size += piece.size
        self._count += 1
        self.dirty[audience] = None
        if piece.last:
            audience.begun = 0
            self._begun.pop(audience, None)
        else:
            audience.begun = piece.revision
            self._begun[audience] = None


def _start(positions: Mapping[GroupId, FeedPosition]) -> int:
    """Return the revision up to which transactions may have parts before these positions."""
    return max(upto + 1 if skip else upto for upto, skip in positions.values())
