"""Deadlines of calls: one timer of the event loop for all of them.

Nearly every call is answered long before its deadline, so a timer for each would be made and cancelled for
nothing. A call's deadline stays here until it passes, or until enough answered ones have gathered to be
dropped; what is kept of an answered call is small, and does not hold its answer.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Any, Final

from kvstore.store.errors import StoreError

TIMER_S: Final = 0.001
"""Resolution of uvloop's timers: one rounded down fires early, and is set again."""

GATHERED: Final = 1024
"""Deadlines that are kept before those of answered calls are dropped."""


class Waiter:
    """A future and its deadline. The gateway calls it with the outcome."""

    __slots__ = ("_error", "future", "timeout_s")

    def __init__(self, future: asyncio.Future[Any], timeout_s: float, error: type[StoreError]) -> None:
        """The future fails by the `error` if it has no outcome in time."""
        self.future: asyncio.Future[Any] | None = future
        """None when it has an outcome."""
        self.timeout_s = timeout_s
        self._error = error

    def __call__(self, outcome: object) -> None:
        """Resolve the future by a value or an exception. Later calls do nothing."""
        future, self.future = self.future, None
        if future is not None and not future.done():
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    @property
    def is_over(self) -> bool:
        """Whether its deadline does not matter any more."""
        return self.future is None or self.future.done()

    def expire(self) -> None:
        """Let the future fail: it has no outcome in time."""
        if not self.is_over:
            self(self._error(f"no answer within {self.timeout_s:g} s"))


class Deadlines:
    """The deadlines of one service. It belongs to one event loop."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Waiter]] = []
        self._numbers = itertools.count()
        self._most = GATHERED
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, waiter: Waiter, loop: asyncio.AbstractEventLoop) -> None:
        """Let a waiter expire in time."""
        if len(self._heap) >= self._most:
            self._drop_answered()
        at = loop.time() + waiter.timeout_s
        heapq.heappush(self._heap, (at, next(self._numbers), waiter))
        if at < self._timer_at:
            self._set_timer(loop, at)

    def _drop_answered(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].is_over]
        heapq.heapify(self._heap)
        self._most = max(GATHERED, 2 * len(self._heap))

    def _set_timer(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = loop.call_at(at, self._fire, loop)

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._timer_at = None, float("inf")
        now, heap = loop.time(), self._heap
        while heap and (heap[0][0] <= now or heap[0][2].is_over):
            heapq.heappop(heap)[2].expire()
        if heap:
            self._set_timer(loop, max(heap[0][0], now + TIMER_S))
