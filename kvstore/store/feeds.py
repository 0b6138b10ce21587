"""Merge the change feeds of several groups: in the order of revisions, no transaction mixed with another.

Each group's feed is complete up to some revision. Changes up to the lowest of these may be passed on; later
ones wait for the other groups. A transaction too large for one answer arrives in parts. Its parts are passed
on as they come, as soon as nothing can come before it: no process has to hold all of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from kvstore.store.questions import Changes, Event
from multicast.types import GroupId

Ask: TypeAlias = Callable[[GroupId, int, int], Coroutine[Any, Any, Changes]]
Move: TypeAlias = Callable[[GroupId, int], Coroutine[Any, Any, None]]

WAITING_BYTES: Final = 256 << 10
"""Bytes of one group that may wait for other groups before no more are requested."""

PIECE_BYTES: Final = 512 << 10
"""About the most bytes of a piece, unless a single event is larger."""

OVERHEAD: Final = 160
"""What a piece, or an event, counts beside keys and values: about what Python needs for it."""


class Piece:
    """A transaction's events, or some of them. It does not change, so that watchers share it."""

    __slots__ = ("encoded", "events", "first", "last", "revision", "size")

    def __init__(
        self, revision: int, events: tuple[Event, ...], *, first: bool = True, last: bool = True
    ) -> None:
        self.revision = revision
        self.events = events
        self.first = first
        """Whether no piece of the transaction comes before it."""
        self.last = last
        """Whether none follows."""
        self.size = size_of(events)
        self.encoded: Any = None
        """What the API has made of it, for all watchers."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Piece) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return f"Piece{self._fields()}"

    def _fields(self) -> tuple[int, tuple[Event, ...], bool, bool]:
        return self.revision, self.events, self.first, self.last


Transactions: TypeAlias = tuple[Piece, ...]
"""In the order of revisions; the pieces of a transaction are consecutive."""


class Batch:
    """All transactions that changed anything watched, up to a revision, since the last batch; and perhaps
    pieces of the next. It does not change, so that watchers share it.
    """

    __slots__ = ("encoded", "revision", "transactions")

    def __init__(self, revision: int, transactions: Transactions) -> None:
        self.revision = revision
        self.transactions = transactions
        self.encoded: Any = None
        """What the API has made of it, for all watchers."""


def size_of(events: Iterable[Event]) -> int:
    """About the bytes of events."""
    return OVERHEAD + sum(len(key) + len(value or b"") + OVERHEAD for key, value, _, _ in events)


class FeedPosition(NamedTuple):
    """How far a group's changes are known."""

    upto: int
    """Everything up to this revision."""
    skip: int = 0
    """And so many changes of the transaction at the revision `upto + 1`."""


