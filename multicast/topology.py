"""Which groups exist, who is in them, and what a quorum of each is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from multicast.errors import InvalidArgument, PeerViolation
from multicast.types import GROUPS_MAX, Ballot, Destinations, GroupId, ReplicaId


class Configuration:
    """The members of one group during some ballots, and what makes a quorum of them."""

    __slots__ = ("bit", "group", "members", "number", "quorum")

    def __init__(self, group: GroupId, number: int, members: Iterable[ReplicaId]) -> None:
        self.group = group
        self.number = number
        self.members = tuple(members)
        self.quorum = len(self.members) // 2 + 1
        self.bit = {member: 1 << index for index, member in enumerate(self.members)}
        """Members as bits, so that a set of acknowledgements is one integer."""
        if not 0 <= group < GROUPS_MAX:
            raise InvalidArgument(f"group id {group} is not in 0..{GROUPS_MAX - 1}")
        if len(self.members) % 2 == 0:
            raise InvalidArgument(f"group {group} has {len(self.members)} members; it needs an odd number")
        if len(self.bit) != len(self.members):
            raise InvalidArgument(f"group {group} lists a member twice: {_names(self.members)}")
        if len({member.number for member in self.members}) != len(self.members):
            raise InvalidArgument(f"group {group} has two replicas of one number: {_names(self.members)}")
        for member in self.members:
            if member.group != group:
                raise InvalidArgument(f"{member} is listed in group {group}")

    def is_quorum(self, votes: int) -> bool:
        """Whether these members, as bits, are a quorum."""
        return votes.bit_count() >= self.quorum


class Topology:
    """All groups. Immutable; group ids are never reused."""

    def __init__(self, groups: Mapping[GroupId, Iterable[ReplicaId]]) -> None:
        if not groups:
            raise InvalidArgument("a topology needs at least one group")
        self.configurations = {
            group: Configuration(group, 0, members) for group, members in sorted(groups.items())
        }
        self.groups: Destinations = tuple(self.configurations)
        self.quorums = {group: c.quorum for group, c in self.configurations.items()}
        self.bits = {m: bit for c in self.configurations.values() for m, bit in c.bit.items()}
        """Every replica, as a bit among the members of its group."""
        self._checked: set[Destinations] = set()

    @classmethod
    def uniform(cls, groups: int, replicas: int, incarnation: int = 0) -> Topology:
        """Groups 0..groups-1 of the same size."""
        if groups < 1:
            raise InvalidArgument(f"groups must be at least 1, not {groups}")
        if replicas < 1:
            raise InvalidArgument(f"replicas must be at least 1, not {replicas}")
        return cls(
            {
                GroupId(g): [ReplicaId(GroupId(g), r, incarnation) for r in range(replicas)]
                for g in range(groups)
            }
        )

    def __contains__(self, replica: object) -> bool:
        return replica in self.bits

    def configuration(self, group: GroupId, number: int) -> Configuration:
        """The members of the group in ballots of this configuration."""
        found = self.configurations.get(group)
        if found is None:
            raise InvalidArgument(f"unknown group {group}; this topology has {_list(self.groups)}")
        if number != found.number:
            raise PeerViolation(f"unknown configuration {number} of group {group}")
        return found

    def members(self, group: GroupId) -> tuple[ReplicaId, ...]:
        """The members of the group."""
        return self.configuration(group, 0).members

    def check_ballot(self, group: GroupId, ballot: Ballot) -> None:
        """Raise unless a member of the group may lead this ballot."""
        if ballot.leader not in self.configuration(group, ballot.configuration).bit:
            raise PeerViolation(f"ballot {ballot} is led by nobody in group {group}")

    def preferred_leader(self, group: GroupId) -> ReplicaId:
        """Who tries to lead first, so that leaders spread over replica numbers."""
        members = self.members(group)
        return members[group % len(members)]

    def check_destinations(self, dest: Destinations) -> None:
        """Raise unless dest is a non-empty, strictly increasing tuple of known groups."""
        if dest in self._checked:
            return
        if not dest:
            raise InvalidArgument("a message needs at least one destination group")
        for group in dest:
            if group not in self.configurations:
                raise InvalidArgument(f"unknown group {group}; this topology has {_list(self.groups)}")
        if any(a >= b for a, b in itertools.pairwise(dest)):
            raise InvalidArgument(f"destinations must be strictly increasing: {_list(dest)}")
        if len(self._checked) < 4096:
            self._checked.add(dest)


def _names(members: Iterable[ReplicaId]) -> str:
    return ", ".join(map(str, members))


def _list(groups: Iterable[GroupId]) -> str:
    return ", ".join(map(str, groups))
