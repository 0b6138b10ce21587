"""Closed and open loops: when the next message is sent.

A closed loop keeps so many messages in flight: a slow server gets fewer of them, and its stalls show in few
latencies. An open loop sends at times that were fixed in advance, whatever the server does, and counts
latency from those: a message that could not be sent in time has waited, too.
"""

from __future__ import annotations

import abc
import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks.load.tally import Tally

PAUSE_S: Final = 0.02
"""After an error, before the next message: a server that rejects all of them is not overwhelmed."""

LATE_S: Final = 0.01
"""A message that is sent later than this after its time was late."""

TIMER_S: Final = 0.001
"""What uvloop's timers count in. A shorter one would be none, and the loop would turn until it is time."""

SWEEP_S: Final = 0.25

Send = Callable[[tuple[int, ...]], "asyncio.Future[Any]"]
"""Sends a message to groups. The future ends when all of them have answered."""


class _Message:
    """A message in flight."""

    __slots__ = ("dest", "loop", "start")

    def __init__(self, loop: Loop, start: float, dest: tuple[int, ...]) -> None:
        self.loop = loop
        self.start = start
        self.dest = dest

    def ended(self, future: asyncio.Future[Any]) -> None:
        """The future's callback."""
        if future.cancelled():
            self.loop.ended(self, "cancelled")
        else:
            error = future.exception()
            self.loop.ended(self, None if error is None else type(error).__name__)


class Loop(abc.ABC):
    """A closed or an open loop. It belongs to one event loop."""

    def __init__(
        self,
        send: Send,
        choose: Callable[[], tuple[int, ...]],
        tally: Tally,
        *,
        patience_s: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` has the event loop's seconds. (uvloop's own time has no microseconds.)"""
        self._send = send
        self._choose = choose
        self._tally = tally
        self._patience_s = patience_s
        self._now = now
        self._events = asyncio.get_running_loop()
        self._stopped = False
        self._under_way: dict[_Message, None] = {}
        """In the order of their sending."""
        self.idle = asyncio.Event()
        """Stopped, and nothing is under way."""
        self.late = 0
        self.unsent = 0

    @abc.abstractmethod
    def start(self) -> None:
        """Begin now."""

    @abc.abstractmethod
    def _next(self, *, failed: bool) -> None:
        """Send the next message, or plan it: one has ended."""

    def stop(self) -> None:
        """Send nothing more. Messages in flight may still be answered."""
        self._stopped = True
        self._look_idle()

    def give_up(self) -> None:
        """Count all messages in flight as unanswered."""
        for message in list(self._under_way):
            self.ended(message, "unanswered")

    def sweep(self) -> None:
        """Count messages as unanswered that have been in flight for longer than `patience_s`."""
        limit = self._now() - self._patience_s
        for message in [message for message in self._under_way if message.start < limit]:
            self.ended(message, "unanswered")

    def begin(self, start: float) -> None:
        """Send a message that is due now, or was due at `start`."""
        message = _Message(self, start, self._choose())
        self._under_way[message] = None
        try:
            self._send(message.dest).add_done_callback(message.ended)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
            # After the caller has returned.
            self._events.call_soon(self.ended, message, type(error).__name__)

    def ended(self, message: _Message, error: str | None) -> None:
        """Count a message that has ended, unless it was given up before."""
        if message not in self._under_way:
            return
        del self._under_way[message]
        self._tally.ended(message.start, self._now(), message.dest, error)
        if not self._stopped:
            self._next(failed=error is not None)
        else:
            self._look_idle()

    def _look_idle(self) -> None:
        if self._stopped and not self._under_way:
            self.idle.set()


class ClosedLoop(Loop):
    """A closed loop: whenever a message has ended, the next one is sent."""

    def __init__(self, *arguments: Any, in_flight: int, ramp_s: float = 0.0, **options: Any) -> None:
        """The first messages are spread over `ramp_s` seconds: clients that begin at once stay in step."""
        super().__init__(*arguments, **options)
        self._in_flight = in_flight
        self._ramp_s = ramp_s

    def start(self) -> None:
        """Begin now."""
        for number in range(self._in_flight):
            self._events.call_later(self._ramp_s * number / self._in_flight, self._go_on)

    def _next(self, *, failed: bool) -> None:
        if failed:
            self._events.call_later(PAUSE_S, self._go_on)
        else:
            self.begin(self._now())

    def _go_on(self) -> None:
        if not self._stopped:
            self.begin(self._now())


class OpenLoop(Loop):
    """An open loop: messages are due at random times, a Poisson process. Without room they are sent late."""

    def __init__(
        self, *arguments: Any, rate: float, rng: random.Random, in_flight: int | None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._rate = rate
        self._rng = rng
        self._room = math.inf if in_flight is None else in_flight
        self._due = math.inf
        """When the next message is to be sent."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin now."""
        self._due = self._now()
        self._advance()
        self._pump()

    def stop(self) -> None:
        """Send nothing any more; count what should have been sent by now."""
        if self._timer is not None:
            self._timer.cancel()
        while self._due <= self._now():
            self.unsent += 1
            self._advance()
        super().stop()

    def _advance(self) -> None:
        self._due += self._rng.expovariate(self._rate)

    def _next(self, *, failed: bool) -> None:
        self._pump()

    def _pump(self) -> None:
        """Send what is due, as far as there is room; if all is sent, come back when the next is due."""
        now = self._now()
        while self._due <= now and len(self._under_way) < self._room:
            self.late += now - self._due > LATE_S
            self.begin(self._due)
            self._advance()
        if self._due > now:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._events.call_later(max(TIMER_S, self._due - now), self._pump)
