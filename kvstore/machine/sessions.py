"""Deduplicate requests: the result of each client's requests, by their numbers.

A session is what one client has requested of one set of destinations. All destinations of a message must
judge it alike, or it would be executed in one group and refused in another. They do:

- All groups of a set of destinations deliver the same messages to exactly that set, in the same order.
- What is judged by a session (MISMATCH, WINDOW_FULL, FORGOTTEN, or whether it is a repetition) is a function
  of those messages and nothing else: the session changes with them only, and counts as new for a message
  delivered above its last deadline, whether its rows are still there or not.
- `Expire` concerns one group alone, since it only removes rows that have no effect: those of sessions
  whose last deadline is below a revision that is itself below everything delivered later.
- EXPIRED is read off the message: its deadline and its global timestamp.

A request is executed once: while a copy of it can be within its deadline, the session is not above its last
one, so that it knows the number, or that its result was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, TypeAlias

from kvstore.machine.commands import Request
from kvstore.machine.data import Data
from kvstore.machine.ordered import OrderedMap
from kvstore.machine.request import INT64_MAX
from kvstore.machine.results import Refusal, Refused, Result
from multicast.types import NO_TIMESTAMP, Destinations, GroupId, Timestamp

WINDOW: Final = 4096
_SLICE: Final = 64
_LOOKED_AT: Final = 4096
_KEPT: Final = 1 << 16
_UNKNOWN: Final = (-1, NO_TIMESTAMP)

SessionKey: TypeAlias = tuple[int, Destinations]
Number: TypeAlias = tuple[int, Destinations, int]


class Session(Data, frozen=True):
    """The state of a client's requests to a set of destinations."""

    low: int
    """Below it the client has acknowledged all results."""
    last_deadline: int
    born: int
    """The global timestamp of its first request. What was delivered before belongs to another session."""


class Stored(Data, frozen=True):
    """A result that its client has not acknowledged, the request's digest, and where it was executed."""

    digest: int
    gts: Timestamp
    result: Result


class Repeated(Data, frozen=True):
    """The request was delivered before, at `gts`; without a result, it is not yet executed."""

    result: Result | None
    gts: Timestamp


