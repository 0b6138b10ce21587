"""The node under the simulator: the production loop on simulated ports.

`NodeSimulation` is the simulator of `multicast.sim` with the same clients, faults and checkers, but its
replicas live on nodes: replica number i of every group on node i, as in a real cluster. A node's disk loses
what it has not synced, whole batches at a time; when a node crashes, so do all its replicas.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvstore.bare.application import BareMulticast
from kvstore.config.addresses import NodeId
from kvstore.node.loop import Node
from kvstore.node.ports import Application
from kvstore.simulation.bare_disk import SimLog, SimState
from kvstore.simulation.bounded_links import BoundedLinks
from kvstore.wire.frames import ORDERING_CODEC, Envelope, FrameCodec
from kvstore.wire.messages import NODE, Period, Reach, Relayed
from multicast.durable import Checkpoint, Dropped, Durable
from multicast.errors import PeerViolation
from multicast.membership import Membership
from multicast.messages import Delivery, Message
from multicast.protocol import Protocol, Ready, Start
from multicast.sim.checkers import Violation
from multicast.sim.host import Commit, DiskDelays, Host, Observer
from multicast.sim.network import Loop, Network
from multicast.sim.run import Simulation
from multicast.types import NO_TIMESTAMP, ClientId, GroupId, Process, ReplicaId, Timestamp, begun_anew


class LateBareMulticast(BareMulticast):
    """Bare multicast whose state executes late what it was given."""

    def load(self, group: GroupId) -> Checkpoint:
        """As the state has it."""
        return self._state.load(group)


@dataclass(frozen=True, slots=True)
class Tagged:
    """A message of a direct frame that names its period."""

    period: Period
    message: object


class SimMachine:
    """One node, its disks and its clock."""

    def __init__(self, simulation: NodeSimulation, me: NodeId) -> None:
        self.me = me
        self.replicas: list[ReplicaId] = []
        self._simulation = simulation
        self._loop: Loop = simulation.loop
        self._rng = simulation.fork(me)
        self._rate = 1.0 + simulation.scenario.skew * (2 * self._rng.random() - 1)
        self.node: Node | None = None
        self.application: Any = None
        """The node's, in its last life."""
        self.log = SimLog(self)
        self.state: Any = simulation.new_state(self)
        self.copies: list[dict[GroupId, Durable]] = []
        """Copies of its log, from the oldest on."""
        self.begun: set[GroupId] = set()
        """Groups whose replicas have begun anew on this disk."""
        self.late = simulation.late(me)
        self.durable_number = 0
        self.stalled_until = 0.0
        self._life = 0
        self._turning = False
        self._wake_at = float("inf")
        self._suspended_until = 0.0
        self._stood_still_s = 0.0
        """For how long its monotonic clock has stood still."""
        self._held: list[tuple[Any, tuple[object, ...]]] | None = None
        """What happens while the machine is paused."""

    # The ports

    @property
    def number(self) -> int:
        """The node's number: n0 is 0."""
        return _number(_process(self.me))

    @property
    def rate(self) -> float:
        """The speed of its clock."""
        return self._rate

    def now(self) -> float:
        """The machine's own monotonic clock."""
        return self._loop.now * self._rate - self._stood_still_s

    def suspend(self, seconds: float) -> None:
        """Suspend the machine: nothing happens on it, and its monotonic clock stands still."""
        if self.node is not None and self._loop.now >= self._suspended_until:
            self._suspended_until = self._loop.now + seconds
            self._stood_still_s += seconds * self._rate

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """To another node: through the wire format, and then on the links of the replicas concerned."""
        self._simulation.says(self.me, envelopes)
        if (bounded := self._simulation.bounded) is not None:
            bounded.send(self.number, _number(_process(node)), envelopes)
            return
        codec = self._simulation.codec
        for sender, receiver, messages in codec.decode(codec.encode(envelopes)):
            period: Period | None = None
            for message in messages:
                if isinstance(message, Period):
                    period = message
                elif sender != NODE:
                    tagged = message if period is None else Tagged(period, message)
                    self._simulation.network.send(sender, receiver, tagged)
                else:
                    self._simulation.send_own(self.me, node, message)

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        """To clients."""
        for sender, receiver, messages in envelopes:
            for message in messages:
                self._simulation.network.send(sender, receiver, message)

    @property
    def peers(self) -> Collection[NodeId]:
        """All other nodes."""
        return self._simulation.peers_of(self.me)

    def backlog(self, node: NodeId) -> int:
        """The unsent bytes of a link that is bounded; others have any room."""
        bounded = self._simulation.bounded
        return 0 if bounded is None else bounded.backlog(self.number, _number(_process(node)))

    def behind(self, node: NodeId) -> int:
        """Links have any room."""
        return 0

    def disk_delay(self) -> float:
        """How long a sync takes."""
        disk: DiskDelays = self._simulation.scenario.disk
        return max(0.0, self.stalled_until - self._loop.now) + disk.sample(self._rng)

    def later(self, seconds: float, call: Any, *arguments: object) -> None:
        """Unless it crashes before."""
        self._loop.at(self._loop.now + seconds, self._in_this_life, self._life, call, *arguments)

    def _in_this_life(self, life: int, call: Any, *arguments: object) -> None:
        if life != self._life or self.node is None:
            return
        if self._loop.now < self._suspended_until:
            self._loop.at(self._suspended_until, self._in_this_life, life, call, *arguments)
        elif self._held is not None:
            self._held.append((self._in_this_life, (life, call, *arguments)))
        else:
            call(*arguments)

    def pause(self, for_s: float) -> None:
        """The process does nothing for a while. What arrives meanwhile waits for it."""
        if self._held is None:
            self._held = []
            self._loop.at(self._loop.now + for_s, self._resume)

    def _resume(self) -> None:
        held, self._held = self._held or [], None
        for call, arguments in held:
            call(*arguments)

    @property
    def paused(self) -> bool:
        """Whether the process does nothing at present."""
        return self._held is not None

    # The loop

    def start(self) -> None:
        """Start the process from what is durable."""
        self._life += 1
        self._turning = False
        self._wake_at = float("inf")
        self.durable_number = 0
        simulation = self._simulation
        self.node = simulation.node_type(
            self.me, simulation.first, self.replicas, simulation.observed, node_of=simulation.node_of,
            clock=self, network=self, codec=simulation.codec, log=self.log,
            application=simulation.application(self), rng=random.Random(self._rng.getrandbits(64)),
            timing=simulation.scenario.timing, observer=simulation, begun=self.begun,
        )  # fmt: skip
        simulation.node_made(self, self.node)
        self._life_began()

    def _life_began(self) -> None:
        for replica in self.replicas:
            self._simulation.views[replica].restarted()
        self.state.began()
        self.turn_soon()

    def crash(self) -> None:
        """The process dies; what was not durable is lost."""
        self._life += 1
        self._suspended_until = 0.0
        self._held = None
        self.node = None
        if self._simulation.bounded is not None:
            self._simulation.bounded.reset_all(self.number)
        self._simulation.process_died(self)
        self.log = self._after_crash()
        self.state.crash()

    def forgot(self, reason: str) -> None:
        """The node has found that its log was rolled back."""
        self.later(0.0, self._simulation.replace_machine, self, reason)

    def _after_crash(self) -> SimLog:
        log = SimLog(self)
        log.groups = self.log.groups
        return log

    def receive(self, envelope: Envelope, node: NodeId | None = None) -> None:
        """A message from the network: from a node, or from a client."""
        if self._held is not None:
            self._held.append((self.receive, (envelope, node)))
        elif self.node is not None and self._loop.now < self._suspended_until:
            self.later(self._suspended_until - self._loop.now, self.receive, envelope, node)
        elif self.node is not None:
            sender, receiver, [message] = envelope
            if isinstance(message, Tagged):
                envelope = sender, receiver, [message.period, message.message]
            self._take([envelope], node)
            self._turn_if_due()

    def _take(self, envelopes: Sequence[Envelope], node: NodeId | None) -> None:
        assert self.node is not None
        try:
            self.node.receive(self._simulation.arriving(node, envelopes), node)
        except PeerViolation as error:
            if node is None or not self._simulation.refuses(node, error):
                raise
            self._simulation.close_connection(node, self.me)

    @property
    def reads(self) -> bool:
        """Whether the process runs, and so can read what arrives."""
        return self._held is None and self._loop.now >= self._suspended_until

    def receive_frame(self, envelopes: Sequence[Envelope], node: NodeId) -> None:
        """A frame of a bounded link, which is read only while the process runs."""
        self._take(envelopes, node)
        own = [message for sender, _, messages in envelopes if sender == NODE for message in messages]
        relayed = any(isinstance(message, Relayed) and message.target == self.me for message in own)
        if relayed or any(sender != NODE for sender, _, _ in envelopes):
            self._turn_if_due()

    def receive_own(self, message: object, node: NodeId) -> None:
        """A message between nodes themselves. Only a frame that was relayed here is followed by a turn."""
        if self._held is not None:
            self._held.append((self.receive_own, (message, node)))
        elif self.node is not None:
            self.node.receive([(NODE, NODE, (message,))], node)
            if not isinstance(message, Reach | Relayed) or (
                isinstance(message, Relayed) and message.target == self.me
            ):
                self.turn_soon()

    def durable(self, number: int) -> None:
        """The log says so."""
        self.durable_number = number
        if self.node is not None:
            self.node.durable(number)
            self.state.log_durable(number)
            self.turn_soon()

    def committed(self, positions: Mapping[GroupId, Timestamp]) -> None:
        """The state says so."""
        if self.node is not None:
            self.node.committed(positions)
            self.turn_soon()

    def executed(self, group: GroupId, watermark: Timestamp) -> None:
        """The state has executed more, without a commit that the node asked for."""
        assert self.node is not None
        for me, replica in self.node.replicas.items():
            if me.group == group:
                replica.executed(watermark)

    def _turn_if_due(self) -> None:
        """Take a turn soon if a process may wait for it, else with other events."""
        assert self.node is not None
        if self.node.is_due:
            self.turn_soon()
        else:
            self._set_timer()

    def turn_soon(self) -> None:
        """At the end of this turn of the loop."""
        if not self._turning:
            self._turning = True
            self.later(self._simulation.scenario.turn_s * self._rng.random(), self._turn)

    def _turn(self) -> None:
        self._turning = False
        assert self.node is not None
        self.node.turn()
        if self.node.work():
            self.turn_soon()
        self._set_timer()

    def _set_timer(self) -> None:
        assert self.node is not None
        wake_at = (self.node.wake_at + self._stood_still_s) / self._rate
        if wake_at < self._wake_at:
            self._wake_at = wake_at
            self.later(max(0.0, wake_at - self._loop.now) + 1e-6, self._tick)

    def _tick(self) -> None:
        self._wake_at = float("inf")
        assert self.node is not None
        if self.now() < self.node.wake_at:
            self._set_timer()  # what it was for has been done in another turn
            return
        self.node.tick()
        self.turn_soon()


