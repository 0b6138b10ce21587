"""Links of bounded bandwidth between simulated nodes, with production's flow control on both ends.

Without them the simulator hands messages over one by one, each pair of processes on a link of its own, as
fast as may be. Here a link carries all messages from one node to another, as the bytes of production's
frames: `Outflow` cuts, orders and queues them, `Inflow` puts them together. Between the two is a transport as
TCP is: it keeps the order of frames, takes its time for their bytes, has a window of bytes that the receiver
has not read, and loses everything at once if the connection breaks. Limits are small, so that ordinary
messages are sliced, queued and dropped as only the largest are in production.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvstore.config.addresses import NodeId
from kvstore.wire.flow import FlowLimits
from kvstore.wire.frames import Envelope
from kvstore.wire.inflow import Inflow
from kvstore.wire.messages import NODE
from kvstore.wire.outflow import Outflow, Pair
from multicast.messages import Heartbeat, Multicast, NewLeaderAck, NewState
from multicast.sim.checkers import Violation
from multicast.types import Process

if TYPE_CHECKING:
    from kvstore.simulation.nodes import NodeSimulation, SimMachine

LIMITS: Final = FlowLimits(
    inline=160, payload=48, whole=700, slice=200, message=1 << 20, queue=1 << 20, kept=3000
)
"""Payloads of more than some keys are blobs, and a link has few of them. Messages may be as large as they
are: what exceeds the limit would end every epoch."""
QUEUE_BYTES: Final = 8 << 10
"""What may be queued for a node that does not read, but for states, and beside the largest turn.

