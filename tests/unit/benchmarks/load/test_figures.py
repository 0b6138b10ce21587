"""From latencies to figures: histograms, rounds, medians and their spread, and the table for people."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path

import pytest

from benchmarks.load import Plan
from benchmarks.load.command import table
from benchmarks.load.histogram import Histogram
from benchmarks.load.measuring import summary
from benchmarks.load.tally import Samples, Tally
from benchmarks.load.worker import Report


def histogram(latencies_s: list[float]) -> Histogram:
    found = Histogram()
    for each in latencies_s:
        found.add(each)
    return found


@pytest.mark.parametrize("scale_s", [1e-5, 1e-4, 1e-3, 0.1, 10.0, 1000.0])
def test_percentiles_are_exact_to_one_percent(scale_s: float) -> None:
    rng = random.Random(3)
    latencies = [rng.lognormvariate(0.0, 1.0) * scale_s for _ in range(5000)]
    found = histogram(latencies)
    exact = sorted(latencies)
    for percent in (0.1, 10.0, 50.0, 90.0, 99.0, 99.9, 100.0):
        wanted = exact[round(percent * len(exact) / 100) - 1]
        assert found.percentile_s(percent) == pytest.approx(wanted, rel=0.01, abs=1e-7)
    assert found.mean_s == pytest.approx(statistics.fmean(latencies))
    assert found.max_s == exact[-1]
    assert found.count == 5000


def test_extreme_latencies_do_no_harm() -> None:
    found = histogram([0.0, -1e-9, 1e9])
    assert found.percentile_s(50) < 1e-6
    assert found.percentile_s(100) > 1e5
    assert math.isnan(Histogram().percentile_s(50))
    assert math.isnan(Histogram().mean_s)


def test_histograms_travel_and_add_up() -> None:
    rng = random.Random(4)
    parts = [[rng.expovariate(100.0) for _ in range(500)] for _ in range(3)]
    merged = Histogram()
    for part in parts:
        merged.merge(Histogram.load(json.loads(json.dumps(histogram(part).dump()))))
    whole = histogram([each for part in parts for each in part])
    assert merged.dump() == pytest.approx(whole.dump())
    assert merged.count == whole.count == 1500


def test_rounds_are_counted_by_ends_and_open_loops_latencies_by_starts() -> None:
    closed, open_ = (Tally(10.0, 2.0, 2, by_start=by_start) for by_start in (False, True))
    ended = [(9.0, 9.9), (9.0, 10.5), (11.0, 12.5), (13.0, 13.5), (13.9, 14.5)]
    for tally in (closed, open_):
        for start, end in ended:
            tally.ended(start, end, (0,), None)
        assert tally.answered == [1, 2]
    assert [each.count for each in closed.latencies] == [1, 2]
    assert [each.count for each in open_.latencies] == [1, 2]
    assert closed.latencies[0].max_s == 1.5
    assert open_.latencies[0].max_s == 1.5
    assert closed.latencies[1].total_s == 2.0
    assert open_.latencies[1].total_s == pytest.approx(1.1)


def test_errors_of_the_warm_up_are_apart() -> None:
    tally = Tally(10.0, 2.0, 1, by_start=False)
    for end, kind in ((9.0, "early"), (11.0, "OutcomeUnknown"), (99.0, "unanswered")):
        tally.ended(8.0, end, (0,), kind)
    assert tally.warm_up_errors == {"early": 1}
    assert tally.errors == {"OutcomeUnknown": 1, "unanswered": 1}
    assert tally.answered == [0]


def test_samples_have_a_row_for_each_message(tmp_path: Path) -> None:
    with Samples(tmp_path, 3, wall_s=1000.0) as samples:
        tally = Tally(10.0, 1.0, 1, by_start=False, samples=samples)
        tally.ended(9.5, 9.75, (0, 7), None)
        tally.ended(10.0, 12.5, (2,), "unanswered")
    assert (tmp_path / "samples-3.csv").read_text().splitlines() == [
        "start_us,end_us,process,groups,outcome",
        "1009500000,1009750000,3,0 7,ok",
        "1010000000,1012500000,3,2,unanswered",
    ]


def report(answered: list[int], latencies_s: list[list[float]], **errors: int) -> Report:
    return Report(answered, [histogram(each).dump() for each in latencies_s], errors, {}, 1, 2)


def test_figures_are_medians_over_rounds_with_their_spread() -> None:
    plan = Plan(rounds=3, seconds=2.0, processes=2, clients=4, rate=7.0)
    errors: list[dict[str, int]] = [{"Unavailable": 1}, {"Unavailable": 2, "TimeoutError": 1}]
    heard = [report([100, 10, 40], [[0.01] * 9, [0.03] * 9, [0.02] * 9], **each) for each in errors]
    spent = [
        {"n1": 1.0, "n2": 1.0, "clients": 0.0},
        {"n1": 1.2, "n2": 1.4, "clients": 0.1},
        {"n1": 1.3, "clients": 0.2},
        {"n1": 1.4, "clients": 0.3},
    ]
    found = summary(plan, heard, spent, 5)
    assert found.throughput_rounds == [100.0, 10.0, 40.0]
    assert found.throughput == 40.0
    assert found.latency_ms["p50"] == pytest.approx(20.0, rel=0.01)
    assert found.latency_ms["mean"] == pytest.approx(20.0)
    assert found.latency_spread_ms["max"] == pytest.approx((10.0, 30.0))
    assert (found.errors, found.errors_by_kind) == (4, {"Unavailable": 3, "TimeoutError": 1})
    assert (found.late, found.unsent, found.messages) == (2, 4, 300)
    # A node that was killed meanwhile has no figure.
    assert found.cpu_us == pytest.approx({"n1": 1250.0, "clients": 1250.0, "all": 2500.0})
    shown = table(found)
    assert "messages/s" in shown
    assert "errors: TimeoutError 1, Unavailable 3" in shown
    assert "sent late: 2, not sent: 4" in shown
    said = json.loads(json.dumps(found.as_json()))
    assert said["latency_ms"].keys() == {"mean", "p50", "p90", "p99", "max"}


def test_nothing_answered_is_no_figure() -> None:
    plan = Plan(rounds=1)
    found = summary(plan, [report([0], [[]], unanswered=7)], [{"n1": 1.0}, {"n1": 2.0}], 5)
    assert found.throughput == 0.0
    assert found.as_json()["latency_ms"]["p50"] is None
    assert found.as_json()["cpu_us"] == {"n1": None, "all": None}
    assert "nan" in table(found)
