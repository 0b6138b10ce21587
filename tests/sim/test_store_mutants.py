"""Every sabotage of the store is caught by random seeds or a schedule; the store comes through both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pytest
from wbkv.core.locks import Holding

from kvstore.machine import Machine
from kvstore.node.snapshots import SnapshotTransfers
from kvstore.simulation import StoreCluster
from kvstore.simulation.disk import SimStoreDisk
from kvstore.store.feeds import MergedFeed
from kvstore.store.gate import Gate
from kvstore.store.gateway import Gateway
from kvstore.store.hub import Hub
from kvstore.store.partition import Partition
from kvstore.store.reads import FeedQueue
from multicast.errors import InvariantBroken, PeerViolation
from multicast.sim.checkers import Violation
from tests.campaigns import CAMPAIGN
from tests.sim import abort_mutants
from tests.sim import store_mutants as mutants
from tests.sim import store_schedules as schedules
from wbkv_sim import scenario_of, simulate_store

SEEDS: Final = range(24)
"""Random seeds within which a mutant without a schedule of its own must be caught."""

PLACES: Final[list[tuple[type, object, str]]] = [
    (Machine, "kvstore.store.application.Machine", ""),
    (Gate, "kvstore.store.partition.Gate", ""),
    (Partition, "kvstore.store.application.Partition", ""),
    (Gateway, "kvstore.store.application.Gateway", ""),
    (MergedFeed, "kvstore.store.hub.MergedFeed", ""),
    (Hub, "kvstore.store.watches.Hub", ""),
    (FeedQueue, "kvstore.store.partition.FeedQueue", ""),
    (Holding, "wbkv.aio.lock.Holding", ""),
    (SnapshotTransfers, "kvstore.node.loop.SnapshotTransfers", ""),
    (SimStoreDisk, StoreCluster, "disk_type"),
    (object, StoreCluster, "application_type"),
]
"""Where each kind of part is taken from."""


@pytest.fixture(autouse=True)
def _close_stages() -> Iterator[None]:
    yield
    while schedules.STAGES:
        schedules.STAGES.pop().close()


def sabotage(monkeypatch: pytest.MonkeyPatch, mutant: type[Any]) -> None:
    for kind, where, name in PLACES:
        if issubclass(mutant, kind):
            if isinstance(where, str):
                monkeypatch.setattr(where, mutant)
            else:
                monkeypatch.setattr(where, name, mutant)
            return


RANDOM: Final = [
    (mutants.EvaluatesAtDelivery, "bank", "all"),
    (mutants.ExecutesInTheOrderOfVotes, "bank", "all"),
    (mutants.CompactsPastPins, "bank", "all"),
    (mutants.ExecutesAgain, "bank", "all"),
    (mutants.IgnoresDeadlines, "append", "all"),
    (mutants.ForgetsOutcomes, "register", "all"),
    (mutants.FeedOfTheFastest, "append", "none"),
    (mutants.HubForgetsWhoIsBehind, "append", "all"),
    # Those that need many seeds.
    *[(mutants.OneAppliedPosition, "register", "all")] * CAMPAIGN,
    *[(mutants.SessionsCommitLater, "bank", "all")] * CAMPAIGN,
    *[(mutants.ForgetsTheRest, "bank", "none")] * CAMPAIGN,
    (mutants.ForgetsWhatWasClosed, "register", "all"),
    (mutants.CompleteWhenItLeaves, "register", "all"),
    (mutants.WatermarkPassesWhatRuns, "ranges", "none"),
    (mutants.ReleasesLocksEarly, "ranges", "none"),
    (mutants.HoldsFromTheAnswer, "recipes", "all"),
    (abort_mutants.ForgetsAborts, "ledger", "all"),
    (abort_mutants.TriesAtDelivery, "ledger", "all"),
]


@pytest.mark.parametrize(
    ("mutant", "workload", "faults"), RANDOM, ids=lambda value: getattr(value, "__name__", value)
)
def test_random_seeds_catch_it(
    mutant: type[Any], workload: str, faults: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch, mutant)
    for seed in SEEDS:
        outcome = simulate_store(scenario_of(faults), seed, workload)
        if outcome.violation is not None:
            broken = isinstance(
                outcome.error, InvariantBroken | PeerViolation
            )  # facts that contradict others
            assert outcome.error is None or broken, "it just breaks down"
            monkeypatch.undo()
            assert simulate_store(scenario_of(faults), seed, workload).violation is None
            return
    pytest.fail(f"{mutant.__name__} came through {len(SEEDS)} seeds")


aborts_on_a_path = partial(schedules.falling_path, aborts=True)
after_a_change = partial(schedules.falling_path, changes_leader=True)
over_four_groups = partial(schedules.falling_path, hops=2)

DIRECTED: Final[list[tuple[type[Any], Callable[[], object]]]] = [
    (mutants.NoGate, schedules.falling_path),
    (abort_mutants.AbortsSkipTheGate, aborts_on_a_path),
    (mutants.RepeatsPassTheGate, schedules.falling_path),
    (mutants.ExecutedIsEnough, schedules.falling_path),
    (mutants.OneLevel, over_four_groups),
    (mutants.NewLeaderInheritsNothing, after_a_change),
    (mutants.HearsAnyVote, schedules.a_vote_of_another_group),
    (mutants.HearsAnyOutcome, schedules.an_outcome_of_another_group),
    (mutants.ReadsDoNotWait, schedules.strict_reads_wait),
    (mutants.ReadsTheLatest, schedules.reads_at_any_replica_are_of_one_revision),
    (mutants.ServesWhatIsNotComplete, schedules.reads_at_any_replica_are_of_one_revision),
    (mutants.RefusesOnce, schedules.a_refusal_is_heard),
    (mutants.AnnouncesToOldLeaders, schedules.new_leaders_find_each_other),
    (mutants.TooBusyToRepeat, schedules.a_busy_gateway_repeats),
    (mutants.NoBallotCheck, schedules.a_deposed_leader_does_not_answer),
    (mutants.NeverRepeatsAPiece, schedules.a_snapshot_goes_on),
    (mutants.CutsByTheClock, schedules.a_cut_is_below_what_follows),
    (mutants.HubStartsInTheMiddle, schedules.a_hub_starts_in_the_middle),
]


@pytest.mark.parametrize(("mutant", "schedule"), DIRECTED, ids=lambda value: getattr(value, "__name__", ""))
def test_its_schedule_catches_it(
    mutant: type[Any], schedule: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch, mutant)
    with pytest.raises(Violation):
        schedule()


def name_of(schedule: Any) -> str:
    return getattr(schedule, "__name__", "") or f"{schedule.func.__name__}, {schedule.keywords}"


@pytest.mark.parametrize("schedule", {schedule: None for _, schedule in DIRECTED}, ids=name_of)
def test_the_store_comes_through_the_schedules(schedule: Callable[[], object]) -> None:
    schedule()
