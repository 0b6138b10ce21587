"""How many protocol messages a second the simulator handles, and what its checkers cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from benchmarks.record import Benchmark, Figure
from multicast.sim import Scenario, simulate


def rate(scenario: Scenario, seed: int) -> float:
    """Protocol messages per second of CPU time in one run."""
    start = time.process_time()
    outcome = simulate(scenario, seed)
    used = time.process_time() - start
    if outcome.violation is not None:
        raise SystemExit(f"seed {seed}: {outcome.violation}")
    return outcome.messages / used


def measure(sizes: Any) -> Iterator[Figure]:
    """With all faults: with the checkers of invariants, and without."""
    for name, checkers in (("with all checkers", True), ("without checkers of invariants", False)):
        scenario = Scenario(faults="all", checkers=checkers)
        rates = [rate(scenario, seed) for seed in range(sizes.runs)]
        yield Figure.of(f"simulator, {name}: protocol messages", "per second of CPU", rates)


BENCHMARK = Benchmark("simulator_speed", "tools", __doc__, measure, {"runs": (20, 2)})

if __name__ == "__main__":
    BENCHMARK.main()
