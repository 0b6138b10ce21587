"""What a hostile client costs an innocent one: errors, p99 latency as a ratio to a quiet cluster, and memory.

Three nodes and three partitions on loopback; `fsync`. The innocent client puts and gets a key every 20 ms by
the SDK. Each attack is a process of its own, which runs for some seconds beside it; those that do not read
their answers are stopped with SIGSTOP once they have asked. Attackers use the same two cores, so a part of
the ratio is their own CPU time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.synchronize import Event
from typing import Any, Final

import grpc
import wbkv
import wbkv.aio
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import kv_pb2_grpc, session_pb2, session_pb2_grpc

from benchmarks.load import Plan, running
from benchmarks.load.nodes import memory_mib, pids
from benchmarks.record import Benchmark, Figure
from benchmarks.scan import fill
from kvstore.local.cluster import LocalCluster

PAUSE_S: Final = 0.02
"""Between two pairs of calls of the innocent client."""

BACK_S: Final = 2.0
"""How soon after an attack the service must be as it was."""

SPAWN: Final = multiprocessing.get_context("spawn")

Attack = Callable[[str, Event, int], None]
"""Runs in a process of its own: the cluster's addresses, what to set once the attack is on, and a size."""


def ignored(call: Callable[[], object]) -> None:
    """Make a call; the store may refuse it."""
    with contextlib.suppress(wbkv.Error, grpc.RpcError):
        call()


