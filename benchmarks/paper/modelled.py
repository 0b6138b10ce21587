"""A model in which processes take no time: latency from delays and conflicts alone, in closed loops.

`predicted` says when leaders get a message, pass its global timestamp with their clocks, and commit it, if it
is alone. Here messages meet: leaders give them local timestamps as they come, and deliver in the order of
global timestamps, so that a message waits for those that are before it, or might be. What a cluster does
beyond this model is the work of its processes.
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from benchmarks.paper.predicted import Area, clock_updates, commits

Timestamp: TypeAlias = tuple[int, int]
"""Time and group."""

WARM_UP: Final = 0.3
"""The share of the time that is warm-up: messages that begin then do not count."""
ARRIVES, PASSES, COMMITS, NEXT = range(4)
"""What happens to a message at a leader, in this order if at the same time; and a client's next message."""


@dataclass(slots=True, eq=False)
class _Message:
    client: int
    began: float
    dest: tuple[int, ...]
    local: dict[int, Timestamp] = field(default_factory=dict)
    undelivered: set[int] = field(default_factory=set)
    answered: float = 0.0

    @property
    def position(self) -> Timestamp:
        """The global timestamp, once all leaders have the message."""
        return max(self.local.values())


class Model:
    """One run: clients spread over the regions, each with one message in flight."""

    def __init__(
        self, protocol: str, area: Area, groups: int, dest: int, clients: int, seed: int = 0
    ) -> None:
        self._protocol = protocol
        self._area = area
        self._groups = range(groups)
        self._dest = dest
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, int, int, _Message | None]] = []
        self._count = itertools.count()
        self._clocks = [0] * groups
        self._waiting: list[dict[_Message, bool]] = [{} for _ in self._groups]
        """For each group, messages that are not yet delivered, and whether they are committed."""
        self.finished: list[_Message] = []
        longest = 4 * max(map(max, area.delays))
        for client in range(clients):
            self._at(self._rng.random() * longest, NEXT, client, None)

    def _at(self, when: float, what: int, where: int, message: _Message | None) -> None:
        heapq.heappush(self._events, (when, what, next(self._count), where, message))

    def run(self, until: float) -> None:
        """Run for a time, in the unit of the delays."""
        while self._events and self._events[0][0] <= until:
            now, what, _, where, message = heapq.heappop(self._events)
            if message is None:
                self._send(where, now)
            elif what == ARRIVES:
                self._clocks[where] += 1
                message.local[where] = self._clocks[where], where
                self._waiting[where][message] = False
            elif what == PASSES:
                self._clocks[where] = max(self._clocks[where], message.position[0])
            else:
                self._waiting[where][message] = True
                self._deliver(where, now)

    def _send(self, client: int, now: float) -> None:
        dest = tuple(sorted(self._rng.sample(self._groups, self._dest)))
        message = _Message(client, now, dest, undelivered=set(dest))
        region = client % len(self._area.delays)
        arrives = {group: self._area.delays[region][self._area.home(group)] for group in dest}
        for what, times in (
            (ARRIVES, arrives),
            (PASSES, clock_updates(self._protocol, self._area, arrives)),
            (COMMITS, commits(self._protocol, self._area, arrives)),
        ):
            for group, after in times.items():
                self._at(now + after, what, group, message)

    def _deliver(self, group: int, now: float) -> None:
        waiting = self._waiting[group]
        while True:
            first = min(
                (each for each in waiting if waiting[each]), key=lambda each: each.position, default=None
            )
            if first is None:
                return
            if any(not waiting[each] and each.local[group] < first.position for each in waiting):
                return
            del waiting[first]
            first.undelivered.remove(group)
            back = self._area.delays[self._area.home(group)][first.client % len(self._area.delays)]
            first.answered = max(first.answered, now + back)
            if not first.undelivered:
                self.finished.append(first)
                self._at(first.answered, NEXT, first.client, None)


def mean_latency(
    protocol: str, area: Area, groups: int, dest: int, clients: int, until: float = 6000.0, seed: int = 0
) -> float:
    """The mean latency of messages that began after the warm-up."""
    model = Model(protocol, area, groups, dest, clients, seed)
    model.run(until)
    counted = [each for each in model.finished if each.began >= WARM_UP * until]
    return statistics.fmean(each.answered - each.began for each in counted)
