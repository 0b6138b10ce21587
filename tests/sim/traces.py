"""Golden traces: what 55 seeds of all protocols, of nodes and of the store do, message by message, as a hash.

A refactoring leaves them all as they are. A change of behaviour changes some; `make traces` then writes them
anew, and the diff of `traces.json` says which.
"""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any, Final

from kvstore.simulation import NodeSimulation
from multicast import PROTOCOLS, VARIANTS
from multicast.sim import Outcome, Scenario, Simulation, Workload
from wbkv_sim import StoreSimulation, scenario_of

FILE: Final = Path(__file__).with_name("traces.json")
ALL: Final = PROTOCOLS | VARIANTS
STORE: Final = ("bank", "register", "counter", "append", "ring")


def runs() -> list[str]:
    """The names of all runs: what is simulated, with which protocol or workload, and the seed."""
    plain = [f"plain {name} {seed}" for name in ALL for seed in range(4)]
    nodes = [f"node {name} {seed}" for name in ALL if name != "skeen" for seed in range(2)]
    return plain + nodes + [f"store {workload} {seed}" for workload in STORE for seed in range(3)]


def trace(run: str) -> list[Any]:
    """The hash of a run's trace, and its counts."""
    kind, name, number = run.split()
    seed = int(number)
    outcome: Outcome
    if kind == "store":
        load = Workload(clients=5, messages=100, window=2, think_s=0.05)
        protocol = ALL["whitebox-everywhere" if seed == 2 else "whitebox"]
        outcome = StoreSimulation(
            scenario_of("all", 3, 3, workload=load, protocol=protocol), seed, name
        ).run()
    else:
        replicas, clock = 1 if name == "skeen" else 3, "hybrid" if seed % 2 else "logical"
        load = Workload(messages=80)
        scenario = Scenario(ALL[name], replicas=replicas, faults="all", clock=clock, workload=load)
        outcome = (Simulation if kind == "plain" else NodeSimulation)(scenario, seed).run()
    return [outcome.trace, outcome.delivered, outcome.messages, repr(outcome.virtual_s), outcome.violation]


if __name__ == "__main__":
    with multiprocessing.Pool() as pool:
        found = dict(zip(runs(), pool.map(trace, runs(), chunksize=1), strict=True))
    rows = [f"{json.dumps(run)}: {json.dumps(each)}" for run, each in found.items()]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
