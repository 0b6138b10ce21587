"""Some nodes' relays on links that lose, delay and are cut: frames stay in order, and none arrives twice."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from kvstore.config.addresses import NodeId
from kvstore.node.relay import Relays
from kvstore.wire.frames import ORDERING_CODEC, Envelope
from kvstore.wire.messages import SnapshotAck
from multicast.types import GroupId, Process, ReplicaId

Link = tuple[NodeId, NodeId]

CONNECTED: Final = b"connected"
"""On a link, instead of a frame: another connection. Nothing is sent until it is accepted."""


class Station:
    """One node: its network, and what it has received in its life."""

    def __init__(self, net: RelayNet, me: NodeId, relays: type[Relays]) -> None:
        self.me = me
        self.net = net
        self.life = next(net.lives)
        self.replica = ReplicaId(GroupId(0), net.names.index(me), 1)
        self.received: dict[NodeId, list[tuple[int, int]]] = {}
        self.sent = 0
        self.room = True
        self.unsent: int | None = None
        """What links have not sent; if it is None, nothing or a lot."""
        rng = random.Random(f"{net.seed} {me} {self.life}")
        self.relays = relays(me, self, ORDERING_CODEC, net.may_send, rng, 1.0, 0.0)

    @property
    def peers(self) -> Collection[NodeId]:
        return [name for name in self.net.names if name != self.me]

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        link = self.net.links[self.me, node]
        if CONNECTED not in link:
            link.append(ORDERING_CODEC.encode(envelopes))

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        raise AssertionError("there are no clients")

    def backlog(self, node: NodeId) -> int:
        if self.unsent is not None:
            return self.unsent
        return 0 if self.room else 1 << 30

    def behind(self, node: NodeId) -> int:
        return 0

    def speak(self, node: NodeId) -> None:
        """Send the next message to a node."""
        self.sent += 1
        target = self.net.stations[node].replica
        self.relays.send(node, [(self.replica, target, [SnapshotAck(self.life, self.sent)])])

    def hear(self, node: NodeId, frame: bytes) -> None:
        taken = self.relays.receive(node, ORDERING_CODEC.decode(frame))
        if taken is None:
            return
        origin, envelopes = taken
        for sender, receiver, messages in envelopes:
            assert isinstance(sender, ReplicaId)
            assert (self.net.node_of(sender), receiver) == (origin, self.replica)
            for message in messages:
                self._take(origin, (message.transfer, message.index))

    def _take(self, origin: NodeId, place: tuple[int, int]) -> None:
        before = self.received.setdefault(origin, [])
        assert not before or place > before[-1], f"{self.me} got {place} of {origin} after {before[-1]}"
        before.append(place)


class RelayNet:
    """All nodes and links. A link is FIFO; what is on it may be lost, or arrive after its sender's death."""

    def __init__(self, nodes: int, seed: int = 0, relays: type[Relays] = Relays) -> None:
        self.seed = seed
        self.names = [NodeId(f"n{number}") for number in range(nodes)]
        self.lives = itertools.count(1)
        self.links: dict[Link, deque[bytes]] = {
            link: deque() for link in itertools.permutations(self.names, 2)
        }
        self.cut: set[Link] = set()
        self._relays = relays
        self.stations = {name: Station(self, name, relays) for name in self.names}
        self._time = 0.0

    def node_of(self, replica: ReplicaId) -> NodeId | None:
        return self.names[replica.number] if replica.number < len(self.names) else None

    def may_send(self, node: NodeId, process: Process) -> bool:
        return isinstance(process, ReplicaId) and self.node_of(process) == node

    def tick(self, node: NodeId) -> None:
        self._time += 1.0
        self.stations[node].relays.tick(self._time)

    def arrive(self, link: Link) -> None:
        """The first frame of a link arrives, unless the link is cut: then it stays on its way."""
        if link not in self.cut and self.links[link]:
            source, target = link
            frame = self.links[link].popleft()
            if frame == CONNECTED:
                self.stations[target].relays.connected(source)
            else:
                self.stations[target].hear(source, frame)

    def restart(self, node: NodeId) -> None:
        """A process dies: what was sent to it is lost; what it has sent is still on its way. Then it connects
        again.
        """
        for source, target in self.links:
            if target == node:
                self.links[source, target].clear()
            if node in (source, target):
                self.links[source, target].append(CONNECTED)
        self.stations[node] = Station(self, node, self._relays)

    def settle(self, rounds: int) -> None:
        """Let time pass, without further faults."""
        for _ in range(rounds):
            for node in self.names:
                self.tick(node)
            for _ in range(4):
                for link in self.links:
                    if link in self.cut:
                        continue
                    for _ in range(len(self.links[link])):
                        self.arrive(link)

    def reaches(self, source: NodeId, target: NodeId) -> bool:
        """Whether a message that is sent now arrives, with nothing cut or lost meanwhile."""
        self.stations[source].speak(target)
        wanted = self.stations[source].life, self.stations[source].sent
        for _ in range(4):
            for link in self.links:
                for _ in range(len(self.links[link])):
                    self.arrive(link)
        return wanted in self.stations[target].received.get(source, [])

    def everyone_speaks(self) -> None:
        """Every node sends a message to every other; then time passes. Some may be lost: a frame of a new
        life makes its target draw another epoch.
        """
        for source, target in self.links:
            self.stations[source].speak(target)
        self.settle(3)

    def is_served(self, source: NodeId, target: NodeId) -> bool:
        """Whether frames can be relayed: a third node is connected with the source, and reaches the target;
        and what the target says comes back.
        """

        def open_(one: NodeId, other: NodeId) -> bool:
            return (one, other) not in self.cut

        others = [name for name in self.names if name not in (source, target)]
        there = any(open_(source, r) and open_(r, source) and open_(r, target) for r in others)
        back = open_(target, source) or any(open_(target, r) and open_(r, source) for r in others)
        return open_(source, target) or (there and back)


def random_run(net: RelayNet, rng: random.Random, steps: int) -> None:
    """Anything in any order: ticks, messages, arrivals, losses, cuts, restarts, relays without room."""
    links = list(net.links)
    for _ in range(steps):
        what, link, node = rng.random(), rng.choice(links), rng.choice(net.names)
        if what < 0.2:
            net.tick(node)
        elif what < 0.45:
            net.stations[link[0]].speak(link[1])
        elif what < 0.9:
            for _ in range(rng.randint(1, 12)):
                net.arrive(link)
        elif what < 0.93:
            net.cut.add(link)
        elif what < 0.96:
            net.cut.discard(link)
        elif what < 0.975:
            for _ in range(rng.randint(0, len(net.links[link]))):
                net.links[link].popleft()
        elif what < 0.99:
            net.stations[node].room = not net.stations[node].room
        else:
            net.restart(node)
