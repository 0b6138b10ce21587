"""What delays come to: the paper's figures where all are δ; and what a model adds where messages meet."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.load import Plan
from benchmarks.paper import modelled, predicted
from benchmarks.paper.claims import PAPER_DELAYS
from benchmarks.paper.clusters import led_by
from benchmarks.paper.curves import MIDDLE
from benchmarks.paper.predicted import Area
from benchmarks.paper.tables import AREA, TOGETHER
from kvstore.config.model import Config

EVEN = Area(((1, 1, 1), (1, 1, 1), (1, 1, 1)))
"""All that is said takes δ, also within a region."""


@pytest.mark.parametrize("protocol", predicted.PROTOCOLS)
@pytest.mark.parametrize("dest", [2, 4, 10])
def test_with_equal_delays_it_is_the_papers_latency_and_the_way_back(protocol: str, dest: int) -> None:
    alone, _ = PAPER_DELAYS[protocol]
    assert predicted.latency(protocol, EVEN, 0, range(dest)) == alone + 1


@pytest.mark.parametrize("protocol", predicted.PROTOCOLS)
def test_to_one_group_all_are_the_same(protocol: str) -> None:
    assert predicted.latency(protocol, EVEN, 0, [5]) == 4
    # To the leader in the second region and back, and from there to the nearest other and back.
    assert predicted.latency(protocol, AREA, 0, [1]) == 60 + 60
    assert predicted.latency(protocol, AREA, 2, [2]) == 75


def test_two_groups_by_hand() -> None:
    """From the first region to the groups led in the first (at 0 ms) and the second (at 30 ms)."""
    dest = [0, 1]
    # ACCEPTs: all replicas have both after 60 (first), 30 (second) and 67.5 ms (third region). The first
    # leader hears the second region after 60, the second the first region after 90: 120 with the way back.
    assert predicted.latency("whitebox", AREA, 0, dest) == 120
    # Local timestamps are decided after 60 and 90, so known to the first leader after 120; 60 for the clock.
    assert predicted.latency("ftskeen", AREA, 0, dest) == 180
    # PROPOSE is at the first leader after 60, and its clock is decided after 120: when confirmation comes.
    assert predicted.latency("fastcast", AREA, 0, dest) == 120
    # With the third region instead, confirmation (140 + 65) comes after the clock's consensus (130 + 60).
    assert predicted.commits("fastcast", AREA, {0: 0, 2: 65}) == {0: 205, 2: 140}


def test_leaders_together_exchange_nothing_that_takes_long() -> None:
    # To the second region and back, and from there to the nearest other and back: once, or twice.
    assert predicted.latency("whitebox", TOGETHER, 0, [0, 1, 2]) == 60 + 60
    assert predicted.latency("fastcast", TOGETHER, 0, [0, 1, 2]) == 60 + 60
    assert predicted.latency("ftskeen", TOGETHER, 0, [0, 1, 2]) == 60 + 2 * 60


def test_groups_can_be_placed_so_that_one_node_leads_all() -> None:
    plan = Plan(groups=10)
    groups = led_by(plan, MIDDLE)
    assert groups is not None
    config = Config.local(3, 10, 3, "nowhere", application="multicast", clock="logical", groups=groups)
    for group in config.groups:
        assert sorted(config.groups[group]) == ["n1", "n2", "n3"]
        assert config.placement[config.topology.preferred_leader(group)] == "n2"
    assert led_by(plan, None) is None


@pytest.mark.parametrize("protocol", predicted.PROTOCOLS)
def test_the_model_agrees_where_messages_do_not_meet(protocol: str) -> None:
    model = modelled.Model(protocol, AREA, groups=10, dest=4, clients=1)
    model.run(20_000)
    assert len(model.finished) > 50
    for message in model.finished:
        expected = predicted.latency(protocol, AREA, 0, message.dest)
        assert message.answered - message.began == pytest.approx(expected)


@pytest.mark.parametrize("protocol", predicted.PROTOCOLS)
def test_messages_that_meet_take_longer_but_not_longer_than_the_papers_worst_case(protocol: str) -> None:
    delta = max(map(max, AREA.delays))
    worst = (PAPER_DELAYS[protocol][1] + 1) * delta  # with the way back
    model = modelled.Model(protocol, AREA, groups=4, dest=2, clients=30)
    model.run(5_000)
    waits = []
    for message in model.finished:
        took = message.answered - message.began
        waits.append(took - predicted.latency(protocol, AREA, message.client % 3, message.dest))
        assert took <= worst
    assert min(waits) == pytest.approx(0)
    assert statistics.fmean(waits) > 5


def test_leaders_deliver_in_one_order() -> None:
    model = modelled.Model("whitebox", AREA, groups=4, dest=2, clients=20)
    model.run(5_000)
    positions = [message.position for message in model.finished]
    assert len(set(positions)) == len(positions) > 100
