"""Retries: how long to wait for an answer before a request is sent again, and which requests are overdue.

A fixed time-out is wrong under high load or over long distances, where every answer takes longer: then all
requests are sent again and again, which adds load. So the time-out follows the measured response times, as
TCP's retransmission time-out does (RFC 6298), with a larger margin, for queues grow. Two of TCP's rules
matter most. Only requests that were sent once are measured (Karn's rule). If all were retried too soon,
nothing would ever be measured, so a retry doubles the time-out of first attempts, until a measurement
replaces it.

There is no clock here: the caller passes the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeVar

LONGEST_FACTOR: Final = 8
"""The longest time-out, as a multiple of the shortest. Answers may be lost and receivers crash: that is
noticed after this time at the latest."""

RETRIES_MIN: Final = 32
"""The number of retries allowed at a time, however few requests are answered."""

RETRIES_SHARE: Final = 4
"""Beyond these, one retry per so many answers since the last time: under load, most messages are first
attempts, whatever happens."""


class RetryTimeout:
    """The time that an answer may take, by measured response times."""

    __slots__ = ("_deviation", "_doubled_at", "_mean", "_usual", "longest_s", "seconds", "shortest_s")

    def __init__(self, shortest_s: float) -> None:
        self.shortest_s = shortest_s
        self.longest_s = LONGEST_FACTOR * shortest_s
        self.seconds = shortest_s
        """The time-out of a first attempt."""
        self._usual = shortest_s
        """The same, without recent time-outs."""
        self._mean = self._deviation = 0.0
        self._doubled_at = float("-inf")

    def answered(self, took_s: float) -> None:
        """Measure a response time of a request that was sent once."""
        if self._mean:
            self._deviation += (abs(took_s - self._mean) - self._deviation) / 4
            self._mean += (took_s - self._mean) / 8
        else:
            self._mean, self._deviation = took_s, took_s / 2
        usual = 2 * self._mean + 4 * self._deviation
        self.seconds = self._usual = min(max(usual, self.shortest_s), self.longest_s)

    def timed_out(self, now: float) -> None:
        """Double the time-out of first attempts, at most once within one time-out."""
        if now - self._doubled_at >= self.seconds:
            self._doubled_at = now
            self.seconds = min(2 * self.seconds, self.longest_s)

    def after(self, times: int) -> float:
        """Return the time-out of a request after this many retries."""
        return min(self._usual * times, self.longest_s) if times else self.seconds


class Retriable(Protocol):
    """A request that is sent until it is answered."""

    asked_at: float
    """When it was last sent; any other value excludes it from retries."""
    retries: int
    """How often it was sent again."""


R = TypeVar("R", bound=Retriable)


class RetryQueue(Generic[R]):
    """Unanswered requests, and which of them are overdue.

    Requests with equally many retries are in the order in which they were sent, so only the first ones are
    looked at. An answered request stays until it comes first.
    """

    __slots__ = ("_asked", "_is_open", "timeout")

    def __init__(self, shortest_s: float, is_open: Callable[[R], bool]) -> None:
        self.timeout = RetryTimeout(shortest_s)
        self._is_open = is_open
        self._asked: list[deque[tuple[float, R]]] = [deque() for _ in range(LONGEST_FACTOR + 1)]
        """By number of retries; the last one holds all with more retries than that."""

    def asked(self, question: R, now: float) -> None:
        """Record that the request is sent now, for the first time or again."""
        question.asked_at = now
        self._asked[min(question.retries, LONGEST_FACTOR)].append((now, question))

    def overdue(self, now: float) -> list[R]:
        """Return a bounded number of overdue requests, oldest first. The caller sends them again."""
        answered = sum(map(self._drop_answered, self._asked))
        most = max(RETRIES_MIN, answered // RETRIES_SHARE)
        found: list[tuple[float, R]] = []
        for times, asked in enumerate(self._asked):
            found += self._first(asked, self.timeout.after(times), now, most + 1)
        if 0 < len(found) <= most:
            # Otherwise many are left alone, however late they are, and their answers will be measured.
            self.timeout.timed_out(now)
        found.sort(key=itemgetter(0))
        return [question for _, question in found[:most]]

    def _first(
        self, asked: Iterable[tuple[float, R]], wait_s: float, now: float, most: int
    ) -> list[tuple[float, R]]:
        """Return at most `most` requests that have waited for `wait_s`."""
        due = takewhile(lambda each: each[0] + wait_s <= now, asked)
        return list(islice((each for each in due if self._waits(*each)), most))

    def _waits(self, at: float, question: R) -> bool:
        return question.asked_at == at and self._is_open(question)

    def _drop_answered(self, asked: deque[tuple[float, R]]) -> int:
        """Drop those in front that do not wait any more. Return how many of them were answered."""
        answered = 0
        while asked and not self._waits(*asked[0]):
            at, question = asked.popleft()
            answered += question.asked_at == at
        return answered

    def wake_at(self) -> float | None:
        """Return when `overdue` will have something, or None if nothing waits."""
        due = []
        for times, asked in enumerate(self._asked):
            self._drop_answered(asked)
            if asked:
                due.append(asked[0][0] + self.timeout.after(times))
        return min(due, default=None)

    def clear(self) -> None:
        """Drop all requests."""
        for asked in self._asked:
            asked.clear()
