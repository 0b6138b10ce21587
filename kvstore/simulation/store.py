"""The whole store under the simulator: nodes with partitions, gateway, service and API; faults and checkers.

What runs on a node, from the methods of its API down to the disk's ports, is production's: coroutines in an
event loop of virtual time (`event_loop`), called over simulated connections (`rpc`). Clients are not part of
it, as the store does not know its clients: `wbkv_sim` adds those of the SDK.
"""

from __future__ import annotations

import gc
import itertools
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kvstore.api import cluster, kv, session
from kvstore.api.budget import Budget
from kvstore.api.calls import Calls
from kvstore.api.facts import topology_of
from kvstore.api.methods import ApiContext, Options
from kvstore.api.ports import Facts
from kvstore.config.addresses import NodeId
from kvstore.config.history import KeepHistory
from kvstore.machine import Limits, Placement
from kvstore.machine.codec import decode_request, decode_result
from kvstore.machine.results import Outcome as TransactionOutcome
from kvstore.node.loop import Node
from kvstore.node.ports import Application, Outgoing
from kvstore.node.staging import LIMITS, StagingLimits
from kvstore.simulation.checks import Replay, check_history
from kvstore.simulation.disk import SimSnapshot, SimStoreDisk
from kvstore.simulation.event_loop import SimEventLoop
from kvstore.simulation.history import History
from kvstore.simulation.lies import LyingNode
from kvstore.simulation.nodes import NodeSimulation, SimMachine
from kvstore.simulation.rpc import SimServer
from kvstore.store.application import StoreApplication
from kvstore.store.messages import STORE_MESSAGES, Results
from kvstore.store.partition import Partition
from kvstore.store.service import Service
from kvstore.wire.frames import Envelope, FrameCodec
from multicast.errors import PeerViolation
from multicast.messages import Delivery, HeartbeatAck, Multicast
from multicast.protocol import Timing
from multicast.sim.checkers import Checker, Violation
from multicast.sim.clients import Workload
from multicast.sim.faults import Cut, Fault, Reset
from multicast.sim.host import Host
from multicast.sim.network import Delays
from multicast.sim.run import Outcome, Scenario
from multicast.types import (
    LARGE_BYTES,
    NO_TIMESTAMP,
    TICKS_PER_S,
    ClientId,
    GroupId,
    MessageId,
    Process,
    ReplicaId,
    Timestamp,
    time_of,
)
from multicast.whitebox import WhiteBox

GATEWAYS: Final = 1000
"""From here on, clients' numbers are those of gateways, each life of a node another."""

PAGE_BYTES: Final = 60
"""Bytes of a scan or a watch that a replica is asked for at a time: a few keys."""

OUT_OF_REACH: Final = "above what can be expected"
"""What replicas say of ballots that have leapt too far."""

LYING: Final = 0.3
"""The share of runs with all faults in which a node lies."""

BOUNDED: Final = 0.4
"""The share of runs with all faults whose links are bounded."""

SMALL_BYTES: Final = 600
BUDGET_BYTES: Final = 12 << 10
"""Transactions of this weight are large, and so many bytes of them are in flight at a gateway at a time."""

STAGED_BYTES: Final = 400
STAGING: Final = StagingLimits(piece=256, window=4, held=16 << 10, patience_s=0.3, expire_s=2.0)
"""What is staged, and how, if links are bounded."""

DAMAGES: Final = 4
"""How many rows are damaged in a run with crashes, at most."""


