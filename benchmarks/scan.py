"""How fast a range is scanned through a cluster of three, and whether a node's memory grows with the range.

The SDK's client fills the store and scans it, in batches of whole pages. Memory is what is a node's own: the
disk's file is mapped, and its pages are the kernel's to take back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Final

import wbkv
import wbkv.aio

from benchmarks.load import Plan, running
from benchmarks.load.nodes import cpu_s, memory_mib, pids
from benchmarks.load.targets import stored_key
from benchmarks.record import Benchmark, Figure
from kvstore.local.cluster import LocalCluster

PUTS: Final = 500
"""Of a transaction that fills the store."""


def fill(cluster: LocalCluster, count: int, first: int = 0) -> None:
    """Put the keys up to so many, from the `first` one on: of 20 bytes each, with values of 20."""

    async def put_all() -> None:
        async with wbkv.aio.connect(cluster.addresses, timeout=60.0) as client:
            firsts = iter(range(first, count, PUTS))

            async def work() -> None:
                for begin in firsts:
                    numbers = range(begin, min(count, begin + PUTS))
                    puts = [wbkv.put(stored_key(number), b"v" * 20) for number in numbers]
                    await client.txn().then(*puts).commit()

            await asyncio.gather(*(work() for _ in range(4)))

    asyncio.run(put_all())


def measure_all(sizes: Any) -> Iterator[Figure]:
    """Fill once, scan several times."""
    with running(Plan(level="store", groups=3)) as cluster, wbkv.connect(cluster.addresses) as client:
        began = time.perf_counter()
        fill(cluster, sizes.keys)
        rate = sizes.keys / (time.perf_counter() - began)
        yield Figure.of(f"SDK, transactions of {PUTS} puts: keys", "/s", [rate])
        nodes = pids(cluster)
        before = max(map(memory_mib, nodes))
        rates, costs, own = [], [], []
        for _ in range(sizes.rounds):
            used, mine, began = sum(map(cpu_s, nodes)), time.process_time(), time.perf_counter()
            found = sum(1 for _ in client.scan(wbkv.EVERYTHING))
            rates.append(found / (time.perf_counter() - began))
            own.append((time.process_time() - mine) / found * 1e6)
            costs.append((sum(map(cpu_s, nodes)) - used) / found * 1e6)
            if found != sizes.keys:
                raise SystemExit(f"a scan found {found} of {sizes.keys} keys")
        more = max(map(memory_mib, nodes)) - before
    yield Figure.of("SDK, three nodes: keys", "/s", rates)
    yield Figure.of("SDK, three nodes: CPU of all nodes for a key", "µs", costs)
    yield Figure.of("SDK, three nodes: CPU of the client for a key", "µs", own)
    yield Figure.of(f"memory that scans of {sizes.keys:,} keys add to a node", "MiB", [more])


BENCHMARK = Benchmark(
    "scan", "cluster", __doc__, measure_all, {"keys": (500_000, 20_000), "rounds": (3, 2)}
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
