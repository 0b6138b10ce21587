from __future__ import annotations

from typing import Any

import pytest
from wbkv_pipeline.reporting.recovery import Crash, covered, crashes, figures

S = 1_000_000
STRETCHES = [{"begin_us": 0, "end_us": 30 * S}, {"begin_us": 20 * S, "end_us": 100 * S}]


def mark(at_s: float, name: str, group: int | None = None, node: str = "n1") -> dict[str, Any]:
    return {"at_us": round(at_s * S), "name": name, "group": group, "node": node, "scenario": ""}


def test_stretches_that_overlap_cover_one_piece_of_time() -> None:
    apart = [*STRETCHES, {"begin_us": 101 * S, "end_us": 102 * S}]
    assert list(covered(apart)) == [(0, 100 * S), (101 * S, 102 * S)]


def test_a_crash_is_looked_at_from_ten_seconds_before_it_to_a_minute_after() -> None:
    (crash,) = crashes([mark(35, "crash", 0), mark(37.5, "leader", 0, "n2")], STRETCHES)
    assert crash == Crash(1, 35 * S, 37_500_000, ("n1",), (0,), 25 * S, 95 * S)
    assert crash.leader_s == 2.5


def test_the_time_around_a_crash_has_no_warm_up_and_ends_with_the_requests() -> None:
    (crash,) = crashes([mark(5, "crash", 1)], STRETCHES, skip_us=2 * S)
    assert (crash.from_us, crash.to_us) == (2 * S, 65 * S)
    (late,) = crashes([mark(90, "crash", 1)], STRETCHES)
    assert late.to_us == 100 * S


def test_a_crash_without_groups_affects_those_that_get_new_leaders() -> None:
    marks = [mark(30, "crash"), mark(31, "leader", 2), mark(32, "leader", 0), mark(33, "leader", 0)]
    (crash,) = crashes(marks, STRETCHES)
    assert crash.groups == (0, 2)
    assert crash.leader_s == 2.0


def test_a_leader_is_not_there_before_all_affected_groups_have_one() -> None:
    marks = [mark(30, "crash", 1), mark(30.2, "crash", 2), mark(31, "leader", 1)]
    (crash,) = crashes(marks, STRETCHES)
    assert crash.groups == (1, 2)
    assert crash.leader_us is None
    assert crashes([*marks, mark(33, "leader", 2)], STRETCHES)[0].leader_s == 3.0


def test_a_later_crash_has_its_own_leader_and_its_own_time_before() -> None:
    marks = [mark(30, "crash", 1), mark(34, "leader", 1), mark(40, "crash", 1), mark(41, "leader", 1)]
    first, second = crashes(marks, STRETCHES)
    assert (first.leader_s, second.leader_s) == (4.0, 1.0)
    assert second.from_us == 34 * S


def test_a_crash_while_nothing_was_asked_is_none() -> None:
    assert crashes([mark(200, "crash", 1)], STRETCHES) == []


CRASH = Crash(1, 0, 2 * S, (), (1,), -4 * S, 12 * S)


def bins(throughput: list[float], before: int = 4) -> list[dict[str, Any]]:
    return [
        {
            "crash": 1,
            "series": "affected",
            "bin": index - before,
            "at_s": float(index - before),
            "throughput": each,
            "samples": 1,
            "p50_ms": 10.0,
            "max_ms": 20.0,
        }
        for index, each in enumerate(throughput)
    ]


@pytest.mark.parametrize(
    ("after", "recovered"),
    [
        ([0, 0, 0, 0, 0, 0, 100, 100, 100, 100], 6.0),
        ([100, 100, 100, 100, 100, 100, 100, 100], 0.0),
        ([0, 0, 0, 0, 0, 0, 0, 0], None),
        ([0, 0, 100, 0, 0, 0, 100, 100, 100], 6.0),  # one lucky bin is no recovery
        ([0, 0, 0, 300, 0, 0, 90, 90, 90], 3.0),  # a burst that makes up for what follows is
        ([100, 80, 100, 100, 100, 100, 100], 0.0),  # nor is one unlucky bin an outage
        ([89, 89, 89, 89, 90, 90, 90], 4.0),
    ],
)
def test_recovered_means_nine_tenths_of_what_was_before(after: list[float], recovered: float | None) -> None:
    (row,) = figures([CRASH], bins([100, 100, 100, 100, *after]))
    assert row["before"] == 100
    assert row["recovered_s"] == recovered
    assert row["cleared_s"] == (None if recovered is None else max(0.0, recovered - 2.0))
    assert row["lowest"] == min(after)
    assert not row["unsteady"]


def test_a_throughput_that_varies_before_the_crash_is_called_unsteady() -> None:
    (row,) = figures([CRASH], bins([20, 20, 20, 180, 180, 180, 0, 0, 180, 180, 180], before=6))
    assert row["unsteady"]


def test_without_enough_before_nothing_is_said_of_recovery() -> None:
    (row,) = figures([CRASH], bins([100, 0, 0, 100, 100, 100], before=1))
    assert row["recovered_s"] is None
