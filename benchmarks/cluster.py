"""What a three-node cluster does for clients: transactions per second, their latency, and their CPU time.

Three nodes with three partitions of three replicas, and the SDK's asyncio client in a process of its own, on
the same machine; 300 transactions are in flight, or one. A transaction puts 20 bytes into each of its
partitions. `os` and `fsync` are what an answer waits for: the operating system, or the disk.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.load import Measurement, Plan, measure, running
from benchmarks.record import Benchmark, Figure

PARTITIONS: Final = {"one partition": 1, "two partitions": 2}


def figures(name: str, found: Measurement, *wanted: str) -> Iterator[Figure]:
    """What is wanted of one measurement."""
    if found.errors:
        raise SystemExit(f"{name}: {found.errors} failed: {found.errors_by_kind}")
    cpu = found.cpu_rounds_us
    nodes = [statistics.fmean(each) for each in zip(cpu["n1"], cpu["n2"], cpu["n3"], strict=True)]
    known = {
        "transactions": ("/s", found.throughput_rounds),
        "p50": ("ms", found.latency_rounds_ms["p50"]),
        "p99": ("ms", found.latency_rounds_ms["p99"]),
        "CPU of each node": ("µs", nodes),
        "CPU of the client": ("µs", cpu["clients"]),
    }
    for what in wanted or known:
        yield Figure.of(f"{name}: {what}", *known[what])


def measure_all(sizes: Any) -> Iterator[Figure]:
    """Many transactions in flight, one client alone, durable on disk, and with traces."""
    plan = Plan(
        level="store", groups=3, clients=300,
        warm_up_s=sizes.warm_up, seconds=sizes.seconds, rounds=sizes.rounds,
    )  # fmt: skip
    with running(plan) as cluster:
        for where, dest in PARTITIONS.items():
            yield from figures(f"{where}, os", measure(replace(plan, dest=dest), cluster))
        for where, dest in PARTITIONS.items():
            found = measure(replace(plan, dest=dest, clients=1), cluster)
            yield from figures(f"{where}, os, one client", found, "p50", "p99", "CPU of each node")
    durable = replace(plan, durability="fsync")
    with running(durable) as cluster:
        for where, dest in PARTITIONS.items():
            found = measure(replace(durable, dest=dest), cluster)
            yield from figures(f"{where}, fsync", found, "transactions", "p50")
            found = measure(replace(durable, dest=dest, clients=1), cluster)
            yield from figures(f"{where}, fsync, one client", found, "p50")
    with tempfile.TemporaryDirectory() as folder, running(plan, trace=Path(folder)) as cluster:
        found = measure(plan, cluster, trace=Path(folder))
        yield from figures("two partitions, os, traced", found, "CPU of each node", "CPU of the client")


BENCHMARK = Benchmark(
    "cluster", "cluster", __doc__, measure_all,
    {"warm_up": (2.0, 0.5), "seconds": (3.0, 0.5), "rounds": (3, 2)},
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
