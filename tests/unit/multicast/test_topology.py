"""Topologies: every malformed one is refused by name, and quorums intersect."""

from __future__ import annotations

import itertools

import pytest

from multicast.errors import InvalidArgument, PeerViolation
from multicast.membership import Configuration
from multicast.topology import Topology
from multicast.types import GROUPS_MAX, Ballot, Destinations, GroupId, ReplicaId


def member(group: int, number: int, incarnation: int = 0) -> ReplicaId:
    return ReplicaId(GroupId(group), number, incarnation)


def members(group: int, count: int) -> list[ReplicaId]:
    return [member(group, number) for number in range(count)]


G0, G1 = GroupId(0), GroupId(1)


@pytest.mark.parametrize(
    ("groups", "named"),
    [
        pytest.param({}, "at least one group", id="no groups"),
        pytest.param({0: members(0, 2)}, "group 0 has 2 members", id="even"),
        pytest.param({0: members(0, 4)}, "group 0 has 4 members", id="four"),
        pytest.param({5: []}, "group 5 has 0 members", id="empty group"),
        pytest.param(
            {0: [member(0, 0), member(0, 1), member(0, 1)]},
            "group 0 lists a member twice: g0r0, g0r1, g0r1",
            id="member twice",
        ),
        pytest.param(
            {0: members(0, 3), 1: [member(1, 0), member(0, 1), member(1, 2)]},
            "g0r1 is listed in group 1",
            id="member of another group",
        ),
        pytest.param(
            {0: [member(0, 0), member(0, 1, 0xA), member(0, 1, 0xB)]},
            "two replicas of one number: g0r0, g0r1#a, g0r1#b",
            id="two replicas of one number",
        ),
        pytest.param({GROUPS_MAX: members(GROUPS_MAX, 3)}, f"group id {GROUPS_MAX} is not in", id="too high"),
        pytest.param({-1: members(-1, 3)}, "group id -1 is not in", id="negative"),
    ],
)
def test_a_malformed_topology_is_refused_by_name(groups: dict[int, list[ReplicaId]], named: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Topology({GroupId(group): listed for group, listed in groups.items()})
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("groups", "replicas", "named"),
    [
        (0, 3, "groups must be at least 1, not 0"),
        (-1, 3, "not -1"),
        (2, 0, "replicas must be at least 1, not 0"),
    ],
)
def test_a_uniform_topology_needs_groups_and_replicas(groups: int, replicas: int, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        Topology.uniform(groups, replicas)


def test_the_highest_group_id_is_allowed() -> None:
    group = GroupId(GROUPS_MAX - 1)
    assert Topology({group: members(group, 3)}).groups == (group,)


@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_quorums_are_the_smallest_sets_that_always_intersect(size: int) -> None:
    configuration = Configuration(G0, 0, members(0, size))
    quorums: list[set[int]] = []
    others: list[set[int]] = []
    for chosen in itertools.product((False, True), repeat=size):
        bits = sum(1 << index for index in range(size) if chosen[index])
        everyone = set(range(size))
        voters = {index for index in range(size) if chosen[index]}
        # The slow, obvious version: more than half.
        obvious = 2 * len(voters) > len(everyone)
        assert configuration.is_quorum(bits) == obvious
        (quorums if configuration.is_quorum(bits) else others).append(voters)
    assert all(one & other for one in quorums for other in quorums)
    assert configuration.quorum == min(map(len, quorums))
    # Any minority may be down: its complement is a quorum.
    assert all(set(range(size)) - voters in quorums for voters in others)


def test_every_member_has_its_own_bit() -> None:
    configuration = Configuration(G0, 0, members(0, 5))
    assert sorted(configuration.bit.values()) == [1, 2, 4, 8, 16]
    assert Topology.uniform(2, 5).configuration(G0, 0).bit == configuration.bit


def test_who_is_in_the_topology() -> None:
    topology = Topology.uniform(2, 3)
    assert member(1, 2) in topology
    assert member(1, 3) not in topology
    assert member(2, 0) not in topology
    assert member(1, 2, incarnation=1) not in topology
    assert 7 not in topology
    assert topology.groups == (G0, G1)
    assert topology.members(G1) == tuple(members(1, 3))


def test_groups_are_ordered_however_they_were_given() -> None:
    topology = Topology({G1: members(1, 1), G0: members(0, 1)})
    assert topology.groups == (G0, G1)


def test_preferred_leaders_are_members_and_spread() -> None:
    topology = Topology.uniform(6, 3)
    leaders = [topology.preferred_leader(group) for group in topology.groups]
    assert [leader.group for leader in leaders] == list(topology.groups)
    assert sorted(leader.number for leader in leaders) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("dest", "named"),
    [
        ((), "at least one destination"),
        ((0, 3), "unknown group 3; this topology has 0, 1"),
        ((-1,), "unknown group -1"),
        ((1, 0), "strictly increasing: 1, 0"),
        ((0, 0), "strictly increasing: 0, 0"),
        ((0, 1, 1), "strictly increasing: 0, 1, 1"),
    ],
)
def test_malformed_destinations_are_refused_each_time(dest: tuple[int, ...], named: str) -> None:
    topology = Topology.uniform(2, 3)
    destinations: Destinations = tuple(map(GroupId, dest))
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=named):
            topology.check_destinations(destinations)


def test_good_destinations_pass_each_time() -> None:
    topology = Topology.uniform(3, 1)
    for dest in [(0,), (1,), (0, 2), (0, 1, 2)] * 2:
        topology.check_destinations(tuple(map(GroupId, dest)))


def test_unknown_groups_and_configurations_are_named() -> None:
    topology = Topology.uniform(2, 3)
    with pytest.raises(InvalidArgument, match="unknown group 9; this topology has 0, 1"):
        topology.members(GroupId(9))
    with pytest.raises(PeerViolation, match="unknown configuration 4 of group 1"):
        topology.configuration(G1, 4)


def test_a_ballot_must_be_led_by_a_member_in_a_known_configuration() -> None:
    topology = Topology.uniform(2, 3)
    topology.check_ballot(G1, Ballot(1, member(1, 2), 0))
    with pytest.raises(PeerViolation, match="the leader of ballot b1@g1r3 is not a member of group 1"):
        topology.check_ballot(G1, Ballot(1, member(1, 3), 0))
    with pytest.raises(PeerViolation, match="the leader of ballot b1@g1r2#1 is not a member of group 1"):
        topology.check_ballot(G1, Ballot(1, member(1, 2, 1), 0))
    with pytest.raises(PeerViolation, match="the leader of ballot b1@g0r0 is not a member of group 1"):
        topology.check_ballot(G1, Ballot(1, member(0, 0), 0))
    with pytest.raises(PeerViolation, match="unknown configuration 1 of group 1"):
        topology.check_ballot(G1, Ballot(1, member(1, 2), 1))
    with pytest.raises(InvalidArgument, match="unknown group 9"):
        topology.check_ballot(GroupId(9), Ballot(1, member(1, 0), 0))
