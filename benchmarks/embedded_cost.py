"""What a store inside a process costs: to open it, one call at a time, many at once, and to have it idle.

CPU time is that of all the process's threads.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from google.protobuf.message import Message
from wbkv_proto.v1 import kv_pb2 as kv

from benchmarks.record import Benchmark, Figure
from kvstore.api.methods import Unary
from kvstore.embedded.store import Embedded, open_store

WAIT_S = 60.0


async def nothing(request: Message, _: float) -> Message:
    return request


def put(number: int) -> kv.PutRequest:
    return kv.PutRequest(key=b"key%d" % number, value=b"v" * 20)


def transfer(_: int) -> kv.TxnRequest:
    """Between two of three partitions."""
    keys = ((b"account/alice", -1), (b"account/bob", 1))
    return kv.TxnRequest(then=[kv.Operation(add=kv.Calculate(key=key, operand=by)) for key, by in keys])


def one_at_a_time(name: str, call: Callable[[int], object], sizes: Any) -> Iterator[Figure]:
    """The median latency of a round's calls, and their CPU time."""
    walls, cpus = [], []
    for _ in range(sizes.rounds):
        times, began = [], time.process_time()
        for number in range(sizes.calls):
            at = time.perf_counter()
            call(number)
            times.append(time.perf_counter() - at)
        walls.append(statistics.median(times) * 1e6)
        cpus.append((time.process_time() - began) / sizes.calls * 1e6)
    yield Figure.of(f"{name}: p50", "µs", walls)
    yield Figure.of(f"{name}: CPU", "µs", cpus)


def at_once(store: Embedded, sizes: Any) -> list[float]:
    """CPU microseconds of a put among many."""
    found = []
    for _ in range(sizes.rounds):
        began = time.process_time()
        for call in [store.call("Put", put(number), WAIT_S) for number in range(sizes.calls)]:
            call.result()
        found.append((time.process_time() - began) / sizes.calls * 1e6)
    return found


def calls(store: Embedded, durability: str, sizes: Any) -> Iterator[Figure]:
    """Calls of an open store."""
    get = kv.GetRequest(key=b"key1")
    requests: dict[str, tuple[str, Callable[[int], Any]]] = {
        "put": ("Put", put),
        "strict get": ("Get", lambda _: get),
        "transfer over two partitions": ("Txn", transfer),
    }
    for name, (method, request) in requests.items():

        def call(number: int, method: str = method, request: Callable[[int], Any] = request) -> object:
            return store.call(method, request(number), WAIT_S).result()

        yield from one_at_a_time(f"embedded, {durability}: {name}", call, sizes)
    if durability == "os":
        bridge, empty = store._bridge, Unary(kv.GetRequest, nothing)  # noqa: SLF001 - a part alone
        name = "embedded: a call that does nothing"
        yield from one_at_a_time(name, lambda _: bridge.call(empty, get, WAIT_S).result(), sizes)
        yield Figure.of(f"embedded: {sizes.calls} puts at once: CPU of each", "µs", at_once(store, sizes))
        began = time.process_time()
        time.sleep(sizes.idle_seconds)
        share = (time.process_time() - began) / sizes.idle_seconds
        yield Figure.of("embedded, idle: CPU", "% of a core", [100 * share])


def measure(sizes: Any) -> Iterator[Figure]:
    """Open a new store, open it again, and call it."""
    for durability in ("os", "fsync"):
        with tempfile.TemporaryDirectory() as folder:
            for what in ("a new store", "a store that was closed"):
                at = time.perf_counter()
                with closing(open_store(folder, durability=durability)) as store:
                    opened_ms = (time.perf_counter() - at) * 1e3
                    yield Figure.of(f"embedded, {durability}: open {what}", "ms", [opened_ms])
                    if what != "a new store":
                        yield from calls(store, durability, sizes)


BENCHMARK = Benchmark(
    "embedded_cost", "client", __doc__, measure,
    {"calls": (500, 20), "rounds": (7, 2), "idle_seconds": (5.0, 0.5)},
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