Production's bound has room for many of the largest messages, so none alone exceeds it. Here pieces of
snapshots would."""
WINDOW_BYTES: Final = 8 << 10
"""What the transport takes before the receiver has read it."""
RATES: Final = (1e6, 1e7)
"""Bytes that a link carries in a second: least and most."""
SLOW_RATES: Final = (2e3, 20e3)
"""The same while it is slow."""
SLOW_S: Final = (0.1, 1.5)
"""How long a link is slow, or a node does not read."""
SLOWNESSES: Final = 8
"""How often a link is slow, and how often a node does not read, in a run with such faults."""
BUSY_S: Final = 0.05
"""How late the bytes that the transport has taken may leave it when all faults end."""
LOOK_S: Final = 0.01
"""How often a node that could not read looks again."""
MERGED: Final = frozenset({Multicast, NewLeaderAck, NewState})
"""Messages that are not sent if the same ones wait already."""
SWEEP_S: Final = 0.5
"""How often a link forgets payloads that nothing has referred to."""


@dataclass(slots=True)
class Counts:
    """What links have done in a run."""

    frames: int = 0
    sliced: int = 0
    epochs: int = 0
    merged: int = 0


class _Link:
    """One direction between two nodes: a connection at a time."""

    def __init__(self, links: BoundedLinks, source: int, target: int) -> None:
        self.source = source
        self.target = target
        self.slow: float | None = None
        """Its bandwidth while it is slow."""
        self._links = links
        self._rng = links.fork(f"{source} to {target}")
        self._rate = self._rng.uniform(*RATES)
        self._connection = 0
        self.reset()

    def reset(self) -> None:
        """Replace the connection: whatever is queued or under way is lost."""
        links = self._links
        self._connection += 1
        self.outflow: Outflow = links.outflow_type(links.codec, links.limits)
        self.inflow: Inflow = links.inflow_type(links.codec, links.limits)
        self._sent_at = self._arrives_at = 0.0
        self._under_way = 0
        """Bytes that the transport has, and the receiver has not read."""
        self._largest = 0
        """Bytes of the largest turn since the queue was empty."""
        self._arrived: deque[bytes] = deque()
        self._looking = False
        self._sent: dict[Pair, deque[tuple[int, int, type]]] = {}
        """What was sent and has not arrived, of each pair: its hash, its epoch and its kind."""

    @property
    def is_busy(self) -> bool:
        """Whether what the transport has taken will arrive late, at the rate at which it was taken."""
        return self._sent_at > self._links.loop.now + BUSY_S

    # The sender's end

    def send(self, envelopes: Sequence[Envelope]) -> None:
        """Send one turn's messages, as `kvstore.wire.link.Outbound` does."""
        flow = self.outflow
        if not flow.behind:
            self._note(envelopes)
        before = flow.queued
        flow.send(envelopes)
        self._largest = max(self._largest, flow.queued - before) if before else flow.queued
        self._pump()
        if flow.behind or flow.queued - flow.free > QUEUE_BYTES + self._largest:
            self._fall_behind()

    def _pump(self) -> None:
        flow, now = self.outflow, self._links.loop.now
        while self._under_way < WINDOW_BYTES and (frame := flow.next()) is not None:
            self._links.counts.frames += 1
            self._under_way += len(frame)
            self._sent_at = max(self._sent_at, now) + len(frame) / (self.slow or self._rate)
            self._arrives_at = max(self._arrives_at, self._sent_at + self._links.delay_s(self._rng))
            self._links.loop.at(self._arrives_at, self._arrive, self._connection, frame)
        if flow.behind and self._under_way < WINDOW_BYTES:
            self._fall_behind()

    def _fall_behind(self) -> None:
        if not self.outflow.behind:
            self.outflow.fall_behind()
        self._resume()

    def _resume(self) -> None:
        if self.outflow.behind and self._under_way < WINDOW_BYTES:
            self._links.counts.epochs += 1
            self.outflow.resume()
            self._flow_on()

    def _flow_on(self) -> None:
        if not self.outflow.behind:
            self._pump()

    def _was_read(self, connection: int, size: int) -> None:
        if connection == self._connection:
            self._under_way -= size
            self._resume()
            self._pump()

    def sweep(self) -> None:
        """Forget payloads that are not in use."""
        self._links.counts.merged += self.outflow.merged
        self.outflow.merged = 0
        self.outflow.sweep()
        self._pump()

    # The receiver's end

    def _arrive(self, connection: int, frame: bytes) -> None:
        if connection == self._connection:
            self._arrived.append(frame)
            self._read(connection)

    def _read(self, connection: int) -> None:
        """Read what has arrived, unless the node cannot: then all waits, and so does the sender."""
        links = self._links
        while self._arrived and connection == self._connection:
            if not links.reads(self.target):
                if not self._looking:
                    self._looking = True
                    links.loop.at(links.loop.now + LOOK_S, self._look, connection)
                return
            frame = self._arrived.popleft()
            links.counts.sliced += frame[0] == 1
            envelopes = self.inflow.receive(frame)
            links.loop.at(links.loop.now + links.delay_s(self._rng), self._was_read, connection, len(frame))
            self._check(envelopes)
            if envelopes:
                links.deliver(self, envelopes)

    # What is promised: what arrives of a pair is what was sent, in order; within an epoch, nothing is missing

    def _hash(self, sender: Process, receiver: Process, message: object) -> int:
        return hash(self._links.codec.encode([(sender, receiver, [message])]))

    def _note(self, envelopes: Sequence[Envelope]) -> None:
        for sender, receiver, messages in envelopes:
            sent = self._sent.setdefault((sender, receiver), deque())
            for message in messages:
                sent.append((self._hash(sender, receiver, message), self.outflow.epoch, type(message)))

    def _check(self, envelopes: Sequence[Envelope]) -> None:
        for sender, receiver, messages in envelopes:
            sent = self._sent.get((sender, receiver), deque())
            while sent and sent[0][1] < self.inflow.epoch:
                sent.popleft()  # it was dropped
            for message in messages:
                if isinstance(message, Heartbeat) and message.alive_only:
                    continue  # a copy, which may overtake
                arrived = self._hash(sender, receiver, message)
                while sent:
                    expected, _, kind = sent.popleft()
                    if expected == arrived:
                        break
                    if kind not in MERGED:
                        raise Violation("Links", f"{sender} to {receiver}: {kind.__name__} was overtaken")
                else:
                    raise Violation("Links", f"{sender} to {receiver}: {message} was not sent, or earlier")

    def check_held(self) -> None:
        """Check that a peer which has read everything holds only payloads that may be referred to again."""
        idle = not (self.outflow.queued or self._under_way or self.outflow.behind)
        if idle and self.inflow.held > self._links.limits.kept:
            raise Violation(
                "Links", f"node {self.target} holds {self.inflow.held} bytes of node {self.source}"
            )

    def _look(self, connection: int) -> None:
        if connection == self._connection:
            self._looking = False
            self._read(connection)


