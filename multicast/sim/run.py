"""One simulated run: faults while clients multicast; then all faults end, and everything must complete.

One seed decides everything: delays, disks, time-outs, destinations, faults. Two runs with the same trace hash
were the same to the last message.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from multicast.errors import InvalidArgument, MulticastError
from multicast.membership import Membership
from multicast.messages import TO_ANYONE
from multicast.protocol import Protocol, Timing
from multicast.sim.checkers import (
    Checker,
    Execution,
    Genuine,
    Memberships,
    Multicasts,
    Order,
    RolledBack,
    Violation,
)
from multicast.sim.clients import SimClient, Workload
from multicast.sim.faults import (
    ClientDeath,
    ClockDrift,
    ClockJump,
    ClockStep,
    CopyDisk,
    Crash,
    Cut,
    CutLink,
    DamageLog,
    Fault,
    Heal,
    MendLink,
    Nominate,
    Outage,
    Reset,
    RollBack,
    Stall,
    Suspend,
    Wipe,
    schedule,
)
from multicast.sim.host import DiskDelays, Host
from multicast.sim.invariants import invariants_of
from multicast.sim.network import Delays, Loop, Network
from multicast.sim.wall_clocks import WALL_S, SimWallClock, TimeBounds
from multicast.topology import Topology
from multicast.types import ClientId, Process, ReplicaId
from multicast.whitebox import WhiteBox

P = TypeVar("P", bound=Process)

HEAL_S = 120.0
"""Virtual seconds after healing within which everything must complete."""


@dataclass(slots=True)
class Scenario:
    """The parameters of a run, apart from the seed."""

    protocol: type[Protocol] = WhiteBox
    groups: int = 3
    replicas: int = 3
    faults: str = "all"
    workload: Workload = field(default_factory=Workload)
    timing: Timing = field(default_factory=Timing)
    delays: Delays = field(default_factory=Delays)
    disk: DiskDelays = field(default_factory=DiskDelays)
    skew: float = 0.05
    turn_s: float = 0.002
    """The longest turn of a replica's loop: what arrives within a turn is handled before any sending."""
    late: bool = True
    """Whether applications may execute late what they have delivered."""
    clock: str = "logical"
    """Or "hybrid": timestamps follow machines' wall clocks, which differ."""
    wall_skew_s: float = 0.8
    """The most by which these differ from the true time."""
    checkers: bool = True

    def __post_init__(self) -> None:
        if self.clock not in ("logical", "hybrid"):
            raise InvalidArgument(f"unknown clock {self.clock!r}; choose logical or hybrid")


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    delivered: int = 0
    """The number of deliveries at all replicas together."""
    messages: int = 0
    """The number of protocol messages that arrived."""
    virtual_s: float = 0.0
    trace: int = 0
    violation: str | None = None
    error: Exception | None = None


