"""What compaction of many versions costs the clients of a cluster of three, and how large the files are then.

A partition gets many versions of few keys. Then all but the latest are dropped at once, while one client puts
and another reads, one call after the other: the figures are of their calls before it, and until no node has
anything left to drop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import wbkv
import wbkv.aio

from benchmarks.load import Plan, running
from benchmarks.load.targets import stored_key
from benchmarks.record import Benchmark, Figure
from kvstore.local.cluster import LocalCluster
from kvstore.local.status import ClusterStatus

PUTS: Final = 100
"""Of a transaction that fills the store."""
KEYS: Final = 50_000
PROBES: Final = [b"probe %d" % number for number in range(64)]
WRITERS: Final = 8
LOOK_S: Final = 0.5


async def fill(client: wbkv.aio.Client[bytes], versions: int) -> None:
    """Write the keys again and again."""
    firsts = iter(range(0, versions, PUTS))

    async def work() -> None:
        for first in firsts:
            numbers = (number % KEYS for number in range(first, first + PUTS))
            await client.txn().then(*[wbkv.put(stored_key(n), b"v" * 100) for n in numbers]).commit()

    await asyncio.gather(*(work() for _ in range(WRITERS)))


async def probe(call: Callable[[bytes], Awaitable[object]], over: asyncio.Event) -> list[float]:
    """Make calls until it is over. Return how many milliseconds each took."""
    took: list[float] = []
    while not over.is_set():
        began = time.perf_counter()
        await call(PROBES[len(took) % len(PROBES)])
        took.append((time.perf_counter() - began) * 1e3)
    return took


async def during(client: wbkv.aio.Client[bytes], what: Awaitable[object]) -> tuple[list[float], list[float]]:
    """Return how long puts and gets took while something was done."""
    over = asyncio.Event()
    puts = asyncio.create_task(probe(lambda key: client.put(key, b""), over))
    gets = asyncio.create_task(probe(client.get, over))
    await what
    over.set()
    return await puts, await gets


def is_dropping(found: ClusterStatus) -> bool:
    """Whether a replica has rows left to drop."""
    histories = [replica["history"] for group in found["groups"] for replica in group["replicas"]]
    return any(history is None or history["dropping"] for history in histories)


async def compacted(client: wbkv.aio.Client[bytes], cluster: LocalCluster) -> float:
    """Drop everything but the latest versions. Return how long it took."""
    began = time.perf_counter()
    await client.compact(keep=0.0)
    while is_dropping(await asyncio.to_thread(cluster.status)):
        await asyncio.sleep(LOOK_S)
    return time.perf_counter() - began


def files(cluster: LocalCluster) -> tuple[float, float]:
    """Return the MiB of the first node's state that are in use, and of its file."""
    found = cluster.status()["nodes"][0]["files"]
    assert found is not None
    return found["state"]["used"] / (1 << 20), found["state"]["file"] / (1 << 20)


async def measure_in(cluster: LocalCluster, sizes: Any) -> list[Figure]:
    """Fill, measure undisturbed, compact."""
    figures = []
    async with wbkv.aio.connect(cluster.addresses, timeout=60.0) as client:
        await fill(client, sizes.versions)
        await asyncio.sleep(sizes.pause_s)
        before = await asyncio.to_thread(files, cluster)
        for when in ("before", "during"):
            working = asyncio.sleep(sizes.pause_s) if when == "before" else compacted(client, cluster)
            began = time.perf_counter()
            puts, gets = await during(client, working)
            seconds = time.perf_counter() - began
            for name, took in (("put", sorted(puts)), ("get", sorted(gets))):
                figures += [
                    Figure.of(f"{when} compaction: a {name}, median", "ms", [took[len(took) // 2]]),
                    Figure.of(f"{when} compaction: a {name}, 99 of 100", "ms", [took[len(took) * 99 // 100]]),
                    Figure.of(f"{when} compaction: the slowest {name} of {len(took):,}", "ms", [took[-1]]),
                ]
        await asyncio.sleep(sizes.pause_s)
        after = await asyncio.to_thread(files, cluster)
    figures.append(Figure.of(f"dropping {sizes.versions:,} versions", "s", [seconds]))
    figures.append(Figure.of("state in use before", "MiB", [before[0]]))
    figures.append(Figure.of("state in use after", "MiB", [after[0]]))
    figures.append(Figure.of("its file after", "MiB", [after[1]]))
    return figures


def measure(sizes: Any) -> Iterator[Figure]:
    """Measure in a cluster of its own."""
    with running(Plan(level="store", groups=1, dest=1)) as cluster:
        yield from asyncio.run(measure_in(cluster, sizes))


BENCHMARK = Benchmark(
    "compaction", "cluster", __doc__, measure, {"versions": (1_000_000, 20_000), "pause_s": (5.0, 0.5)}
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
