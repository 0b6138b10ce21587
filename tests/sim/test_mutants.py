"""Every sabotage of the protocol is caught, and the protocol itself comes through the same runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import pytest

from multicast.protocol import Protocol, Timing
from multicast.sim import Scenario, Workload, simulate
from multicast.whitebox import WhiteBox
from tests.sim import mutants, schedules

SEEDS: Final = range(64)
"""Random seeds within which a mutant without a schedule of its own must be caught."""

Schedule: TypeAlias = Callable[[type[Protocol]], None]

RANDOM: Final[list[type[WhiteBox]]] = [
    mutants.NoClockUpdateOnAccept,
    mutants.AcceptInStaleBallot,
    mutants.MismatchingVectors,
    mutants.OwnAcknowledgementNotRequired,
    mutants.ClockNotRecovered,
    mutants.LeadsBeforeNewStateAck,
    mutants.ResumesOldBallot,
    mutants.AcknowledgesBeforeDurable,
    mutants.NoDeliveryChain,
    mutants.CollectsOnOwnGroupsQuorum,
    mutants.CollectsOnOwnDurability,
    mutants.CandidateDoesNotCatchUp,
    mutants.KeepsDeliveredEntries,
    mutants.OrdersCollectedAgain,
    mutants.JoinsWithPartOfNewState,
    mutants.DeliveryIgnoresAccepted,
    mutants.MergesAMinority,
    mutants.NeverRetries,
]

DIRECTED: Final[list[tuple[Schedule, type[WhiteBox]]]] = [
    (schedules.three_ballots, mutants.AcceptedFromAnyBallot),
    (schedules.forgotten_promise, mutants.ForgetsPromise),
    (schedules.new_state_again, mutants.AppliesNewStateTwice),
    (schedules.snapshot_of_the_unfinished, mutants.SnapshotWithoutRetained),
    (schedules.lower_proposal, mutants.KeepsOldMaximum),
    (schedules.executed_behind_the_leader, mutants.WatermarkAheadOfItsLeader),
    (schedules.pieces_of_two_lives, mutants.NumbersPiecesAnewInEachLife),
    (schedules.decided_above_its_ballot, mutants.ReplacesWhatWasDecided),
]


def scenario(protocol: type[Protocol], seed: int) -> Scenario:
    """Runs of four kinds: plain; little history and small pieces; groups of five; a heavier load."""
    match seed % 4:
        case 0:
            return Scenario(protocol)
        case 1:
            return Scenario(protocol, timing=Timing(history=4, part_entries=2))
        case 2:
            return Scenario(protocol, groups=2, replicas=5)
        case _:
            return Scenario(protocol, groups=2, workload=Workload(think_s=0.02, messages=300))


@pytest.mark.parametrize("mutant", RANDOM, ids=lambda mutant: mutant.__name__)
def test_random_seeds_catch(mutant: type[WhiteBox]) -> None:
    for seed in SEEDS:
        outcome = simulate(scenario(mutant, seed), seed)
        assert outcome.error is None, "a mutant that just breaks down shows nothing"
        if outcome.violation is not None:
            return
    pytest.fail(f"{mutant.__name__} came through {len(SEEDS)} seeds")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_protocol_comes_through_the_same_seeds(seed: int) -> None:
    assert simulate(scenario(WhiteBox, seed), seed).violation is None


@pytest.mark.parametrize(
    ("schedule", "mutant"), DIRECTED, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_schedule_catches(schedule: Schedule, mutant: type[WhiteBox]) -> None:
    assert schedules.play(schedule, mutant) is not None


@pytest.mark.parametrize("schedule", [schedule for schedule, _ in DIRECTED], ids=lambda s: s.__name__)
def test_the_protocol_comes_through_the_same_schedules(schedule: Schedule) -> None:
    assert schedules.play(schedule, WhiteBox) is None


def test_every_mutant_is_on_trial() -> None:
    defined = {
        name
        for name, value in vars(mutants).items()
        if isinstance(value, type) and issubclass(value, WhiteBox) and value is not WhiteBox
    }
    tried = {mutant.__name__ for mutant in RANDOM} | {mutant.__name__ for _, mutant in DIRECTED}
    assert tried == defined
