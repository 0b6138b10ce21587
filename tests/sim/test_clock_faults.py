"""Wrong clocks among the random faults, directed schedules of clocks, and sabotages that they catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from kvstore.simulation import scenario_of
from multicast import PROTOCOLS
from multicast.protocol import Protocol, Timing
from multicast.sim import Scenario, Simulation, Workload, simulate
from multicast.types import TICKS_PER_S, GroupId, ReplicaId
from multicast.whitebox import WhiteBox
from tests.campaigns import CAMPAIGN
from tests.sim import clock_mutants as mutants
from wbkv_sim import simulate_store

TIMING: Final = Timing(anchor_s=1.0, clock_step_s=5.0)
SEEDS: Final = range(40 if CAMPAIGN else 8)
HOUR_S: Final = 3600.0


def scenario(protocol: type[Protocol], faults: str, seed: int = 0) -> Scenario:
    groups, replicas = [(2, 3), (1, 5), (3, 3), (2, 1)][seed % 4]
    workload = Workload(clients=3, messages=90, window=2)
    return Scenario(
        protocol, groups, replicas, faults=faults, clock="hybrid", timing=TIMING, workload=workload
    )


@pytest.mark.parametrize("name", ["whitebox", "ftskeen", "fastcast"] if CAMPAIGN else ["whitebox", "ftskeen"])
@pytest.mark.parametrize("faults", ["clock", "clocks"])
def test_timestamps_stay_within_their_bounds(name: str, faults: str) -> None:
    for seed in SEEDS if CAMPAIGN else range(4):
        assert simulate(scenario(PROTOCOLS[name], faults, seed), seed).violation is None, seed


@pytest.mark.parametrize("faults", ["clock", "clocks"])
@pytest.mark.parametrize("workload", ["bank", "append"])
def test_the_store_executes_once_and_strictly_with_any_clocks(faults: str, workload: str) -> None:
    timing = Timing(history=6, part_entries=4, anchor_s=3.0, clock_step_s=50.0)
    for seed in SEEDS if CAMPAIGN else range(1):
        found = simulate_store(scenario_of(faults, timing=timing), seed, workload)
        assert found.violation is None, seed


@pytest.mark.parametrize(
    ("mutant", "faults"),
    [
        (mutants.UsesItsOwnClock, "clock"),
        (mutants.FollowsTheHighestClock, "clock"),
        (mutants.HasNoAnchor, "clocks"),
    ],
)
def test_random_seeds_catch_it(mutant: type[Protocol], faults: str) -> None:
    for seed in range(16):
        found = simulate(scenario(mutant, faults, seed), seed)
        if found.violation is not None:
            assert found.violation.startswith("Time"), found.violation
            assert simulate(scenario(WhiteBox, faults, seed), seed).violation is None
            return
    pytest.fail(f"{mutant.__name__} came through all seeds")


def test_random_seeds_catch_a_gateway_that_raises_what_is_unconfirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvstore.store.application.Gateway", mutants.RaisesWhatIsUnconfirmed)
    for seed in range(8):
        found = simulate_store(scenario_of("clock"), seed, "bank")
        if found.violation is not None:
            assert found.violation.startswith("Time"), found.violation
            monkeypatch.undo()
            assert simulate_store(scenario_of("clock"), seed, "bank").violation is None
            return
    pytest.fail("it came through all seeds")


# Directed schedules: the group's lead over the true time, in seconds


class Story:
    """A group of three under a steady load, whose clocks a schedule sets."""

    def __init__(self, protocol: type[Protocol], timing: Timing) -> None:
        workload = Workload(clients=2, messages=6000, window=2, think_s=0.02)
        self.simulation = Simulation(
            Scenario(
                protocol, 1, 3, faults="none", clock="hybrid", wall_skew_s=0.0, skew=0.0, timing=timing,
                workload=workload, checkers=False,
            ), 1,
        )  # fmt: skip
        self.members = self.simulation.topology.members(GroupId(0))
        self.simulation.start()
        self.run(1.0)

    def run(self, seconds: float) -> None:
        self.simulation.run_until(lambda: False, self.simulation.loop.now + seconds)

    def step(self, member: ReplicaId, by_s: float) -> None:
        clock = self.simulation.wall_clock(member)
        assert clock is not None
        clock.step(by_s)

    @property
    def leader(self) -> ReplicaId:
        return next(m for m, host in self.simulation.hosts.items() if host.replica and host.replica.is_leader)

    @property
    def lead_s(self) -> float:
        leader: Any = self.simulation.hosts[self.leader].replica
        return float(leader.clock / TICKS_PER_S - 1000.0 - self.simulation.loop.now)


def one_after_the_other(protocol: type[Protocol]) -> float:
    """At any time, and in any half second, one clock is wrong: first a follower's, then its leader's."""
    story = Story(protocol, Timing())
    follower = next(m for m in story.members if m != story.leader)
    story.step(follower, HOUR_S)
    story.run(0.5)
    story.simulation.hosts[follower].crash()
    story.step(follower, -HOUR_S)
    story.run(1.0)
    story.step(story.leader, HOUR_S)
    story.run(1.0)
    return story.lead_s


def elected_with_a_wrong_clock(protocol: type[Protocol]) -> float:
    """A replica whose clock is an hour ahead leads again and again, and finds requests that wait for it."""
    story = Story(protocol, Timing())
    wrong, other = [m for m in story.members if m != story.leader]
    story.step(wrong, HOUR_S)
    for _ in range(6):
        for member in (wrong, other):
            story.simulation.hosts[member].nominate()
            story.run(0.3)
    return story.lead_s


def a_majority_that_steps_again_and_again(protocol: type[Protocol]) -> float:
    """All clocks jump by a little less than a step, as often as anchors move: not for more than a step."""
    story = Story(protocol, Timing(anchor_s=0.2, clock_step_s=5.0))
    for _ in range(12):
        for member in story.members:
            story.step(member, 4.5)
        story.run(1.2)
    return story.lead_s - 5.0 - 2 * story.simulation.loop.now


def restarted_in_another_time(protocol: type[Protocol]) -> float:
    """All stop; when they start again, all clocks are far ahead."""
    story = Story(protocol, Timing(clock_step_s=5.0))
    for host in story.simulation.hosts.values():
        host.crash()
    for member in story.members:
        story.step(member, HOUR_S)
    for host in story.simulation.hosts.values():
        host.start()
    story.run(0.1)
    # The one that is ahead leads: a snapshot would tell it the anchor again.
    max(story.simulation.hosts.values(), key=lambda host: len(host.log)).nominate()
    story.run(3.0)
    return story.lead_s - 5.0 - 2 * story.simulation.loop.now


@pytest.mark.parametrize(
    ("schedule", "mutant"),
    [
        (elected_with_a_wrong_clock, mutants.UsesItsOwnClockUntilCompared),
        (one_after_the_other, mutants.CountsStaleReports),
        (a_majority_that_steps_again_and_again, mutants.LetsTheAnchorJump),
        (restarted_in_another_time, mutants.ForgetsItsAnchor),
    ],
)
def test_a_schedule_catches_it(schedule: Callable[[type[Protocol]], float], mutant: type[Protocol]) -> None:
    assert schedule(WhiteBox) < 1.0
    assert schedule(mutant) > 10.0


def test_a_group_that_was_off_for_long_serves() -> None:
    """It counts on, and says so."""
    story = Story(WhiteBox, Timing(anchor_s=0.2, clock_step_s=5.0))
    for host in story.simulation.hosts.values():
        host.crash()
    for member in story.members:
        story.step(member, HOUR_S)  # as if it had been off for an hour
    for host in story.simulation.hosts.values():
        host.start()
    story.run(2.0)
    leader: Any = story.simulation.hosts[story.leader].replica
    before = len(story.simulation.hosts[story.leader].log)
    story.run(1.0)
    assert len(story.simulation.hosts[story.leader].log) > before + 10
    assert leader.time_of_day()["held"]
