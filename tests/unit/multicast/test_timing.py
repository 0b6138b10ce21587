"""Time-outs and bounds that cannot work are refused by name."""

from __future__ import annotations

import dataclasses

import pytest

from multicast.errors import InvalidArgument
from multicast.protocol import Timing

NAMES = [item.name for item in dataclasses.fields(Timing)]


@pytest.mark.parametrize("name", NAMES)
def test_a_negative_value_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} must be positive, not -1"):
        Timing(**{name: -1})


@pytest.mark.parametrize("name", [name for name in NAMES if name != "history"])
def test_zero_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} must be positive, not 0"):
        Timing(**{name: 0})


def test_a_replica_may_keep_no_history() -> None:
    assert Timing(history=0).history == 0


def test_elections_are_slower_than_two_heartbeats() -> None:
    with pytest.raises(
        InvalidArgument, match=r"election_s \(0.39\) must be at least twice heartbeat_s \(0.2\)"
    ):
        Timing(heartbeat_s=0.2, election_s=0.39)
    assert Timing(heartbeat_s=0.2, election_s=0.4).election_s == 0.4
