"""The scrubber's pace, and what it reports."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from kvstore.storage.errors import DamagedRow
from kvstore.store.scrubber import GAP_S, Scrubber
from multicast.types import GroupId

G0, G1 = GroupId(0), GroupId(1)
STEP = 200


class Disk:
    """Groups with so many rows, of which some are bad."""

    def __init__(self, rows: dict[GroupId, int], bad: dict[GroupId, int] | None = None) -> None:
        self.groups = rows
        self.bad = bad or {}
        self.checked: list[GroupId] = []

    def rows(self) -> int:
        return sum(self.groups.values())

    def check_rows(self, group: GroupId) -> Iterator[int]:
        for start in range(0, self.groups[group], STEP):
            if start <= self.bad.get(group, -1) < start + STEP:
                raise DamagedRow(f"row {self.bad[group]}")
            self.checked.append(group)
            yield min(STEP, self.groups[group] - start)


def run(scrubber: Scrubber, disk: Any, until: float, now: float = 0.0) -> tuple[list[Any], list[float]]:
    found, times = [], []
    while max(now, scrubber.wake_at) <= until:
        now = max(now, scrubber.wake_at)
        times.append(now)
        damage = scrubber.step(sorted(disk.groups), now)
        if damage is not None:
            found.append(damage)
    return found, times


def test_a_pass_takes_as_long_as_it_should_and_the_next_follows() -> None:
    disk: Any = Disk({G0: 10_000, G1: 30_000})
    scrubber = Scrubber(disk, 1000.0, 0.0)
    run(scrubber, disk, 900.0)
    assert scrubber.passes == 0
    assert 0.85 < scrubber.status(900.0)["rows"] / disk.rows() < 0.95
    run(scrubber, disk, 1050.0, 900.0)
    assert scrubber.passes == 1
    assert len(disk.checked) >= 200
    status = scrubber.status(1050.0)
    assert status["last_rows"] == disk.rows()
    assert 0 <= status["ended_s_ago"] < 60
    run(scrubber, disk, 2100.0, 1050.0)
    assert scrubber.passes == 2


def test_a_huge_state_is_read_in_steps_that_leave_time() -> None:
    disk: Any = Disk({G0: 100_000_000})
    scrubber = Scrubber(disk, 10.0, 0.0)
    _, times = run(scrubber, disk, 10.0)
    assert all(after - before >= 0.99 * GAP_S for before, after in itertools.pairwise(times))
    assert scrubber.passes == 0


def test_a_small_state_is_not_read_again_and_again() -> None:
    disk: Any = Disk({G0: 3})
    scrubber = Scrubber(disk, 100.0, 0.0)
    run(scrubber, disk, 1000.0)
    assert 9 <= scrubber.passes <= 11


def test_damage_in_one_group_does_not_hide_that_in_another() -> None:
    disk: Any = Disk({G0: 10_000, G1: 10_000}, {G0: 500, G1: 9_999})
    scrubber = Scrubber(disk, 100.0, 0.0)
    found, _ = run(scrubber, disk, 110.0)
    assert [group for group, _ in found][:2] == [G0, G1]
    status = scrubber.status(110.0)
    assert status["found"] >= 2
    assert "row 9999" in status["findings"]


@pytest.mark.parametrize("pass_s", [0.0, 36_000.0])
def test_an_operator_gets_a_pass_at_once(pass_s: float) -> None:
    disk: Any = Disk({G0: 10_000, G1: 10_000})
    scrubber = Scrubber(disk, pass_s, 0.0)
    run(scrubber, disk, 50.0)
    assert scrubber.passes == 0
    wanted = scrubber.hurry(50.0)
    run(scrubber, disk, 60.0, 50.0)
    assert scrubber.passes == wanted
    assert scrubber.status(60.0)["last_rows"] == 20_000
    run(scrubber, disk, 100.0, 60.0)
    assert scrubber.passes == wanted


def test_there_may_be_no_group_yet() -> None:
    disk: Any = Disk({})
    scrubber = Scrubber(disk, 10.0, 0.0)
    run(scrubber, disk, 100.0)
    assert scrubber.passes == 0
    disk.groups = {G0: 5}
    run(scrubber, disk, 120.0, 100.0)
    assert scrubber.passes > 0