class NodeView(Host):
    """One replica of a node, as checkers and faults see it."""

    def __init__(self, me: ReplicaId, machine: SimMachine, observers: Sequence[Observer]) -> None:
        self.me = me
        self.machine = machine
        self._observers = observers
        self.gone = False
        self.rolled_back = False
        self._had_executed = NO_TIMESTAMP  # states are not rolled back

    @property
    def replica(self) -> Protocol | None:  # type: ignore[override]  # a view of its machine
        """The replica, if its node is up."""
        return None if self.machine.node is None else self.machine.node.replicas.get(self.me)

    @property
    def durable(self) -> Durable:  # type: ignore[override]  # a view of its machine
        """What its node's log has of it."""
        return self.machine.log.load(self.me.group)

    @property
    def commit(self) -> Commit:  # type: ignore[override]  # a view of its machine
        """What its node's state has of it."""
        commit: Commit = self.machine.state.commit_of(self.me.group)
        return commit

    @property
    def log(self) -> list[Delivery]:  # type: ignore[override]  # a view of its machine
        """What its application got."""
        log: list[Delivery] = self.machine.state.logs.setdefault(self.me.group, [])
        return log

    @property
    def stalled_until(self) -> float:
        """Until when its disk makes nothing durable."""
        return self.machine.stalled_until

    @stalled_until.setter
    def stalled_until(self, time: float) -> None:
        self.machine.stalled_until = time

    def start(self) -> None:
        """Start its node, unless another replica of it did."""
        if self.machine.node is None:
            self.machine.start()

    def restarted(self) -> None:
        """Its node is up."""
        for observer in self._observers:
            observer.restarted(self)

    def crash(self) -> None:
        """Its node crashes."""
        self.machine.crash()
        for replica in self.machine.replicas:
            for observer in self._observers:
                observer.crashed(self.machine._simulation.views[replica])  # noqa: SLF001 - its own machine

    def suspend(self, seconds: float) -> None:
        """Its node is suspended."""
        self.machine.suspend(seconds)

    def nominate(self) -> None:
        """Leader selection picks this replica, if it is up and not set aside."""
        if self.machine.node is not None and self.replica is not None:
            self.machine.node.nominate(self.me)
            self.machine.turn_soon()


