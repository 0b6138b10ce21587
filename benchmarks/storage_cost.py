"""What a node's disk costs its loop, how many commits it makes, and how long a restart takes.

A message is accepted in one batch, delivered in the next, and dropped some batches later. What the loop does
for that (encoding, puts, folding now and then) is counted as CPU time for each message; commits are not, as
another thread makes them. The state is measured apart: that of bare multicast, and a store's, for
transactions of two puts (two keys' versions, a row of history, a result that is put and later deleted), with
and without the reads that go before them; and scans of a store.
"""

from __future__ import annotations

import argparse
import gc
import json
import queue
import random
import resource
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvstore import storage
from kvstore.config.addresses import NodeId
from kvstore.config.checks import Durability
from kvstore.machine import TABLES
from kvstore.machine.results import WRITTEN, Outcome
from kvstore.machine.sessions import Stored
from kvstore.machine.versions import KeyChange, Version
from kvstore.storage import GroupCheckpoint, keys
from kvstore.storage.identity import Identity
from kvstore.storage.rows import LmdbRows, chunks
from multicast.durable import Accepted, Checkpoint, Dropped, Record
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
RESULT = Outcome(True, (), ((0, WRITTEN), (1, WRITTEN)))  # noqa: FBT003 - succeeded
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
        accepted: list[Record] = [Accepted((DEST,), mids, local_ts, payloads, ack_below, self.time)]
        return accepted, [*delivered, Dropped(tuple(dropped))] if dropped else [*delivered], delivered


class StoreLoop:
    """A node's loop, as far as a store's state is concerned."""

    def __init__(self, path: Path) -> None:
        self.events: queue.SimpleQueue[object] = queue.SimpleQueue()
        storage.create(path, Identity.new("benchmark", NODE, "os", "store"))
        self.disk = storage.open(
            path, "benchmark", NODE, tables=TABLES,
            on_durable=self.events.put, on_committed=self.events.put, on_failure=self.events.put,
        )  # fmt: skip
        _, self.maps = self.disk.state.open(GROUP)
        self.number = 0
        self.longest = 0.0

    def commit(self) -> None:
        """Commit, and wait for the disk."""
        state = self.disk.state
        state.commit({GROUP: GroupCheckpoint(Checkpoint(), b"")}, 0)
        while self.pump():
            pass
        event = self.events.get(timeout=60)
        if isinstance(event, storage.StorageError):
            raise event
        state.pump()

    def pump(self) -> bool:
        start = time.thread_time()
        more = self.disk.state.pump()
        self.longest = max(self.longest, time.thread_time() - start)
        return more

    def transactions(self, keys: list[bytes], *, reads: bool) -> None:
        """Two puts each, as a machine does them."""
        latest, history, results = self.maps["latest"], self.maps["history"], self.maps["results"]
        value = b"v" * 20
        for one, two in zip(keys[0::2], keys[1::2], strict=True):
            self.number += 1
            revision = timestamp(self.number, GROUP)
            changes = []
            client, sequence = self.number % 64, self.number // 64
            if reads:
                results.get((client, DEST, sequence))
            for key in (one, two):
                if reads:
                    latest.get(key)
                latest.put(key, Version(value, revision, revision, 1))
                changes.append(KeyChange(key, value, revision, 1, 0))
            history.put(revision, tuple(changes))
            results.put((client, DEST, sequence), Stored(7, revision, RESULT))
            if sequence >= 8:
                results.delete((client, DEST, sequence - 8))


def store_cost(path: Path, transactions: int, rounds: int) -> dict[str, Any]:
    """Microseconds of the loop for each transaction, without and with reads; the longest pump."""
    loop = StoreLoop(path / "store")
    names = [b"key%017d" % number for number in range(100_000)]
    rng = random.Random(1)
    loop.transactions(names, reads=False)
    loop.commit()
    loop.longest = 0.0
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds):
        keys = rng.choices(names, k=2 * transactions)
        reads = number % 2 == 1
        gc.collect()
        start = time.thread_time()
        for begin in range(0, len(keys), 128):
            loop.transactions(keys[begin : begin + 128], reads=reads)
        loop.commit()
        found[reads].append((time.thread_time() - start) / transactions * 1e6)
    loop.disk.close()
    figures = {
        name: [round(statistics.median(found[reads]), 2), round(min(found[reads]), 2)]
        for name, reads in (("writes", False), ("with reads", True))
    }
    return figures | {"longest_ms": round(loop.longest * 1e3, 2)}


def scan_rate(path: Path, count: int) -> dict[str, Any]:
    """Rows in a second, and megabytes that scanning adds to the process."""
    loop = StoreLoop(path / "scan")
    latest = loop.maps["latest"]
    for first in range(0, count, 100_000):
        for number in range(first, min(count, first + 100_000)):
            latest.put(b"key%017d" % number, Version(b"v" * 20, 1024, 1024, 1))
        loop.commit()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report: dict[str, Any] = {}
    for name, reverse in (("forward", False), ("reverse", True)):
        rates = []
        for _ in range(3):
            start = time.thread_time()
            if sum(1 for _ in latest.items(b"", None, reverse=reverse)) != count:
                raise SystemExit("a scan has lost something")
            rates.append(count / (time.thread_time() - start))
        report[name] = round(max(rates))
    rows = LmdbRows(loop.disk.state._env, keys.table_name("latest"), GROUP)  # noqa: SLF001 - without decoding
    start = time.thread_time()
    if sum(map(len, chunks(rows, b"", None))) != count:
        raise SystemExit("a scan has lost something")
    report["bare"] = round(count / (time.thread_time() - start))
    mapped = (path / "scan" / "state" / "data.mdb").stat().st_size / 2**20
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report["rss_mib"] = round((after - before) / 2**10, 1)
    report["file_mib"] = round(mapped, 1)
    loop.disk.close()
    return report


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
    parser.add_argument("--scan", type=int, default=1_000_000)
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
        report["store_us"] = store_cost(path, arguments.messages, arguments.rounds)
        if arguments.scan:
            report["scan"] = scan_rate(path, arguments.scan)
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
    store = report["store_us"]
    for name in ("writes", "with reads"):
        print(f"store, {name:>10}:     {store[name][0]:6.2f} ({store[name][1]:6.2f}) for each transaction")
    print(f"store, longest turn:  {store['longest_ms']} ms")
    if arguments.scan:
        scan = report["scan"]
        print(
            f"scan of {arguments.scan} keys: {scan['forward']:,} rows/s, {scan['reverse']:,} backwards, "
            f"{scan['bare']:,} without decoding; {scan['rss_mib']} MiB more, of a file of "
            f"{scan['file_mib']} MiB"
        )
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
