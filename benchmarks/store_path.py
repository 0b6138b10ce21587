"""What a transaction costs three nodes of the store, in CPU time and turns, by how many are in flight.

The nodes are real, with their disks, the wire format between them and a gateway, but all in this process and
thread, and without sockets and gRPC: so the way of a transaction can be measured on a busy machine, and
profiled (`--profile 10` shows the functions by their own time, with 10 in flight). Each transaction puts 20
bytes into each of its partitions, or reads a key strictly. A node takes a turn only if something has arrived
for it, as in a server; all that has arrived is handled together.
"""

from __future__ import annotations

import contextlib
import cProfile
import gc
import itertools
import pstats
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from benchmarks.record import Benchmark, Figure
from kvstore import storage
from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.local.disk import create_disk
from kvstore.machine.codec import TABLES
from kvstore.machine.request import Get, Put, Transaction
from kvstore.node.directory import Directory
from kvstore.node.loop import Node
from kvstore.store.application import StoreApplication
from kvstore.store.questions import StrictRead
from kvstore.wire.frames import Envelope, FrameCodec
from multicast.protocol import Timing
from multicast.types import ClientId, GroupId, ReplicaId

PATIENT: Final = Timing(retry_s=1000.0, election_s=10.0, heartbeat_s=0.1)
"""Nothing is repeated, and heartbeats are rare: what counts here is the way of a transaction."""
PARTITIONS: Final = 3
CODEC: Final = FrameCodec(StoreApplication.messages)


