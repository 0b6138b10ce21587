"""The convoy effect against the rate of messages: between the two latencies of the paper, and how."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from multicast import PROTOCOLS, VARIANTS
from multicast.errors import InvalidArgument
from multicast.messages import AcceptAck
from multicast.sim.checkers import Violation
from multicast.sim.convoy import Convoy, ConvoyLoad, Curve, Point, Summary, curve, fluid, study
from multicast.sim.delays import Latency, measure
from multicast.skeen import FtSkeen
from multicast.types import GroupId, ReplicaId, time_of
from multicast.whitebox import Entry, WhiteBox
from tests.sim.mutants import DeliveryIgnoresAccepted, NoClockUpdateOnAccept

ALL = PROTOCOLS | VARIANTS
RARE = 0.001
"""Messages per δ: a message seldom meets another."""


@cache
def uneven(name: str) -> Curve:
    loads = [ConvoyLoad(rate=rate, workload="uneven", messages=40) for rate in (RARE, 2)]
    return curve(ALL[name], loads, seeds=1)


@pytest.mark.parametrize("name", ALL)
def test_every_message_is_between_the_two_latencies(name: str) -> None:
    assert uneven(name).strays() == []


@pytest.mark.parametrize("name", ALL)
def test_lone_messages_take_the_collision_free_latency(name: str) -> None:
    it = uneven(name)
    rare = it.points[0]
    assert rare.leader.mean == rare.leader.max == it.collision_free.leader
    assert it.collision_free.follower is None or rare.follower is not None
    assert rare.follower is None or rare.follower.mean == it.collision_free.follower


@pytest.mark.parametrize("name", ALL)
def test_convoys_come_close_to_the_failure_free_latency(name: str) -> None:
    it = uneven(name)
    assert it.points[1].leader.max > it.failure_free.leader - 1


@pytest.mark.parametrize("workload", ["pair", "random"])
def test_other_workloads_stay_within_bounds(workload: str) -> None:
    it = curve(WhiteBox, [ConvoyLoad(rate=2, workload=workload, messages=80)], seeds=1)
    assert it.strays() == []
    assert it.collision_free.leader < it.points[0].leader.mean < it.failure_free.leader - 1


def test_leaders_that_see_the_same_order_hold_nothing_back() -> None:
    """Equal links, the same destinations, the same clocks: both leaders issue the same timestamps."""
    it = curve(WhiteBox, [ConvoyLoad(rate=4, links="equal", messages=50)], seeds=1)
    assert it.points[0].leader.min == it.points[0].leader.max == 3


@pytest.mark.parametrize(
    ("protocol", "workload"), [(WhiteBox, "pair"), (WhiteBox, "uneven"), (FtSkeen, "uneven")]
)
def test_the_mean_is_what_the_analysis_says(protocol: type[WhiteBox | FtSkeen], workload: str) -> None:
    bounds = measure(protocol, grid=1)
    it = curve(protocol, [ConvoyLoad(rate=6, workload=workload, messages=200)], seeds=1, checkers=False)
    expected = fluid(workload, bounds.collision_free.leader, bounds.clock_update, rate=6)
    assert it.points[0].leader.mean == pytest.approx(expected, abs=0.12)


def test_hybrid_clocks_shorten_convoys() -> None:
    load = ConvoyLoad(rate=3, workload="uneven", messages=50)
    logical, hybrid, skewed = (curve(WhiteBox, [load], seeds=1, skew=skew) for skew in (None, 0, 0.5))
    assert [it.failure_free.leader for it in (logical, hybrid, skewed)] == [5, 4, 4.5]
    assert not hybrid.strays() + skewed.strays()
    means = [it.points[0].leader.mean for it in (hybrid, skewed, logical)]
    assert means == sorted(means)
    assert hybrid.points[0].leader.max <= 4.01 < skewed.points[0].leader.max
    assert skewed.points[0].leader.max <= 4.51 < logical.points[0].leader.max


class LateClock(WhiteBox):
    """The clock passes a message when it is committed, not when it is accepted: safe, but a delay later."""

    def _accept(self, run: Sequence[Entry], repeated: GroupId | None) -> None:
        clock = self.clock
        super()._accept(run, repeated)
        if self.is_leader:
            self.clock = clock

    def on_accept_ack(self, sender: ReplicaId, message: AcceptAck) -> None:
        super().on_accept_ack(sender, message)
        done = [entry.global_ts for entry in map(self.entries.get, message.mids) if entry is not None]
        self.clock = max(self.clock, time_of(max(done))) if done else self.clock


@pytest.mark.parametrize("mutant", [LateClock, NoClockUpdateOnAccept])
def test_a_clock_that_advances_late_is_seen(mutant: type[WhiteBox]) -> None:
    """Invariants of the protocol would see it at once, so they are not asked."""
    load = ConvoyLoad(rate=2, workload="uneven", messages=80)
    it = curve(mutant, [load], seeds=1, checkers=False)
    as_whitebox = dataclasses.replace(it, failure_free=measure(WhiteBox, grid=1).failure_free)
    assert it.collision_free == Latency(3, 4)
    assert it.points[0].leader.max > 5.5
    assert [stray.partition(":")[0] for stray in as_whitebox.strays()] == [
        "rate 2, leaders",
        "rate 2, followers",
    ]


def test_runs_are_checked_for_order() -> None:
    with pytest.raises(Violation, match="Ordering"):
        curve(DeliveryIgnoresAccepted, [ConvoyLoad(rate=4, messages=100)], seeds=1, checkers=False)


def test_a_replica_that_delivers_less_is_found() -> None:
    run = Convoy(WhiteBox, ConvoyLoad(rate=1, messages=5))
    run.run_load()
    follower = run.topology.members(run.leaders[0].group)[-1]
    run.hosts[follower].log.pop()
    with pytest.raises(Violation, match="has delivered less than its group"):
        run.check()


def test_orders_that_contradict_each_other_are_found() -> None:
    run = Convoy(WhiteBox, ConvoyLoad(rate=1, messages=5), margin=1)
    run.run_load()
    sequence = run.order.sequences[run.leaders[0].group]
    sequence[:2] = sequence[1::-1]
    with pytest.raises(Violation, match="no total order exists"):
        run.check()


def test_the_same_seed_gives_the_same_run() -> None:
    load = ConvoyLoad(rate=2, workload="random", messages=20)
    first, again, other = (Convoy(WhiteBox, load, seed=seed, margin=1) for seed in (1, 1, 2))
    assert first.run_load() == again.run_load() != other.run_load()
    assert first.trace == again.trace != other.trace


def test_summaries() -> None:
    it = Summary.of([[3.0] * 98 + [4.0, 5.0], [3.5] * 100])
    assert (it.min, it.p50, it.p99, it.max) == (3.0, 3.5, 3.5, 5.0)
    assert it.mean == pytest.approx((3.03 + 3.5) / 2)
    assert it.error == pytest.approx((3.5 - 3.03) / 2)


def test_strays_below_are_found_too() -> None:
    low = Summary(2.9, 0.0, 2.5, 3.0, 3.0, 3.0)
    it = Curve(Latency(3, None), Latency(5, None), (Point(0.5, 10, low, None, 0),))
    assert it.strays() == ["rate 0.5, leaders: from 2.5δ to 3δ, not 3δ to 5δ"]
    assert it.as_json()["strays"] == it.strays()


def test_the_study_is_drawn_with_its_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.convoy_plot import main

    def report(name: str, **options: object) -> str:
        low, high = Summary(3, 0, 3, 3, 3, 3), Summary(4, 0, 3, 4, 4.5, 4.75)
        points = (Point(0.1, 10, low, None, 0), Point(1, 10, high, None, 0))
        worst = 5 if options["clock"] == "logical" else 4.5
        it = Curve(Latency(3, None), Latency(worst, None), points).as_json()
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"workload": "uneven", "protocols": {"whitebox": it}} | options))
        return str(path)

    out = tmp_path / "convoy.svg"
    logical, hybrid = (
        report("logical", clock="logical", skew=None),
        report("hybrid", clock="hybrid", skew=0.5),
    )
    assert main([logical, hybrid, "--out", str(out)]) == 0
    assert {"3δ", "5δ", "4.5δ", "WbCast", "hybrid, skew 0.5δ"} <= set(
        re.findall(">([^<>]+)</text>", out.read_text())
    )
    with pytest.raises(SystemExit):
        main([hybrid, "--out", str(out)])
    assert "no file has logical clocks" in capsys.readouterr().err


def test_bad_loads_are_refused() -> None:
    for rate in (0, -1, 101, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match=r"rate must be from 0\.0001 to 100 "):
            ConvoyLoad(rate=rate)
    with pytest.raises(InvalidArgument, match="unknown workload 'triple'; choose pair or uneven or random"):
        ConvoyLoad(rate=1, workload="triple")
    with pytest.raises(InvalidArgument, match="unknown links 'slow'; choose unequal or equal"):
        ConvoyLoad(rate=1, links="slow")
    with pytest.raises(InvalidArgument, match="messages must be at least 1"):
        ConvoyLoad(rate=1, messages=0)
    with pytest.raises(InvalidArgument, match="seeds must be at least 1"):
        list(study({"whitebox": WhiteBox}, [ConvoyLoad(rate=1)], seeds=0))
    with pytest.raises(InvalidArgument, match="no formula for the workload 'random'"):
        fluid("random", 3, 2, 1)
