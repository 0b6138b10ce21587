"""Long work of all partitions of a node: one slice at a time, in turn, with pauses."""

from __future__ import annotations

import pytest

from kvstore.machine.slices import SLICE_ROWS
from kvstore.store.share import LEAST_ROWS, LOST_S, PAUSE_S, SLICE_S, Share
from multicast.types import GroupId

GROUPS = [GroupId(number) for number in range(3)]


class Clock:
    """A clock of which each slice takes some time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def slices(share: Share, clock: Clock, groups: list[GroupId], takes_s: float, until: float) -> list[GroupId]:
    """Turns of all partitions, which always have long work."""
    found = []
    while clock.now < until:
        for group in groups:
            if share.take(group, clock.now):
                found.append(group)
                clock.now += takes_s
                share.done(group, more=True)
        clock.now += PAUSE_S / 4
    return found


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("takes_s", [PAUSE_S / 2, 10 * PAUSE_S])
def test_partitions_take_turns_and_a_third_of_the_time_at_most(count: int, takes_s: float) -> None:
    clock = Clock()
    share = Share(clock)
    found = slices(share, clock, GROUPS[:count], takes_s, 1000 * PAUSE_S)
    assert found[1:][: 3 * count] == GROUPS[:count] * 3, "after the first, which is alone"
    assert 250 * min(PAUSE_S, takes_s) <= len(found) * takes_s <= 334 * PAUSE_S + takes_s


@pytest.mark.parametrize(("waited_for", "pause"), [(False, 2.0), (True, 0.5)])
def test_the_pause_is_shorter_while_others_wait(
    waited_for: bool,  # noqa: FBT001
    pause: float,
) -> None:
    clock = Clock()
    share = Share(clock)
    assert share.take(GROUPS[0], 0.0)
    clock.now = 100 * PAUSE_S
    share.done(GROUPS[0], more=True, waited_for=waited_for)
    assert share.at == pytest.approx(clock.now * (1 + pause))


def test_a_partition_without_long_work_is_passed_over() -> None:
    share = Share()
    first, second, third = GROUPS
    for group in GROUPS:
        share.take(group, 0.0)
    share.done(first, more=False)
    share.leave(second)
    assert share.take(third, PAUSE_S)
    share.done(third, more=False)
    assert share.take(first, 2 * PAUSE_S)


def test_a_partition_that_never_comes_does_not_hold_up_others() -> None:
    share = Share()
    first, second, _ = GROUPS
    share.take(second, 0.0)
    share.done(second, more=True)
    assert not share.take(first, PAUSE_S)
    assert share.take(first, 2 * LOST_S)


@pytest.mark.parametrize("row_s", [SLICE_S / 100, 4 * SLICE_S / SLICE_ROWS])
def test_a_slice_has_as_many_rows_as_take_a_millisecond(row_s: float) -> None:
    clock = Clock()
    share = Share(clock)
    for _ in range(20):
        clock.now = share.at
        assert share.take(GROUPS[0], clock.now)
        rows = share.rows
        clock.now += rows * row_s
        share.done(GROUPS[0], more=True, rows=rows)
    assert share.rows * row_s == pytest.approx(SLICE_S, rel=0.02)


def test_few_or_slow_rows_do_not_stop_long_work() -> None:
    clock = Clock()
    share = Share(clock)
    for rows, takes_s in ((LEAST_ROWS - 1, 1.0), *[(LEAST_ROWS, 1.0)] * 20):
        clock.now = share.at
        assert share.take(GROUPS[0], clock.now)
        clock.now += takes_s
        share.done(GROUPS[0], more=True, rows=rows)
        if rows < LEAST_ROWS:
            assert share.rows == SLICE_ROWS, "too few to tell"
    assert share.rows == LEAST_ROWS
