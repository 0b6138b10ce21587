"""Memberships: joint quorums meet those of both configurations, steps follow each other."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given

from multicast.errors import InvalidArgument, UnknownConfiguration
from multicast.membership import MEMBERS_MAX, Configuration, Membership
from multicast.topology import Topology
from multicast.types import GroupId, ReplicaId
from tests.unit.multicast.memberships import memberships
from tests.unit.multicast.replicas import EXAMPLES

G0 = GroupId(0)
R = [ReplicaId(G0, number, 0) for number in range(3)]
NEW = ReplicaId(G0, 2, 0xA)
FIRST = Membership(Configuration(G0, 0, R))
CHANGE = FIRST.replace(R[2], NEW, "elsewhere")
COMPLETE = CHANGE.completed()


def test_whoever_opens_a_ballot_in_a_change_meets_every_quorum_of_both_configurations() -> None:
    old = [set(quorum) for quorum in itertools.combinations(R, 2)]
    new = [set(quorum) for quorum in itertools.combinations([R[0], R[1], NEW], 2)]
    opened = 0
    for size in range(5):
        for some in itertools.combinations([*R, NEW], size):
            if CHANGE.agrees(some):
                opened += 1
                assert all(quorum & set(some) for quorum in [*old, *new])
    assert opened == 6
    assert not CHANGE.agrees([R[0], R[2]])
    assert not CHANGE.agrees([R[0], NEW])
    assert COMPLETE.agrees([R[0], NEW])
    assert not COMPLETE.agrees([R[0], R[2]])


def test_a_change_keeps_its_members_numbers_and_says_where_they_are() -> None:
    assert CHANGE.current.members == (R[0], R[1], NEW)
    assert CHANGE.current.addresses == ("", "", "elsewhere")
    assert CHANGE.everyone == (R[0], R[1], NEW, R[2])
    assert [m.version for m in (FIRST, CHANGE, COMPLETE)] == [1, 2, 3]
    assert [m.is_complete for m in (FIRST, CHANGE, COMPLETE)] == [True, False, True]


def test_a_step_counts_only_right_after_the_one_before_it() -> None:
    other = FIRST.replace(R[1], ReplicaId(G0, 1, 0xB), "")
    second = COMPLETE.replace(R[1], ReplicaId(G0, 1, 0xB), "")
    assert FIRST.after(CHANGE.encode()) == CHANGE
    assert CHANGE.after(COMPLETE.encode()) == COMPLETE
    assert COMPLETE.after(second.encode()) == second
    for now, step in [
        (FIRST, FIRST), (FIRST, COMPLETE), (FIRST, second),
        (CHANGE, CHANGE), (CHANGE, other), (CHANGE, second), (CHANGE, other.completed()), (CHANGE, FIRST),
        (COMPLETE, CHANGE), (COMPLETE, other), (COMPLETE, second.completed()),
    ]:  # fmt: skip
        assert now.after(step.encode()) is now
    assert FIRST.after(b"no step") is FIRST


def test_the_same_step_is_the_same_message_whoever_sends_it() -> None:
    assert CHANGE.mid == FIRST.replace(R[2], NEW, "elsewhere").mid
    assert CHANGE.mid != FIRST.replace(R[2], NEW, "here").mid
    assert CHANGE.mid.sequence == 2


@EXAMPLES
@given(memberships())
def test_every_membership_comes_back_as_it_was(membership: Membership) -> None:
    found = Membership.decode(membership.encode())
    assert found == membership
    assert found.version == membership.version
    assert found.everyone == membership.everyone


def rows(count: int) -> list[list[object]]:
    return [[number, 0, ""] for number in range(count)]


@pytest.mark.parametrize(
    "value",
    [
        None, 7, [], [0], [0, [0, rows(3)]], [0, None, None], [0, [0, rows(2)], None],
        [0, [0, [[0, 0, ""], [0, 1, ""], [1, 0, ""]]], None],
        [-1, [0, rows(3)], None], [1024, [0, rows(3)], None], [True, [0, rows(3)], None],
        [0, [-1, rows(3)], None], [0, [1.5, rows(3)], None], [0, ["1", rows(3)], None],
        [0, [0, [[0, 0, ""], [1, 0, ""], [2, 2**64, ""]]], None],
        [0, [0, [[0, 0, ""], [1, 0, ""], [2.0, 0, ""]]], None],
        [0, [0, [[0, 0, ""], [1, 0, ""], [2, 0, 5]]], None],
        [0, [0, [[0, 0, ""], [1, 0, ""], [2, 0, "x" * 256]]], None],
        [0, [0, rows(MEMBERS_MAX + 2)], None],
        [0, [2, rows(3)], [0, rows(3)]], [0, [1, rows(3)], [1, rows(3)]],
        {"group": 0}, "x",
    ],
    ids=lambda value: json.dumps(value)[:40],
)  # fmt: skip
def test_bytes_that_are_no_membership_are_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match="not a membership"):
        Membership.decode(json.dumps(value).encode())


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[", b"[" * 100_000, b"NaN"])
def test_bytes_that_are_no_json_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="not a membership"):
        Membership.decode(data)


def test_a_topology_learns_what_is_new_and_forgets_nothing() -> None:
    topology = Topology({G0: R})
    other = topology.copy()
    assert topology.learn(COMPLETE)
    assert not topology.learn(CHANGE)
    assert not topology.learn(COMPLETE)
    assert topology.members(G0) == (R[0], R[1], NEW)
    assert topology.configuration(G0, 0).members == tuple(R)
    assert {*R, NEW} == topology.replicas
    assert other.members(G0) == tuple(R)
    with pytest.raises(UnknownConfiguration, match="configuration 1 of group 0"):
        other.configuration(G0, 1)
    assert other.learn(CHANGE)
    assert other.members(G0) == (R[0], R[1], NEW, R[2])
