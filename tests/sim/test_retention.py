"""Leaders that compact by themselves, under every kind of fault, and sabotages of it."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kvstore.machine import Machine
from kvstore.machine.versions import Versions
from kvstore.store.compactor import Compactor
from kvstore.store.reads import FeedQueue
from multicast.errors import InvariantBroken
from multicast.protocol import Timing
from multicast.sim import FAULTS
from tests.campaigns import CAMPAIGN
from tests.sim import store_mutants as mutants
from wbkv_sim import scenario_of
from wbkv_sim.run import StoreSimulation
from wbkv_sim.workloads import WORKLOADS

KEEP_S: Final = 1
SEEDS: Final = range(24)
PLACES: Final[list[tuple[type, str]]] = [
    (Compactor, "kvstore.store.application.Compactor"),
    (FeedQueue, "kvstore.store.partition.FeedQueue"),
    (Machine, "kvstore.store.application.Machine"),
    (Versions, "kvstore.machine.housekeeping.Versions"),
]


def run(faults: str, seed: int, workload: str) -> tuple[Any, int]:
    """Run a store that keeps history for a second. Return the outcome, and how often it has compacted."""
    timing = Timing(history=6, part_entries=4, anchor_s=3.0, clock_step_s=50.0)
    scenario = scenario_of(faults, timing=timing)
    simulation = StoreSimulation(scenario, seed, workload, keep_history_s=KEEP_S)
    return simulation.run(), simulation.floors


def sabotage(monkeypatch: pytest.MonkeyPatch, mutant: type) -> None:
    monkeypatch.setattr(next(where for kind, where in PLACES if issubclass(mutant, kind)), mutant)


@pytest.mark.parametrize("faults", FAULTS)
def test_history_is_dropped_under_faults(faults: str) -> None:
    names = list(WORKLOADS)
    dropped = 0
    for seed in range(24 if CAMPAIGN else 1):
        workload = names[(seed + FAULTS.index(faults)) % len(names)]
        outcome, floors = run(faults, seed, workload)
        assert outcome.violation is None, (seed, workload)
        dropped += floors
    assert dropped > 5


@pytest.mark.parametrize(
    ("mutant", "faults", "workload", "name"),
    [
        (mutants.CompactsByItsOwnClock, "clock", "bank", "Kept"),
        (mutants.CompactsPastPins, "none", "bank", "Replay"),
        (mutants.FeedIgnoresTheFloor, "all", "append", ""),
        (mutants.DropsTheVersionAtTheFloor, "none", "bank", ""),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_random_seeds_catch_it(
    mutant: type, faults: str, workload: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch, mutant)
    for seed in SEEDS:
        outcome, _ = run(faults, seed, workload)
        if outcome.violation is not None:
            assert outcome.error is None or isinstance(outcome.error, InvariantBroken), "it just breaks down"
            assert outcome.violation.startswith(name), outcome.violation
            monkeypatch.undo()
            assert run(faults, seed, workload)[0].violation is None
            return
    pytest.fail(f"{mutant.__name__} came through {len(SEEDS)} seeds")


def test_floors_that_are_not_common_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch, mutants.CompactsAnyTime)
    for seed in range(2):
        outcome, floors = run("all", seed, "bank")
        assert outcome.violation is None
        assert floors > 5
