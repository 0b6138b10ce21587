"""The whole store under the simulator: partitions and gateways on nodes, clients, faults and checkers."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvstore.config.addresses import NodeId
from kvstore.machine import Placement
from kvstore.node.ports import Application, Outgoing
from kvstore.simulation.checks import check_history
from kvstore.simulation.clients import Done, StoreClient
from kvstore.simulation.disk import SimSnapshot, SimStoreDisk
from kvstore.simulation.history import History
from kvstore.simulation.nodes import NodeSimulation, SimMachine
from kvstore.simulation.watching import Watcher
from kvstore.simulation.workloads import WORKLOADS
from kvstore.store import errors
from kvstore.store.application import StoreApplication
from kvstore.store.messages import STORE_MESSAGES, Results
from kvstore.store.partition import Partition
from kvstore.wire.frames import FrameCodec
from multicast.messages import Delivery, HeartbeatAck, Multicast
from multicast.protocol import Timing
from multicast.sim.checkers import Checker, Violation
from multicast.sim.clients import Workload
from multicast.sim.faults import ClientDeath, Cut, Fault, Reset
from multicast.sim.host import Host
from multicast.sim.run import Outcome, Scenario
from multicast.types import TICKS_PER_S, ClientId, GroupId, MessageId, Process, ReplicaId, Timestamp

GATEWAYS: Final = 1000
"""From here on, clients' numbers are those of gateways, each life of a node another."""

LOST: Final = 0.02
"""How often a client's request or its answer gets lost while there are faults."""


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
        """Which group answers what, how far it is then, and the result."""
        self._where: dict[Timestamp, set[GroupId]] = defaultdict(set)
        self._shared: dict[GroupId, list[Timestamp]] = defaultdict(list)
        """Of each group, the messages that other groups have too, in order."""
        self._reported: dict[GroupId, int] = defaultdict(int)
        """How many of them were reported."""

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """Some replica has delivered a message."""
        gts, group = delivery.global_ts, host.me.group
        self.deliveries[gts] = delivery
        if len(delivery.dest) > 1 and group not in self._where[gts]:
            self._where[gts].add(group)
            self._shared[group].append(gts)

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
            for mid, result in zip(message.mids, message.results, strict=True):
                self.answers.append((message.group, mid, message.complete, result))


class SimApplication(StoreApplication):
    """The store, whose gateway's multicasts are known to the checkers."""

    simulation: StoreSimulation
    slice_rows = 2
    """Even short ranges take several turns."""

    def turn(self, now: float) -> list[Outgoing]:
        """Return all outgoing messages, and show multicasts to the checkers."""
        outgoing = super().turn(now)
        for me, receivers, message in outgoing:
            if isinstance(message, Multicast) and not isinstance(me, ReplicaId):
                self.simulation.multicast(me, receivers, message)
        return outgoing