class Sessions:
    """The results of one group's requests that may still be repeated."""

    __slots__ = ("_kept", "_open", "_results", "_sessions", "_window")

    def __init__(
        self,
        sessions: OrderedMap[SessionKey, Session],
        results: OrderedMap[Number, Stored],
        window: int = WINDOW,
    ) -> None:
        self._sessions = sessions
        self._results = results
        self._open: dict[Number, tuple[int, Timestamp]] = {}
        """Digests of what is delivered and not executed, and where. Kept with the requests themselves."""
        self._window = window
        self._kept: dict[SessionKey, set[int]] = {}
        """Numbers with results, of recent sessions: a cache that spares looking up new numbers."""

    def admit(
        self, request: Request, destinations: Destinations, gts: Timestamp
    ) -> Repeated | Refused | None:
        """Judge a delivered request. Returns None if it is to be executed."""
        client, sequence, deadline = request.client, request.sequence, request.deadline
        ack_below = request.ack_below
        if gts > deadline:
            return Refused(
                Refusal.EXPIRED,
                f"request {sequence} of client {client} was delivered after its deadline {deadline}",
            )
        key = (client, destinations)
        session = self._sessions.get(key)
        if session is not None and session.last_deadline < gts:
            self._forget(key)
            session = None
        known: Repeated | Refused | None = None
        if session is not None:
            known = self._find(session, request, destinations)
            if isinstance(known, Refused):
                return known
        if known is None and sequence >= ack_below + self._window:
            return self.refused(request)
        if session is None:
            self._sessions.put(key, Session(ack_below, deadline, gts))
            self._keep(key, set())
            return known
        low, last = session.low, session.last_deadline
        if ack_below > low or deadline > last:
            higher, later = ack_below if ack_below > low else low, deadline if deadline > last else last
            self._sessions.put(key, Session(higher, later, session.born))
            if higher > low:
                self._acknowledge(key, low, higher)
        return known

    def _keep(self, key: SessionKey, numbers: set[int]) -> set[int]:
        if len(self._kept) >= _KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = numbers
        return numbers

    def _numbers(self, key: SessionKey) -> set[int]:
        """The numbers of the session that have results."""
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        return self._keep(key, {number[2] for number in self._stored(key)})

    def _stored(self, key: SessionKey) -> list[Number]:
        rows = self._results.items((*key, 0), (*key, INT64_MAX + 1))
        return [number for number, _ in rows]

    def _acknowledge(self, key: SessionKey, before: int, low: int) -> None:
        """Forget acknowledged results, whichever is fewer: the range of numbers, or the numbers kept."""
        numbers = self._numbers(key)
        if low - before == 1:
            if before in numbers:
                numbers.remove(before)
                self._results.delete((*key, before))
            return
        few = range(before, low)
        for number in few if len(few) <= len(numbers) else sorted(n for n in numbers if n < low):
            if number in numbers:
                numbers.remove(number)
                self._results.delete((*key, number))

    def _exceeds(self, request: Request) -> bool:
        return request.sequence >= request.ack_below + self._window

    def refused(self, request: Request) -> Refused:
        """Return why a request that was delivered has left no trace."""
        client, sequence, ack_below = request.client, request.sequence, request.ack_below
        if self._exceeds(request):
            return Refused(
                Refusal.WINDOW_FULL,
                f"request {sequence} of client {client}, which has acknowledged those below {ack_below}, "
                f"exceeds its window of {self._window}",
            )
        return Refused(
            Refusal.EXPIRED,
            f"request {sequence} of client {client} came too late, or its result is forgotten",
        )

    def find(self, request: Request, destinations: Destinations) -> Repeated | Refused | None:
        """Return what is known of a request's number; None if nothing."""
        session = self._sessions.get((request.client, destinations))
        return None if session is None else self._find(session, request, destinations)

    def _find(
        self, session: Session, request: Request, destinations: Destinations
    ) -> Repeated | Refused | None:
        client, sequence = request.client, request.sequence
        if sequence < session.low:
            return Refused(
                Refusal.FORGOTTEN,
                f"request {sequence} of client {client}, which has acknowledged those below {session.low}",
            )
        number = (client, destinations, sequence)
        stored = None
        if sequence in self._numbers((client, destinations)):
            stored = self._results.get(number)
        elif not self._open:
            return None
        if stored is not None:
            digest = stored.digest
            known = Repeated(stored.result, stored.gts)
        else:
            digest, gts = self._open.get(number, _UNKNOWN)
            if gts < session.born:
                return None
            known = Repeated(None, gts)
        if digest != request.digest:
            return Refused(
                Refusal.MISMATCH, f"number {sequence} of client {client} belongs to another request"
            )
        return known

    def open(self, request: Request, destinations: Destinations, gts: Timestamp) -> None:
        """Note an admitted request that is executed later."""
        self._open[request.client, destinations, request.sequence] = (request.digest, gts)

    def executed(self, request: Request, destinations: Destinations, gts: Timestamp, result: Result) -> None:
        """Keep the result until its client acknowledges it, or its deadline has passed."""
        client, sequence = request.client, request.sequence
        number = (client, destinations, sequence)
        if self._open and self._open.get(number, _UNKNOWN)[1] == gts:
            del self._open[number]
        key = (client, destinations)
        session = self._sessions.get(key)
        if session is not None and session.born <= gts and sequence >= session.low:
            self._numbers(key).add(sequence)
            self._results.insert(number, Stored(request.digest, gts, result))

    def has_expired(self, before: int) -> bool:
        """Whether there is anything for `sweep` to do; if there are very many sessions, among the first."""
        sessions = islice(self._sessions.items((0, ()), None), _LOOKED_AT)
        return any(session.last_deadline < before for _, session in sessions)

    def sweep(self, before: int) -> Iterator[int]:
        """Remove all sessions that have expired before a revision, a step at a time, each of which costs a
        row.
        """
        start: SessionKey = (0, ())
        while rows := list(islice(self._sessions.items(start, None), _SLICE)):
            for key, _ in rows:
                session = self._sessions.get(key)
                if session is not None and session.last_deadline < before:
                    self._forget(key)
                yield 1
            client, destinations = rows[-1][0]
            start = (client, (*destinations, GroupId(0)))

    def _forget(self, key: SessionKey) -> None:
        for number in self._stored(key):
            self._results.delete(number)
        self._kept.pop(key, None)
        self._sessions.delete(key)
