"""Whether a transaction that waits for a far vote delays others than those on its keys.

Two partitions of one replica each, on two nodes, 60 ms apart one way. Many transactions of one partition are
in flight: alone (a), beside transactions on both partitions without conditions (b), and with conditions in
both (c), on other keys. What (b) loses against (a) is ordering: a message that waits for its position in the
order makes later ones of the same group wait too, however they are executed. What (c) loses against (b) would
be due to votes. Rounds alternate; each ratio is of neighbours in time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.load import BackgroundMeasurement, Measurement, Plan, measure, running
from benchmarks.record import Benchmark, Figure
from kvstore.local.cluster import LocalCluster

DELAYS_MS: Final = {"n1-n2": 60.0}
NAMES: Final = {"a": "alone", "b": "beside far transactions", "c": "beside far transactions with conditions"}


def measured(kind: str, plan: Plan, far: Plan, cluster: LocalCluster) -> Measurement:
    """The plan's transactions, with the company of this kind."""
    if kind == "a":
        return measure(plan, cluster)
    with tempfile.TemporaryDirectory() as folder:
        company = BackgroundMeasurement(replace(far, conditions=kind == "c"), cluster, Path(folder))
        found = measure(plan, cluster)
        if errors := found.errors + company.wait().errors:
            raise SystemExit(f"{errors} transactions failed")
    return found


def measure_all(sizes: Any) -> Iterator[Figure]:
    """Throughput and latency of each kind, and ratios of neighbours."""
    plan = Plan(
        level="store", groups=2, replicas=1, dest=1, clients=400, rounds=1,
        warm_up_s=sizes.warm_up, seconds=sizes.seconds,
    )  # fmt: skip
    # The company begins before the transactions that are measured, and ends after them.
    far = replace(plan, dest=2, clients=20, seed=1, seconds=plan.end_s + sizes.company)
    rounds: list[dict[str, Measurement]] = []
    with running(plan, nodes=2, delays_ms=DELAYS_MS) as cluster:
        for number in range(sizes.rounds):
            kinds = ("abc", "acb")[number % 2]
            rounds.append({kind: measured(kind, plan, far, cluster) for kind in kinds})
    for kind, name in NAMES.items():
        yield Figure.of(f"{name}: transactions", "/s", [each[kind].throughput for each in rounds])
        yield Figure.of(f"{name}: p50", "ms", [each[kind].latency_ms["p50"] for each in rounds])
    for name, above, below in ((f"{NAMES['b']} / alone", "b", "a"), ("with conditions / without", "c", "b")):
        ratios = [each[above].throughput / each[below].throughput for each in rounds]
        yield Figure.of(f"ratio of throughputs: {name}", "", ratios)


BENCHMARK = Benchmark(
    "far_votes", "cluster", __doc__, measure_all,
    {"warm_up": (1.0, 0.5), "seconds": (2.0, 0.5), "company": (3.0, 1.0), "rounds": (4, 2)},
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
