"""The convoy effect: delivery latency against the rate of conflicting messages, in virtual time.

Messages arrive in an open loop, as a Poisson process, in groups whose leaders, links and disks are those of
`delays`: every link takes δ, everything else no time. A message without conflicts takes the collision-free
latency; one that others delay takes longer, and by Theorem 4 never longer than the failure-free latency.
Times are rounded to 1/1024 δ, so that latencies are exact.

Three workloads. In all of them, the rate is that of messages to two groups, as one group sees them:

`pair`     all messages go to the same two groups
`uneven`   the same, and as many messages go to the second group alone: its clock runs ahead
`random`   every message goes to two of six groups

There are two kinds of links. With `equal` ones, MULTICAST takes δ, too. With `unequal` ones it takes δ to one
leader, drawn for each message, and any time up to δ to the other: leaders receive messages in different
orders.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from multicast.errors import InvalidArgument
from multicast.messages import Delivery, Message
from multicast.protocol import Protocol
from multicast.sim.checkers import Checker, Violation
from multicast.sim.clients import SimClient
from multicast.sim.delays import DELTA_S, TICK, Exact, Latency, group_size, measure
from multicast.sim.host import Host
from multicast.sim.wall_clocks import WALL_S
from multicast.types import TICKS_PER_S, ClientId, GroupId, MessageId, Process

WORKLOADS: Final[Mapping[str, int]] = {"pair": 2, "uneven": 2, "random": 6}
"""The workloads, each with its number of groups."""

LINKS: Final = ("unequal", "equal")

RATES: Final = (0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The default rates, in messages per δ."""

RATE_MIN: Final = 0.0001
RATE_MAX: Final = 100.0
"""A run must end before the first heartbeat, and times must tell most messages apart."""

STEPS: Final = 1024
"""The resolution of times, in steps per δ."""

GRID: Final = 1
"""Steps per δ of the search for the failure-free latency: coarse, but it includes the worst arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvoyLoad:
    """The load of one run."""

    rate: float
    """Messages to two groups per δ, at each group."""
    workload: str = "pair"
    links: str = "unequal"
    messages: int = 500
    """The number of measured messages: in the middle of the run, where its start has no influence."""

    def __post_init__(self) -> None:
        if not RATE_MIN <= self.rate <= RATE_MAX:
            between = f"from {RATE_MIN:g} to {RATE_MAX:g} messages per δ"
            raise InvalidArgument(f"rate must be {between}, not {self.rate:g}")
        if self.workload not in WORKLOADS:
            raise InvalidArgument(f"unknown workload {self.workload!r}; choose {' or '.join(WORKLOADS)}")
        if self.links not in LINKS:
            raise InvalidArgument(f"unknown links {self.links!r}; choose {' or '.join(LINKS)}")
        if self.messages < 1:
            raise InvalidArgument(f"messages must be at least 1, not {self.messages}")


@dataclass
class DeliveryTimes(Checker):
    """When messages are first delivered in each group, and last at a follower."""

    simulation: Exact
    first: dict[tuple[MessageId, GroupId], float] = field(default_factory=dict)
    last: dict[MessageId, float] = field(default_factory=dict)
    lead: int = 0
    """The most ticks by which a hybrid clock was ahead of all wall clocks."""

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """Record the time of a delivery."""
        now = self.simulation.loop.now
        self.first.setdefault((delivery.mid, host.me.group), now)
        if host.me not in self.simulation.leaders:
            self.last[delivery.mid] = now

    def stepped(self, host: Host, sender: Process, message: Message) -> None:
        """Compare the replica's clock with the fastest wall clock."""
        walls = self.simulation.walls
        if walls is not None:
            wall_s = self.simulation.loop.now + WALL_S + max(walls) * DELTA_S
            replica: Any = host.replica
            self.lead = max(self.lead, replica.clock - int(wall_s * TICKS_PER_S))


