"""How often many clients can take from one number, if there is enough: one hot key of a three-node cluster.

Each of 50 clients takes 1 from the same stock, again and again, in one of three ways: by an addition with a
floor, by a transaction whose condition compares the number, and by an interactive transaction, which
reads the number first and retries after conflicts. All clients share a process and one SDK client. The stock
is large enough for all; at the end it must lack exactly what was taken.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import wbkv
import wbkv.aio

from benchmarks.load import Plan, running
from benchmarks.record import Benchmark, Figure
from kvstore.local.cluster import LocalCluster

CLIENTS: Final = 50
STOCK: Final = 10_000_000
KEY: Final = "stock"

Take = Callable[[wbkv.aio.Client[bytes]], Awaitable[object]]


async def by_floor(client: wbkv.aio.Client[bytes]) -> None:
    """Take 1, in one message."""
    await client.add(KEY, -1, floor=0)


async def by_condition(client: wbkv.aio.Client[bytes]) -> None:
    """Take 1 if there is enough, in one message."""
    result = await client.txn().when(wbkv.number(KEY) >= 1).then(wbkv.add(KEY, -1)).commit()
    if not result.succeeded:
        raise SystemExit("the stock is empty")


@wbkv.transactional(timeout=60.0)
async def interactively(tx: wbkv.aio.Transaction[bytes]) -> None:
    """Read the number, and write what is left."""
    await tx.add(KEY, -1, floor=0)


WAYS: Final[dict[str, Take]] = {
    "addition with a floor": by_floor,
    "condition on the number": by_condition,
    "interactive transaction": interactively,
}


async def rate(cluster: LocalCluster, take: Take, seconds: float) -> float:
    """Return how many of the calls that began in this time were made in a second."""
    async with wbkv.aio.connect(cluster.addresses, timeout=60.0) as client:
        await client.put(KEY, b"%d" % STOCK)
        await take(client)
        began = time.perf_counter()
        taken = 0

        async def work() -> None:
            nonlocal taken
            while time.perf_counter() < began + seconds:
                await take(client)
                taken += 1

        await asyncio.gather(*(work() for _ in range(CLIENTS)))
        took = time.perf_counter() - began
        left = await client.get(KEY)
        if left != b"%d" % (STOCK - 1 - taken):
            raise SystemExit(f"{left!r} is left after {taken + 1} of {STOCK} were taken")
        return taken / took


def measure_all(sizes: Any) -> Iterator[Figure]:
    """The rate of each way, in alternating rounds."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with running(Plan(level="store", groups=3)) as cluster:
        for _ in range(sizes.rounds):
            for way, take in WAYS.items():
                found[way].append(asyncio.run(rate(cluster, take, sizes.seconds)))
    for way, rates in found.items():
        yield Figure.of(f"{way}: taken", "/s", rates)


BENCHMARK = Benchmark("hot_key", "cluster", __doc__, measure_all, {"seconds": (3.0, 0.5), "rounds": (3, 1)})

if __name__ == "__main__":
    BENCHMARK.main()
