"""Latencies and costs of protocols in message delays: Section 5 of the paper, as experiments in virtual time.

Every link takes exactly δ, disks and processes take no time, nothing fails. One message m goes to some groups
whose clocks differ. The *convoy* scenario adds a conflicting message m' at any time: a grid of arrival times
is searched for the one that delays m most. A MULTICAST may take less than δ (the paper's δ is the most that a
message takes), so m' may reach the leaders up to δ apart; where it arrives at the same instant as another
message, it comes first. Clocks are logical, or hybrid with wall clocks that differ from group to group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from multicast.errors import InvalidArgument
from multicast.messages import Delivery, Message, about
from multicast.protocol import Protocol, Timing
from multicast.sim.checkers import Checker
from multicast.sim.clients import SimClient, Workload
from multicast.sim.host import DiskDelays, Host
from multicast.sim.network import Delays
from multicast.sim.run import Scenario, Simulation
from multicast.sim.wall_clocks import WALL_S
from multicast.topology import Topology
from multicast.types import (
    TICKS_PER_S,
    ClientId,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Timestamp,
    time_of,
)

DELTA_S = 1 / 4
"""δ. A power of two, so that sums of its fractions are exact. Hybrid clocks tick 2,500 times in it, and
quarters of it are whole ticks. (It must be below half a second: a leader whose clock seems to be ahead by
that much does not use its time of day, and a member's time that travels for so long looks the same.)
"""

TICK = 1 / (DELTA_S * TICKS_PER_S)
"""A tick of a hybrid clock, in δ."""

QUIET = Timing(heartbeat_s=1e9, election_s=1e10, retry_s=1e10, orphan_s=1e10)
"""Time-outs that never expire: no retries, no elections, no heartbeats."""

AHEAD = 3
"""By how much the clock of the last group is ahead, so that it decides the global timestamp of m."""

SKEW_MAX = 40
"""In δ. The pause before m is longer, so that clocks are no further ahead than wall clocks."""


@dataclass
class Probe(Checker):
    """Record when m is delivered and committed, how leaders' clocks advance, and the messages about m."""

    simulation: Simulation | None = None
    mid: MessageId | None = None
    delivered_at: dict[ReplicaId, float] = field(default_factory=dict)
    committed_at: dict[ReplicaId, float] = field(default_factory=dict)
    clocks: dict[ReplicaId, list[tuple[float, int]]] = field(default_factory=dict)
    global_ts: Timestamp | None = None
    messages: list[tuple[Process, Process, Message]] = field(default_factory=list)
    """Source, target, message."""

    @property
    def now(self) -> float:
        """Virtual time."""
        assert self.simulation is not None
        return self.simulation.loop.now

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """Record a replica's messages about m."""
        self._note(host.me, receivers, message)

    def client_sent(self, client: ClientId, receivers: Sequence[Process], message: object) -> None:
        """Record the MULTICASTs."""
        self._note(client, receivers, message)

    def _note(self, source: Process, receivers: Sequence[Process], message: Any) -> None:
        if self.mid is not None and self.mid in about(message):
            self.messages += [(source, receiver, message) for receiver in receivers if receiver != source]

    def stepped(self, host: Host, sender: Process, message: Message) -> None:
        """Record a leader's clock, and when it commits m."""
        replica: Any = host.replica
        if self.mid is None or not replica.is_leader:
            return
        self.clocks.setdefault(host.me, []).append((self.now, replica.clock))
        entry = replica.entries.get(self.mid)
        if entry is not None and entry.phase is Phase.COMMITTED:
            self.committed_at.setdefault(host.me, self.now)

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """Record when m is delivered."""
        if delivery.mid == self.mid:
            self.delivered_at[host.me] = self.now
            self.global_ts = delivery.global_ts

    def passed_at(self, replica: ReplicaId) -> float:
        """Return when the leader's clock first passed m's global timestamp: by messages, or by the time of
        day, if its clock is hybrid.
        """
        assert self.global_ts is not None
        assert self.simulation is not None
        time = time_of(self.global_ts)
        told = next(at for at, clock in self.clocks[replica] if clock >= time)
        wall_s = self.simulation.wall_s(str(replica))
        return told if wall_s is None else min(told, time / TICKS_PER_S - wall_s)


class Exact(Simulation):
    """Every link takes exactly δ, disks and processes take no time, nothing fails, leaders are stable."""

    def __init__(
        self, protocol: type[Protocol], groups: int, replicas: int, *,
        walls: Sequence[float] | None = None, clients: int = 0, observers: Sequence[Checker] = (),
        checkers: bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        """`walls`: the δ by which the wall clock of each group is ahead. Without it, clocks are logical."""
        if walls is not None and len(walls) != groups:
            raise InvalidArgument(f"walls must have one entry for each of {groups} groups, not {len(walls)}")
        self.walls = walls
        scenario = Scenario(
            protocol=protocol, groups=groups, replicas=replicas, faults="none", timing=QUIET,
            delays=Delays(DELTA_S, DELTA_S, 0.0), disk=DiskDelays(0.0, 0.0, 1e9), skew=0.0, turn_s=0.0,
            workload=Workload(clients=clients, messages=0, window=0, repeats=0.0), checkers=checkers,
            clock="logical" if walls is None else "hybrid",
        )  # fmt: skip
        super().__init__(scenario, seed, observers)
        for client in self.clients.values():
            client.sender.retry_s = 1e10
        self.start()
        self.rest()
        self.leaders = [r for r, host in self.hosts.items() if host.replica and host.replica.is_leader]
        if len(self.leaders) != groups:
            raise InvalidArgument(f"{len(self.leaders)} of {groups} groups have a leader")

    def wall_s(self, machine: str) -> float | None:
        """Return the same time for all machines of a group."""
        if self.walls is None:
            return None
        members = (member for group in self.first.groups for member in self.first.members(group))
        group = next(member.group for member in members if str(member) == machine)
        return WALL_S + self.walls[self.first.groups.index(group)] * DELTA_S

    def rest(self) -> None:
        """Let time pass until no message is in flight."""
        until = self.loop.now + 50 * DELTA_S
        self.run_until(lambda: (self.loop.peek() or until) >= until, until)
        self.loop.now = until

    def multicast_by(
        self, client: SimClient, groups: Sequence[GroupId], arrivals: Sequence[float], payload: bytes = b""
    ) -> MessageId:
        """Multicast a message now that reaches the groups' leaders after these times, in δ."""
        message = client.sender.multicast(groups, payload, self.loop.now)
        client.sender.drain()
        self.multicasts.add(message)
        client.multicast.append(message.mid)
        receivers = [self.leaders[self.topology.groups.index(group)] for group in groups]
        for observer in self._observers:
            observer.client_sent(client.sender.client, receivers, message)
        for leader, at in zip(receivers, arrivals, strict=True):
            self.loop.at(self.loop.now + at * DELTA_S, self._arrived, client.sender.client, leader, message)
        return message.mid


class Experiment(Exact):
    """Groups whose clocks differ, and then m."""

    def __init__(
        self, protocol: type[Protocol], groups: int, replicas: int, walls: Sequence[float] | None = None
    ) -> None:
        self.probe = Probe()
        super().__init__(protocol, groups, replicas, walls=walls, clients=2, observers=[self.probe])
        self.probe.simulation = self
        self.client, self.rival = self.clients[ClientId(1)], self.clients[ClientId(2)]
        for _ in range(AHEAD):
            self.client.submit(self.topology.groups[-1:], b"")
        self.rest()

    def multicast(
        self,
        payload: bytes = b"m",
        arrivals: Sequence[float] | None = None,
        groups: Sequence[GroupId] | None = None,
    ) -> None:
        """Multicast m, by default to all groups, with δ to each leader; `arrivals` are in δ."""
        self.since = self.loop.now
        groups = tuple(groups or self.topology.groups)
        self.probe.mid = self.client.sender.numbers.next(groups, payload).mid
        self.client.sender.numbers.next_sequence -= 1
        self.multicast_by(self.client, groups, arrivals or [1.0] * len(groups), payload)

    def conflict(self, arrivals: Sequence[float], groups: Sequence[GroupId] | None = None) -> None:
        """Let m' arrive at each leader at these times, in δ, counted from the following multicast of m."""
        self.multicast_by(self.rival, groups or self.topology.groups, arrivals, b"m'")

    def latency(self, *, at_leaders: bool) -> float | None:
        """Return the latest delivery of m, in δ, at leaders or at followers."""
        if set(self.probe.delivered_at) != set(self.hosts):
            raise InvalidArgument("m was not delivered at every replica")
        times = [at for r, at in self.probe.delivered_at.items() if (r in self.leaders) == at_leaders]
        return self._in_delays(max(times)) if times else None

    def latency_at(self, replica: ReplicaId) -> float:
        """Return when this replica delivered m, in δ."""
        return self._in_delays(self.probe.delivered_at[replica])

    def commit_latency(self) -> float:
        """Return D: the time until every leader has committed m, in δ."""
        return self._in_delays(max(self.probe.committed_at[leader] for leader in self.leaders))

    def clock_update_latency(self) -> float:
        """Return C: the time until the clocks of all leaders have passed m's global timestamp, in δ."""
        return self._in_delays(max(self.probe.passed_at(leader) for leader in self.leaders))

    def _in_delays(self, at: float) -> float:
        found = (at - self.since) / DELTA_S
        return int(found) if found.is_integer() else found


@dataclass(frozen=True)
class Latency:
    """Latencies of m, in δ; `follower` is None where groups have no followers."""

    leader: float
    follower: float | None


@dataclass(frozen=True)
class Measured:
    """The latencies of one protocol, in δ."""

    collision_free: Latency
    failure_free: Latency
    """The worst latency found with a conflicting message."""
    worst_arrivals: tuple[float, ...]
    """The times at which that message reached each leader, counted from the multicast of m."""
    clock_update: float
    """C of Theorem 4."""
    commit: float
    """D of Theorem 3."""

    @property
    def theorem_holds(self) -> bool:
        """Theorem 4: FFL = C + CFL; and Theorem 3: CFL = D. Hybrid clocks may round C by less than a tick."""
        alone, worst = self.collision_free.leader, self.failure_free.leader
        return alone == self.commit and abs(self.clock_update + alone - worst) < TICK


def group_size(protocol: type[Protocol], wanted: int) -> int:
    """Return the wanted size of groups, or 1 if the protocol supports only such groups."""
    topology = Topology.uniform(1, wanted)
    try:
        protocol.check_topology(topology)
    except InvalidArgument:
        return 1
    return wanted


def measure(
    protocol: type[Protocol], grid: int = 8, replicas: int = 3, *, skew: float | None = None
) -> Measured:
    """Measure both latencies of a message to two groups, and Theorem 4's; `grid` is the number of steps in a
    δ.

    With `skew`, clocks are hybrid, and the wall clock of the second group is `skew` δ ahead.
    """
    if grid < 1:
        raise InvalidArgument(f"grid must be at least 1, not {grid}")
    if skew is not None and not 0 <= skew <= SKEW_MAX:
        raise InvalidArgument(f"skew must be from 0 to {SKEW_MAX} δ, not {skew}")
    walls = None if skew is None else (0.0, skew)
    replicas = group_size(protocol, replicas)
    alone = Experiment(protocol, 2, replicas, walls)
    alone.multicast()
    alone.rest()
    collision_free = _latency(alone)
    worst, where = collision_free, (0.0, 0.0)
    clock_update = alone.clock_update_latency()
    for arrivals in _arrivals(grid, collision_free.leader, clock_update):
        experiment = Experiment(protocol, 2, replicas, walls)
        experiment.conflict(arrivals)
        experiment.multicast()
        experiment.rest()
        found = _latency(experiment)
        if (found.leader, found.follower or 0) > (worst.leader, worst.follower or 0):
            worst, where = found, arrivals
    return Measured(collision_free, worst, where, clock_update, alone.commit_latency())


def _latency(experiment: Experiment) -> Latency:
    leader = experiment.latency(at_leaders=True)
    assert leader is not None
    return Latency(leader, experiment.latency(at_leaders=False))


def _arrivals(grid: int, until: float, clock_update: float) -> Iterator[tuple[float, float]]:
    """Iterate over arrival times at both leaders, at most δ apart; including the clock update, on the grid or
    not.

    Before the multicast of m, m' would only finish earlier; after m's delivery, it has no influence.
    """
    for first in sorted({step / grid for step in range(int(until * grid) + 1)} | {clock_update}):
        for step in range(-grid, grid + 1):
            if first + step / grid >= 0:
                yield first, first + step / grid


def cost(
    protocol: type[Protocol], groups: int, replicas: int = 3, payload: int = 20
) -> list[tuple[Process, Process, Message]]:
    """Return the messages of one multicast to `groups` groups, without conflicts: source, target, message.

    Answers to clients and messages to oneself are left out.
    """
    experiment = Experiment(protocol, groups, group_size(protocol, replicas))
    experiment.multicast(bytes(payload))
    experiment.rest()
    return experiment.probe.messages