class StoreSimulation(NodeSimulation):
    """A run of the store. What clients do is a workload, by its name."""

    clients: dict[ClientId, Any]
    """Gateways, of all lives."""
    heal_s = 30.0
    watching = 2
    """How many watch all changes."""
    application_type: type[SimApplication] = SimApplication
    disk_type: type[SimStoreDisk] = SimStoreDisk
    codec = FrameCodec(STORE_MESSAGES)

    def __init__(
        self, scenario: Scenario, seed: int, workload: str = "bank", observers: Sequence[Checker] = ()
    ) -> None:
        self.recorder = DeliveryChecker()
        self.history = History()
        self.store_pieces: dict[bytes, SimSnapshot] = {}
        self.healed = False
        self._gateways = GATEWAYS
        self.placement = Placement.evenly(tuple(GroupId(group) for group in range(scenario.groups)))
        self.workload = WORKLOADS[workload](self.placement, scenario.workload.think_s)
        self.limits = self.workload.limits
        self.store_clients: list[StoreClient] = []
        self.watchers: list[Watcher] = []
        self._last = 0
        """The last change, when all clients are done."""
        super().__init__(scenario, seed, [*observers, self.recorder])

    def _make_clients(self, workload: Workload) -> None:
        for number in range(workload.clients):
            share = workload.messages // workload.clients
            share += number < workload.messages % workload.clients
            self.store_clients.append(StoreClient(self, number, share))
        self.watchers = [Watcher(self, number) for number in range(self.watching)]

    # Nodes

    def new_state(self, machine: SimMachine) -> SimStoreDisk:
        """A store's disk."""
        return self.disk_type(machine, self.store_pieces)

    def application(self, machine: SimMachine) -> Application:
        """The store, with a gateway that is new in each life."""
        self._gateways += 1
        me = ClientId(self._gateways)
        wall_s = self.wall_s(machine.me) or 0.0
        application = self.application_type(
            machine.state, self.first, self.placement, me=me, limits=self.limits, now=machine.now,
            ticks=lambda: int((machine.now() + wall_s) * TICKS_PER_S), rng=self._fork(f"gateway {me}"),
        )  # fmt: skip
        application.simulation = self
        machine.application = application
        self.clients[me] = SimGateway(machine, machine.replicas[0].number, application)
        return application

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

    # Clients

    def call(
        self, number: int, rng: random.Random, handler: Callable[[StoreApplication, Done], None], reply: Done
    ) -> None:
        """A client calls a node. The call or its answer may get lost."""
        if self.healed or rng.random() >= self._lost:
            self.loop.at(
                self.loop.now + self.scenario.delays.sample(rng), self._called, number, rng, handler, reply
            )

    @property
    def _lost(self) -> float:
        return LOST if self.scenario.faults in ("loss", "partition", "all") else 0.0

    def _called(
        self, number: int, rng: random.Random, handler: Callable[[StoreApplication, Done], None], reply: Done
    ) -> None:
        machine = self._machines[number]
        application = machine.application

        def done(outcome: Any) -> None:
            if machine.node is not None and machine.application is application:
                self._answer(rng, reply, outcome)

        if machine.node is None:
            self._answer(rng, reply, errors.Unavailable(f"node {number} is down"))
            return
        try:
            handler(application, done)
        except errors.StoreError as error:
            done(error)
        machine.turn_soon()

    def _answer(self, rng: random.Random, reply: Done, outcome: Any) -> None:
        if self.healed or rng.random() >= self._lost:
            self.loop.at(self.loop.now + self.scenario.delays.sample(rng), reply, outcome)

    # Faults

    def inject(self, fault: Fault) -> None:
        """Gateways are cut off with a replica of their node, and their connections break too."""
        match fault:
            case ClientDeath(client):
                self.store_clients[client].alive = False
                return
            case Cut(sources, targets):
                fault = Cut(self._with_gateways(sources), self._with_gateways(targets))
            case Reset(source, target):
                fault = Reset(self._process(source), self._process(target))
        super().inject(fault)

    def _with_gateways(self, processes: Sequence[Process]) -> list[Process]:
        first = {p.number for p in processes if isinstance(p, ReplicaId) and p.group == 0}
        return [*processes, *(self.gateway_of(number) for number in sorted(first))]

    def _process(self, process: Process) -> Process:
        if isinstance(process, ReplicaId):
            return process
        return self.gateway_of((process - 1) % self.scenario.replicas)

    def reconnect(self, replica: ReplicaId) -> None:
        """Also those of the gateway of its node, which is new, and of those before it."""
        super().reconnect(replica)
        for me, gateway in self.clients.items():
            if gateway.number == replica.number:
                self.network.supersede(me)

    def heal(self) -> None:
        """End all faults."""
        self.healed = True
        super().heal()

    # Running

    def start(self) -> None:
        """Start all nodes, and then clients."""
        super().start()
        for client in self.store_clients:
            client.start(self.workload.script, self.scenario.workload.window)
        for watcher in self.watchers:
            watcher.start()

    @property
    def done_at(self) -> float:
        """The last change that a watcher has to see, if that is known yet."""
        if not self._last and self.healed and all(client.idle for client in self.store_clients):
            disks = [machine.state for machine in self._machines.values()]
            self._last = max([1, *(disk.last_change(group) for disk in disks for group in disk.maps)])
        return self._last or float("inf")

    def runs(self, application: StoreApplication) -> bool:
        """Whether the application's node is up, in the same life."""
        return any(m.node is not None and m.application is application for m in self._machines.values())

    def converged(self) -> bool:
        """Whether also all clients have what they asked for, and no partition holds anything."""
        return (
            all(client.idle for client in self.store_clients)
            and all(watcher.over for watcher in self.watchers)
            and super().converged()
            and not any(map(held_by, self.partitions()))
        )

    def _what_is_missing(self) -> str:
        for client in self.store_clients:
            for lane in client.lanes:
                if client.alive and lane.call is not None:
                    return f"{lane.call} does not end"
        for watcher in self.watchers:
            if not watcher.over:
                return f"a watcher has seen nothing after {watcher.seen}, of {self.done_at}"
        for gateway in self.clients.values():
            if not gateway.idle:
                return (
                    f"gateway {gateway.application.gateway.me} holds {gateway.application.gateway.in_flight}"
                )
        for partition in self.partitions():
            if held := held_by(partition):
                return f"{partition.me} holds {held}"
        return super()._what_is_missing()

    def _check_end(self) -> None:
        super()._check_end()
        found = check_history(self.history, self.recorder, self.placement, self.limits, self.partitions())
        for watcher in self.watchers:
            watcher.check(found)
        self.workload.check(self.history, found.final)


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


def simulate_store(scenario: Scenario, seed: int, workload: str) -> Outcome:
    """One run from one seed."""
    return StoreSimulation(scenario, seed, workload).run()


__all__ = ["SimApplication", "StoreSimulation", "Violation", "scenario_of", "simulate_store"]