class Host:
    """A node of the store and its disk; instead of a network it has the inboxes of the others."""

    node: Node

    def __init__(self, config: Config, me: NodeId, machine: Machine) -> None:
        self.me = me
        self.machine = machine
        self.happened: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        self.inbox: deque[tuple[NodeId, bytes]] = deque()
        self.woken = False
        self.frames = self.bytes = self.turns = 0
        create_disk(config, me)
        self.disk: storage.Disk[storage.StoreState] = storage.open(
            config.data(me), config.id, me, tables=TABLES,
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
        self.store = StoreApplication(
            self.disk.state, config.topology, config.first_placement, me=ClientId(1000 + len(machine.hosts)),
            limits=config.store.limits, now=self.now, rng=random.Random(me),
        )  # fmt: skip
        directory = Directory(config.incarnations)
        self.node = Node(
            me, config.topology, replicas, config.protocol_type, node_of=directory.node_of,
            may_send=directory.may_send, clock=self, network=self, codec=CODEC, log=self.disk.log,
            application=self.store, rng=random.Random(me), timing=config.timing, wall=machine.wall,
        )  # fmt: skip

    def now(self) -> float:
        """`ports.Clock`."""
        return self.machine.now

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """`ports.Network`."""
        data = CODEC.encode(envelopes)
        self.frames += 1
        self.bytes += len(data)
        self.machine.hosts[node].inbox.append((self.me, data))

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        """`ports.Network`: gateways are processes of nodes, so that no client is answered by frames."""

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
        """What a server does in one turn of its loop, if anything has happened."""
        due = self.now() >= self.node.wake_at
        if not (self.woken or self.inbox or due or not self.happened.empty()):
            return
        self.woken = False
        while not self.happened.empty():
            call, argument = self.happened.get()
            call(argument)
        while self.inbox:
            node, data = self.inbox.popleft()
            self.node.receive(CODEC.decode(data), node)
        if due:
            self.node.tick()
        self.node.turn()
        self.turns += 1
        while self.disk.log.pump(may_wait=True):
            self.durable(self.disk.log.durable)
            self.node.turn()
            self.turns += 1
        if self.disk.state.pump():
            self.woken = True


class Machine:
    """Three nodes, driven in turns, and the calls of their clients."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        config = Config.local(
            3, PARTITIONS, 3, folder, ports=range(1, 4), api_ports=range(4, 7), timing=PATIENT
        )
        self.hosts: dict[NodeId, Host] = {}
        for node in config.nodes:
            self.hosts[node] = Host(config, node, self)
        self.placement = config.first_placement
        self.cpu_s = 0.0
        self.done = 0
        self.failed: list[Exception] = []
        self.profile: cProfile.Profile | None = None
        while not self._led():
            self.now += 0.05
            self.round()
        for _ in range(40):  # leaders tell their clocks, and the first writes make sessions
            self.now += 0.05
            self.round()

    def wall(self) -> float:
        """Return the time of day."""
        return 1e6 + self.now

    def _led(self) -> bool:
        led = {r.group for h in self.hosts.values() for r, p in h.node.replicas.items() if p.is_leader}
        return len(led) == PARTITIONS

    def round(self) -> None:
        """Let every node take a turn, whose CPU time counts."""
        for host in self.hosts.values():
            began = time.thread_time()
            if self.profile is None:
                host.turn()
            else:
                self.profile.runcall(host.turn)
            self.cpu_s += time.thread_time() - began

    def _done(self, outcome: Any) -> None:
        self.done += 1
        if isinstance(outcome, Exception):
            self.failed.append(outcome)

    def _ask(self, kind: str, keys: Sequence[Sequence[bytes]], rng: random.Random) -> None:
        """Begin one call at a random node's gateway."""
        host = rng.choice(list(self.hosts.values()))
        host.woken = True
        gateway = host.store.gateway
        parts = rng.sample(range(PARTITIONS), 2 if kind == "two" else 1)
        chosen = [rng.choice(keys[part]) for part in parts]
        began = time.thread_time()
        if kind == "get":
            gateway.ask(GroupId(parts[0]), StrictRead((Get(chosen[0]),)), self._done, of_leader=True)
        else:
            transaction = Transaction((), tuple(Put(key, bytes(20)) for key in chosen), ())
            gateway.transact(transaction, self._done)
        self.cpu_s += time.thread_time() - began

    def keys(self) -> list[list[bytes]]:
        """Return a hundred keys of each partition."""
        found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        for number in itertools.count():
            key = b"key/%d" % number
            of = found[self.placement.group_of(key)]
            if len(of) < 100:
                of.append(key)
            elif all(len(each) >= 100 for each in found):
                return found
        raise AssertionError("unreachable")

    def run(self, kind: str, in_flight: int, calls: int, rng: random.Random) -> None:
        """Make calls in a closed loop."""
        keys = self.keys()
        asked, self.done = 0, 0
        while self.done < calls:
            while asked - self.done < in_flight and asked < calls:
                self._ask(kind, keys, rng)
                asked += 1
            self.now += 0.0003
            self.round()
        if self.failed:
            raise SystemExit(f"{len(self.failed)} calls failed, the first with {self.failed[0]!r}")


NAMES: Final = {"one": "puts in one partition", "two": "puts in two partitions", "get": "a strict get"}


def measure(sizes: Any) -> Iterator[Figure]:
    """Each kind of call, by how many are in flight."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        machine, rng = Machine(Path(folder)), random.Random(1)
        for host in machine.hosts.values():
            stack.callback(host.disk.close)
        for kind, in_flight in itertools.product(sizes.kinds.split(","), (1, 10, 100)):
            calls = sizes.calls * (1 if in_flight == 1 else 3)
            machine.run(kind, in_flight, calls, rng)
            cpu: list[float] = []
            before = [(host.turns, host.frames) for host in machine.hosts.values()]
            if sizes.profile == str(in_flight):
                machine.profile = cProfile.Profile()
            for _ in range(sizes.rounds):
                gc.collect()
                machine.cpu_s = 0.0
                machine.run(kind, in_flight, calls, rng)
                cpu.append(machine.cpu_s / calls * 1e6)
            if machine.profile is not None:
                pstats.Stats(machine.profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)
                machine.profile = None
            after = [(host.turns, host.frames) for host in machine.hosts.values()]
            turns, frames = (sum(a[i] - b[i] for a, b in zip(after, before, strict=True)) for i in (0, 1))
            name = f"{NAMES[kind]}, {in_flight} in flight"
            yield Figure.of(name, "µs of CPU of all nodes", cpu)
            yield Figure.of(f"{name}: turns", "", [turns / sizes.rounds / calls])
            yield Figure.of(f"{name}: frames", "", [frames / sizes.rounds / calls])


BENCHMARK = Benchmark(
    "store_path", "store", __doc__, measure,
    {"calls": (500, 100), "rounds": (5, 2), "kinds": ("one,two,get", "one,two,get"), "profile": ("", "")},
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
