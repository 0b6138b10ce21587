"""Hybrid clocks shorten the convoy: whatever reaches a leader late gets a late timestamp by itself.

The bound of docs/convoy.md: with clocks that lead all wall clocks by at most b ticks, a leader delivers m
after less than CFL + min(C, δ + skew + (b + 1) ticks), where skew is by how much the fastest wall clock
anywhere is ahead of this leader's.
"""

from __future__ import annotations

import random
from functools import cache

import pytest

from multicast import PROTOCOLS, VARIANTS
from multicast.errors import InvalidArgument
from multicast.process import Replica
from multicast.sim.delays import DELTA_S, TICK, Experiment, Latency, Measured, measure
from multicast.sim.wall_clocks import WALL_S
from multicast.types import TICKS_PER_S
from multicast.whitebox import WhiteBox
from tests.paper.bench import A, B, C

ALL = PROTOCOLS | VARIANTS


@cache
def measured(name: str, skew: float | None) -> Measured:
    return measure(ALL[name], grid=1, skew=skew)


@pytest.mark.parametrize("skew", [0, 0.25, 0.5, 1, 3])
def test_the_worst_case_is_four_delays_plus_skew(skew: float) -> None:
    it = measure(WhiteBox, grid=2, skew=skew)
    worst = min(5, 4 + skew)
    assert it.collision_free == Latency(3, 4)
    assert it.failure_free == Latency(worst, worst + 1)
    assert it.worst_arrivals == (worst - 3, worst - 2)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("skew", [0, 0.3, 1.7])
def test_every_protocol_gains(name: str, skew: float) -> None:
    """FFL = CFL + min(C, δ + skew), whatever the protocol: all issue local timestamps after a δ."""
    paper, it = measured(name, None), measured(name, skew)
    assert it.theorem_holds
    assert it.collision_free == paper.collision_free
    worst = paper.collision_free.leader + min(paper.clock_update, 1 + skew)
    assert it.failure_free.leader == pytest.approx(worst, abs=TICK)


def deliver(walls: tuple[float, ...], rival: float, burst: int = 0) -> Experiment:
    """Let m' reach A's leader at a time, and B's δ later; and let a burst reach B's leader just before m."""
    experiment = Experiment(WhiteBox, 2, 3, walls)
    for _ in range(burst):
        experiment.conflict((1.0,), (B,))
    experiment.conflict((rival, rival + 1))
    experiment.multicast()
    experiment.rest()
    return experiment


@pytest.mark.parametrize("skew", [0.25, 0.5])
def test_clocks_round_down_to_a_tick(skew: float) -> None:
    """What comes in the same tick as the clock passes m still precedes m, in the tick after it does not."""
    late = 1 + skew + 0.9 * TICK
    assert deliver((0, skew), late).latency(at_leaders=True) == pytest.approx(late + 3)
    assert deliver((0, skew), 1 + skew + TICK).latency(at_leaders=True) == 3


@pytest.mark.parametrize("skew", [0, 0.25])
def test_a_burst_runs_ahead_of_the_time(skew: float) -> None:
    """More messages than ticks: B counts on by one, and m's timestamp is from the future by as many ticks."""
    late = 1 + skew + 50 * TICK
    assert deliver((0, skew), late, burst=50).latency(at_leaders=True) == pytest.approx(late + 3)
    assert deliver((0, skew), late + 2 * TICK, burst=50).latency(at_leaders=True) == 3


def test_a_clock_that_was_raised_is_ahead_until_the_time_is() -> None:
    """A client has seen a revision that B's leader would issue after 1.25δ: m gets one above it."""
    experiment = Experiment(WhiteBox, 2, 3, walls=(0, 0))
    replica = experiment.hosts[experiment.leaders[1]].replica
    assert isinstance(replica, WhiteBox)
    replica.raise_clock(int((experiment.loop.now + WALL_S + 1.25 * DELTA_S) * TICKS_PER_S))
    experiment.conflict((1.25, 2.25))
    experiment.multicast()
    experiment.rest()
    assert experiment.latency(at_leaders=True) == 4.25


