"""The wide area with what the paper does not have: hybrid clocks, and delivery at every replica.

    python -m benchmarks.paper.beyond [--rounds 2] [--json]

The same three regions, clients and moderate load as `wan`, leaders in all regions. With delivery at every
replica all of them answer, so that the one in a client's own region answers it first.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any, Final

from benchmarks.load import Plan
from benchmarks.paper.clusters import Clusters, in_turns
from benchmarks.paper.curves import DESTINATIONS, FAR, MODERATE

VARIANTS: Final = {
    "white-box": ("whitebox", "logical"),
    "white-box, hybrid clocks": ("whitebox", "hybrid"),
    "everywhere, hybrid clocks": ("whitebox-everywhere", "hybrid"),
    "FastCast": ("fastcast", "logical"),
    "fault-tolerant Skeen": ("ftskeen", "logical"),
}


def measured(dest: int, rounds: int, clusters: Clusters) -> dict[str, float]:
    """Mean latency in ms of each variant: the median over rounds, in which they take turns."""
    plans = [
        Plan(
            protocol=protocol, clock=clock, dest=dest, clients=MODERATE, rounds=1,
            warm_up_s=1.0, seconds=2.5, regions=True, timing=FAR,
        )
        for protocol, clock in VARIANTS.values()
    ]  # fmt: skip
    result: dict[str, Any] = in_turns(plans, rounds, clusters)
    found = {}
    for name, (protocol, clock) in VARIANTS.items():
        turns = [t for t in result["turns"] if (t["protocol"], t["clock"]) == (protocol, clock)]
        failed = [turn["failed"] for turn in turns if "failed" in turn]
        if failed:
            raise SystemExit(f"{name} to {dest} groups: {failed[0]}")
        found[name] = statistics.median(turn["latency_ms"]["mean"] for turn in turns)
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with Clusters(len(VARIANTS)) as clusters:
        rows = {dest: measured(dest, arguments.rounds, clusters) for dest in DESTINATIONS}
    if arguments.json:
        print(json.dumps(rows))
        return
    names = list(VARIANTS)
    print("| destinations | " + " | ".join(f"{name}, ms" for name in names) + " |")
    print("|---" * (1 + len(names)) + "|")
    for dest, row in rows.items():
        print(f"| {dest} | " + " | ".join(f"{row[name]:.0f}" for name in names) + " |")
    for other in names[-2:]:
        ratios = [statistics.mean(row[other] / row[name] for row in rows.values()) for name in names]
        print(f"| {other} by it, mean of ratios | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")


if __name__ == "__main__":
    main()
