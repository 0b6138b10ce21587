"""How many protocol messages a second the simulator handles, with all checkers on, and what they cost."""

from __future__ import annotations

import argparse
import json
import statistics
import time

from multicast.sim import Scenario, simulate


def rate(scenario: Scenario, seed: int) -> float:
    """Protocol messages per second of CPU time in one run."""
    start = time.process_time()
    outcome = simulate(scenario, seed)
    used = time.process_time() - start
    if outcome.violation is not None:
        raise SystemExit(f"seed {seed}: {outcome.violation}")
    return outcome.messages / used


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--faults", default="all")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    checked = [rate(Scenario(faults=arguments.faults), seed) for seed in range(arguments.runs)]
    bare = [rate(Scenario(faults=arguments.faults, checkers=False), seed) for seed in range(arguments.runs)]
    result = {
        "messages_per_second": round(statistics.median(checked)),
        "best": round(max(checked)),
        "without_invariant_checkers": round(statistics.median(bare)),
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:28} {value:>9,}")


if __name__ == "__main__":
    main()
