"""Every sabotage of the protocol is caught, and the protocol itself comes through the same runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import pytest

from multicast.errors import PeerViolation
from multicast.protocol import Protocol, Timing
from multicast.sim import Scenario, Workload, simulate
from multicast.skeen import FastCast, FtSkeen
from multicast.whitebox import DeliverEverywhere, WhiteBox
from tests.campaigns import CAMPAIGN
from tests.sim import (
    everywhere_mutants,
    everywhere_schedules,
    lie_mutants,
    lie_schedules,
    mutants,
    schedules,
    skeen_mutants,
    skeen_schedules,
)
from tests.sim import membership_schedules as membership

SEEDS: Final = range(64)
"""Random seeds within which a mutant without a schedule of its own must be caught."""
USUAL: Final = range(24)
"""Those within which all are: what every run shows of the whole protocols. `make campaign` shows the rest."""

Schedule: TypeAlias = Callable[[type[Protocol]], None]

SHARED: Final[list[type[Any]]] = [
    mutants.ClockNotRecovered,
    mutants.LeadsBeforeNewStateAck,
    mutants.ResumesOldBallot,
    mutants.AcknowledgesBeforeDurable,
    mutants.NoDeliveryChain,
    mutants.CollectsOnOwnGroupsQuorum,
    mutants.CollectsOnOwnDurability,
    mutants.KeepsDeliveredEntries,
    mutants.JoinsWithPartOfNewState,
    mutants.MergesAMinority,
    mutants.NeverRetries,
    mutants.SnapshotOverwritesWhatWasAccepted,
    mutants.ReportsWhatIsOnlyDelivered,
    mutants.CollectsWhatIsOnlyDelivered,
    mutants.TellsItsCountTooSoon,
]
"""Sabotages of what the protocols share: caught in each of them."""

RANDOM: Final[list[type[Protocol]]] = [
    *(mutants.of(mutant, protocol) for mutant in SHARED for protocol in (WhiteBox, FtSkeen)),
    mutants.of(mutants.ReportsNothingExecuted, WhiteBox),
    mutants.of(mutants.ForgetsWhatItDelivered, WhiteBox),
    mutants.NoClockUpdateOnAccept,
    mutants.AcceptInStaleBallot,
    mutants.MismatchingVectors,
    mutants.AcknowledgesInTheNewestBallots,
    mutants.OwnAcknowledgementNotRequired,
    mutants.OrdersCollectedAgain,
    mutants.DeliveryIgnoresAccepted,
    mutants.of(mutants.ActsBeforeItIsAMember, WhiteBox),
    skeen_mutants.DeliversBeforeTheClockIsDecided,
    skeen_mutants.BreaksItsPromise,
    skeen_mutants.DecidesWithAMinority,
    skeen_mutants.SpeaksBeforeItIsDecided,
    skeen_mutants.CommitsOnSpeculation,
    skeen_mutants.OrdersCollectedAgain,
]

DIRECTED: Final[list[tuple[Schedule, type[Protocol]]]] = [
    (schedules.three_ballots, mutants.of(mutants.AcceptedFromAnyBallot, WhiteBox)),
    (schedules.three_ballots, mutants.of(mutants.AcceptedFromAnyBallot, FtSkeen)),
    (schedules.forgotten_promise, mutants.of(mutants.ForgetsPromise, WhiteBox)),
    (schedules.forgotten_promise, mutants.of(mutants.ForgetsPromise, FtSkeen)),
    (schedules.new_state_again, mutants.of(mutants.AppliesNewStateTwice, WhiteBox)),
    (schedules.snapshot_of_the_unfinished, mutants.of(mutants.SnapshotWithoutRetained, WhiteBox)),
    (schedules.lower_proposal, mutants.KeepsOldMaximum),
    (membership.two_changes, mutants.CountsByTheFirstConfiguration),
    (schedules.executed_behind_the_leader, mutants.of(mutants.WatermarkAheadOfItsLeader, WhiteBox)),
    (schedules.pieces_of_two_lives, mutants.of(mutants.NumbersPiecesAnewInEachLife, WhiteBox)),
    (schedules.decided_above_its_ballot, mutants.ReplacesWhatWasDecided),
    (schedules.executed_less, mutants.of(mutants.TakesBackWhatItExecuted, WhiteBox)),
    (schedules.executed_less, mutants.of(mutants.TakesBackWhatItExecuted, FtSkeen)),
    (skeen_schedules.executed_by_one, mutants.of(mutants.ReportsNothingExecuted, FtSkeen)),
    (skeen_schedules.clock_of_the_fallen, skeen_mutants.FollowerForgetsItsClock),
    (skeen_schedules.clock_in_a_promise, skeen_mutants.PromisesTooLowAClock),
    (skeen_schedules.speculation_fails_unanswered, skeen_mutants.NeverWithdraws),
    (skeen_schedules.delivers_alone, mutants.of(mutants.AcceptedFromAnyBallot, FtSkeen)),
    (skeen_schedules.two_half_open_ballots, mutants.of(mutants.AcceptedFromAnyBallot, FtSkeen)),
    (skeen_schedules.late_proposal, skeen_mutants.ReplacesWhatWasDecided),
    (skeen_schedules.votes_for_the_deposed, skeen_mutants.VotesInStaleBallot),
    (skeen_schedules.votes_of_another_ballot, skeen_mutants.CountsVotesOfAnyBallot),
    (skeen_schedules.speculation_fails, skeen_mutants.KeepsItsSpeculation),
    (everywhere_schedules.lost_before_the_next, everywhere_mutants.HearsNoGap),
    (everywhere_schedules.lost_before_the_next, everywhere_mutants.DeliversBlindly),
    (everywhere_schedules.lost_at_the_end, everywhere_mutants.MissesTheLast),
    (everywhere_schedules.lost_and_not_committed, everywhere_mutants.SeesTooSoon),
    (everywhere_schedules.lost_and_delivered, everywhere_mutants.SeesBeforeItHasCaughtUp),
    (everywhere_schedules.forgotten, everywhere_mutants.ForgetsWhatWasProposed),
    (everywhere_schedules.proposed_by_one_group, everywhere_mutants.AwaitsOnlyTheAccepted),
    (everywhere_schedules.committed_without_the_leader, everywhere_mutants.NeedsNoLeader),
    *(
        (schedule, mutants.of(mutant, protocol))
        for schedule, mutant in lie_schedules.TRIALS
        for protocol in (WhiteBox, FtSkeen)
    ),
    *(
        (schedule, mutants.of(mutant, protocol))
        for schedule, mutant in [
            (membership.known_by_the_lost, mutants.OpensABallotWithOneQuorum),
            (membership.old_members_meet, mutants.PromisesToAnOldConfiguration),
            (membership.nothing_but_the_collected, mutants.CompletesAtOnce),
            (membership.nothing_but_the_collected, mutants.CandidateDoesNotCatchUp),
            (membership.two_changes, mutants.ChangesTwiceAtOnce),
            (membership.two_disks, mutants.ChangesBeforeTheLastIsComplete),
            (membership.back_under_its_old_identity, mutants.IgnoresMemories),
            (membership.rolled_back, mutants.IgnoresMemories),
            (membership.rolled_back_while_another_restarts, mutants.RemembersInMemoryOnly),
            (membership.rolled_back_beside_one_that_was_away, mutants.IsSureAfterOneAnswer),
        ]
        for protocol in (WhiteBox, FtSkeen)
    ),
]

WHOLE: Final[list[type[Protocol]]] = [WhiteBox, FtSkeen, FastCast]
"""The protocols without sabotage."""


def whole(mutant: type[Protocol]) -> Sequence[type[Protocol]]:
    """Return the protocols that must survive the schedules that catch this mutant."""
    if issubclass(mutant, DeliverEverywhere):
        return [DeliverEverywhere]
    return [protocol for protocol in WHOLE if issubclass(protocol, WhiteBox) == issubclass(mutant, WhiteBox)]


def scenario(protocol: type[Protocol], seed: int) -> Scenario:
    """Runs of five kinds, with logical clocks, and the same with hybrid ones."""
    found = kind_of(protocol, seed)
    found.clock = "hybrid" if seed // 10 % 2 else "logical"
    return found


def kind_of(protocol: type[Protocol], seed: int) -> Scenario:
    """Plain; little history and small pieces; groups of five; a heavier load; many lost disks."""
    match seed % 5:
        case 0:
            return Scenario(protocol)
        case 1:
            return Scenario(protocol, timing=Timing(history=4, part_entries=2))
        case 2:
            return Scenario(protocol, groups=2, replicas=5)
        case 3:
            return Scenario(protocol, groups=2, workload=Workload(think_s=0.02, messages=300))
        case _:
            workload = Workload(think_s=0.5)
            return Scenario(protocol, 2, faults="wipe", timing=Timing(history=8), workload=workload)


def name(value: object) -> str:
    """Mutants of different protocols may have the same name."""
    short = getattr(value, "__name__", str(value))
    return f"Skeen-{short}" if getattr(value, "__module__", "") == skeen_mutants.__name__ else short


@pytest.mark.parametrize("mutant", RANDOM, ids=name)
def test_random_seeds_catch(mutant: type[Protocol]) -> None:
    for seed in SEEDS:
        outcome = simulate(scenario(mutant, seed), seed)
        # A mutant that merely crashes proves nothing, nor does a peer that rejects its messages.
        assert outcome.error is None or isinstance(outcome.error, PeerViolation)
        if outcome.violation is not None and outcome.error is None:
            if seed not in USUAL:  # which no other test tries
                intact = next(protocol for protocol in mutant.__mro__ if protocol in WHOLE)
                assert simulate(scenario(intact, seed), seed).violation is None
            return
    pytest.fail(f"{mutant.__name__} came through {len(SEEDS)} seeds")


@pytest.mark.parametrize("protocol", WHOLE, ids=name)
@pytest.mark.parametrize("seed", SEEDS if CAMPAIGN else USUAL)
def test_the_protocols_come_through_the_same_seeds(protocol: type[Protocol], seed: int) -> None:
    assert simulate(scenario(protocol, seed), seed).violation is None


@pytest.mark.parametrize(("schedule", "mutant"), DIRECTED, ids=name)
def test_schedule_catches(schedule: Schedule, mutant: type[Protocol]) -> None:
    assert schedules.play(schedule, mutant) is not None


@pytest.mark.parametrize(
    ("schedule", "protocol"),
    dict.fromkeys((schedule, protocol) for schedule, mutant in DIRECTED for protocol in whole(mutant)),
    ids=name,
)
def test_the_protocols_come_through_the_same_schedules(schedule: Schedule, protocol: type[Protocol]) -> None:
    assert schedules.play(schedule, protocol) is None


@pytest.mark.parametrize("protocol", WHOLE, ids=name)
@pytest.mark.parametrize(
    "schedule",
    [
        membership.replaced,
        membership.evicted,
        membership.not_needed,
        membership.two_disks,
        membership.back_on_a_new_disk,
    ],
    ids=name,
)
def test_members_come_and_go(schedule: Schedule, protocol: type[Protocol]) -> None:
    assert schedules.play(schedule, protocol) is None


@pytest.mark.parametrize("protocol", WHOLE, ids=name)
def test_what_a_snapshot_has_replaced_is_not_reported(protocol: type[Protocol]) -> None:
    assert schedules.play(schedules.executed_less_than_what_is_being_saved, protocol) is None


def test_every_mutant_is_on_trial() -> None:
    defined = {
        value
        for module in (mutants, skeen_mutants, everywhere_mutants, lie_mutants)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Protocol) and value.__module__ == module.__name__
    }
    tried = {base for mutant in [*RANDOM, *(mutant for _, mutant in DIRECTED)] for base in mutant.__mro__}
    assert defined <= tried
