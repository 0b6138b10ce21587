"""Virtual time, and links between processes: FIFO inside a connection, lossy between connections."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from multicast.types import Process

Payload: TypeAlias = object


class Loop:
    """Events in the order of virtual time; at the same time, in the order in which they were scheduled."""

    __slots__ = ("_count", "_events", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time: float, call: Callable[..., None], *arguments: object) -> None:
        """Schedule a call at this time, or now if it has passed."""
        self._count += 1
        heapq.heappush(self._events, (max(time, self.now), self._count, call, arguments))

    def step(self) -> bool:
        """Run the next event. Return False if there is none."""
        if not self._events:
            return False
        self.now, _, call, arguments = heapq.heappop(self._events)
        call(*arguments)
        return True

    def peek(self) -> float | None:
        """Return the time of the next event, or None."""
        return self._events[0][0] if self._events else None


@dataclass(frozen=True, slots=True)
class Delays:
    """Message delays, in seconds. With equal bounds, every message takes exactly that long."""

    least_s: float = 0.001
    most_s: float = 0.01
    tail: float = 0.02
    """The share of messages that take up to twenty times longer."""

    def sample(self, rng: random.Random) -> float:
        """Draw one message's delay."""
        if self.least_s == self.most_s:
            return self.least_s
        delay = self.least_s + (self.most_s - self.least_s) * rng.random()
        return delay * (1 + 19 * rng.random()) if rng.random() < self.tail else delay


class _Link:
    __slots__ = ("connection", "cut", "free_at")

    def __init__(self) -> None:
        self.connection = 0
        self.cut = False
        self.free_at = 0.0


class Network:
    """All links. Crashes, cuts and resets lose what is in flight; no message overtakes another on a link."""

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        delays: Delays,
        receive: Callable[[Process, Process, Payload], None],
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._delays = delays
        self._receive = receive
        self._links: dict[tuple[Process, Process], _Link] = {}
        self.loses: Callable[[Process, Process, Payload], bool] | None = None
        """A test's own rule for which messages are lost."""
        self.blocked: Callable[[Process, Process], bool] | None = None
        """Which links are cut by machines rather than by processes: what is sent, or arrives, is lost."""
        self.sent = 0
        self.delivered = 0

    def _link(self, source: Process, target: Process) -> _Link:
        key = (source, target)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = _Link()
        return link

    def send(self, source: Process, target: Process, message: Payload) -> None:
        """Send a message."""
        self.sent += 1
        link = self._link(source, target)
        if link.cut or (self.loses is not None and self.loses(source, target, message)):
            return
        if self.blocked is not None and self.blocked(source, target):
            return
        arrival = max(link.free_at, self._loop.now + self._delays.sample(self._rng))
        link.free_at = arrival
        self._loop.at(arrival, self._arrive, source, target, link, link.connection, message)

    def _arrive(
        self, source: Process, target: Process, link: _Link, connection: int, message: Payload
    ) -> None:
        if link.connection == connection and not (self.blocked is not None and self.blocked(source, target)):
            self.delivered += 1
            self._receive(source, target, message)

    def reset(self, source: Process, target: Process) -> None:
        """Break the connection: what is in flight on it is lost, and a new connection supersedes it."""
        link = self._link(source, target)
        link.connection += 1
        link.free_at = 0.0

    def cut(self, source: Process, target: Process) -> None:
        """Let no message pass in this direction until `heal`."""
        self.reset(source, target)
        self._link(source, target).cut = True

    @property
    def links(self) -> list[tuple[Process, Process]]:
        """All pairs of processes of which the first has sent to the second."""
        return list(self._links)

    def is_cut(self, source: Process, target: Process) -> bool:
        """Return whether a link is cut."""
        link = self._links.get((source, target))
        return link is not None and link.cut

    def heal(self) -> None:
        """End all cuts."""
        for link in self._links.values():
            link.cut = False

    def supersede(self, process: Process) -> None:
        """Reset all connections of a process that has restarted."""
        for source, target in list(self._links):
            if process in (source, target):
                self.reset(source, target)
