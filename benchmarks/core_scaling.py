"""Does a message cost the same after a million others, and beside many other groups?

Everything is measured in one run, in turns, so that a noisy machine disturbs all figures alike. What is
reported is the ratio of medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics

from benchmarks.core_cost import Wiring
from multicast.types import Destinations, GroupId

DEST: Destinations = (GroupId(0), GroupId(1))
PAYLOAD, IN_FLIGHT, ROUND = bytes(60), 64, 1280


def measure(wirings: dict[str, Wiring], rounds: int) -> dict[str, float]:
    """The median cost of a message in each, taken in turns."""
    figures: dict[str, list[float]] = {name: [] for name in wirings}
    for _ in range(rounds):
        for name, wiring in wirings.items():
            gc.collect()
            figures[name].append(wiring.run([DEST], PAYLOAD, IN_FLIGHT, ROUND))
    return {name: statistics.median(values) * 1e6 for name, values in figures.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delivered", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    aged = Wiring(2, 3)
    while aged.delivered < 6 * arguments.delivered:
        aged.run([DEST], PAYLOAD, IN_FLIGHT, 64 * IN_FLIGHT)
    beside = Wiring(arguments.groups, 3)
    beside.retire(DEST)
    wirings = {"young": Wiring(2, 3), "aged": aged, "beside": beside}
    wirings["young"].run([DEST], PAYLOAD, IN_FLIGHT, 1024)
    medians = measure(wirings, arguments.rounds)
    held = max(len(replica.entries) for replica in aged.replicas.values())
    result = {
        "us_after_1k": round(medians["young"], 1),
        "us_after_many": round(medians["aged"], 1),
        "delivered": aged.delivered // 6,
        "ratio_aged": round(medians["aged"] / medians["young"], 3),
        "groups": arguments.groups,
        "ratio_beside_other_groups": round(medians["beside"] / medians["young"], 3),
        "entries_held": held,
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
