"""What watchers cost the node that serves them, while a client writes at a constant rate: 1,000 of one range,
or of a thousand ranges, compared with one.

The SDK's client writes through another node. Watchers only count what they get, and each must get every
change. The figures are the CPU time of the watched node in a second, and its ratio to that with one watcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import grpc
import wbkv.aio
from wbkv_proto.v1 import kv_pb2 as kv

from benchmarks.load import Plan, running
from benchmarks.load.nodes import cpu_s
from benchmarks.record import Benchmark, Figure
from kvstore.local.cluster import LocalCluster

CHANNELS: Final = 16
PATIENCE_S: Final = 60.0


class Watchers:
    """Watches on some channels, which count what they get."""

    def __init__(self) -> None:
        self.begun = 0
        self.events = 0

    async def watch(self, stub: Any, prefix: bytes) -> None:
        """Watch keys with a prefix, until cancelled."""
        stream = stub(kv.WatchRequest(ranges=[kv.Range(prefix=prefix)], progress_ms=5000).SerializeToString())
        await stream.read()
        self.begun += 1
        while (raw := await stream.read()) is not grpc.aio.EOF:
            self.events += raw.count(b"watched/")


@contextlib.asynccontextmanager
async def watching(address: str, prefixes: Sequence[bytes]) -> AsyncIterator[Watchers]:
    """Watches of these prefixes, which have begun."""
    channels = [
        grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))
        for _ in range(min(CHANNELS, len(prefixes)))
    ]
    found = Watchers()
    tasks = []
    for i, prefix in enumerate(prefixes):
        stub: Any = channels[i % len(channels)].unary_stream("/wbkv.v1.KV/Watch")
        tasks.append(asyncio.create_task(found.watch(stub, prefix)))
    try:
        while found.begun < len(prefixes):
            await asyncio.sleep(0.05)
            for task in tasks:
                if task.done():
                    task.result()
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in channels:
            await channel.close()


async def cost(cluster: LocalCluster, pid: int, sizes: Any, prefixes: Sequence[bytes]) -> float:
    """The CPU time of a node in a second, in ms, with watchers of these prefixes."""
    writer, watched = cluster.addresses[0], cluster.addresses[1]
    async with wbkv.aio.connect([writer], timeout=30.0) as client, watching(watched, prefixes) as watchers:
        used, began = cpu_s(pid), time.perf_counter()
        count = int(sizes.rate * sizes.seconds)
        writes = []
        for number in range(count):
            key = b"watched/%03d/%d" % (number % sizes.watchers, number)
            writes.append(asyncio.create_task(client.put(key, b"v" * 20)))
            await asyncio.sleep(began + number / sizes.rate - time.perf_counter())
        await asyncio.gather(*writes)
        expected = count * (len(prefixes) if len(set(prefixes)) < 2 else 1)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while watchers.events < expected:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise SystemExit(f"{watchers.events} of {expected} events arrived") from None
        return (cpu_s(pid) - used) / (time.perf_counter() - began) * 1e3


def measure_all(sizes: Any) -> Iterator[Figure]:
    """One watcher, many of one range, many of many ranges."""
    kinds: dict[str, Sequence[bytes]] = {
        "no watcher": (),
        "one watcher": [b"watched/"],
        f"{sizes.watchers} watchers of one range": [b"watched/"] * sizes.watchers,
        f"{sizes.watchers} watchers of as many ranges": [b"watched/%03d/" % i for i in range(sizes.watchers)],
    }
    with running(Plan(level="store", groups=3)) as cluster:
        pid = cluster.pid(cluster.nodes[1])
        if pid is None:
            raise SystemExit("the node is not running")
        found: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(sizes.rounds):
            for kind, prefixes in kinds.items():
                found[kind].append(asyncio.run(cost(cluster, pid, sizes, prefixes)))
    for kind, costs in found.items():
        yield Figure.of(f"CPU of a node in a second, {kind}", "ms", costs)
    one = found["one watcher"]
    for kind in list(kinds)[2:]:
        ratios = [many / single for many, single in zip(found[kind], one, strict=True)]
        yield Figure.of(f"compared with one watcher, {kind}", "", ratios)


BENCHMARK = Benchmark(
    "watchers", "cluster", __doc__, measure_all,
    {"watchers": (1000, 1000), "rate": (300, 300), "seconds": (10.0, 2.0), "rounds": (3, 1)},
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
