"""Bins and recovery times from planted messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.load import Sample, read_samples
from benchmarks.paper.bins import BIN_S, bins, figures, split
from benchmarks.paper.recovery import AFFECTED

CRASH_US = 1_700_000_000_000_000
BEFORE_S, AFTER_S = 3.0, 6.0


def steady(from_s: float, to_s: float, every_ms: int, *groups: int, latency_ms: int = 50) -> list[Sample]:
    """Messages that are answered at this pace, at times counted from the crash."""
    found = []
    for at_ms in range(round(from_s * 1000), round(to_s * 1000), every_ms):
        end_us = CRASH_US + at_ms * 1000
        found.append(Sample(end_us - latency_ms * 1000, end_us, groups))
    return found


OK_BEFORE = steady(-BEFORE_S, 0.0, 10)
HELD_UP = steady(0.5, 0.6, 2) + steady(0.6, AFTER_S, 10)


def test_bins_count_answers_and_average_latency_by_begin() -> None:
    samples = steady(-BEFORE_S, AFTER_S, 10, 1, 2)
    found = bins(samples, CRASH_US, BEFORE_S, AFTER_S)
    assert [row["at_s"] for row in found] == [round(BIN_S * n, 3) for n in range(-10, 20)]
    assert {round(row["throughput"], 6) for row in found} == {100.0}
    assert {row["mean_ms"] for row in found[1:-1]} == {50.0}


def test_latency_belongs_to_the_bin_in_which_a_message_began() -> None:
    late = Sample(CRASH_US + 100_000, CRASH_US + 2_100_000, (3,))
    found = {row["at_s"]: row for row in bins([late], CRASH_US, 0.0, 3.0)}
    assert (found[0.0]["throughput"], found[0.0]["mean_ms"]) == (0.0, 2000.0)
    assert (found[2.1]["throughput"], found[2.1]["mean_ms"]) == (pytest.approx(1 / BIN_S), None)


def test_messages_are_split_by_the_group_that_lost_its_leader() -> None:
    with_it, without = Sample(0, 1, (1, AFFECTED)), Sample(0, 1, (1, 2))
    found = split([with_it, without], AFFECTED)
    assert found == {"affected": [with_it], "others": [without], "clients": [with_it, without]}


def test_throughput_before_and_at_its_lowest() -> None:
    found = figures(OK_BEFORE + steady(1.5, AFTER_S, 10), CRASH_US, BEFORE_S, AFTER_S)
    assert found["before"] == pytest.approx(100)
    assert found["lowest"] == 0


RECOVERIES = {
    "throughput is back, and stays": (steady(1.5, AFTER_S, 10), 0.0, pytest.approx(1.5, abs=0.1)),
    "a short burst is not a recovery": (
        steady(0.6, 0.9, 10) + steady(2.4, AFTER_S, 10), 0.0, pytest.approx(2.4, abs=0.1),
    ),
    # A second that begins with silence and ends with a flood has enough messages, but it is not back yet.
    "nor is the silence before a burst": (
        steady(1.5, 2.0, 4) + steady(2.0, AFTER_S, 10), 0.0, pytest.approx(1.5, abs=0.2),
    ),
    # What was held up fills the bin in which it is answered, though nothing was when that began.
    "nothing is back before there is a leader": (HELD_UP, 0.52, 0.6),
    "nine tenths are enough": (steady(1.0, AFTER_S, 11), 0.0, pytest.approx(1.0, abs=0.15)),
    "eight are not": (steady(1.0, AFTER_S, 12), 0.0, None),
    "without a gap it has recovered at once": (steady(0.0, AFTER_S + 1, 10), 0.0, 0.0),
}  # fmt: skip


@pytest.mark.parametrize(("after", "leader_s", "recovered_s"), RECOVERIES.values(), ids=RECOVERIES)
def test_recovered_is_when(after: list[Sample], leader_s: float, recovered_s: float | None) -> None:
    found = figures(OK_BEFORE + after, CRASH_US, BEFORE_S, AFTER_S, leader_s)
    assert found["recovered_s"] == recovered_s


def test_without_a_leader_a_burst_looks_like_a_recovery() -> None:
    assert figures(OK_BEFORE + HELD_UP, CRASH_US, BEFORE_S, AFTER_S)["recovered_s"] < 0.5


def test_the_longest_latency_is_of_what_the_crash_may_have_touched() -> None:
    before = Sample(CRASH_US - 2_900_000, CRASH_US - 100_000, (3,))
    across = Sample(CRASH_US - 100_000, CRASH_US + 900_000, (3,))
    found = figures([before, across], CRASH_US, BEFORE_S, AFTER_S)
    assert found["worst_ms"] == 1000.0


def test_samples_are_read_from_the_files_of_all_processes(tmp_path: Path) -> None:
    head = "start_us,end_us,process,groups,outcome\n"
    (tmp_path / "samples-0.csv").write_text(head + "1,2,0,3 4 5,ok\n5,9,0,1,unanswered\n")
    (tmp_path / "samples-1.csv").write_text(head + "3,4,1,0,ok\n")
    assert read_samples(tmp_path) == [Sample(1, 2, (3, 4, 5)), Sample(3, 4, (0,))]