class NodeSimulation(Simulation):
    """A run in which replicas live on nodes."""

    machine_type: type[SimMachine] = SimMachine
    node_type: type[Node] = Node
    codec: FrameCodec = ORDERING_CODEC

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._machines: dict[int, SimMachine] = {}
        self.views: dict[ReplicaId, NodeView] = {}
        self.pieces: dict[bytes, tuple[Delivery, ...]] = {}
        super().__init__(*arguments, **options)
        self.links = Network(self.loop, self._fork("links"), self.scenario.delays, self._own_arrived)
        """Of messages between nodes themselves."""
        self.bounded = BoundedLinks(self) if self._has_bounded_links() else None
        """Of all messages between nodes, if links are bounded."""
        self.observed = self._observe(self.scenario.protocol)

    def _has_bounded_links(self) -> bool:
        """Return whether links between nodes have a bandwidth, and production's flow control."""
        return False

    def node_of(self, replica: ReplicaId) -> NodeId:
        """Replica number i of every group is on node i."""
        return NodeId(f"n{replica.number}")

    def machine_of(self, replica: ReplicaId) -> str:
        """Return the name of its node."""
        return self.node_of(replica)

    @property
    def machines(self) -> Mapping[int, SimMachine]:
        """The machines, by their numbers."""
        return self._machines

    def peers_of(self, me: NodeId) -> Collection[NodeId]:
        """All other nodes."""
        return [machine.me for machine in self._machines.values() if machine.me != me]

    def send_own(self, source: NodeId, target: NodeId, message: object) -> None:
        """Send a message between nodes themselves."""
        self.links.send(_process(source), _process(target), message)

    def says(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """A node sends messages to another."""

    def arriving(self, node: NodeId | None, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """Return what of a node's messages arrives at another."""
        return envelopes

    def refuses(self, node: NodeId, error: PeerViolation) -> bool:
        """Return whether a node may be told that it says what no correct one does."""
        return False

    def close_connection(self, source: NodeId, target: NodeId) -> None:
        """Close the connection that a node sends by to another: what is under way is lost."""
        if self.bounded is not None:
            self.bounded.reset(_number(_process(source)), _number(_process(target)))

    def _own_arrived(self, source: Process, target: Process, message: object) -> None:
        machine = self._machines[_number(target)]
        machine.receive_own(message, self._machines[_number(source)].me)

    def _links_changed(self) -> None:
        super()._links_changed()
        if self.bounded is not None:
            for source, target in self.cut_links:
                self.bounded.reset(source, target)
        self.links.blocked = self._own_is_blocked if self.cut_links else None

    def _own_is_blocked(self, source: Process, target: Process) -> bool:
        return (_number(source), _number(target)) in self.cut_links

    def new_state(self, machine: SimMachine) -> Any:
        """The disk of a machine's application."""
        return SimState(machine, self.pieces)

    def application(self, machine: SimMachine) -> Application:
        """What a machine's node does with deliveries, in one life."""
        return LateBareMulticast(machine.state)

    def node_made(self, machine: SimMachine, node: Node) -> None:
        """A machine's process has a node."""

    def process_died(self, machine: SimMachine) -> None:
        """A machine's process has died."""

    def fork(self, name: str) -> random.Random:
        """Randomness for one part of the run."""
        return self._fork(name)

    def _host(self, member: ReplicaId) -> Host:
        machine = self._machines.get(member.number)
        if machine is None:
            machine = self._machines[member.number] = self.machine_type(self, self.node_of(member))
        machine.replicas.append(member)
        view = self.views[member] = NodeView(member, machine, self._observers)
        return view

    def wipe(self, replica: ReplicaId, down_s: float) -> None:
        """A node's disk is gone, and with it all its replicas."""
        machine = self.views[replica].machine
        if all(map(self.survives_without, machine.replicas)):
            if machine.node is not None:
                self.views[replica].crash()
            del self._machines[replica.number]
            for lost in machine.replicas:
                self.replace(lost, down_s)

    def copy_disk(self, replica: ReplicaId) -> None:
        """Copy the log of a node."""
        machine = self.views[replica].machine
        machine.copies.append({group: durable.copy() for group, durable in machine.log.groups.items()})

    def roll_back(self, replica: ReplicaId, down_s: float) -> None:
        """Replace the log of a node by a copy of it: of all its groups. The state stays."""
        machine = self.views[replica].machine
        known = [copy for copy in machine.copies if self._are_recognised(machine, copy)]
        if known and all(map(self.survives_without, machine.replicas)):
            if machine.node is not None:
                self.views[replica].crash()
            machine.log.groups = {group: durable.copy() for group, durable in known[-1].items()}
            for each in machine.replicas:
                self.views[each].rolled_back = True
            self.loop.at(self.loop.now + down_s, self.restart, replica)

    def _are_recognised(self, machine: SimMachine, copy: Mapping[GroupId, Durable]) -> bool:
        return all(self.is_recognised(me, copy.get(me.group, Durable()).count) for me in machine.replicas)

    def replace_machine(self, machine: SimMachine, reason: str) -> None:
        """Give a machine a new disk, since its node says that its log was rolled back."""
        views = [self.views[me] for me in machine.replicas]
        if not all(view.rolled_back for view in views):
            raise Violation("Memories", f"{machine.me} has a sound log: {reason}")
        if not any(view.gone for view in views):
            views[0].crash()
            del self._machines[machine.number]
            for view in views:
                self.replace(view.me, 0.0)

    def damage_log(self, replica: ReplicaId, down_s: float) -> None:
        """The log of one group of a node is damaged. When the node starts again, this replica begins anew;
        those of other groups go on.
        """
        if self.survives_without(replica):
            machine = self.views[replica].machine
            if machine.node is not None:
                self.views[replica].crash()
            self.loop.at(self.loop.now + down_s, self.restart, self.begin_anew(replica))

    def begin_anew(self, replica: ReplicaId) -> ReplicaId:
        """Set the log of a replica aside, on a node that is down. Return the replica that follows it."""
        machine = self.views[replica].machine
        new = replica._replace(incarnation=begun_anew(replica.incarnation, 1))
        self.views[replica].gone = True
        machine.replicas[machine.replicas.index(replica)] = new
        machine.log.groups.pop(replica.group, None)
        machine.begun.add(replica.group)
        self._successors[replica._replace(incarnation=0)] = new
        self.hosts[new] = self.views[new] = NodeView(new, machine, self._observers)
        return new

    def _receive(self, source: Process, target: ReplicaId, message: object) -> None:
        """What was sent to a lost replica reaches the node that it was on."""
        node = self.node_of(source) if isinstance(source, ReplicaId) else None
        self._machines[target.number].receive((source, target, [message]), node)

    def _observe(self, protocol: type[Protocol]) -> type[Protocol]:
        """The protocol, with its steps shown to the checkers."""
        simulation = self

        class Observed(protocol):  # type: ignore[misc, valid-type]  # a class made at run time
            def __init__(self, start: Start) -> None:
                start.wall = simulation.wall_clock(start.me)
                super().__init__(start)

            def ready(self) -> Ready:
                ready = super().ready()
                for record in ready.persist:
                    if isinstance(record, Dropped):
                        for observer in simulation._observers:
                            observer.dropped(simulation.views[self.me], record.mids)
                return ready  # type: ignore[no-any-return]  # its base is made at run time

            def receive(self, sender: Process, messages: Iterable[Message], now: float) -> None:
                view = simulation.views[self.me]
                for message in messages:
                    for observer in simulation._observers:
                        observer.stepping(view, sender, message)
                    super().receive(sender, (message,), now)
                    for observer in simulation._observers:
                        observer.stepped(view, sender, message)

        return Observed

    def sent(self, replica: ReplicaId, receivers: Sequence[Process], message: object) -> None:
        """A node's replica says something."""
        for observer in self._observers:
            observer.sent(self.views[replica], receivers, message)

    def delivered(self, replica: ReplicaId, delivery: Delivery) -> None:
        """A node's replica has delivered."""
        for observer in self._observers:
            observer.delivered(self.views[replica], delivery)

    def learned(self, replica: ReplicaId, membership: Membership) -> None:
        """A node's replica knows who is in a group."""
        for observer in self._observers:
            observer.learned(self.views[replica], membership)

    def set_aside(self, replica: ReplicaId) -> None:
        """A node's replica has stopped, since its state is damaged."""
        for observer in self._observers:
            observer.crashed(self.views[replica])

    def brought_back(self, replica: ReplicaId) -> None:
        """A node's replica has started again, without its state."""
        self.views[replica].restarted()

    def installed(self, replica: ReplicaId) -> None:
        """A node's replica was replaced."""
        for observer in self._observers:
            observer.installed(self.views[replica])

    def restart(self, replica: ReplicaId) -> None:
        """Start a node that is down; all its connections are new."""
        view = self.views[replica]
        if not (view.up or view.gone):
            for member in view.machine.replicas:
                self.reconnect(member)
            self.links.supersede(_process(view.machine.me))
            self._connect(view.machine.me)
            if self.bounded is not None:
                self.bounded.reset_all(view.machine.number)
            view.start()

    def _connect(self, me: NodeId) -> None:
        """Other nodes accept a connection of this one, unless it is cut."""
        for number, machine in self._machines.items():
            cut = (_number(_process(me)), number) in self.cut_links
            if machine.node is not None and machine.me != me and not cut:
                machine.node.relays.connected(me)


def _process(node: NodeId) -> ClientId:
    """A node as a process of the network of nodes: n0 is 0."""
    return ClientId(int(node.removeprefix("n")))


def _number(process: Process) -> int:
    assert not isinstance(process, ReplicaId)
    return int(process)