class Convoy(Exact):
    """One run: messages arrive as a Poisson process, each from a client without other pending messages."""

    def __init__(
        self, protocol: type[Protocol], load: ConvoyLoad, *, replicas: int = 3, skew: float | None = None,
        margin: float = 30.0, checkers: bool = True, seed: int = 0,
    ) -> None:  # fmt: skip
        """`margin`: for how many δ messages arrive before and after the measured ones."""
        self.load = load
        self.watch = DeliveryTimes(self)
        groups = WORKLOADS[load.workload]
        walls = None if skew is None else (0.0,) * (groups - 1) + (skew,)
        self._random = random.Random(f"convoy {load.workload} {load.rate} {seed}")
        self._margin = margin
        self._measured: dict[MessageId, float] = {}
        super().__init__(
            protocol, groups, group_size(protocol, replicas),
            walls=walls, observers=[self.watch], checkers=checkers, seed=seed,
        )  # fmt: skip

    def run_load(self) -> tuple[list[float], list[float]]:
        """Return latencies of the measured messages in δ: at leaders (latest group) and at followers."""
        rate, margin = self.load.rate * len(self.topology.groups) / 2, self._margin
        pauses = (self._pause(rate) for _ in range(self.load.messages))
        measured = list(itertools.accumulate(pauses, initial=margin))[1:]
        end = measured[-1] + margin
        self._schedule(self._measure, measured)
        self._schedule(self._pair, self._poisson(rate, 0.0, margin))
        self._schedule(self._pair, self._poisson(rate, measured[-1], end))
        if self.load.workload == "uneven":
            self._schedule(self._alone, self._poisson(rate, 0.0, end))
        until = self.loop.now + end * DELTA_S
        self.run_until(lambda: self.loop.now >= until, math.inf)
        self.rest()
        self.check()
        return self._latencies()

    def _schedule(self, call: Callable[[], None], times: Iterable[float]) -> None:
        for at in times:
            self.loop.at(self.loop.now + at * DELTA_S, call)

    def _pause(self, rate: float) -> float:
        return round(self._random.expovariate(rate) * STEPS) / STEPS

    def _poisson(self, rate: float, begin: float, end: float) -> Iterator[float]:
        """Iterate over arrivals between two times, in δ."""
        while (begin := begin + self._pause(rate)) < end:
            yield begin

    def _measure(self) -> None:
        self._measured[self._multicast()] = self.loop.now

    def _pair(self) -> None:
        self._multicast()

    def _alone(self) -> None:
        self.multicast_by(self._idle(), self.topology.groups[-1:], [1.0])

    def _multicast(self) -> MessageId:
        """Multicast a message to two groups."""
        groups = sorted(self._random.sample(self.topology.groups, 2))
        times = [1.0, 1.0]
        if self.load.links == "unequal":
            times[self._random.randrange(2)] = self._random.randint(1, STEPS) / STEPS
        return self.multicast_by(self._idle(), groups, times)

    def check(self) -> None:
        """Check that every replica has delivered every message, in one order."""
        for me, host in self.hosts.items():
            if len(host.log) < len(self.order.sequences[me.group]):
                raise Violation("Termination", f"{me} has delivered less than its group")
        self._check_end()

    def _latencies(self) -> tuple[list[float], list[float]]:
        known, first, last = self.multicasts.known, self.watch.first, self.watch.last
        leaders = [
            (max(first[mid, group] for group in known[mid].dest) - since) / DELTA_S
            for mid, since in self._measured.items()
        ]
        followers = [
            (last[mid] - since) / DELTA_S for mid, since in self._measured.items() if mid in last
        ]  # fmt: skip
        return leaders, followers

    def _idle(self) -> SimClient:
        """Return a client without pending messages, so that its next message overtakes none of its own."""
        for client in self.clients.values():
            if not client.sender.pending:
                return client
        number = ClientId(len(self.clients) + 1)
        newcomer = self.clients[number] = SimClient(
            number, self.first, self.scenario.workload, 0,
            loop=self.loop, network=self.network, rng=self._fork(f"client {number}"),
            multicasts=self.multicasts, changed=self._nothing, observers=self._observers,
        )  # fmt: skip
        newcomer.sender.retry_s = 1e10
        return newcomer


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies in δ."""

    mean: float
    error: float
    """The standard error of the mean, from the means of the seeds."""
    min: float
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, runs: Sequence[Sequence[float]]) -> Summary:
        """Summarise the runs of several seeds."""
        means = [statistics.fmean(run) for run in runs]
        error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
        found = sorted(latency for run in runs for latency in run)
        p50, p99 = (found[math.ceil(len(found) * part) - 1] for part in (0.50, 0.99))
        return cls(statistics.fmean(means), error, found[0], p50, p99, found[-1])


@dataclass(frozen=True, slots=True)
class Point:
    """The measurements at one rate."""

    rate: float
    messages: int
    leader: Summary
    follower: Summary | None
    """None where groups have no followers."""
    lead: int
    """The most ticks by which a hybrid clock was ahead of all wall clocks."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One protocol's latencies, and the bounds that `measure` finds."""

    collision_free: Latency
    failure_free: Latency
    points: tuple[Point, ...]

    def strays(self) -> list[str]:
        """Return the latencies outside of the bounds, in words.

        Hybrid clocks round down to ticks, and advance by single ticks where several messages share one.
        """
        found = []
        for point in self.points:
            slack = (point.lead + 1) * TICK
            for where, it in (("leaders", point.leader), ("followers", point.follower)):
                low, high = self._bounds(where)
                if it is not None and not (low <= it.min and it.max < high + slack):
                    spread = f"from {it.min:g}δ to {it.max:g}δ"
                    found.append(f"rate {point.rate:g}, {where}: {spread}, not {low:g}δ to {high:g}δ")
        return found

    def _bounds(self, where: str) -> tuple[float, float]:
        alone, worst = self.collision_free, self.failure_free
        if where == "leaders":
            return alone.leader, worst.leader
        return alone.follower or 0.0, worst.follower or 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the curve as plain data."""
        return asdict(self) | {"strays": self.strays()}


def curve(
    protocol: type[Protocol], loads: Iterable[ConvoyLoad], *, seeds: int = 4, replicas: int = 3,
    skew: float | None = None, checkers: bool = True,
) -> Curve:  # fmt: skip
    """Measure one protocol's latencies at several loads; for `skew`, see `delays.measure`."""
    if seeds < 1:
        raise InvalidArgument(f"seeds must be at least 1, not {seeds}")
    bounds = measure(protocol, GRID, replicas, skew=skew)
    margin = bounds.failure_free.follower or bounds.failure_free.leader
    points = []
    for load in loads:
        leaders, followers, lead = [], [], 0
        for seed in range(seeds):
            run = Convoy(
                protocol, load, replicas=replicas, skew=skew, margin=margin, checkers=checkers, seed=seed
            )
            at_leaders, at_followers = run.run_load()
            leaders.append(at_leaders)
            followers.append(at_followers)
            lead = max(lead, run.watch.lead)
        below = Summary.of(followers) if followers[0] else None
        points.append(Point(load.rate, sum(map(len, leaders)), Summary.of(leaders), below, lead))
    return Curve(bounds.collision_free, bounds.failure_free, tuple(points))