class Simulation:
    """All processes of one run, in virtual time."""

    heal_s = HEAL_S

    def __init__(self, scenario: Scenario, seed: int, observers: Sequence[Checker] = ()) -> None:
        self.scenario = scenario
        self.seed = seed
        self.rng = random.Random(f"wbkv {seed}")
        self.loop = Loop()
        self.first = Topology.uniform(scenario.groups, scenario.replicas)
        """The topology that every process starts with."""
        self.topology = self.first.copy()
        """The current topology: it grows as processes learn."""
        scenario.protocol.check_topology(self.topology)
        self.network = Network(self.loop, self._fork("network"), scenario.delays, self._arrived)
        self.cut_links: set[tuple[int, int]] = set()
        """Machines, by their numbers, of which the second does not hear the first."""
        self.multicasts = Multicasts()
        self.hosts: dict[ReplicaId, Host] = {}
        self._successors: dict[Process, ReplicaId] = {}
        self.order = Order(self.topology, self.multicasts)
        self.trace = 0
        self.wall_clocks: dict[str, SimWallClock] = {}
        """The wall clocks of machines, by name."""
        self.wrong_clocks: dict[ReplicaId, None] = {}
        """The replicas whose wall clocks were ever wrong."""
        self.time_bounds = TimeBounds(
            lambda: self.loop.now, self.wrong_clocks, scenario.replicas // 2 + 1,
            error_s=scenario.wall_skew_s, step_s=scenario.timing.clock_step_s,
            fresh_s=scenario.timing.election_s,
        )  # fmt: skip
        self.memberships = Memberships(self.topology, self.multicasts)
        checkers: list[Checker] = [self.memberships, self.order]
        if scenario.checkers:
            checkers += [Genuine(self.multicasts), Execution(self.topology, self.hosts), RolledBack()]
            checkers += invariants_of(scenario.protocol, self.topology, self.multicasts, self.hosts)
            if scenario.clock == "hybrid":
                checkers.append(self.time_bounds)
        checkers += observers
        self._observers = checkers
        for group in self.topology.groups:
            for member in self.topology.members(group):
                self.hosts[member] = self._host(member)
        self.clients: dict[ClientId, SimClient] = {}
        """The clients by id."""
        self._make_clients(scenario.workload)

    def _make_clients(self, workload: Workload) -> None:
        for number in range(workload.clients):
            client = ClientId(number + 1)
            share = workload.messages // workload.clients
            share += number < workload.messages % workload.clients
            self.clients[client] = SimClient(
                client, self.first, workload, share,
                loop=self.loop, network=self.network, rng=self._fork(f"client {client}"),
                multicasts=self.multicasts, changed=self._nothing, observers=self._observers,
            )  # fmt: skip

    def _host(self, member: ReplicaId) -> Host:
        """Return a new machine for the replica."""
        scenario = self.scenario
        host = Host(
            member, self.first, scenario.protocol,
            loop=self.loop, network=self.network, rng=self._fork(str(member)),
            observers=self._observers, timing=scenario.timing, disk=scenario.disk,
            skew=scenario.skew * (2 * self.rng.random() - 1), turn_s=scenario.turn_s,
            wall=self.wall_clock(member), late=self.late(str(member)),
        )  # fmt: skip
        host.on_forgot = self._forgot
        return host

    def wall_s(self, machine: str) -> float | None:
        """Return a machine's wall clock at the start of the run, or None if clocks are logical."""
        if self.scenario.clock == "logical":
            return None
        skew_s = self.scenario.wall_skew_s
        return WALL_S + self._fork(f"wall {machine}").uniform(-skew_s, skew_s)

    def wall_clock(self, replica: ReplicaId) -> SimWallClock | None:
        """Return the wall clock of the replica's machine, or None if clocks are logical."""
        machine = self.machine_of(replica)
        if machine not in self.wall_clocks:
            wall_s = self.wall_s(machine)
            if wall_s is None:
                return None
            self.wall_clocks[machine] = SimWallClock(lambda: self.loop.now, wall_s - WALL_S)
        return self.wall_clocks[machine]

    def machine_of(self, replica: ReplicaId) -> str:
        """Return the name of the replica's machine, which may get new disks."""
        return str(replica._replace(incarnation=0))

    def _clock_fault(self, fault: ClockStep | ClockDrift) -> None:
        """Let a wall clock go wrong; a majority of them only when every group has an anchor."""
        replica = fault.replica._replace(incarnation=0)
        clock, machine = self.wall_clock(replica), self.machine_of(replica)
        others = {m: None for m in self.hosts if self.machine_of(m) == machine} | {replica: None}
        if clock is None:
            return
        wrong = {m._replace(incarnation=0) for m in (*self.wrong_clocks, *others)}
        majority = any(
            sum(m.group == group for m in wrong) >= self.first.membership(group).current.quorum
            for group in self.first.groups
        )
        if majority and len(self.time_bounds.anchored) < len(self.first.groups):
            return
        self.wrong_clocks.update(dict.fromkeys(wrong))
        if isinstance(fault, ClockStep):
            clock.step(fault.by_s)
        else:
            clock.drift(fault.rate)

    def late(self, machine: str) -> random.Random | None:
        """Return the generator that decides how late a machine's application executes, or None."""
        return self._fork(f"late {machine}") if self.scenario.late else None

    def _fork(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def _nothing(self) -> None:
        pass

    def _trace(self, source: Process, target: Process, message: object) -> None:
        # Times depend on every random draw before them: processes, kind and exact time tell runs apart.
        kind = type(message).__name__
        self.trace = zlib.crc32(f"{self.loop.now!r} {source!s} {target!s} {kind}".encode(), self.trace)

    def _arrived(self, source: Process, target: Process, message: object) -> None:
        self._trace(source, target, message)
        if isinstance(target, ReplicaId):
            self._receive(source, target, message)
        else:
            self.clients[target].receive(source, message)

    def _receive(self, source: Process, target: ReplicaId, message: object) -> None:
        """Hand a message to its replica or, if any replica may handle it, to the machine's newest."""
        if self.hosts[target].gone and isinstance(message, TO_ANYONE):
            target = self.now_at(target._replace(incarnation=0))
        self.hosts[target].receive(source, message)

    # Faults

    def inject(self, fault: Fault) -> None:
        """Inject a fault now."""
        for observer in self._observers:
            observer.injected(fault)
        match fault:
            case Crash(replica, down_s):
                self.crash(self.now_at(replica), down_s)
            case Wipe(replica, down_s):
                self.wipe(self.now_at(replica), down_s)
            case DamageLog(replica, down_s):
                self.damage_log(self.now_at(replica), down_s)
            case CopyDisk(replica):
                self.copy_disk(self.now_at(replica))
            case RollBack(replica, down_s):
                self.roll_back(self.now_at(replica), down_s)
            case Outage(group, down_s):
                for member in self.topology.members(group):
                    self.crash(member, down_s)
            case Cut(sources, targets):
                for source in sources:
                    for target in targets:
                        if source != target:
                            self.network.cut(self.now_at(source), self.now_at(target))
            case CutLink(one, other):
                self.cut_links.add((one, other))
                self._links_changed()
            case MendLink(one, other):
                self.cut_links.discard((one, other))
                self._links_changed()
            case Heal():
                self.network.heal()
                self.cut_links.clear()
                self._links_changed()
            case Reset(source, target):
                self.network.reset(self.now_at(source), self.now_at(target))
            case Nominate(replica):
                self.hosts[self.now_at(replica)].nominate()
            case ClockJump(replica, by):
                self.raise_clock(self.now_at(replica), by)
            case ClockStep() | ClockDrift():
                self._clock_fault(fault)
            case Suspend(replica, for_s):
                self.hosts[self.now_at(replica)].suspend(for_s)
            case Stall(replica, for_s):
                self.hosts[self.now_at(replica)].stalled_until = self.loop.now + for_s
            case ClientDeath(client, halfway):
                self.clients[ClientId(client + 1)].die(halfway=halfway)

    def _links_changed(self) -> None:
        self.network.blocked = self._is_blocked if self.cut_links else None

    def _is_blocked(self, source: Process, target: Process) -> bool:
        return (self._machine_of(source), self._machine_of(target)) in self.cut_links

    def _machine_of(self, process: Process) -> int | None:
        """Return the number of the machine that a process runs on; None if it has one of its own."""
        return process.number if isinstance(process, ReplicaId) else None

    def raise_clock(self, replica: ReplicaId, by: int) -> None:
        """Raise the clock of a replica, as by a client that has seen a later time."""
        found: Any = self.hosts[replica].replica
        if found is not None:
            found.raise_clock(found.clock + by)

    def now_at(self, process: P) -> P:
        """Return the newest replica on the machine of this one: a new disk makes a new replica."""
        return self._successors.get(process, process)  # type: ignore[return-value]  # a process has a successor of its own kind

    def wipe(self, replica: ReplicaId, down_s: float) -> None:
        """Lose a disk, unless its group would not survive that. The machine restarts with a new disk."""
        if self.survives_without(replica):
            host = self.hosts[replica]
            if host.up:
                host.crash()
            self.replace(replica, down_s)

    def damage_log(self, replica: ReplicaId, down_s: float) -> None:
        """Damage the log of a replica, which has a disk of its own."""
        self.wipe(replica, down_s)

    def copy_disk(self, replica: ReplicaId) -> None:
        """Copy a replica's disk, which may be in use."""
        self.hosts[replica].copy_disk()

    def roll_back(self, replica: ReplicaId, down_s: float) -> None:
        """Replace a disk by the newest copy that the group must recognise; unless there is none, or the group
        would not survive that.
        """
        host = self.hosts[replica]
        known = [copy for copy in host.copies if self.is_recognised(replica, copy.durable.count)]
        if known and self.survives_without(replica):
            if host.up:
                host.crash()
            host.roll_back(known[-1])
            self.loop.at(self.loop.now + down_s, self.restart, replica)

    def is_recognised(self, replica: ReplicaId, count: int) -> bool:
        """Return whether all other members durably remember more of a replica than this count."""
        members = self.topology.membership(replica.group).current.members
        return all(self.hosts[m].durable.memories.get(replica, 0) > count for m in members if m != replica)

    def _forgot(self, host: Host) -> None:
        """A replica has found that its disk was rolled back: its machine gets a new one."""
        if not host.rolled_back:
            raise Violation("Memories", f"{host.me} has a sound log: {host.replica and host.replica.forgot}")
        host.crash()
        self.replace(host.me, 0.0)

    def replace(self, lost: ReplicaId, down_s: float) -> None:
        """Retire this replica for ever, and start its successor on a new disk."""
        self.hosts[lost].gone = True
        self.loop.at(self.loop.now + down_s, self.restart, self.successor(lost))

    def successor(self, replica: ReplicaId, *, evict: bool = False) -> ReplicaId:
        """Return a replica on a new disk that is to replace this one. It does not run yet."""
        new = replica._replace(incarnation=replica.incarnation + 1)
        self._successors[replica._replace(incarnation=0)] = new
        self.hosts[new] = self._host(new)
        self.hosts[new].evicts = replica if evict else None
        return new

    def survives_without(self, replica: ReplicaId) -> bool:
        """Return whether the replica may be lost: no other loss of its group is still unrepaired."""
        membership = self.topology.membership(replica.group)
        members = membership.current.members
        return (
            membership.is_complete and len(members) > 2 and replica in membership.current.bit
            and not any(self.hosts[member].gone or self.hosts[member].rolled_back for member in members)
        )  # fmt: skip

    def crash(self, replica: ReplicaId, down_s: float) -> None:
        """Crash a replica that is up; it restarts after `down_s`."""
        host = self.hosts[replica]
        if host.up:
            host.crash()
            self.loop.at(self.loop.now + down_s, self.restart, replica)

    def restart(self, replica: ReplicaId) -> None:
        """Start a replica that is down; its connections are new."""
        host = self.hosts[replica]
        if not (host.up or host.gone):
            self.reconnect(replica)
            host.start()

    def reconnect(self, replica: ReplicaId) -> None:
        """Reset all connections of the replica's machine, also those of earlier replicas on it."""
        for other in self.hosts:
            if other[:2] == replica[:2]:
                self.network.supersede(other)

    def heal(self) -> None:
        """End all faults."""
        self.inject(Heal())
        for clock in self.wall_clocks.values():
            clock.heal()
        for replica, host in self.hosts.items():
            host.stalled_until = 0.0
            self.restart(replica)

    # Running

    def run_until(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Let time pass until `done` holds. Return False if it does not hold by `limit_s`."""
        while not done():
            if self.loop.now > limit_s or not self.loop.step():
                return False
        return True

    def start(self) -> None:
        """Start all replicas."""
        for host in self.hosts.values():
            host.start()

    def converged(self) -> bool:
        """Return whether all clients are done, and every replica has delivered all that its group will."""
        if not all(client.idle for client in self.clients.values()):
            return False
        for host in self.living():
            replica = host.replica
            if replica is None or len(host.log) < len(self.order.sequences[host.me.group]):
                return False
            if replica.unfinished():
                return False
        return all(self._is_whole(self.topology.membership(group)) for group in self.topology.groups)

    def living(self) -> list[Host]:
        """Return all replicas whose disks are not lost, and that were not replaced."""
        members = {
            m for group in self.topology.groups for m in self.topology.membership(group).current.members
        }
        retired = self.topology.replicas - members
        return [host for me, host in self.hosts.items() if not host.gone and me not in retired]

    def _is_whole(self, membership: Membership) -> bool:
        """Return whether every lost member has been replaced."""
        members = membership.current.members
        return membership.is_complete and not any(self.hosts[member].gone for member in members)

    def run(self) -> Outcome:
        """Run both phases and the final checks."""
        outcome = Outcome(self.seed)
        try:
            self._run()
        except Violation as violation:
            outcome.violation = str(violation)
        except (MulticastError, AssertionError, LookupError, TypeError, ValueError) as error:
            # A replica that breaks in its own code has broken its contract too.
            outcome.violation = f"{type(error).__name__}: {error}"
            outcome.error = error
        outcome.delivered = sum(len(host.log) for host in self.hosts.values())
        outcome.messages = self.network.delivered
        outcome.virtual_s = self.loop.now
        outcome.trace = self.trace
        return outcome

    def _run(self) -> None:
        workload = self.scenario.workload
        until_s = 1.0 + workload.messages / workload.clients / workload.window * workload.think_s
        for at, fault in schedule(
            self.scenario.faults, self.topology, workload.clients, until_s, self._fork("faults")
        ):
            self.loop.at(at, self.inject, fault)
        self.start()
        self.run_until(lambda: False, until_s + 3.0)
        self.heal()
        if not self.run_until(self.converged, self.loop.now + self.heal_s):
            raise Violation("Termination", self._what_is_missing())
        self._check_end()

    def _what_is_missing(self) -> str:
        for client in self.clients.values():
            if not client.idle:
                mids = ", ".join(map(str, list(client.sender.pending)[:5]))
                return f"client {client.sender.client} waits for {mids}"
        for host in self.living():
            sequence = self.order.sequences[host.me.group]
            if len(host.log) < len(sequence):
                return f"{host.me} has not delivered {sequence[len(host.log)]}"
            if host.replica is not None and (held := host.replica.unfinished()):
                mids = ", ".join(map(str, held[:5]))
                return f"{host.me} still holds {mids}, after everything was delivered and acknowledged"
        for group in self.topology.groups:
            if not self._is_whole(self.topology.membership(group)):
                return f"a lost disk of group {group} was not replaced: {self.topology.membership(group)}"
        return "replicas are down"

    def _check_end(self) -> None:
        """Check Termination, and that a total order exists."""
        self.order.check_acyclic()
        for group, sequence in self.order.sequences.items():
            self.memberships.check_ordered(group, self.first.membership(group), sequence)
        delivered = {g: set(sequence) for g, sequence in self.order.sequences.items()}
        anywhere = set().union(*delivered.values())
        for client in self.clients.values():
            for mid in client.multicast:
                if mid in anywhere or client.alive:
                    for group in self.multicasts.known[mid].dest:
                        if mid not in delivered[group]:
                            raise Violation("Termination", f"group {group} never delivered {mid}")


def simulate(scenario: Scenario, seed: int) -> Outcome:
    """Run one simulation from one seed."""
    return Simulation(scenario, seed).run()
