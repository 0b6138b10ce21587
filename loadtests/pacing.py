"""When a user's next request begins: after some thought, or by a timetable that waits for nobody."""

from __future__ import annotations

from random import Random


class Pace:
    """One user's. With a `rate`, requests per second, all starts are fixed in advance; else each follows the
    end of the one before after a `think_time`. Times are seconds of the monotonic clock.
    """

    def __init__(self, rate: float, think_time: tuple[float, float], rng: Random, now: float) -> None:
        self._period = 1.0 / rate if rate else 0.0
        self._think_time = think_time
        self._rng = rng
        # Users that begin at once shall not ask at once for ever.
        self._next = now + rng.uniform(0.0, self._period)
        self.intended: float | None = None
        """When the request that is due now should begin, if there is a timetable."""

    def wait(self, now: float) -> float:
        """For how long, before the next request. 0 of one that is late already."""
        if not self._period:
            shortest, longest = self._think_time
            return self._rng.uniform(shortest, longest)
        self.intended = self._next
        self._next += self._period
        return max(self.intended - now, 0.0)
