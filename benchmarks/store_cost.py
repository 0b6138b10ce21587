"""What a transaction of two 20-byte puts costs a replica beyond its ordering: microseconds of CPU, by part.

A real partition on a real disk gets deliveries in batches of 64, as if they had just been ordered, and makes
the messages that it would send. All of it counts: reading payloads, execution, the rows in their maps, the
commits of LMDB with their thread (one for so many transactions, as there is one in half a second), and at a
leader the gate and the bytes of `Results`. With two groups, each has one of the keys; the other group has
announced each batch when the next begins, and its own cost is not counted.
"""

from __future__ import annotations

import gc
import itertools
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.record import Benchmark, Figure
from kvstore import storage
from kvstore.config.addresses import NodeId
from kvstore.config.checks import Durability
from kvstore.machine import Limits, Placement, Request, Transaction, encode_request
from kvstore.machine.codec import TABLES
from kvstore.machine.request import Put, Range, Scan
from kvstore.storage.identity import Identity
from kvstore.store.application import StoreApplication
from kvstore.store.gate import CALM_S, Announcement, Gate
from kvstore.store.messages import STORE_MESSAGES, Levels, Query
from kvstore.store.pages import PAGE_BYTES
from kvstore.store.questions import Entries, Page
from kvstore.wire.frames import FrameCodec
from multicast.messages import Delivery
from multicast.protocol import Start
from multicast.topology import Topology
from multicast.types import NO_TIMESTAMP, ClientId, GroupId, MessageId, ReplicaId, timestamp
from multicast.whitebox import WhiteBox

BATCH = 64
COMMIT = 40
"""Batches between two commits: half a second of 5,000 transactions in each."""
CLIENTS = 64
GATEWAY = ClientId(77)
HERE = GroupId(0)
FAR_FUTURE = 1 << 52
CODEC = FrameCodec(STORE_MESSAGES)

Call = Callable[..., Any]


class Replica:
    """One replica's store: what a node's turns do with it, but for the ordering."""

    def __init__(self, path: Path, durability: Durability, groups: int, *, leads: bool) -> None:
        topology = Topology.uniform(groups, 1 if leads else 3)
        self.me = topology.members(HERE)[-1]
        self.peer = ReplicaId(GroupId(groups - 1), 0, 0)
        self.groups = tuple(map(GroupId, range(groups)))
        self.placement = Placement.evenly(self.groups)
        self.events: SimpleQueue[object] = SimpleQueue()
        self.now = 0.0
        storage.create(path, Identity.new("benchmark", NodeId("n1"), durability, "store"))
        self.disk = storage.open(
            path, "benchmark", NodeId("n1"), tables=TABLES,
            on_durable=self.events.put, on_committed=self.events.put, on_failure=self.events.put,
        )  # fmt: skip
        self.application = StoreApplication(
            self.disk.state, topology, self.placement, me=GATEWAY, limits=Limits(),
            now=lambda: self.now, rng=random.Random(1),
        )  # fmt: skip
        ordering = WhiteBox(Start(self.me, topology, random.Random(1), 0.0))
        now = 0.0
        while leads and not ordering.is_leader:
            now += 0.05
            ordering.tick(now)
            ready = ordering.ready()
            for _, message in [*ready.send, *ready.promise]:
                ordering.step(self.me, message, now)
        self.application.host(ordering)
        self.other: Gate[MessageId] = Gate(self.peer.group)
        self.later = 0.0
        """The other group's time."""
        self.used: dict[str, float] = defaultdict(float)
        self.count = 0
        self.last = NO_TIMESTAMP
        self.batches = 0

    def measured(self, part: str, call: Call, *arguments: object) -> Any:
        """Call a function, count its CPU time in this thread for a part, and return its result."""
        start = time.thread_time()
        found = call(*arguments)
        self.used[part] += time.thread_time() - start
        return found

    def batch(self, payloads: list[bytes]) -> None:
        """Deliver payloads, and make the messages that follow."""
        deliveries = []
        for payload in payloads:
            self.count += 1
            gts = timestamp(self.count, HERE)
            mid = MessageId(GATEWAY, self.count, 7)
            deliveries.append(Delivery(mid, self.groups, payload, 0, gts, gts, self.last, mismatch=False))
            self.last = gts
        application = self.application
        self.measured("the ring of deliveries", self.disk.state.remember, HERE, deliveries)
        self.measured("deliver", application.partition(HERE).deliver, deliveries)
        self.speak()
        if len(self.groups) > 1:
            self.answer(deliveries)
        self.batches += 1
        if self.batches % COMMIT == 0:
            self.commit()

    def speak(self) -> list[Any]:
        """Take a turn: the messages that it sends."""
        said = self.measured("turns", self.application.partition(HERE).turn, 0.0)
        for _, _, message in said:
            self.measured("bytes of messages", CODEC.size_of, message)
        return [message for _, _, message in said]

    def answer(self, deliveries: list[Delivery]) -> None:
        """Let the other group deliver the same, and exchange announcements with it."""
        for delivery in deliveries:
            self.other.delivered(delivery.global_ts, delivery.dest)
        partition = self.application.partition(HERE)
        for _ in range(2):  # it announces what it has collected for a while
            self.later += CALM_S
            turn = self.other.turn(self.later)
        announced = turn.announcements + turn.calm
        if not partition.replica.is_leader:
            closed = Levels(Announcement(HERE, self.last, ()))
            self.measured("announcements", partition.receive, partition.replica.others[0], closed, 0.0)
            return
        for _, announcement in announced:
            self.measured("announcements", partition.receive, self.peer, Levels(announcement), 0.0)
        self.speak()
        self.other.heard(Announcement(HERE, partition.gate.closed, ()))
        self.other.turn(self.later)

    def commit(self) -> None:
        """Commit the state, and wait for the disk."""
        state = self.disk.state
        self.measured("commit: begin", self.application.commit, {HERE: self.last}, 0)
        while self.measured("commit: rows", state.pump):
            pass
        event = self.events.get(timeout=60)
        if isinstance(event, storage.StorageError):
            raise event
        self.measured("commit: rows", state.pump)