def test_only_those_behind_wait_for_skew() -> None:
    """The leader with the fastest wall clock delivers after 4δ, however slow the others are."""
    for quarter in range(13):
        experiment = Experiment(WhiteBox, 2, 3, walls=(0, 0.75))
        experiment.conflict((quarter / 4 + 1, quarter / 4))
        experiment.multicast()
        experiment.rest()
        assert experiment.latency_at(experiment.leaders[1]) <= 4


def test_a_third_group_skews_two_others() -> None:
    """B's clock is raised by that of C, 1.5δ ahead, with what goes to both. Then m goes to A and B, whose
    wall clocks agree.
    """
    experiment = Experiment(WhiteBox, 3, 3, walls=(0, 0, 1.5))
    experiment.conflict((0.0, 0.0), (B, C))
    experiment.conflict((1.5, 2.5), (A, B))
    experiment.loop.at(experiment.loop.now + DELTA_S / 4, experiment.multicast, b"m", None, (A, B))
    experiment.rest()
    assert experiment.latency_at(experiment.leaders[0]) == 4.25


def attack(seed: int) -> tuple[Experiment, tuple[float, ...], int]:
    """Multicast m to two or three groups with any wall clocks, and up to six rivals at any time."""
    rng = random.Random(f"hybrid {seed}")
    groups = rng.choice((2, 3))
    walls = tuple(rng.choice((0, 0, rng.random(), 0.5)) for _ in range(groups))
    experiment = Experiment(WhiteBox, groups, 3, walls)
    rivals = rng.randint(1, 6)
    for _ in range(rivals):
        dest = sorted(rng.sample(experiment.topology.groups, rng.randint(1, groups)))
        sent = rng.choice((rng.uniform(-2, 3), 0.5, max(walls)))
        # Each leader hears it at once, as late as it can, or at any time between.
        delays = [rng.choice((0.0, 1.0, rng.random())) for _ in dest]
        experiment.conflict([max(0.0, sent + delay) for delay in delays], dest)
    experiment.multicast(arrivals=[rng.choice((1.0, rng.random())) for _ in walls])
    experiment.rest()
    return experiment, walls, rivals


def excess(seed: int) -> float:
    """By how much the latency of the attack's m is above the bound at the worst of its leaders."""
    experiment, walls, rivals = attack(seed)
    return max(
        experiment.latency_at(leader) - 3 - min(2, 1 + max(walls) - wall + (rivals + 1) * TICK)
        for leader, wall in zip(experiment.leaders, walls, strict=True)
    )


def test_random_attacks_do_not_pass_the_bound() -> None:
    assert max(map(excess, range(100))) <= 1e-9


def test_followers_deliver_a_delay_after_their_leaders() -> None:
    for seed in range(20):
        experiment, _, _ = attack(seed)
        for leader in experiment.leaders:
            for follower in set(experiment.topology.members(leader.group)) - {leader}:
                assert experiment.latency_at(follower) <= experiment.latency_at(leader) + 1


def test_the_attacks_find_a_clock_that_ignores_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: with logical clocks, the bound of hybrid ones does not hold."""
    monkeypatch.setattr(Replica, "quorum_time", lambda self: 0)
    assert any(excess(seed) > 0.1 for seed in range(100))


def test_wall_clocks_are_for_all_groups() -> None:
    with pytest.raises(InvalidArgument, match="one entry for each of 2 groups, not 3"):
        Experiment(WhiteBox, 2, 3, walls=(0, 0, 0))
    for skew in (-0.5, 41, float("nan")):
        with pytest.raises(InvalidArgument, match="skew must be from 0 to 40 δ"):
            measure(WhiteBox, skew=skew)