def together(work: Callable[[], object], count: int) -> None:
    """Do the same in several threads, for ever."""

    def repeat() -> None:
        while True:
            ignored(work)

    threads = [threading.Thread(target=repeat, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def large(addresses: str, on: Event, _: int) -> None:
    """Two clients with transactions of 7 MiB over all partitions."""
    client = wbkv.connect(addresses, timeout=10.0)
    puts = [wbkv.put(f"large/{number}", bytes(1 << 20)) for number in range(7)]
    on.set()
    together(lambda: client.txn().then(*puts).commit(), 2)


def counts(addresses: str, on: Event, _: int) -> None:
    """25 counts of everything in a transaction, and a count of everything."""
    client = wbkv.connect(addresses, timeout=10.0)
    stub = kv_pb2_grpc.KVStub(channel_of(addresses))  # type: ignore[no-untyped-call]  # generated
    request = kv.TxnRequest(id={"client": os.getpid(), "sequence": 1, "ack_below": 1})
    for _ in range(25):
        request.then.add(scan={"range": {"prefix": b""}, "shape": kv.COUNT})
    numbers = itertools.count(1)
    on.set()

    def work() -> None:
        request.id.sequence = next(numbers)
        ignored(lambda: stub.Txn(request, timeout=10.0))
        client.count(wbkv.EVERYTHING)

    together(work, 2)


def past(addresses: str, on: Event, revision: int) -> None:
    """Scans at a revision before all keys were put."""
    client = wbkv.connect(addresses, timeout=10.0)
    on.set()
    together(lambda: list(client.scan(wbkv.EVERYTHING, revision=revision)), 2)


def channel_of(addresses: str) -> grpc.Channel:
    """A channel to the first node, without limits of the client's own."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(addresses.split(",")[0], options)


def unread_calls(addresses: str, on: Event, _: int) -> None:
    """400 calls with large answers that are never read."""
    wbkv.connect(addresses, timeout=20.0).put("unread", bytes(1 << 19))
    request = kv.TxnRequest()
    for _ in range(30):
        request.then.add().get.key = b"unread"
    calls = []
    for _ in range(4):
        stub = kv_pb2_grpc.KVStub(channel_of(addresses))  # type: ignore[no-untyped-call]  # generated
        calls += [stub.Txn.future(request) for _ in range(100)]
    on.set()
    os.kill(os.getpid(), signal.SIGSTOP)


def unread_sessions(addresses: str, on: Event, _: int) -> None:
    """100 sessions with large answers that are never read."""
    wbkv.connect(addresses, timeout=20.0).put("unread", bytes(1 << 19))
    ask = session_pb2.SessionRequest()
    for number in range(100):
        ask.calls.add(number=number + 1).get.key = b"unread"
    streams = []
    forever = threading.Event()

    def requests() -> Iterator[session_pb2.SessionRequest]:
        yield ask
        forever.wait()

    for _ in range(20):
        stub = session_pb2_grpc.SessionStub(channel_of(addresses))  # type: ignore[no-untyped-call]  # generated
        streams += [stub.Open(requests()) for _ in range(5)]
    time.sleep(0.5)
    on.set()
    os.kill(os.getpid(), signal.SIGSTOP)


def watches(addresses: str, on: Event, count: int) -> None:
    """Many watches of the key that the innocent client writes."""

    async def follow() -> None:
        async with wbkv.aio.connect(addresses, timeout=20.0) as client:

            async def one() -> None:
                with contextlib.suppress(wbkv.Error):
                    async with client.watch("innocent") as watch:
                        async for _ in watch:
                            pass

            tasks = [asyncio.create_task(one()) for _ in range(count)]
            await asyncio.sleep(2.0)
            on.set()
            await asyncio.gather(*tasks)

    asyncio.run(follow())


def idle_streams(addresses: str, on: Event, count: int) -> None:
    """Many sessions that ask nothing."""

    async def idle() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with contextlib.AsyncExitStack() as stack:
            streams = []
            for number in range(count):
                if number % 500 == 0:
                    channel = await stack.enter_async_context(
                        grpc.aio.insecure_channel(addresses.split(",")[0], options)
                    )
                    stub = session_pb2_grpc.SessionStub(channel)  # type: ignore[no-untyped-call]  # generated
                streams.append(stub.Open())
            await asyncio.sleep(1.0)
            on.set()
            await asyncio.sleep(3600.0)

    asyncio.run(idle())


def deletes(addresses: str, on: Event, count: int) -> None:
    """A watch of many keys that one transaction deletes, again and again."""
    client = wbkv.connect(addresses, timeout=60.0)

    def follow() -> None:
        with client.watch(wbkv.prefix("doomed/")) as watch:
            for _ in watch:
                pass

    threading.Thread(target=follow, daemon=True).start()
    on.set()

    def load_and_delete() -> None:
        for first in range(0, count, 500):
            puts = [wbkv.put(b"doomed/%09d" % number, b"") for number in range(first, first + 500)]
            client.txn().then(*puts).commit()
        client.delete(wbkv.prefix("doomed/"))

    together(load_and_delete, 1)


def innocent(addresses: str, stop: Event, found: Any) -> None:
    """Put and get every 20 ms until told to stop: latencies in seconds, and errors."""
    latencies, errors = [], []
    with wbkv.connect(addresses, timeout=10.0) as client:
        while not stop.is_set():
            for call in (lambda: client.put("innocent", b"x"), lambda: client.get("innocent")):
                began = time.perf_counter()
                try:
                    call()
                except wbkv.Error as error:
                    errors.append(repr(error)[:200])
                latencies.append(time.perf_counter() - began)
            time.sleep(PAUSE_S)
    found.send((latencies, errors))


def observed(cluster: LocalCluster, seconds: float) -> tuple[float, float, float, list[str]]:
    """An innocent client's p99 and longest call in ms, a node's highest memory in MiB, and errors."""
    stop = SPAWN.Event()
    ours, theirs = SPAWN.Pipe(duplex=False)
    client = SPAWN.Process(target=innocent, args=(",".join(cluster.addresses), stop, theirs), daemon=True)
    client.start()
    highest = 0.0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.2)
        highest = max([highest, *map(memory_mib, pids(cluster))])
    stop.set()
    latencies, errors = ours.recv()
    client.join()
    return percentile(latencies, 99) * 1e3, max(latencies) * 1e3, highest, errors


def percentile(samples: Sequence[float], which: int) -> float:
    """A percentile of some samples."""
    return statistics.quantiles([*samples, *samples], n=100)[which - 1]


def attacks(sizes: Any, revision: int) -> Iterator[tuple[str, Attack, int]]:
    """All attacks, each with its size."""
    yield "transactions of 7 MiB", large, 0
    yield f"counts of {sizes.keys:,} keys", counts, 0
    yield f"scans before {sizes.keys:,} keys", past, revision
    yield "400 calls never read", unread_calls, 0
    yield "100 sessions never read", unread_sessions, 0
    yield f"{sizes.watches:,} watches", watches, sizes.watches
    yield f"{sizes.streams:,} idle streams", idle_streams, sizes.streams
    yield f"watched deletes of {sizes.deleted:,} keys", deletes, sizes.deleted


def measure_all(sizes: Any) -> Iterator[Figure]:
    """A quiet cluster, then each attack, and the time after it."""
    with running(Plan(level="store", groups=3, durability="fsync")) as cluster:
        with wbkv.connect(cluster.addresses) as client:
            revision = client.put("first", b"")
        fill(cluster, sizes.keys)
        for what, attack, size in attacks(sizes, revision):
            quiet_ms, *_ = observed(cluster, sizes.seconds)
            on = SPAWN.Event()
            process = SPAWN.Process(target=attack, args=(",".join(cluster.addresses), on, size), daemon=True)
            process.start()
            try:
                if not on.wait(120.0):
                    raise SystemExit(f"{what}: the attack has not begun")
                p99_ms, longest_ms, memory, errors = observed(cluster, sizes.seconds)
            finally:
                process.kill()
                process.join()
            time.sleep(BACK_S)
            after_ms, _, _, errors_after = observed(cluster, sizes.seconds / 2)
            yield Figure.of(f"{what}: p99 of an innocent client", "x", [p99_ms / quiet_ms])
            yield Figure.of(f"{what}: its longest call", "ms", [longest_ms])
            yield Figure.of(f"{what}: its errors", "", [float(len(errors))])
            yield Figure.of(f"{what}: memory of a node", "MiB", [memory])
            yield Figure.of(f"{what}: p99 from {BACK_S:g} s after it", "x", [after_ms / quiet_ms])
            for error in dict.fromkeys((*errors, *errors_after)):
                print(f"  {error}", flush=True)


BENCHMARK = Benchmark(
    "attacks", "cluster", __doc__, measure_all,
    {
        "keys": (300_000, 20_000), "seconds": (10.0, 3.0), "watches": (1_000, 200),
        "streams": (9_000, 1_000), "deleted": (250_000, 5_000),
    },
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