def fluid(workload: str, collision_free: float, clock_update: float, rate: float) -> float:
    """Return the mean latency at leaders with unequal links, if clocks moved evenly: its limit as the rate
    grows.

    Every message that reaches a leader before the leader's clock passes m precedes m there. Of these
    messages, the one that was sent last decides: it is committed a collision-free latency after it was sent.
    docs/convoy.md derives the formulas. The clock update must take at least 2δ.
    """
    if workload == "pair":
        # Clocks move together, so they pass m when it reaches the later leader, after 1δ.
        return collision_free + 1 - _gauss(rate / 2)
    if workload != "uneven":
        raise InvalidArgument(f"no formula for the workload {workload!r}; choose pair or uneven")
    # The first leader's clock trails the second's, and passes m at τ: C - 1 after m has reached the second,
    # which takes 1δ or, for half of the messages, any time up to that.
    tail, reach = math.exp(-rate / 4) / rate, math.exp(-rate * (clock_update - 2))
    ends = (math.exp(-rate) * reach + reach * -math.expm1(-rate) / rate) / 2
    return collision_free + clock_update - 0.25 - _gauss(rate / 4) - tail * (1 - ends)


def _gauss(k: float) -> float:
    """Return the integral of exp(-k x²) from 0 to 1."""
    return math.sqrt(math.pi / k) / 2 * math.erf(math.sqrt(k))


def study(
    protocols: Mapping[str, type[Protocol]], loads: Sequence[ConvoyLoad], **options: Any
) -> Iterator[tuple[str, Curve]]:
    """Iterate over the curves of the protocols, as they become available. Options are those of `curve`."""
    for name, protocol in protocols.items():
        yield name, curve(protocol, loads, **options)