class BoundedLinks:
    """The links of all nodes of a simulation."""

    outflow_type: type[Outflow] = Outflow
    inflow_type: type[Inflow] = Inflow
    limits: FlowLimits = LIMITS

    def __init__(self, simulation: NodeSimulation) -> None:
        self.loop = simulation.loop
        self.codec = simulation.codec
        self.counts = Counts()
        self._simulation = simulation
        self._links: dict[tuple[int, int], _Link] = {}
        self._deaf_until: dict[int, float] = {}
        self._healed = False
        self.loop.at(SWEEP_S, self._sweep)

    def fork(self, name: str) -> random.Random:
        """Return randomness for one link."""
        return self._simulation.fork(f"link {name}")

    def delay_s(self, rng: random.Random) -> float:
        """Return how long a frame is on its way, but for its length."""
        return self._simulation.scenario.delays.sample(rng)

    def _sweep(self) -> None:
        for link in self._links.values():
            link.check_held()
            link.sweep()
        self.loop.at(self.loop.now + SWEEP_S, self._sweep)

    def _link(self, source: int, target: int) -> _Link:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = _Link(self, source, target)
        return found

    def _machine(self, number: int) -> SimMachine | None:
        machine = self._simulation.machines.get(number)
        return None if machine is None or machine.node is None else machine

    # Messages

    def send(self, source: int, target: int, envelopes: Sequence[Envelope]) -> None:
        """Send one turn's messages to a node; they are lost without a connection."""
        if self._machine(target) is not None and (source, target) not in self._simulation.cut_links:
            self._link(source, target).send(envelopes)

    def backlog(self, source: int, target: int) -> int:
        """Return the unsent bytes of a link."""
        return self._link(source, target).outflow.queued

    def reads(self, number: int) -> bool:
        """Return whether a node reads what has arrived."""
        machine = self._machine(number)
        return machine is not None and machine.reads and self._deaf_until.get(number, 0.0) <= self.loop.now

    def deliver(self, link: _Link, envelopes: Iterable[Envelope]) -> None:
        """Hand messages to a node, but for those between processes that are cut from each other."""
        simulation = self._simulation
        machine = self._machine(link.target)
        assert machine is not None
        kept = []
        for envelope in envelopes:
            sender, receiver, messages = envelope
            if sender == NODE or not simulation.network.is_cut(sender, receiver):
                kept.append(envelope)
                for message in messages:
                    simulation.network.delivered += 1
                    simulation._trace(sender, receiver, message)  # noqa: SLF001 - as the network does
        if kept:
            machine.receive_frame(kept, NodeId(f"n{link.source}"))

    # Faults

    def reset(self, source: int, target: int) -> None:
        """Break a connection."""
        if (source, target) in self._links:
            self._links[source, target].reset()

    def reset_all(self, number: int) -> None:
        """Break all connections of a node: it has died, or begun a new life."""
        for source, target in list(self._links):
            if number in (source, target):
                self.reset(source, target)

    def slow_down(self, source: int, target: int, rate: float, for_s: float) -> None:
        """Let a link carry little for a while."""
        if self._healed:
            return
        self._link(source, target).slow = rate
        self.loop.at(self.loop.now + for_s, self._speed_up, source, target)

    def _speed_up(self, source: int, target: int) -> None:
        self._link(source, target).slow = None

    def stop_reading(self, number: int, for_s: float) -> None:
        """Let a node read nothing for a while, though it runs."""
        if not self._healed:
            self._deaf_until[number] = self.loop.now + for_s

    def heal(self) -> None:
        """End all slowness, for good. Connections that are busy with what they have taken are replaced."""
        self._healed = True
        self._deaf_until.clear()
        for link in self._links.values():
            link.slow = None
            if link.is_busy:
                link.reset()

    def draw(self, rng: random.Random, machines: Sequence[int], until_s: float) -> None:
        """Schedule slow links, and nodes that do not read."""
        for _ in range(SLOWNESSES if len(machines) > 1 else 0):
            source, target = rng.sample(machines, 2)
            rate, for_s = rng.uniform(*SLOW_RATES), rng.uniform(*SLOW_S)
            self._at(rng.uniform(0.0, until_s), self.slow_down, source, target, rate, for_s)
            self._at(rng.uniform(0.0, until_s), self.stop_reading, rng.choice(machines), rng.uniform(*SLOW_S))

    def _at(self, time: float, call: Any, *arguments: object) -> None:
        self.loop.at(time, call, *arguments)