class MergedFeed:
    """The changes of several groups that are not passed on yet."""

    def __init__(self, positions: Mapping[GroupId, FeedPosition]) -> None:
        """Merge what follows these positions."""
        self.upto = {group: upto for group, (upto, _) in positions.items()}
        """The revision up to which each group's changes are complete."""
        self.skip = {group: skip for group, (_, skip) in positions.items()}
        """How many changes of the transaction after that are known too."""
        self.begun = 0
        """The revision of the transaction that was passed on in part; 0 if there is none."""
        self.size = 0
        """Bytes that are not passed on yet."""
        self._waiting: dict[GroupId, deque[tuple[int, tuple[Event, ...], int]]] = {
            group: deque() for group in self.upto
        }
        """Revisions, events, and their size."""
        self._sizes = dict.fromkeys(self.upto, 0)

    @property
    def positions(self) -> dict[GroupId, FeedPosition]:
        """How far each group's changes are known."""
        return {group: FeedPosition(upto, self.skip[group]) for group, upto in self.upto.items()}

    def take(self, group: GroupId, changes: Changes) -> None:
        """Add the next changes of a group. Those that follow another position are dropped."""
        if (changes.after, changes.after_skip) != (self.upto[group], self.skip[group]):
            return
        for revision, events in changes.transactions:
            size = size_of(events)
            self._waiting[group].append((revision, events, size))
            self._sizes[group] += size
            self.size += size
        self.upto[group], self.skip[group] = changes.upto, changes.skip

    def waiting(self, group: GroupId) -> int:
        """Return how many bytes of a group wait for the others."""
        return self._sizes[group]

    @property
    def complete(self) -> int:
        """The revision up to which all groups' changes are complete."""
        return min(self.upto.values())

    @property
    def wanted(self) -> int:
        """The highest revision that waits for other groups; 0 if none does."""
        return max((waiting[-1][0] for waiting in self._waiting.values() if waiting), default=0)

    def drain(self) -> Transactions:
        """Return and forget what may be passed on. A transaction's events in several groups are merged.

        The parts of a transaction are passed on when all others up to it are complete.
        """
        complete = self.complete
        inside = any(skip and self.upto[group] == complete for group, skip in self.skip.items())
        bound = complete + 1 if inside else complete
        merged: dict[int, list[Event]] = {}
        if 0 < self.begun <= complete:
            merged[self.begun] = []  # its end is told, even if no more events were in these ranges
        for group, waiting in self._waiting.items():
            while waiting and waiting[0][0] <= bound:
                revision, events, size = waiting.popleft()
                merged.setdefault(revision, []).extend(events)
                self._sizes[group] -= size
                self.size -= size
        found: list[Piece] = []
        for revision, gathered in sorted(merged.items()):
            last = revision <= complete
            if gathered or last:
                found += _pieces(revision, sorted(gathered), first=revision != self.begun, last=last)
                self.begun = 0 if last else revision
        return tuple(found)


def _pieces(revision: int, events: list[Event], *, first: bool, last: bool) -> Iterable[Piece]:
    """Divide a transaction's events into pieces of a bounded size."""
    begin = size = 0
    for i, (key, value, _, _) in enumerate(events):
        bytes_ = len(key) + len(value or b"") + OVERHEAD
        if size and size + bytes_ > PIECE_BYTES:
            yield Piece(revision, tuple(events[begin:i]), first=first and not begin, last=False)
            begin, size = i, 0
        size += bytes_
    yield Piece(revision, tuple(events[begin:]), first=first and not begin, last=last)


class FeedReader:
    """Reads one group's history for one watch."""

    def __init__(self, group: GroupId, merged: MergedFeed, ask: Ask, move: Move) -> None:
        """`ask` returns what follows a position; `move` makes the group pass a revision."""
        self._group = group
        self._merged = merged
        self._ask = ask
        self._move = move
        self.task: asyncio.Task[Changes] | None = None
        self.stalled = False
        """Whether the replica had nothing more when it was last asked."""
        self._mover: asyncio.Task[None] | None = None

    @property
    def upto(self) -> int:
        """The revision up to which the group's changes are complete."""
        return self._merged.upto[self._group]

    def start(self) -> None:
        """Ask for more changes, unless too many wait for other groups."""
        if self.task is None and self._merged.waiting(self._group) < WAITING_BYTES:
            self.task = asyncio.create_task(self._ask(self._group, self.upto, self._merged.skip[self._group]))

    def take(self) -> None:
        """Take the changes that have arrived. Raises the error of a failed request."""
        if self.task is not None and self.task.done():
            changes, self.task = self.task.result(), None
            self.stalled = (changes.upto, changes.skip) == (changes.after, changes.after_skip)
            self._merged.take(self._group, changes)

    def move(self, revision: int) -> None:
        """Make a group that is behind the others, or idle, pass a revision."""
        if self._mover is None or self._mover.done():
            self._mover = asyncio.create_task(self._move(self._group, revision))

    def close(self) -> None:
        """Cancel all requests: the watch is over."""
        for task in (self.task, self._mover):
            if task is not None:
                task.cancel()
