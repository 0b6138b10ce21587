"""A node that lies, among all other faults: no group notices but by closed connections (departure 19)."""

from __future__ import annotations

from typing import Any, Final

import pytest

from multicast.sim import Outcome, Workload
from multicast.whitebox import WhiteBox
from tests.campaigns import CAMPAIGN
from tests.sim import lie_mutants as mutants
from wbkv_sim import StoreSimulation, scenario_of, simulate_store

SEEDS: Final = range(12)
"""Random seeds within which a mutant must be caught."""


class LyingSimulation(StoreSimulation):
    """A node lies, whatever the seed."""

    def _has_a_liar(self) -> bool:
        return True


def run(seed: int, protocol: type[Any] = WhiteBox) -> tuple[Outcome, LyingSimulation]:
    scenario = scenario_of("all", operations=40, protocol=protocol)
    simulation = LyingSimulation(scenario, seed, "append")
    return simulation.run(), simulation


@pytest.mark.parametrize("seed", range(100 if CAMPAIGN else 2))
def test_every_group_is_safe_and_completes(seed: int) -> None:
    outcome, simulation = run(seed)
    assert outcome.violation is None
    assert simulation.liar is not None
    assert simulation.liar.told > 10
    assert simulation.liar.refused > 0


def test_a_member_that_is_asked_while_its_lie_is_under_way_is_not_to_blame() -> None:
    """The receiver believes whom it has asked, which the simulated liar must not use."""
    assert simulate_store(scenario_of("all"), 7035, "append").violation is None


def test_the_ballots_that_it_invents_stay_out_of_reach() -> None:
    """In this run, lies have moved what a replica expects beyond three jumps. An empty NEW_STATE in a ballot
    of that number would be believed: a member that is elected decides what its group accepts.
    """
    load = Workload(clients=4, messages=200, window=2, think_s=0.12)
    assert simulate_store(scenario_of("all", workload=load), 500087, "bank").violation is None


@pytest.mark.parametrize(
    "mutant",
    [
        mutants.BelievesAnyMembers,
        mutants.AnyBallotNumber,
        *[mutants.BelievesAJumpFromOneMember] * CAMPAIGN,
        *[mutants.TakesAnyDeliveries] * CAMPAIGN,
    ],
    ids=lambda mutant: mutant.__name__,
)
def test_seeds_catch_it(mutant: type[Any]) -> None:
    protocol = type(mutant.__name__, (mutant, WhiteBox), {})
    for seed in SEEDS:
        if run(seed, protocol)[0].violation is not None:
            assert run(seed)[0].violation is None
            return
    pytest.fail(f"{mutant.__name__} came through {len(SEEDS)} seeds")
