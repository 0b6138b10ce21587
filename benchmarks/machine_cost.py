"""CPU per transaction of two puts through the state machine, in batches of 64, and keys scanned per second.

From a message's payload to the bytes of its result, and the bytes of the picture once per batch. The maps are
in memory: the disk is not in it, nor are ordering and the gate. Run: python -m benchmarks.machine_cost
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable

from kvstore.machine import (
    Delivered,
    Machine,
    MachineState,
    Placement,
    Request,
    Store,
    Transaction,
    decode_request,
    encode_machine_state,
    encode_request,
    encode_result,
)
from kvstore.machine.request import Compare, Operator, Put, Range, Subject
from multicast.types import ClientId, GroupId, MessageId, timestamp

TRANSACTIONS = 20_000
KEYS = 1_000_000
BATCH = 64
CLIENTS = 64
ROUNDS = 5
REVISION = 1 << 50


def requests(count: int, keys: int, *, condition: bool = False) -> list[bytes]:
    """Payloads: of each client one after the other, with eight in flight."""
    rng = random.Random(1)
    found = []
    for i in range(count):
        puts = tuple(Put(b"key%017d" % rng.randrange(keys), b"v" * 20) for _ in range(2))
        absent = (Compare(puts[0].key, Subject.VERSION, Operator.LESS, 1 << 40),) if condition else ()
        sequence = i // CLIENTS
        command = Transaction(absent, puts)
        request = Request(i % CLIENTS, sequence, max(0, sequence - 8), REVISION + i, 1 << 63 | i, command)
        found.append(encode_request(request))
    return found


def execute(groups: tuple[GroupId, ...], payloads: list[bytes]) -> tuple[float, Machine]:
    """Microseconds of CPU per message."""
    machine = Machine(groups[0], Store(), MachineState(Placement.evenly(groups)))
    mids = [MessageId(ClientId(99), i, 7) for i in range(len(payloads))]
    begin = time.process_time()
    for start in range(0, len(payloads), BATCH):
        for i in range(start, min(start + BATCH, len(payloads))):
            gts = timestamp(i + 1, groups[0])
            machine.deliver(Delivered(gts, mids[i], groups, decode_request(payloads[i])))
        for executed in machine.drain().results:
            encode_result(executed.result)
        encode_machine_state(machine.state())
    return (time.process_time() - begin) / len(payloads) * 1e6, machine


def cost(call: Callable[[bytes], object], payloads: list[bytes]) -> float:
    """Microseconds of CPU per call."""
    begin = time.process_time()
    for payload in payloads:
        call(payload)
    return (time.process_time() - begin) / len(payloads) * 1e6


def rate(entries: Iterable[object]) -> float:
    begin = time.process_time()
    count = sum(1 for _ in entries)
    return count / (time.process_time() - begin)


def main() -> None:
    one, two = (GroupId(0),), (GroupId(0), GroupId(1))
    payloads = requests(TRANSACTIONS, 100_000)
    conditional = requests(TRANSACTIONS, 100_000, condition=True)
    for name, groups, given in (
        ("one group", one, payloads),
        ("one group, with a condition", one, conditional),
        ("two groups, half of the keys each", two, payloads),
    ):
        best = min(execute(groups, given)[0] for _ in range(ROUNDS))
        print(f"a transaction of two puts, {name}: {best:.1f} us")
    print(f"of which decoding: {min(cost(decode_request, payloads) for _ in range(ROUNDS)):.1f} us")
    _, machine = execute(one, requests(KEYS // 4, KEYS))
    everything = Range(b"", None)
    newest = max(rate(machine.versions.scan(everything)) for _ in range(ROUNDS))
    older = max(rate(machine.versions.scan_at(everything, machine.watermark // 2)) for _ in range(ROUNDS))
    print(f"scan: {newest:,.0f} keys/s; at half of the revisions: {older:,.0f} keys/s")


if __name__ == "__main__":
    main()
