"""What a node's disk costs its loop, how many commits it makes, and how long a restart takes.

A message is accepted in one batch, delivered in the next, and dropped some batches later. What the loop does
for that (encoding, puts, folding now and then) is counted as CPU time for each message; commits are not, as
another thread makes them. The state is measured apart.
"""

from __future__ import annotations

import argparse
import gc
import json
import queue
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvstore import storage
from kvstore.layout import Durability, Identity
from kvstore.ports import NodeId
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

    def __init__(self, payload: int) -> None:
        self.rng = random.Random(1)
        self.payload = payload
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
            at, payload = timestamp(self.time, GROUP), self.rng.randbytes(self.payload)
            below = sequence - 8
            run.append((mid, at, payload, below))
            delivered.append(Delivery(mid, DEST, payload, below, at, at, self.last, mismatch=False))
            self.delivered.append(mid)
            self.last = at
        dropped = [self.delivered.popleft() for _ in range(len(self.delivered) - IN_FLIGHT)]
        mids, local_ts, payloads, ack_below = zip(*run, strict=True)
        accepted: list[Record] = [Accepted(DEST, mids, local_ts, payloads, ack_below, self.time)]
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


def log_cost(path: Path, batch: int, payload: int, messages: int, rounds: int) -> list[float]:
    """Microseconds of the loop for each message, in each round."""
    loop = Loop(path / f"log{batch}", "os")
    traffic = Traffic(payload)
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


def state_cost(path: Path, payload: int, messages: int, rounds: int) -> tuple[list[float], float]:
    """Microseconds of the loop for each delivery, in each round; the longest call, in milliseconds."""
    loop = Loop(path / "state", "os")
    traffic = Traffic(payload)
    figures = []
    for _ in range(rounds):
        _, _, deliveries = traffic.messages(messages)
        gc.collect()
        loop.used = 0.0
        loop.call(loop.apply, deliveries)
        loop.longest = 0.0
        loop.commit(traffic.last, 0)
        figures.append(loop.used / messages * 1e6)
    loop.opened.close()
    return figures, loop.longest * 1e3


def commits(path: Path, durability: Durability, batch: int, payload: int, seconds: float) -> float:
    """How many in a second, one after the other."""
    loop = Loop(path / f"commits-{durability}-{batch}", durability)
    traffic = Traffic(payload)
    batches = [traffic.messages(batch)[0] for _ in range(200)]
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        loop.write(batches[count % len(batches)])
        count += 1
    rate = count / (time.perf_counter() - start)
    loop.opened.close()
    return rate


def restart(path: Path, payload: int, messages: int) -> dict[str, float]:
    """How long it takes to open and load a disk on which so many messages were delivered."""
    loop = Loop(path / "restart", "os")
    traffic = Traffic(payload)
    for _ in range(messages // 256):
        accepted, delivered, deliveries = traffic.messages(256)
        number = loop.write(accepted)
        number = loop.write(delivered)
        loop.apply(deliveries)
        if number % 40 == 0:
            loop.commit(traffic.last, number)
    loop.commit(traffic.last, number)
    loop.opened.close()
    longest = loop.longest
    gc.collect()
    start = time.perf_counter()
    loop.opened = loop.open()
    durable = loop.opened.log.load(GROUP)
    log = time.perf_counter() - start
    checkpoint = loop.opened.state.load(GROUP)
    both = time.perf_counter() - start
    if checkpoint.position != traffic.last or not IN_FLIGHT <= len(durable.entries) <= IN_FLIGHT + 256:
        raise SystemExit("what was loaded is not what was written")
    loop.opened.close()
    sizes = [(path / "restart" / name / "data.mdb").stat().st_size / 2**20 for name in ("log", "state")]
    return {
        "log_s": round(log, 3),
        "both_s": round(both, 3),
        "log_mib": round(sizes[0], 1),
        "state_mib": round(sizes[1], 1),
        "longest_ms": round(longest * 1e3, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--payload", type=int, default=60)
    parser.add_argument("--messages", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--restart", type=int, default=1_000_000)
    parser.add_argument("--where", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"log_us": {}, "commits_per_s": {}}
    with tempfile.TemporaryDirectory(dir=arguments.where) as directory:
        path = Path(directory)
        for batch in (1, 16, 64, 256):
            messages = min(arguments.messages, 256 * batch)
            figures = log_cost(path, batch, arguments.payload, messages, arguments.rounds)
            report["log_us"][str(batch)] = [round(statistics.median(figures), 2), round(min(figures), 2)]
        figures, longest = state_cost(path, arguments.payload, arguments.messages, arguments.rounds)
        report["state_us"] = [round(statistics.median(figures), 2), round(min(figures), 2)]
        report["state_longest_ms"] = round(longest, 2)
        durabilities: tuple[Durability, ...] = ("fsync", "os")
        for durability in durabilities:
            for batch in (1, 64):
                rate = commits(path, durability, batch, arguments.payload, arguments.seconds)
                report["commits_per_s"][f"{durability} {batch}"] = round(rate)
        if arguments.restart:
            report["restart"] = restart(path, arguments.payload, arguments.restart)
    if arguments.json:
        print(json.dumps(report))
        return
    print("us of the loop's CPU for each message, median (best)")
    for batch, (median, best) in report["log_us"].items():
        print(f"log, batches of {batch:>3}:  {median:6.2f} ({best:6.2f})")
    median, best = report["state_us"]
    print(f"state:                {median:6.2f} ({best:6.2f}); longest turn {report['state_longest_ms']} ms")
    for name, rate in report["commits_per_s"].items():
        durability_name, size = name.split()
        print(f"commits of {size:>2} records, {durability_name}: {rate}/s")
    if arguments.restart:
        found = report["restart"]
        print(
            f"restart after {arguments.restart} deliveries: the log in {found['log_s']} s, both in "
            f"{found['both_s']} s, from {found['log_mib']} and {found['state_mib']} MiB; the longest call of "
            f"the loop before took {found['longest_ms']} ms"
        )


if __name__ == "__main__":
    main()
