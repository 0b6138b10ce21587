"""What three nodes do that only order messages: bare multicast to two groups, messages of 20 bytes.

The like is `wbkv bench throughput --groups 2 --clock hybrid`, with any protocol and load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.load import Plan, measure, running
from benchmarks.record import Benchmark, Figure


def measure_all(sizes: Any) -> Iterator[Figure]:
    """Messages to one and to both groups, with more and more in flight."""
    plan = Plan(groups=2, clock="hybrid", warm_up_s=sizes.warm_up, seconds=sizes.seconds, rounds=sizes.rounds)
    with running(plan) as cluster:
        for dest, clients in ((1, 100), (2, 100), (2, 400)):
            found = measure(replace(plan, dest=dest, clients=clients), cluster)
            if found.errors:
                raise SystemExit(f"{found.errors} messages failed: {found.errors_by_kind}")
            name = f"to {dest} of 2 groups, {clients} in flight"
            yield Figure.of(f"{name}: messages", "/s", found.throughput_rounds)
            yield Figure.of(f"{name}: p50", "ms", found.latency_rounds_ms["p50"])
            yield Figure.of(f"{name}: CPU of nodes and client", "µs", found.cpu_rounds_us["all"])


BENCHMARK = Benchmark(
    "multicast", "node", __doc__, measure_all,
    {"warm_up": (1.0, 0.5), "seconds": (3.0, 0.5), "rounds": (3, 2)},
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
