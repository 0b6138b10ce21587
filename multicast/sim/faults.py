"""Faults, and their schedule, drawn from the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from multicast.errors import InvalidArgument
from multicast.topology import Topology
from multicast.types import ClientId, GroupId, Process, ReplicaId

FAULTS: Final = (
    "none",
    "crash",
    "partition",
    "loss",
    "wipe",
    "links",
    "clock",
    "clocks",
    "logs",
    "rollback",
    "all",
)


@dataclass(frozen=True, slots=True)
class Crash:
    """A replica loses what is not durable, and restarts after a while."""

    replica: ReplicaId
    down_s: float


@dataclass(frozen=True, slots=True)
class Wipe:
    """A replica crashes and loses its disk, with all its promises. Its machine returns with a new disk."""

    replica: ReplicaId
    down_s: float


@dataclass(frozen=True, slots=True)
class DamageLog:
    """The log of a replica is damaged, which its node notices when it starts again: it crashes at once."""

    replica: ReplicaId
    down_s: float


@dataclass(frozen=True, slots=True)
class CopyDisk:
    """The durable part of a replica's disk is copied, as by a snapshot of its virtual machine."""

    replica: ReplicaId


@dataclass(frozen=True, slots=True)
class RollBack:
    """A replica crashes, and restarts from a copy of its disk: the newest by which it can be recognised."""

    replica: ReplicaId
    down_s: float


@dataclass(frozen=True, slots=True)
class Outage:
    """All replicas of a group crash at once."""

    group: GroupId
    down_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """No message passes from the sources to the targets."""

    sources: Sequence[Process]
    targets: Sequence[Process]


@dataclass(frozen=True, slots=True)
class CutLink:
    """No message passes from one machine to another. Replicas with one number share a machine."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class MendLink:
    """Such a cut ends."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Heal:
    """All cuts end."""


@dataclass(frozen=True, slots=True)
class Reset:
    """A connection breaks and loses what is in flight."""

    source: Process
    target: Process


@dataclass(frozen=True, slots=True)
class Stall:
    """A disk makes nothing durable for a while."""

    replica: ReplicaId
    for_s: float


@dataclass(frozen=True, slots=True)
class ClientDeath:
    """A client stops for ever, perhaps between two MULTICASTs of one message."""

    client: int
    halfway: bool


@dataclass(frozen=True, slots=True)
class Nominate:
    """Leader selection errs: it nominates a replica although the leader is healthy."""

    replica: ReplicaId


@dataclass(frozen=True, slots=True)
class ClockJump:
    """A replica's clock is raised by this much, as by a client that has seen a later time."""

    replica: ReplicaId
    by: int


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The wall clock of a replica's machine jumps, as by NTP, an operator, or a machine that was
    suspended.
    """

    replica: ReplicaId
    by_s: float


@dataclass(frozen=True, slots=True)
class ClockDrift:
    """The wall clock of a replica's machine runs faster by this rate, or slower."""

    replica: ReplicaId
    rate: float


@dataclass(frozen=True, slots=True)
class Suspend:
    """A replica's machine is suspended: its processes and its monotonic clock stand still, and time goes
    on.
    """

    replica: ReplicaId
    for_s: float


STEPS_S: Final = (0.7, 1.0, 3600.0, 86_400.0, 6.4e8, 1e15)
"""Wall clocks go wrong by a second, an hour, a day, twenty years, and beyond what timestamps can express."""

Fault: TypeAlias = (
    ClockJump | ClockStep | ClockDrift | Nominate | Crash | Wipe | DamageLog
    | CopyDisk | RollBack | Outage | Stall | Suspend | ClientDeath
    | Cut | CutLink | MendLink | Heal | Reset
)  # fmt: skip


def schedule(
    kind: str, topology: Topology, clients: int, until_s: float, rng: random.Random
) -> list[tuple[float, Fault]]:
    """Return faults of one kind, or of all kinds, at random times before `until_s`."""
    if kind not in FAULTS:
        raise InvalidArgument(f"unknown faults {kind!r}; choose from {', '.join(FAULTS)}")
    draw = _Draw(topology, clients, until_s, rng)
    if kind in ("crash", "all"):
        draw.crashes()
    if kind in ("partition", "all"):
        draw.partitions()
    if kind in ("loss", "all"):
        draw.losses()
    if kind in ("wipe", "all"):
        draw.wipes()
    if kind in ("clock", "clocks", "all"):
        draw.clocks(minority=kind != "clocks", nominated=kind != "all")
    if kind == "links":
        draw.links()
    if kind == "logs":
        draw.logs()
    if kind == "rollback":
        draw.rollbacks()
    return sorted(draw.found, key=lambda item: item[0])


