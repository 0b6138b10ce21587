"""What ordering a message of 20 bytes costs three nodes, in CPU time, whatever else the machine does.

The nodes are real, with their disks and the wire format between them, but all in this process and thread, and
without sockets: so protocols, and versions of them, can be compared on a busy machine. Every message goes to
a random subset of ten groups; 200 are in flight, and come and are answered in bulk. Their clients' own time
does not count.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import tempfile
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.record import Benchmark, Figure
from kvstore import storage
from kvstore.bare.application import BareMulticast
from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.local.disk import create_disk
from kvstore.node.directory import Directory
from kvstore.node.loop import Node
from kvstore.wire.frames import ORDERING_CODEC, Envelope
from multicast import PROTOCOLS
from multicast.client import Reply, Sender
from multicast.protocol import Timing
from multicast.types import ClientId, GroupId, ReplicaId

PATIENT = Timing(retry_s=1000.0, election_s=10.0, heartbeat_s=0.1)
"""Nothing is repeated: here messages wait for their turn, not for the network."""
GROUPS, IN_FLIGHT = 10, 200


class Host:
    """A node of bare multicast and its disk; instead of a network it has the inboxes of the others."""

    node: Node

    def __init__(self, config: Config, me: NodeId, machine: Machine) -> None:
        self.me = me
        self.machine = machine
        self.happened: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        self.inbox: deque[tuple[NodeId | None, bytes]] = deque()
        self.bytes = 0
        create_disk(config, me)
        self.disk: storage.Disk[Any] = storage.open(
            config.data(me), config.id, me,
            on_durable=lambda number: self.happened.put((self.durable, number)),
            on_committed=lambda executed: self.happened.put((self.node.committed, executed)),
            on_failure=lambda error: self.happened.put((self.failed, error)),
        )  # fmt: skip
        incarnation = self.disk.identity.incarnation
        replicas = [
            ReplicaId(group, nodes.index(me), incarnation)
            for group, nodes in config.groups.items()
            if me in nodes
        ]
        self.node = Node(
            me, config.topology, replicas, config.protocol_type,
            node_of=Directory(config.incarnations).node_of, clock=self, network=self, codec=ORDERING_CODEC,
            log=self.disk.log,
            application=BareMulticast(self.disk.state), rng=random.Random(me), timing=config.timing,
        )  # fmt: skip

    def now(self) -> float:
        """`ports.Clock`."""
        return self.machine.now

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """`ports.Network`."""
        data = ORDERING_CODEC.encode(envelopes)
        self.bytes += len(data)
        self.machine.hosts[node].inbox.append((self.me, data))

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        """`ports.Network`."""
        self.machine.answers.append(ORDERING_CODEC.encode(envelopes))

    @property
    def peers(self) -> Collection[NodeId]:
        """`ports.Network`."""
        return [node for node in self.machine.hosts if node != self.me]

    def backlog(self, node: NodeId) -> int:
        """`ports.Network`."""
        return 0

    def behind(self, node: NodeId) -> int:
        """`ports.Network`."""
        return 0

    def durable(self, number: int) -> None:
        """The log's batches up to this one are durable."""
        self.node.durable(number)
        self.disk.state.log_durable(number)

    def failed(self, error: Exception) -> None:
        """The disk has failed."""
        raise error

    def turn(self) -> None:
        """What a server does in one turn of its loop."""
        while not self.happened.empty():
            call, argument = self.happened.get()
            call(argument)
        while self.inbox:
            node, data = self.inbox.popleft()
            self.node.receive(ORDERING_CODEC.decode(data), node)
        if self.now() >= self.node.wake_at:
            self.node.tick()
        self.node.turn()
        while self.disk.log.pump(may_wait=True):
            self.durable(self.disk.log.durable)
            self.node.turn()
        while self.disk.state.pump():
            pass


