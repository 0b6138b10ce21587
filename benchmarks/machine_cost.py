"""CPU per transaction of two puts through the state machine, in batches of 64, and keys scanned per second.

Everything is in memory; parsing, the disk and replies are not in it. Run: python -m benchmarks.machine_cost
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

from kvstore.machine import Delivered, Machine, Picture, Placement, Store, Transaction
from kvstore.machine.request import Put, Range
from multicast.types import ClientId, GroupId, MessageId, timestamp

TRANSACTIONS = 20_000
KEYS = 1_000_000
BATCH = 64
CLIENTS = 64
ROUNDS = 5


def deliveries(groups: list[GroupId], count: int, keys: int) -> list[Delivered]:
    rng = random.Random(1)
    found = []
    for i in range(count):
        puts = tuple(Put(b"key%017d" % rng.randrange(keys), b"v" * 20) for _ in range(2))
        mid = MessageId(ClientId(i % CLIENTS), i // CLIENTS, 7)
        ack_below = max(0, i // CLIENTS - 8)
        gts = timestamp(i + 1, groups[0])
        found.append(Delivered(gts, mid, tuple(groups), ack_below, Transaction(then=puts)))
    return found


def execute(groups: list[GroupId], messages: list[Delivered]) -> tuple[float, Machine]:
    """Microseconds of CPU per message."""
    machine = Machine(groups[0], Store(), Picture(Placement.evenly(groups)))
    begin = time.process_time()
    for start in range(0, len(messages), BATCH):
        for message in messages[start : start + BATCH]:
            machine.deliver(message)
        machine.drain()
        machine.picture()
    return (time.process_time() - begin) / len(messages) * 1e6, machine


def rate(entries: Iterable[object]) -> float:
    begin = time.process_time()
    count = sum(1 for _ in entries)
    return count / (time.process_time() - begin)


def main() -> None:
    one, two = [GroupId(0)], [GroupId(0), GroupId(1)]
    for name, groups in (("one group", one), ("two groups, half of the keys each", two)):
        messages = deliveries(groups, TRANSACTIONS, 100_000)
        best = min(execute(groups, messages)[0] for _ in range(ROUNDS))
        print(f"a transaction of two puts, {name}: {best:.1f} us")
    _, machine = execute(one, deliveries(one, KEYS // 4, KEYS))
    everything = Range(b"", None)
    newest = max(rate(machine.versions.scan(everything)) for _ in range(ROUNDS))
    older = max(rate(machine.versions.scan_at(everything, machine.watermark // 2)) for _ in range(ROUNDS))
    print(f"scan: {newest:,.0f} keys/s; at half of the revisions: {older:,.0f} keys/s")


if __name__ == "__main__":
    main()
