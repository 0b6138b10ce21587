"""How long to wait for an answer before asking again, and for which of many questions that is over.

A fixed time is wrong where everything takes longer, under much load or over long distances: then all is
asked again and again, and that is more load. So the time follows what answers took, as TCP's retransmission
time-out does (RFC 6298), with more room, for queues grow. Two of TCP's rules matter most. Only questions that
were asked once tell how long an answer takes (Karn's rule), so if all are asked again too soon, nobody would
ever learn: whoever asks in vain gives first questions twice as long, until an answer tells better.

There is no clock here: whoever calls says what time it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeVar

LONGEST_FACTOR: Final = 8
"""The longest time to wait, as a multiple of the shortest. Answers may be lost, and whoever was asked may
have crashed: that is found out no later than so."""

RETRIES_MIN: Final = 32
"""So many questions may be asked again at a time, however few are answered."""

RETRIES_SHARE: Final = 4
"""Beyond them, one for so many that were answered since the last time: under load, most of what is said is
new, whatever happens."""


class RetryTimeout:
    """How long an answer may take."""

    __slots__ = ("_deviation", "_doubled_at", "_mean", "_usual", "longest_s", "seconds", "shortest_s")

    def __init__(self, shortest_s: float) -> None:
        self.shortest_s = shortest_s
        self.longest_s = LONGEST_FACTOR * shortest_s
        self.seconds = shortest_s
        """How long to wait for the first time."""
        self._usual = shortest_s
        """The same, if nothing was in vain lately."""
        self._mean = self._deviation = 0.0
        self._doubled_at = float("-inf")

    def answered(self, took_s: float) -> None:
        """An answer came after this time, to a question that was asked once."""
        if self._mean:
            self._deviation += (abs(took_s - self._mean) - self._deviation) / 4
            self._mean += (took_s - self._mean) / 8
        else:
            self._mean, self._deviation = took_s, took_s / 2
        usual = 2 * self._mean + 4 * self._deviation
        self.seconds = self._usual = min(max(usual, self.shortest_s), self.longest_s)

    def timed_out(self, now: float) -> None:
        """Something has waited for so long: wait for longer, unless that was decided within that time."""
        if now - self._doubled_at >= self.seconds:
            self._doubled_at = now
            self.seconds = min(2 * self.seconds, self.longest_s)

    def after(self, times: int) -> float:
        """How long to wait after a question was asked again so many times."""
        return min(self._usual * times, self.longest_s) if times else self.seconds


class Retriable(Protocol):
    """Something that is asked until it is answered."""

    asked_at: float
    """When it was last asked; nothing else, if it is not to be asked again by itself."""
    retries: int
    """How often it was asked again."""


R = TypeVar("R", bound=Retriable)


class RetryQueue(Generic[R]):
    """Questions that wait for answers, and which of them have waited for too long.

    What was asked again equally often stands in the order in which it was asked, so only the first ones are
    looked at. Whatever is answered stays until it comes first.
    """

    __slots__ = ("_asked", "_is_open", "timeout")

    def __init__(self, shortest_s: float, is_open: Callable[[R], bool]) -> None:
        self.timeout = RetryTimeout(shortest_s)
        self._is_open = is_open
        self._asked: list[deque[tuple[float, R]]] = [deque() for _ in range(LONGEST_FACTOR + 1)]
        """By how often they were asked again, the last for all who were more often than that."""

    def asked(self, question: R, now: float) -> None:
        """It is asked now, for the first time or again."""
        question.asked_at = now
        self._asked[min(question.retries, LONGEST_FACTOR)].append((now, question))

    def overdue(self, now: float) -> list[R]:
        """What is to be asked again now, oldest first, and not too much of it. The caller asks it."""
        answered = sum(map(self._drop_answered, self._asked))
        most = max(RETRIES_MIN, answered // RETRIES_SHARE)
        found: list[tuple[float, R]] = []
        for times, asked in enumerate(self._asked):
            found += self._first(asked, self.timeout.after(times), now, most + 1)
        if 0 < len(found) <= most:
            # Else many are left alone, however late they are, and will tell how long an answer takes.
            self.timeout.timed_out(now)
        found.sort(key=itemgetter(0))
        return [question for _, question in found[:most]]

    def _first(
        self, asked: Iterable[tuple[float, R]], wait_s: float, now: float, most: int
    ) -> list[tuple[float, R]]:
        """So many at most that have waited for so long."""
        due = takewhile(lambda each: each[0] + wait_s <= now, asked)
        return list(islice((each for each in due if self._waits(*each)), most))

    def _waits(self, at: float, question: R) -> bool:
        return question.asked_at == at and self._is_open(question)

    def _drop_answered(self, asked: deque[tuple[float, R]]) -> int:
        """Forget those in front that do not wait any more. How many of them were answered."""
        answered = 0
        while asked and not self._waits(*asked[0]):
            at, question = asked.popleft()
            answered += question.asked_at == at
        return answered

    def wake_at(self) -> float | None:
        """When `overdue` will have something, if anything waits."""
        due = []
        for times, asked in enumerate(self._asked):
            self._drop_answered(asked)
            if asked:
                due.append(asked[0][0] + self.timeout.after(times))
        return min(due, default=None)

    def clear(self) -> None:
        """Nothing is asked any more."""
        for asked in self._asked:
            asked.clear()