class Traffic:
    """Payloads: of each client one after the other, with eight in flight."""

    def __init__(self, placement: Placement, keys: int) -> None:
        self._rng = random.Random(1)
        self._keys: list[list[bytes]] = [[] for _ in placement.groups]
        for number in range(keys):
            key = b"key%017d" % number
            self._keys[placement.group_of(key)].append(key)
        self._count = 0

    def _payload(self, puts: tuple[Put, ...]) -> bytes:
        self._count += 1
        sequence = self._count // CLIENTS
        client, below, transaction = self._count % CLIENTS, max(0, sequence - 8), Transaction((), puts)
        return encode_request(Request(client, sequence, below, FAR_FUTURE, self._count, transaction))

    def all_keys(self) -> Iterator[list[bytes]]:
        """Batches that put every key once."""
        keys = [key for found in self._keys for key in found]
        payloads = [self._payload((Put(key, b"v" * 20),)) for key in keys]
        for start in range(0, len(payloads), BATCH):
            yield payloads[start : start + BATCH]

    def batches(self, count: int) -> list[list[bytes]]:
        """Transactions of two puts, with a key of each group."""
        pick = self._rng.choice
        found = [*self._keys, *self._keys][:2]
        return [
            [self._payload(tuple([Put(pick(keys), b"v" * 20) for keys in found])) for _ in range(BATCH)]
            for _ in range(count)
        ]


def cost(
    path: Path, durability: Durability, groups: int, sizes: Any, *, leads: bool
) -> dict[str, list[float]]:
    """Microseconds of CPU of a transaction in each round, by part."""
    replica = Replica(path, durability, groups, leads=leads)
    traffic = Traffic(replica.placement, sizes.keys)
    for payloads in traffic.all_keys():
        replica.batch(payloads)
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(sizes.rounds):
        batches = traffic.batches(2 * COMMIT)
        gc.collect()
        replica.used.clear()
        others = time.process_time() - time.thread_time()
        for payloads in batches:
            replica.batch(payloads)
        replica.used["commit: thread"] = time.process_time() - time.thread_time() - others
        for part, used in replica.used.items():
            found[part].append(1e6 * used / (len(batches) * BATCH))
    replica.disk.close()
    return found


def pages(path: Path, sizes: Any) -> list[float]:
    """Keys that a replica reads in pages, from the disk to the bytes of the answers, per second of CPU."""
    replica = Replica(path, "os", 1, leads=True)
    partition = replica.application.partition(HERE)
    for payloads in Traffic(replica.placement, sizes.keys).all_keys():
        replica.batch(payloads)
    replica.commit()
    replica.speak()
    rates = []
    for _ in range(sizes.rounds):
        found, start, more = 0, b"", True
        began = time.thread_time()
        while more:
            question = Page(Scan(Range(start, None), 0, PAGE_BYTES), partition.machine.watermark)
            replica.now += 0.01  # long reads pause between slices
            partition.receive(GATEWAY, Query(1, question), replica.now)
            ((_, _, answer),) = partition.turn(replica.now)
            CODEC.size_of(answer)
            page = answer.response
            if not isinstance(page, Entries):
                raise SystemExit(f"a page is {page}")
            found += len(page.entries)
            more = page.resume is not None
            start = page.resume or b""
        rates.append(found / (time.thread_time() - began))
        if found != sizes.keys:
            raise SystemExit(f"pages had {found} of {sizes.keys} keys")
    replica.disk.close()
    return rates


def measure(sizes: Any) -> Iterator[Figure]:
    """Transactions at followers and leaders, the parts of one kind, and pages of a scan."""
    gc.set_threshold(20_000, 20, 20)  # as nodes do
    durabilities: tuple[Durability, ...] = ("os", "fsync")
    with tempfile.TemporaryDirectory() as folder:
        for durability, groups, leads in itertools.product(durabilities, (1, 2), (False, True)):
            role, count = ("leader", "follower")[not leads], ("one group", "two groups")[groups - 1]
            path = Path(folder) / f"{durability}-{groups}-{role}"
            found = cost(path, durability, groups, sizes, leads=leads)
            sums = [sum(parts) for parts in zip(*found.values(), strict=True)]
            yield Figure.of(f"a transaction, {count}, {role}, {durability}", "µs of CPU", sums)
        for part, samples in found.items():
            yield Figure.of(f"... of this last one: {part}", "µs of CPU", samples)
        rates = pages(Path(folder) / "pages", sizes)
    yield Figure.of("pages of a scan, one replica: keys", "per second of CPU", rates)


BENCHMARK = Benchmark(
    "store_cost", "store", __doc__, measure,
    {"keys": (100_000, 1_000), "rounds": (8, 2)},
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
