"""What is logged of wrong clocks, and the clock of a node."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kvstore.node.clock_watch import LOOK_S, ClockWatch
from kvstore.node.wall_clock import EPOCH_S, TEST_CLOCKS, wall_clock
from multicast.types import GroupId, ReplicaId

LEADER = ReplicaId(GroupId(3), 0, 0)


def test_a_wrong_clock_is_logged_when_it_goes_wrong_and_when_it_is_right_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    watch = ClockWatch()
    for wrong in ({}, {"g3r1": 86_400.0}, {"g3r1": 86_401.0}, {"g3r1": 86_401.0, "g3r2": -7.0}, {}):
        watch.look(LEADER, {"held": False, "wrong": wrong})
    said = [record.getMessage() for record in caplog.records]
    assert [line[:41] for line in said] == [
        "the clock of g3r1 is 86400.0 s ahead of t",
        "the clock of g3r2 is 7.0 s behind the tim",
        "the clock of g3r1 agrees with its group a",
        "the clock of g3r2 agrees with its group a",
    ]


def test_a_time_that_is_held_back_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    watch = ClockWatch()
    for held in (False, True, True, False):
        watch.look(LEADER, {"held": held, "wrong": {}})
    watch.look(LEADER, {})
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "quorum of group 3 are too far ahead" in said[0]
    assert "wbkv clock accept" in said[0]
    assert said[1] == "revisions of group 3 follow the time of day again"


def test_it_looks_now_and_then() -> None:
    watch = ClockWatch()
    assert [watch.is_due(now) for now in (0.0, 0.5 * LOOK_S, LOOK_S, 1.5 * LOOK_S, 2.5 * LOOK_S)] == [
        True, False, True, False, True
    ]  # fmt: skip


def test_a_test_may_shift_a_nodes_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: EPOCH_S + 50.0)
    assert wall_clock("n1")() == 50.0
    monkeypatch.setenv(TEST_CLOCKS, str(tmp_path))
    clock = wall_clock("n1")
    assert clock() == 50.0
    (tmp_path / "n1").write_text("-7.5")
    assert clock() == 42.5
    assert wall_clock("n2")() == 50.0
    (tmp_path / "n1").unlink()
    assert clock() == 50.0
