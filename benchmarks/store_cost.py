"""What a transaction of two 20-byte puts costs a replica beyond its ordering: microseconds of CPU, by part.

A real partition on a real disk gets deliveries in batches of 64, as if they had just been ordered, and says
what it would say to others. Counted is all of it: reading payloads, execution, the rows in their maps, the
commits of LMDB with their thread (one for so many transactions, as there is one in half a second), and at a
leader the gate and the bytes of `Results`. With two groups, each has one of the keys; the other group has
announced each batch when the next begins, and its own cost is not counted.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from kvstore import storage
from kvstore.config.addresses import NodeId
from kvstore.config.checks import Durability
from kvstore.machine import Limits, Placement, Request, Transaction, encode_request
from kvstore.machine.codec import TABLES, decode_request
from kvstore.machine.request import Put
from kvstore.storage.identity import Identity
from kvstore.store.application import StoreApplication
from kvstore.store.gate import Announcement, Gate
from kvstore.store.messages import STORE_MESSAGES, Levels
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
KEYS = 100_000
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
        storage.create(path, Identity.new("benchmark", NodeId("n1"), durability, "store"))
        self.disk = storage.open(
            path, "benchmark", NodeId("n1"), tables=TABLES,
            on_durable=self.events.put, on_committed=self.events.put, on_failure=self.events.put,
        )  # fmt: skip
        self.application = StoreApplication(
            self.disk.state, topology, self.placement, me=GATEWAY, limits=Limits(),
            now=lambda: 0.0, ticks=lambda: 1, rng=random.Random(1),
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
        self.used: dict[str, float] = defaultdict(float)
        self.longest_s = 0.0
        self.count = 0
        self.last = NO_TIMESTAMP
        self.batches = 0

    def measured(self, part: str, call: Call, *arguments: object) -> Any:
        """What it returns. Its time in this thread is that part's."""
        start = time.thread_time()
        found = call(*arguments)
        used = time.thread_time() - start
        self.used[part] += used
        self.longest_s = max(self.longest_s, used)
        return found

    def batch(self, payloads: list[bytes]) -> None:
        """Deliver these, and say what there is to be said."""
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
        """A turn."""
        said = self.measured("turns", self.application.turn, 0.0)
        for _, _, message in said:
            self.measured("bytes of messages", CODEC.size_of, message)
        return [message for _, _, message in said]

    def answer(self, deliveries: list[Delivery]) -> None:
        """The other group has delivered the same, and hears from us."""
        for delivery in deliveries:
            self.other.delivered(delivery.global_ts, delivery.dest)
        partition = self.application.partition(HERE)
        announced = self.other.turn().announcements
        if not partition.replica.is_leader:
            closed = Levels(Announcement(HERE, self.last, ()))
            self.measured("announcements", partition.receive, partition.replica.others[0], closed, 0.0)
            return
        for _, announcement in announced:
            self.measured("announcements", partition.receive, self.peer, Levels(announcement), 0.0)
        for message in self.speak():
            if isinstance(message, Levels):
                self.other.heard(message.announcement)
        self.other.turn()

    def commit(self) -> None:
        """All of it, until it is on the disk."""
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

    def __init__(self, placement: Placement, keys: int = KEYS) -> None:
        self._rng = random.Random(1)
        self._keys: list[list[bytes]] = [[] for _ in placement.groups]
        for number in range(keys):
            key = b"key%017d" % number
            self._keys[placement.group_of(key)].append(key)
        self._count = 0

    def _payload(self, puts: tuple[Put, ...]) -> bytes:
        self._count += 1
        sequence = self._count // CLIENTS
        request = Request(
            self._count % CLIENTS,
            sequence,
            max(0, sequence - 8),
            FAR_FUTURE,
            self._count,
            Transaction((), puts),
        )
        return encode_request(request)

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
    path: Path, durability: Durability, groups: int, *, leads: bool, rounds: int, profile: Path | None = None
) -> dict[str, Any]:
    """Microseconds for each transaction, by part, in the best round; the median; the longest call."""
    replica = Replica(path, durability, groups, leads=leads)
    traffic = Traffic(replica.placement)
    for payloads in traffic.all_keys():
        replica.batch(payloads)
    found: list[dict[str, float]] = []
    replica.longest_s = 0.0
    profiler = cProfile.Profile() if profile is not None else None
    for _ in range(rounds):
        batches = traffic.batches(2 * COMMIT)
        gc.collect()
        replica.used.clear()
        others = time.process_time() - time.thread_time()
        if profiler is not None:
            profiler.enable()
        for payloads in batches:
            replica.batch(payloads)
        if profiler is not None:
            profiler.disable()
        replica.used["commit: thread"] = time.process_time() - time.thread_time() - others
        used = {part: 1e6 * value / (len(batches) * BATCH) for part, value in replica.used.items()}
        start = time.thread_time()
        for payloads in batches:
            for payload in payloads:
                decode_request(payload)
        reading = 1e6 * (time.thread_time() - start) / (len(batches) * BATCH)
        used["deliver: reading payloads"] = reading
        used["deliver: the rest"] = used.pop("deliver") - reading
        found.append(used)
    replica.disk.close()
    if profiler is not None and profile is not None:
        profiler.dump_stats(profile)
    sums = [sum(used.values()) for used in found]
    best = found[sums.index(min(sums))]
    return {
        "best_us": round(min(sums), 1),
        "median_us": round(statistics.median(sums), 1),
        "parts_us": {part: round(us, 1) for part, us in sorted(best.items())},
        "longest_ms": round(1e3 * replica.longest_s, 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", help="part of a row's name")
    parser.add_argument("--where", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--profile", type=Path, help="where to leave the profile of the last row")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    gc.set_threshold(20_000, 20, 20)
    report = {}
    durabilities: tuple[Durability, ...] = ("os", "fsync")
    with tempfile.TemporaryDirectory(dir=arguments.where) as directory:
        for durability in durabilities:
            for groups in (1, 2):
                for leads in (False, True):
                    name = f"{groups} {'leader' if leads else 'follower'} {durability}"
                    if arguments.only and arguments.only not in name:
                        continue
                    report[name] = cost(
                        Path(directory) / name.replace(" ", "-"), durability, groups,
                        leads=leads, rounds=arguments.rounds, profile=arguments.profile,
                    )  # fmt: skip
    if arguments.json:
        print(json.dumps(report))
        return
    for name, found in report.items():
        groups_name, role, durability_name = name.split()
        print(
            f"{groups_name} group(s), {role}, {durability_name}: {found['best_us']} us (median "
            f"{found['median_us']}), longest call {found['longest_ms']} ms"
        )
        for part, us in found["parts_us"].items():
            print(f"    {part}: {us}")


if __name__ == "__main__":
    main()