class Machine:
    """Three nodes, driven in turns, and their client."""

    def __init__(self, folder: Path, protocol: str, groups: int) -> None:
        self.now = 0.0
        self.answers: list[bytes] = []
        config = Config.local(
            3, groups, 1 if protocol == "skeen" else 3, folder, ports=range(1, 4), protocol=protocol,
            durability="os", application="multicast", timing=PATIENT,
        )  # fmt: skip
        self.hosts: dict[NodeId, Host] = {}
        for node in config.nodes:
            self.hosts[node] = Host(config, node, self)
        self.node_of = Directory(config.incarnations).node_of
        self.client = Sender(ClientId(1), config.topology, retry_s=1000.0)
        self.cpu_s = 0.0
        while not self._led():
            self.now += 0.05
            self.round()

    def _led(self) -> bool:
        led = {r.group for h in self.hosts.values() for r, p in h.node.replicas.items() if p.is_leader}
        return len(led) == len(self.client.topology.groups)

    def round(self) -> None:
        """Let every node take a turn, whose CPU time counts."""
        for host in self.hosts.values():
            began = time.thread_time()
            host.turn()
            self.cpu_s += time.thread_time() - began

    def run(
        self, sets: Sequence[tuple[GroupId, ...]], in_flight: int, messages: int, rng: random.Random
    ) -> None:
        """Order messages in a closed loop."""
        asked = done = 0
        while done < messages:
            while asked - done < in_flight and asked < messages:
                self.client.multicast(rng.choice(sets), bytes(20), self.now)
                asked += 1
            self._ask()
            self.now += 0.002
            self.round()
            for data in self.answers:
                for _, _, answers in ORDERING_CODEC.decode(data):
                    for answer in answers:
                        assert isinstance(answer, Reply)
                        self.client.step(answer, self.now)
            self.answers.clear()
            done += len(self.client.finished)
            self.client.finished.clear()

    def _ask(self) -> None:
        frames: dict[NodeId, dict[ReplicaId, list[Any]]] = {}
        for receivers, message in self.client.drain():
            for receiver in receivers:
                assert isinstance(receiver, ReplicaId)
                node = self.node_of(receiver)
                assert node is not None
                frames.setdefault(node, {}).setdefault(receiver, []).append(message)
        for node, queues in frames.items():
            data = ORDERING_CODEC.encode(
                [(self.client.client, receiver, found) for receiver, found in queues.items()]
            )
            self.hosts[node].inbox.append((None, data))


def cost(folder: Path, protocol: str, dest: int, sizes: Any) -> Iterator[Figure]:
    """CPU time and bytes of a message to so many groups."""
    sets = list(itertools.combinations(map(GroupId, range(GROUPS)), dest))
    machine, rng, figures = Machine(folder, protocol, GROUPS), random.Random(1), []
    hosts = machine.hosts.values()
    with contextlib.ExitStack() as stack:
        for host in hosts:
            stack.callback(host.disk.close)
        machine.run(sets, IN_FLIGHT, sizes.messages, rng)
        sent = sum(host.bytes for host in hosts)
        for _ in range(sizes.rounds):
            gc.collect()
            machine.cpu_s = 0.0
            machine.run(sets, IN_FLIGHT, sizes.messages, rng)
            figures.append(machine.cpu_s / sizes.messages * 1e6)
        sent = sum(host.bytes for host in hosts) - sent
    name = f"to {dest} of {GROUPS} groups, {protocol}"
    yield Figure.of(name, "µs of CPU of all nodes", figures)
    yield Figure.of(f"{name}: between nodes", "bytes", [sent / sizes.rounds / sizes.messages])


def measure(sizes: Any) -> Iterator[Figure]:
    """Each protocol, by destinations."""
    for dest in (1, 2, 4, 10):
        for protocol in PROTOCOLS:
            if protocol != "skeen":
                with tempfile.TemporaryDirectory() as folder:
                    yield from cost(Path(folder), protocol, dest, sizes)


BENCHMARK = Benchmark("node_cost", "node", __doc__, measure, {"messages": (1000, 200), "rounds": (5, 1)})

if __name__ == "__main__":
    BENCHMARK.main()