class _Draw:
    def __init__(self, topology: Topology, clients: int, until_s: float, rng: random.Random) -> None:
        self.topology = topology
        self.clients = clients
        self.until_s = until_s
        self.rng = rng
        self.replicas = [m for g in topology.groups for m in topology.members(g)]
        self.found: list[tuple[float, Fault]] = []

    def add(self, fault: Fault) -> float:
        at = self.rng.uniform(0.0, self.until_s)
        self.found.append((at, fault))
        return at

    def crashes(self) -> None:
        rng, topology = self.rng, self.topology
        for _ in range(max(2, len(self.replicas) // 2)):
            self.add(Crash(rng.choice(self.replicas), rng.uniform(0.05, 1.5)))
        for group in topology.groups:
            if rng.random() < 0.5:
                self.add(Crash(topology.preferred_leader(group), rng.uniform(0.05, 1.5)))
            self.add(Stall(rng.choice(self.replicas), rng.uniform(0.05, 1.0)))
        if rng.random() < 0.3:
            self.add(Outage(rng.choice(topology.groups), rng.uniform(0.05, 1.0)))
        if self.clients > 1:
            self.add(ClientDeath(0, halfway=True))
        self.nominations()

    def wipes(self) -> None:
        # No protocol survives the loss of more than a minority at a time: the run skips such faults.
        for _ in range(len(self.replicas)):
            self.add(Wipe(self.rng.choice(self.replicas), self.rng.uniform(0.0, 0.5)))
        self.nominations()

    def logs(self) -> None:
        """Damage logs; as with `wipes`, the run skips what no protocol survives."""
        rng = self.rng
        for _ in range(len(self.replicas)):
            self.add(DamageLog(rng.choice(self.replicas), rng.uniform(0.0, 0.5)))
            self.add(Crash(rng.choice(self.replicas), rng.uniform(0.05, 0.5)))
        self.nominations()

    def rollbacks(self) -> None:
        """Copy disks, and roll them back; as with `wipes`, the run skips what no protocol survives."""
        rng = self.rng
        for replica in self.replicas:
            for _ in range(2):
                self.add(CopyDisk(replica))
                self.add(RollBack(rng.choice(self.replicas), rng.uniform(0.0, 0.5)))
            self.add(Crash(rng.choice(self.replicas), rng.uniform(0.05, 0.5)))
        self.nominations()

    def clocks(self, *, minority: bool, nominated: bool) -> None:
        """Let the wall clocks of a minority of machines, the same of all groups, go wrong; or of any. With
        `nominated`, their replicas are to lead.
        """
        rng, numbers = self.rng, sorted({replica.number for replica in self.replicas})
        count = (len(numbers) - 1) // 2 if minority else len(numbers)
        chosen = rng.sample(numbers, count)
        wrong = [replica for replica in self.replicas if replica.number in chosen]
        for _ in range(3 * len(self.topology.groups) if wrong else 0):
            self.add(ClockStep(rng.choice(wrong), rng.choice(STEPS_S) * rng.choice((1, 1, -1))))
            self.add(ClockDrift(rng.choice(wrong), rng.choice((0.0, 0.5, 2.0, -0.5, -1.5))))
            if nominated:
                self.add(Nominate(rng.choice(wrong)))
                self.add(Suspend(rng.choice(self.replicas), rng.choice((0.05, 0.3, 1.5))))

    def nominations(self) -> None:
        for _ in range(2 * len(self.topology.groups)):
            self.add(Nominate(self.rng.choice(self.replicas)))
            self.add(ClockJump(self.rng.choice(self.replicas), self.rng.choice((1, 10, 5000))))

    def partitions(self) -> None:
        self.nominations()
        for _ in range(4):
            at = self.add(self._cut())
            self.found.append((at + self.rng.uniform(0.2, 2.5), Heal()))

    def losses(self) -> None:
        processes: list[Process] = [*self.replicas, *(ClientId(number + 1) for number in range(self.clients))]
        for _ in range(15 * len(self.topology.groups)):
            source, target = self.rng.sample(processes, 2)
            self.add(Reset(source, target))

    def links(self) -> None:
        """Cut links between machines: one way or both, for a while or again and again, or all but one that a
        machine hears.
        """
        rng, machines = self.rng, range(1 + max(replica.number for replica in self.replicas))
        self.nominations()
        for _ in range(4 if len(machines) > 1 else 0):
            one, other = rng.sample(machines, 2)
            shape = rng.randrange(4)
            links = [(one, other), (other, one)] if shape == 1 else [(one, other)]
            if shape == 2:
                kept = rng.choice([machine for machine in machines if machine != other])
                links = [(machine, other) for machine in machines if machine not in (other, kept)]
            at, times = rng.uniform(0.0, self.until_s), rng.randint(3, 8) if shape == 3 else 1
            for _ in range(times):
                mended_at = at + rng.uniform(0.1, 1.0 if shape == 3 else 2.5)
                for link in links:
                    self.found += [(at, CutLink(*link)), (mended_at, MendLink(*link))]
                at = mended_at + rng.uniform(0.1, 1.0)

    def _cut(self) -> Cut:
        """Return a cut: all messages of a replica, or to it; a link; or one side from the other."""
        rng, replicas = self.rng, self.replicas
        shape = rng.randrange(4)
        alone = (rng.choice(replicas),)
        if shape == 0:
            return Cut(alone, replicas)
        if shape == 1:
            return Cut(replicas, alone)
        if shape == 2:
            pair = rng.sample(replicas, min(2, len(replicas)))
            return Cut(pair, pair)
        side = [r for r in replicas if rng.random() < 0.5]
        other = [r for r in replicas if r not in side]
        return Cut(side, other)