@dataclass(slots=True)
class SimGateway:
    """A gateway as a process of the ordering simulation: it multicasts, and dies with its node."""

    machine: SimMachine
    number: int
    application: StoreApplication
    multicast: list[MessageId] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether its node still has the same life."""
        return self.machine.node is not None and self.machine.application is self.application

    @property
    def idle(self) -> bool:
        """Whether it has nothing under way."""
        return not self.alive or not self.application.gateway.in_flight


class DeliveryChecker(Checker):
    """What was delivered where in the order, and what leaders have answered.

    What a replica reports as executed is of no more interest to the gate: all destinations have delivered it.
    """

    def __init__(self) -> None:
        self.deliveries: dict[Timestamp, Delivery] = {}
        self.answers: list[tuple[GroupId, MessageId, Timestamp, bytes]] = []
        """Which group answers what, how far it has delivered by then, and the result."""
        self._highest: dict[GroupId, Timestamp] = {}
        self.positions: dict[tuple[GroupId, MessageId], tuple[Timestamp, bytes]] = {}
        """Where a group says that it has executed what a message asks for, and the result."""
        self._where: dict[Timestamp, set[GroupId]] = defaultdict(set)
        self._shared: dict[GroupId, list[Timestamp]] = defaultdict(list)
        """Of each group, the messages that other groups have too, in order."""
        self._reported: dict[GroupId, int] = defaultdict(int)
        """How many of them were reported."""

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """Some replica has delivered a message."""
        gts, group = delivery.global_ts, host.me.group
        self.deliveries[gts] = delivery
        self._highest[group] = max(gts, self._highest.get(group, gts))
        if len(delivery.dest) > 1 and group not in self._where[gts]:
            self._where[gts].add(group)
            self._shared[group].append(gts)

    def passed_s(self, revision: int) -> float:
        """How much of the groups' own time has passed since a revision."""
        newest = max(self._highest.values(), default=NO_TIMESTAMP)
        return (time_of(newest) - time_of(Timestamp(revision))) / TICKS_PER_S

    def _check_reported(self, me: ReplicaId, executed: Timestamp) -> None:
        shared, at = self._shared[me.group], self._reported[me.group]
        while at < len(shared) and shared[at] <= executed:
            missing = set(self.deliveries[shared[at]].dest) - self._where[shared[at]]
            if missing:
                raise Violation("Closed", f"{me} reports {executed}: {shared[at]} is not in {missing} yet")
            at += 1
        self._reported[me.group] = at

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """A leader answers, or a replica reports."""
        if isinstance(message, HeartbeatAck):
            self._check_reported(host.me, message.executed)
        if isinstance(message, Results):
            for mid, place, result in zip(message.mids, message.places, message.results, strict=True):
                self.answers.append((message.group, mid, self._highest[message.group], result))
                self.positions[message.group, mid] = place, result


def _is_damaged(machine: SimMachine) -> bool:
    """Whether a row of the node's disk is damaged, or a replica not restored yet."""
    node = machine.node
    restoring = node is not None and (
        bool(node.damaged) or any(replica.is_restoring for replica in node.replicas.values())
    )
    return restoring or machine.state.is_damaged()


