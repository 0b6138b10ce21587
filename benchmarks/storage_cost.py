"""What a node's disk costs its loop, and how many commits it makes.

A message of 60 bytes is accepted in one batch, delivered in the next, and dropped some batches later. What
the loop does for that (encoding, puts, folding now and then) is counted as CPU time for each message; commits
are not, as another thread makes them. The state is that of bare multicast; `store_cost` has the store's.
"""

from __future__ import annotations

import gc
import itertools
import queue
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.record import Benchmark, Figure
from kvstore import storage
from kvstore.config.addresses import NodeId
from kvstore.config.checks import Durability
from kvstore.storage.identity import Identity
from multicast.durable import Accepted, Dropped, Record
from multicast.messages import Delivery
from multicast.types import (
    NO_TIMESTAMP,
    Ballot,
    ClientId,
    GroupId,
    MessageId,
    ReplicaId,
    Timestamp,
    timestamp,
)

GROUP, NODE = GroupId(0), NodeId("n1")
DEST = (GroupId(0), GroupId(1))
BALLOT = Ballot(3, ReplicaId(GROUP, 0, 7), 0)
CLIENTS = [ClientId(2**60 + client) for client in range(16)]
IN_FLIGHT = 1024
"""Messages that are delivered, but not yet dropped."""


class Traffic:
    """Messages in the order in which a group delivers them."""

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.time = 1_000_000
        self.last = NO_TIMESTAMP
        self.delivered: deque[MessageId] = deque()

    def messages(self, count: int) -> tuple[list[Record], list[Record], list[Delivery]]:
        """One batch that accepts them; one that has their deliveries, and drops some; the deliveries."""
        run: list[tuple[MessageId, Timestamp, bytes, int]] = []
        delivered: list[Delivery] = []
        for _ in range(count):
            self.time += 1
            sequence = self.time // len(CLIENTS)
            mid = MessageId(CLIENTS[self.time % len(CLIENTS)], sequence, self.rng.getrandbits(64))
            at, payload = timestamp(self.time, GROUP), self.rng.randbytes(60)
            below = sequence - 8
            run.append((mid, at, payload, below))
            delivered.append(Delivery(mid, DEST, payload, below, at, at, self.last, mismatch=False))
            self.delivered.append(mid)
            self.last = at
        dropped = [self.delivered.popleft() for _ in range(len(self.delivered) - IN_FLIGHT)]
        mids, local_ts, payloads, ack_below = zip(*run, strict=True)
        accepted: list[Record] = [Accepted((DEST,), mids, local_ts, payloads, ack_below, self.time)]
        return accepted, [*delivered, Dropped(tuple(dropped))] if dropped else [*delivered], delivered


class Loop:
    """A node's loop, as far as its disk is concerned."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self.events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.path = path
        if not path.exists():
            storage.create(path, Identity.new("benchmark", NODE, durability))
        self.opened = self.open()
        self.used = self.longest = 0.0

    def open(self) -> storage.Disk[storage.LmdbState]:
        return storage.open(
            self.path, "benchmark", NODE,
            on_durable=self.events.put, on_committed=self.events.put, on_failure=self.events.put,
        )  # fmt: skip

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Count its CPU time."""
        start = time.thread_time()
        result = function(*arguments)
        used = time.thread_time() - start
        self.used += used
        self.longest = max(self.longest, used)
        return result

    def wait(self) -> None:
        """The disk is done."""
        event = self.events.get(timeout=60)
        if isinstance(event, storage.StorageError):
            raise event

    def write(self, records: list[Record]) -> int:
        """A batch, a commit."""
        log = self.opened.log
        number: int = self.call(log.write, {GROUP: records})
        self.call(log.pump)
        self.wait()
        self.call(log.pump)
        return number

    def apply(self, deliveries: list[Delivery]) -> None:
        self.opened.state.apply(GROUP, deliveries)

    def commit(self, position: Any, after: int) -> None:
        """Commit the state."""
        state = self.opened.state
        state.log_durable(after)
        self.call(state.commit, {GROUP: position}, after)
        while self.call(state.pump):
            pass
        self.wait()
        self.call(state.pump)


def log_cost(path: Path, batch: int, messages: int, rounds: int) -> list[float]:
    """Microseconds of the loop for each message, in each round."""
    loop, traffic = Loop(path / f"log{batch}", "os"), Traffic()
    figures = []
    for _ in range(rounds):
        batches = [traffic.messages(batch) for _ in range(max(1, messages // batch))]
        gc.collect()
        loop.used = 0.0
        for accepted, delivered, _ in batches:
            loop.write(accepted)
            loop.write(delivered)
        figures.append(loop.used / len(batches) / batch * 1e6)
    loop.opened.close()
    return figures


def state_cost(path: Path, messages: int, rounds: int) -> tuple[list[float], list[float]]:
    """Microseconds of the loop for each delivery, and milliseconds of the longest call, in each round."""
    loop, traffic = Loop(path / "state", "os"), Traffic()
    figures, longest = [], []
    for _ in range(rounds):
        _, _, deliveries = traffic.messages(messages)
        gc.collect()
        loop.used = 0.0
        loop.call(loop.apply, deliveries)
        loop.longest = 0.0
        loop.commit(traffic.last, 0)
        figures.append(loop.used / messages * 1e6)
        longest.append(loop.longest * 1e3)
    loop.opened.close()
    return figures, longest


def commits(path: Path, durability: Durability, batch: int, seconds: float) -> list[float]:
    """How many in a second, one after the other, in each of a few parts of the time."""
    loop = Loop(path / f"commits-{durability}-{batch}", durability)
    traffic = Traffic()
    batches = itertools.cycle([traffic.messages(batch)[0] for _ in range(200)])
    rates = []
    for _ in range(4):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds / 4:
            loop.write(next(batches))
            count += 1
        rates.append(count / (time.perf_counter() - start))
    loop.opened.close()
    return rates


def measure(sizes: Any) -> Iterator[Figure]:
    """The log's cost by the size of batches, the state's, and commits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for batch in (1, 16, 64, 256):
            samples = log_cost(path, batch, min(sizes.messages, 256 * batch), sizes.rounds)
            yield Figure.of(f"log, batches of {batch}: a message", "µs of CPU", samples)
        costs, longest = state_cost(path, sizes.messages, sizes.rounds)
        yield Figure.of("state of bare multicast: a delivery", "µs of CPU", costs)
        yield Figure.of(f"longest turn for {sizes.messages:,} of them", "ms", longest)
        durabilities: tuple[Durability, ...] = ("fsync", "os")
        for durability, batch in itertools.product(durabilities, (1, 64)):
            rates = commits(path, durability, batch, sizes.seconds)
            yield Figure.of(f"commits of {batch} records, {durability}", "/s", rates)


BENCHMARK = Benchmark(
    "storage_cost", "store", __doc__, measure,
    {"messages": (4096, 512), "rounds": (15, 2), "seconds": (2.0, 0.2)},
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
