"""Decides when a user's next request begins: after a think time, or by a fixed schedule."""

from __future__ import annotations

from random import Random


class Pace:
    """The pace of one user. Times are seconds of the monotonic clock.

    With a `rate` (requests per second), all starts are fixed in advance. Otherwise each request begins a
    `think_time` after the end of the one before.
    """

    def __init__(self, rate: float, think_time: tuple[float, float], rng: Random, now: float) -> None:
        self._period = 1.0 / rate if rate else 0.0
        self._think_time = think_time
        self._rng = rng
        # Users that start together must not send together for ever.
        self._next = now + rng.uniform(0.0, self._period)
        self.intended: float | None = None
        """When the next request should begin, if there is a schedule."""

    def wait(self, now: float) -> float:
        """Return the seconds until the next request: 0 if it is late already."""
        if not self._period:
            shortest, longest = self._think_time
            return self._rng.uniform(shortest, longest)
        self.intended = self._next
        self._next += self._period
        return max(self.intended - now, 0.0)