class SimApplication(StoreApplication):
    """The store, whose gateway's multicasts are known to the checkers."""

    simulation: StoreCluster
    slice_rows = 2
    """Even short ranges take several turns."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        admission = self.gateway._admission  # noqa: SLF001 - limits that nobody but a simulation changes
        admission.small_bytes, admission.budget = SMALL_BYTES, BUDGET_BYTES

    def _propose_floor(self, group: GroupId, floor: int) -> None:
        self.simulation.check_floor(group, floor)
        super()._propose_floor(group, floor)

    def turn(self, now: float) -> list[Outgoing]:
        """Return all outgoing messages, and show multicasts to the checkers."""
        outgoing = super().turn(now)
        for me, receivers, message in outgoing:
            if isinstance(message, Multicast) and not isinstance(me, ReplicaId):
                self.simulation.multicast(me, receivers, message)
        return outgoing


class StoreCluster(NodeSimulation):
    """A run of the store, without clients."""

    clients: dict[ClientId, Any]
    """Gateways, of all lives."""
    heal_s = 30.0
    limits = Limits()
    service_type: type[Service] = Service
    page_bytes = PAGE_BYTES
    keep_history = KeepHistory()
    """How much history leaders keep."""
    scrub_s = 4.0
    """How long a node takes to read all its rows."""
    damage_until_s = 2.0
    """Until when rows of disks are damaged."""
    slow_until_s = 4.0
    """Until when bounded links become slow."""
    api_options: Mapping[str, int] = {"watches_per_connection": 8, "scans_per_connection": 4}
    """Limits of the API that are not the usual ones."""

    @property
    def streams_per_connection(self) -> int:
        """How many watches and scans one connection may have."""
        return self.api_options["watches_per_connection"] + self.api_options["scans_per_connection"]

    reply_bytes = 4 << 10
    """The largest reply to a read of one key, in workloads."""
    application_type: type[SimApplication] = SimApplication
    disk_type: type[SimStoreDisk] = SimStoreDisk
    stage_bytes = LARGE_BYTES
    """Payloads of at least this size are staged."""
    staging_limits = LIMITS
    codec = FrameCodec(STORE_MESSAGES)

    def __init__(self, scenario: Scenario, seed: int, observers: Sequence[Checker] = ()) -> None:
        self.recorder = DeliveryChecker()
        self.history = History()
        self.store_pieces: dict[bytes, SimSnapshot] = {}
        self.healed = False
        self.floors = 0
        """How many compactions leaders have proposed by themselves."""
        self.liar: LyingNode | None = None
        self._gateways = GATEWAYS
        self.placement = Placement.evenly(tuple(GroupId(group) for group in range(scenario.groups)))
        self.services: dict[int, Service] = {}
        """Of each node, in its last life."""
        self.budgets: dict[int, Budget] = {}
        """What each node holds for its clients, in its last life."""
        self._servers: dict[int, SimServer] = {}
        self._processes: list[SimEventLoop] = []
        """The event loops of all processes and all their lives."""
        super().__init__(scenario, seed, [*observers, self.recorder])

    def _make_clients(self, workload: Workload) -> None:
        """The store has gateways instead, which come and go with nodes."""

    # Nodes

    def node_made(self, machine: SimMachine, node: Node) -> None:
        """The gateway of its application stages by it."""
        gateway = machine.application.gateway
        node.staging.limits = self.staging_limits
        gateway.stager, gateway.stage_bytes = node.staging, self.stage_bytes
        if self.bounded is not None and self.stage_bytes == LARGE_BYTES:
            node.staging.limits, gateway.stage_bytes = STAGING, STAGED_BYTES

    def new_state(self, machine: SimMachine) -> SimStoreDisk:
        """A store's disk."""
        return self.disk_type(machine, self.store_pieces)

    def application(self, machine: SimMachine) -> Application:
        """The store, with a gateway that is new in each life."""
        self._gateways += 1
        me = ClientId(self._gateways)
        application = self.application_type(
            machine.state, self.first, self.placement, me=me, limits=self.limits, now=machine.now,
            rng=self._fork(f"gateway {me}"), scrub_s=self.scrub_s, keep=self.keep_history,
        )  # fmt: skip
        application.simulation = self
        machine.application = application
        number = int(machine.me.removeprefix("n"))
        self.clients[me] = SimGateway(machine, number, application)
        self._serve(machine, number, application)
        return application

    def _has_a_liar(self) -> bool:
        """A node lies in some of the runs with all faults."""
        if self.scenario.faults != "all" or not issubclass(self.scenario.protocol, WhiteBox):
            return False
        return self.scenario.replicas > 2 and self._fork("has a liar").random() < LYING

    def _has_bounded_links(self) -> bool:
        """Links are bounded where they are cut, and in some of the runs with all faults."""
        faults = self.scenario.faults
        return faults == "links" or (faults == "all" and self._fork("bounds").random() < BOUNDED)

    # A node that lies

    def says(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """Let a node that lies remember what it says."""
        if self.liar is not None and self.lies(node):
            self.liar.heard(envelopes)

    def arriving(self, node: NodeId | None, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """Take back lies of a node that would be believed."""
        if self.liar is None or node is None or not self.lies(node):
            return envelopes
        return self.liar.arriving(envelopes)

    def lies(self, node: NodeId) -> bool:
        """Return whether a node tells what no correct one says."""
        return self.liar is not None and node == f"n{self.liar.number}"

    def refuses(self, node: NodeId, error: PeerViolation) -> bool:
        """Return whether a node may be told that: it lies, or one that does has made its group leap."""
        return self.lies(node) or (self.liar is not None and OUT_OF_REACH in str(error))

    def close_connection(self, source: NodeId, target: NodeId) -> None:
        """What the processes of a node have under way to those of another is lost."""
        assert self.liar is not None
        self.liar.refused += 1
        super().close_connection(source, target)
        for link in self.network.links:
            if (self._home(link[0]), self._home(link[1])) == (source, target):
                self.network.reset(*link)

    # The API

    def event_loop(self, name: str, rate: float = 1.0) -> SimEventLoop:
        """Return the event loop of a new process."""
        self._processes.append(SimEventLoop(self.loop, name, rate))  # type: ignore[abstract]  # see the module
        return self._processes[-1]

    def address(self, number: int) -> str:
        """Return the address of a node's API."""
        return f"n{number}:{number + 1}"

    def _serve(self, machine: SimMachine, number: int, application: StoreApplication) -> None:
        """Start a node's API, as `kvstore.api.server` does on a port."""
        loop = self.event_loop(machine.me, machine.rate)
        service = self.service_type(application.gateway, machine.turn_soon, page_bytes=self.page_bytes)
        addresses = {NodeId(f"n{i}"): self.address(i) for i in range(self.scenario.replicas)}
        first = {g: [self.node_of(member) for member in self.first.members(g)] for g in self.first.groups}
        facts = Facts(partial(topology_of, addresses, first, application, self.node_of), dict)
        options = Options("sim", machine.me, **self.api_options)
        api = ApiContext(service, facts, options, self._fork(f"names {application.gateway.me}"))
        self.budgets[number] = api.budget
        calls = Calls(api)
        with loop.running():
            services = {
                kv.SERVICE: calls.handlers(kv.KV(api).methods),
                session.SERVICE: session.SessionService(api, calls).handlers(),
                cluster.SERVICE: calls.handlers(cluster.Cluster(api).methods),
            }
        methods = {
            f"/{service}/{name}": method
            for service, found in services.items()
            for name, method in found.items()
        }
        self.services[number] = service
        self._servers[number] = SimServer(loop, methods)

    def process_died(self, machine: SimMachine) -> None:
        """Its service, its API and all their tasks have died with it."""
        self._servers[int(machine.me.removeprefix("n"))].kill()

    @property
    def delays(self) -> Delays:
        """The delays of clients' messages, too."""
        return self.scenario.delays

    @property
    def faulty(self) -> bool:
        """Whether clients' connections break by themselves."""
        return not self.healed and self.scenario.faults in ("loss", "partition", "all")

    def server(self, node: int) -> SimServer | None:
        """Return a node's API, if the node is up."""
        server = self._servers[node]
        return None if server.loop.dead else server

    def multicast(self, me: ClientId, receivers: Sequence[Process], message: Multicast) -> None:
        """A gateway multicasts, or repeats what it has multicast."""
        if message.mid not in self.multicasts.known:
            self.multicasts.add(message)
            self.clients[me].multicast.append(message.mid)
        for observer in self._observers:
            observer.client_sent(me, receivers, message)

    def _arrived(self, source: Process, target: Process, message: object) -> None:
        self._trace(source, target, message)
        if isinstance(target, ReplicaId):
            machine = self._machines[target.number]
        else:
            machine = self.clients[target].machine
        machine.receive((source, target, [message]), self._home(source))

    def _home(self, process: Process) -> NodeId:
        return self.node_of(process) if isinstance(process, ReplicaId) else self.clients[process].machine.me

    def _machine_of(self, process: Process) -> int | None:
        if isinstance(process, ReplicaId):
            return process.number
        gateway = self.clients.get(process)
        return None if gateway is None else gateway.number

    def gateway_of(self, number: int) -> ClientId:
        """The last one of a node."""
        return max(me for me, gateway in self.clients.items() if gateway.number == number)

    def partitions(self) -> list[Partition]:
        """Of all nodes that are up."""
        return [
            machine.application.partition(replica.group)
            for machine in self._machines.values() if machine.node is not None
            for replica in machine.replicas
        ]  # fmt: skip

    def key_of(self, group: GroupId) -> bytes:
        """Return a key of a partition."""
        keys = (f"{number}".encode() for number in itertools.count())
        return next(key for key in keys if self.placement.group_of(key) == group)

    def check_floor(self, group: GroupId, floor: int) -> None:
        """Check that a leader gives up by itself only what is older than is to be kept, by the true time."""
        self.floors += 1
        latest = self.time_bounds.latest(group)
        keep_s = self.keep_history.seconds
        if latest is not None and keep_s is not None:
            most = int((latest - keep_s) * TICKS_PER_S)
            if time_of(Timestamp(floor)) > most:
                where = f"group {group} is to be compacted to {time_of(Timestamp(floor))}"
                raise Violation("Kept", f"{where}, although {most} is the latest at {self.loop.now:.3f} s")

    # Faults

    def inject(self, fault: Fault) -> None:
        """Gateways are cut off with a replica of their node, and their connections break too."""
        match fault:
            case Cut(sources, targets):
                fault = Cut(self._with_gateways(sources), self._with_gateways(targets))
            case Reset(source, target):
                fault = Reset(self._process(source), self._process(target))
                if self.bounded is not None:
                    self.bounded.reset(self._number_of(fault.source), self._number_of(fault.target))
        super().inject(fault)

    def _with_gateways(self, processes: Sequence[Process]) -> list[Process]:
        first = {p.number for p in processes if isinstance(p, ReplicaId) and p.group == 0}
        return [*processes, *(self.gateway_of(number) for number in sorted(first))]

    def _process(self, process: Process) -> Process:
        if isinstance(process, ReplicaId):
            return process
        return self.gateway_of((process - 1) % self.scenario.replicas)

    def _number_of(self, process: Process) -> int:
        return process.number if isinstance(process, ReplicaId) else int(self.clients[process].number)

    def reconnect(self, replica: ReplicaId) -> None:
        """Also those of the gateway of its node, which is new, and of those before it."""
        super().reconnect(replica)
        for me, gateway in self.clients.items():
            if gateway.number == replica.number:
                self.network.supersede(me)

    def damage(self, number: int, rng: random.Random) -> None:
        """Damage a row of a node's disk, unless a group could not survive that: one disk at a time is bad."""
        machine = self._machines[number]
        others = [each for at, each in self._machines.items() if at != number]
        if all(map(self.survives_without, machine.replicas)) and not any(map(_is_damaged, others)):
            machine.state.damage(rng)

    def survives_without(self, replica: ReplicaId) -> bool:
        """Return whether the replica may be lost: no disk of another node is damaged or lost."""
        others = [each for at, each in self._machines.items() if at != replica.number]
        return super().survives_without(replica) and not any(map(_is_damaged, others))

    def heal(self) -> None:
        """End all faults. What is still damaged then, the scrubbers find."""
        self.healed = True
        if self.bounded is not None:
            self.bounded.heal()
        super().heal()

    # Running

    def start(self) -> None:
        """Start all nodes; rows of their disks are damaged later."""
        super().start()
        if self.scenario.faults in ("crash", "all"):
            rng = self._fork("damage")
            for _ in range(DAMAGES):
                at = rng.uniform(0.0, self.damage_until_s)
                self.loop.at(at, self.damage, rng.randrange(self.scenario.replicas), rng)
        if self._has_a_liar():
            self.liar = LyingNode(
                self, self._fork("liar").randrange(self.scenario.replicas), self._fork("lies")
            )
        if self.bounded is not None and self.scenario.faults == "all":
            self.bounded.draw(self._fork("slow links"), range(self.scenario.replicas), self.slow_until_s)

    def run(self) -> Outcome:
        """Run both phases and the final checks. Garbage is collected afterwards: it would end what was
        dropped at a time that the seed does not decide.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            return super().run()
        finally:
            self.close()
            if collects:
                gc.enable()

    def close(self) -> None:
        """Clear away all processes, after the run."""
        for process in self._processes:
            process.close()

    def last_change(self) -> int:
        """Return the revision of the last change that any disk has."""
        disks = [machine.state for machine in self._machines.values()]
        found: int = max([1, *(disk.last_change(group) for disk in disks for group in disk.maps)])
        return found

    def converged(self) -> bool:
        """Whether also no partition holds anything, and no row is damaged."""
        damaged = any(map(_is_damaged, self._machines.values()))
        return super().converged() and not damaged and not any(map(held_by, self.partitions()))

    def _what_is_missing(self) -> str:
        for gateway in self.clients.values():
            if not gateway.idle:
                return (
                    f"gateway {gateway.application.gateway.me} holds {gateway.application.gateway.in_flight}"
                )
        for partition in self.partitions():
            if held := held_by(partition):
                return f"{partition.me} holds {held}"
        for machine in self._machines.values():
            if _is_damaged(machine):
                return f"{machine.me} has damaged rows, or is not restored"
        return super()._what_is_missing()

    def _check_once(self) -> None:
        """Check that a request is executed at one position of a group, whatever clocks show.

        Its messages may be many, but all have the deadline that the client has given it.
        """
        executed: dict[tuple[GroupId, int, int], Timestamp] = {}
        for (group, mid), (position, result) in self.recorder.positions.items():
            request = decode_request(self.multicasts.known[mid].payload)
            if isinstance(decode_result(result), TransactionOutcome):
                key = group, request.client, request.sequence
                first = executed.setdefault(key, position)
                if first != position:
                    raise Violation("Once", f"group {group} has executed {request} at {first} and {position}")

    def _check_end(self) -> None:
        super()._check_end()
        self._check_once()
        self._check_comparisons()
        for process in self._processes:
            if process.unhandled:
                raise Violation("Unhandled", process.unhandled[0])
        self._check_found(
            check_history(self.history, self.recorder, self.placement, self.limits, self.partitions())
        )

    def _check_comparisons(self) -> None:
        """Check that replicas found no difference between each other, unless a value was changed silently."""
        if any(machine.state.changes for machine in self._machines.values()):
            return
        for partition in self.partitions():
            compared = partition.comparison
            if compared is not None and compared.differences:
                raise Violation("Comparison", f"{partition.me} found {compared.alarms[-1]}")

    def _check_found(self, found: Replay) -> None:
        """Check what else must be true of the model's execution."""


def held_by(partition: Partition) -> str:
    """Return what a partition still holds; empty if nothing."""
    machine, gate = partition.machine, partition.gate
    if machine.waiting:
        return f"{machine.waiting} transactions"
    if not machine.watermark == machine.delivered == gate.position:
        return f"its watermark at {machine.watermark}, after {machine.delivered}"
    if gate.closed < gate.position or len(gate):
        return f"its gate at {gate.closed}, before {gate.position}"
    for name in ("_results", "_reads", "_arrived", "_votes", "_outcomes", "_outgoing"):
        if found := getattr(partition, name):
            return f"{len(found)} of {name}"
    return "chores" if machine.state().chores else ""


def scenario_of(
    faults: str = "all", groups: int = 3, replicas: int = 3, operations: int = 120, **options: Any
) -> Scenario:
    """Return the default scenario of a run of the store."""
    options = {
        "timing": Timing(history=6, part_entries=4),
        "workload": Workload(clients=4, messages=operations, window=2, think_s=0.12),
        "clock": "hybrid",
        "wall_skew_s": 0.4,
        **options,
    }
    return Scenario(groups=groups, replicas=replicas, faults=faults, **options)


__all__ = ["SimApplication", "StoreCluster", "scenario_of"]
