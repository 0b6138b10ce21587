"""How throughput and latency change with what is stored, how it is divided, and how long a cluster runs.

Three nodes with three partitions of three replicas, unless a figure varies them; the SDK's asyncio client in
a process of its own, on the same machine. Nodes fsync before they answer. A transaction puts 20 bytes under
one key in each of its partitions, unless a figure varies it. Ratios compare with the first size of a series,
in the same run. `benchmarks.watchers` varies the number of watchers.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.load import Measurement, Plan, measure, read_samples, running
from benchmarks.load.nodes import memory_mib, pids
from benchmarks.record import Benchmark, Figure
from benchmarks.scan import fill
from kvstore.local.cluster import LocalCluster

PLAN: Final = Plan(level="store", groups=3, dest=1, durability="fsync", clients=100)
LOADED: Final = 0.7
"""The share of the peak that a cluster is to bear for long."""
SETTLE_S: Final = 3.0
"""After filling, until commits of the state and the collection of history have caught up."""
AXES: Final = ("keys", "value", "partitions", "destinations", "age")


def numbers(option: str, text: str) -> list[int]:
    """Return the sizes of a series, as in 1,10,100."""
    try:
        found = [int(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise SystemExit(f"--{option}: {text!r} is not a list of positive numbers, as in 1,10,100")
    return found


def of(name: str, found: Measurement) -> list[Figure]:
    """Return throughput and latency of one measurement. Raises `SystemExit` if a transaction failed."""
    if found.errors:
        raise SystemExit(f"{name}: {found.errors} failed: {found.errors_by_kind}")
    return [
        Figure.of(f"{name}: transactions", "/s", found.throughput_rounds),
        Figure.of(f"{name}: p50", "ms", found.latency_rounds_ms["p50"]),
        Figure.of(f"{name}: p99", "ms", found.latency_rounds_ms["p99"]),
    ]


def series(names: Sequence[str], found: Iterator[Measurement]) -> Iterator[Figure]:
    """Yield the figures of a series of sizes, with the ratios to the first."""
    first: Sequence[float] = ()
    for name, each in zip(names, found, strict=True):
        yield from of(name, each)
        rates = each.throughput_rounds
        if first:
            ratios = [b / a for a, b in zip(first, rates, strict=True)]
            yield Figure.of(f"{name}: throughput compared with the first", "", ratios)
        first = first or rates


def by_keys(plan: Plan, counts: Sequence[int]) -> Iterator[Figure]:
    """Fill a store step by step, and put random keys of those that it has."""
    memory: list[Figure] = []
    with running(plan) as cluster:

        def steps() -> Iterator[Measurement]:
            stored = 0
            for count in counts:
                fill(cluster, count, stored)
                stored = count
                time.sleep(SETTLE_S)
                yield measure(replace(plan, keys=count), cluster)
                own = [memory_mib(pid) for pid in pids(cluster)]
                memory.append(Figure.of(f"{count:,} keys: own memory of a node", "MiB", own))

        yield from series([f"{count:,} keys" for count in counts], steps())
    yield from memory


def by_value(plan: Plan, sizes: Sequence[int]) -> Iterator[Figure]:
    """Vary the size of values."""
    with running(plan) as cluster:
        names = [f"values of {size:,} bytes" for size in sizes]
        found = (measure(replace(plan, payload=size, seed=n), cluster) for n, size in enumerate(sizes))
        yield from series(names, found)


def by_partitions(plan: Plan, counts: Sequence[int]) -> Iterator[Figure]:
    """Vary the number of partitions: each has a cluster of its own."""

    def found() -> Iterator[Measurement]:
        for count in counts:
            sized = replace(plan, groups=count)
            with running(sized) as cluster:
                yield measure(sized, cluster)

    yield from series([f"{count} partitions" for count in counts], found())


def by_destinations(plan: Plan, counts: Sequence[int]) -> Iterator[Figure]:
    """Vary the number of partitions of a transaction, of as many as the largest number."""
    sized = replace(plan, groups=max(counts))
    with running(sized) as cluster:
        found = (measure(replace(sized, dest=count), cluster) for count in counts)
        yield from series(
            [f"transactions over {count} of {sized.groups} partitions" for count in counts], found
        )


def by_age(plan: Plan, seconds: float) -> Iterator[Figure]:
    """Find the peak, then run at a share of it, and look how latency, memory and files change meanwhile."""
    with running(plan) as cluster:
        peak = measure(plan, cluster)
        own = [memory_mib(pid) for pid in pids(cluster)]
        yield Figure.of("at the peak: own memory of a node", "MiB", own)
        rate = LOADED * peak.throughput
        loaded = replace(plan, rate=rate, clients=None, seconds=seconds / 2, rounds=2)
        with tempfile.TemporaryDirectory() as folder:
            found = measure(loaded, cluster, Path(folder))
            ends = sorted(it.end_us for it in read_samples(Path(folder)))
        name = f"{seconds:,.0f} s at {LOADED:.0%} of the peak"
        yield from of(name, found)
        p50, p99 = found.latency_rounds_ms["p50"], found.latency_rounds_ms["p99"]
        yield Figure.of(f"{name}: p99 / p50", "", [b / a for a, b in zip(p50, p99, strict=True)])
        yield Figure.of(f"{name}: longest latency", "ms", found.latency_rounds_ms["max"])
        pause = max(b - a for a, b in itertools.pairwise(ends)) / 1000
        yield Figure.of(f"{name}: longest time without an answer", "ms", [pause])
        yield Figure.of(f"{name}: own memory of a node", "MiB", [memory_mib(pid) for pid in pids(cluster)])
        for part in ("log", "state"):
            yield Figure.of(f"{name}: file of a node's {part}", "MiB", file_mib(cluster, part))


def file_mib(cluster: LocalCluster, part: str) -> list[float]:
    """Return what a file of each node takes on its disk."""
    files = [cluster.config.data(node) / part / "data.mdb" for node in cluster.nodes]
    return [file.stat().st_blocks * 512 / 2**20 for file in files]


def measure_all(sizes: Any) -> Iterator[Figure]:
    """Measure the axes that are asked for."""
    axes = sizes.axes.split(",") if sizes.axes else list(AXES)
    if unknown := set(axes) - set(AXES):
        raise SystemExit(f"--axes: unknown {', '.join(sorted(unknown))}; choose from {', '.join(AXES)}")
    plan = replace(PLAN, warm_up_s=sizes.warm_up, seconds=sizes.seconds, rounds=sizes.rounds)
    varied = {
        "keys": (by_keys, numbers("keys", sizes.keys)),
        "value": (by_value, numbers("values", sizes.values)),
        "partitions": (by_partitions, numbers("partitions", sizes.partitions)),
        "destinations": (by_destinations, numbers("destinations", sizes.destinations)),
    }
    for axis in axes:
        if axis == "age":
            yield from by_age(plan, sizes.age)
        else:
            vary, its = varied[axis]
            yield from vary(plan, its)


BENCHMARK = Benchmark(
    "growth", "growth", __doc__, measure_all,
    {
        "axes": ("", ""), "keys": ("10000,100000,1000000,10000000", "1000,5000"),
        "values": ("20,1024,16384,131072", "20,1024"), "partitions": ("1,3,10,30", "1,3"),
        "destinations": ("1,2,3,6,10", "1,2"), "age": (600.0, 2.0),
        "warm_up": (2.0, 0.3), "seconds": (3.0, 0.5), "rounds": (3, 1),
    },
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
