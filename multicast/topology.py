"""All groups, and their members as far as one process knows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from multicast.errors import InvalidArgument, PeerViolation, UnknownConfiguration
from multicast.membership import Configuration, Membership
from multicast.types import Ballot, Destinations, GroupId, ReplicaId


class Topology:
    """All groups, which are fixed, and what is known of their members, which grows.

    Group ids are never reused.
    """

    def __init__(
        self, groups: Mapping[GroupId, Iterable[ReplicaId]], addresses: Mapping[ReplicaId, str] | None = None
    ) -> None:
        if not groups:
            raise InvalidArgument("a topology needs at least one group")
        self.memberships: dict[GroupId, Membership] = {}
        """The newest known membership of each group."""
        self._configurations: dict[tuple[GroupId, int], Configuration] = {}
        self.replicas: set[ReplicaId] = set()
        """All members ever known, former ones included."""
        for group, members in sorted(groups.items()):
            listed = tuple(members)
            where = [] if addresses is None else [addresses[member] for member in listed]
            self._add(Membership(Configuration(group, 0, listed, where)))
        self.groups: Destinations = tuple(self.memberships)
        self._checked: set[Destinations] = set()

    @classmethod
    def uniform(cls, groups: int, replicas: int, incarnation: int = 0) -> Topology:
        """Return a topology of groups 0..groups-1 of the same size."""
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

    def copy(self) -> Topology:
        """Return a copy for a process that learns independently."""
        other = Topology({group: found.current.members for group, found in self.memberships.items()})
        other.memberships.update(self.memberships)
        other._configurations = dict(self._configurations)
        other.replicas = set(self.replicas)
        return other

    def __contains__(self, replica: object) -> bool:
        return replica in self.replicas

    def learn(self, membership: Membership) -> bool:
        """Take over a group's membership, unless it is stale. Return whether it is news."""
        known = self.membership(membership.group)
        if membership.version <= known.version:
            return False
        self._add(membership)
        return True

    def _add(self, membership: Membership) -> None:
        self.memberships[membership.group] = membership
        for configuration in (membership.previous, membership.current):
            if configuration is not None:
                self._configurations[configuration.group, configuration.number] = configuration
                self.replicas.update(configuration.members)

    def membership(self, group: GroupId) -> Membership:
        """Return the group's newest known membership."""
        found = self.memberships.get(group)
        if found is None:
            raise InvalidArgument(f"unknown group {group}; this topology has {_list(self.groups)}")
        return found

    def known(self, group: GroupId, number: int) -> Configuration | None:
        """Return the group's configuration of this number, or None if it is unknown here."""
        return self._configurations.get((group, number))

    def configurations(self, group: GroupId) -> list[Configuration]:
        """Return all known configurations of the group."""
        return [found for (of, _), found in self._configurations.items() if of == group]

    def configuration(self, group: GroupId, number: int) -> Configuration:
        """Return the group's configuration of this number, or raise `UnknownConfiguration`."""
        found = self.known(group, number)
        if found is None:
            self.membership(group)
            raise UnknownConfiguration(group, number)
        return found

    def members(self, group: GroupId) -> tuple[ReplicaId, ...]:
        """Return the known members of the group: during a change, those of both configurations."""
        return self.membership(group).everyone

    def check_ballot(self, group: GroupId, ballot: Ballot) -> None:
        """Raise unless a member of the group may lead this ballot."""
        if ballot.leader not in self.configuration(group, ballot.configuration).bit:
            raise PeerViolation(f"the leader of ballot {ballot} is not a member of group {group}")

    def preferred_leader(self, group: GroupId) -> ReplicaId:
        """Return the member that stands first, so that leaders are spread over replica numbers."""
        members = self.membership(group).current.members
        return members[group % len(members)]

    def check_destinations(self, dest: Destinations) -> None:
        """Raise unless dest is a non-empty, strictly increasing tuple of known groups."""
        if dest in self._checked:
            return
        if not dest:
            raise InvalidArgument("a message needs at least one destination group")
        for group in dest:
            if group not in self.memberships:
                raise InvalidArgument(f"unknown group {group}; this topology has {_list(self.groups)}")
        if any(a >= b for a, b in itertools.pairwise(dest)):
            raise InvalidArgument(f"destinations must be strictly increasing: {_list(dest)}")
        if len(self._checked) < 4096:
            self._checked.add(dest)


def _list(groups: Iterable[GroupId]) -> str:
    return ", ".join(map(str, groups))
