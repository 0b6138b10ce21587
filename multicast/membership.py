"""The members of a group over time: configurations, and the steps from one to the next.

A group starts in configuration 0. A change takes two steps. Both are messages that the group orders for
itself, so that all its replicas see the same steps in the same order:

1. the next configuration becomes *current*, while the one before it, the *previous*, still counts: a
   candidate needs promises from a quorum of both to open a ballot;
2. the change is *complete*: only the current configuration counts. The group orders this step once a quorum
   of the current configuration has durably executed everything that the previous one may have forgotten.

Versions count these steps, and a step counts only right after the one before it: so there is one change at a
time. The content of a version is a fact, decided once: a process that learns it, in any way, may rely on it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any, Final

from multicast.errors import InvalidArgument
from multicast.types import GROUPS_MAX, ClientId, GroupId, MessageId, ReplicaId, digest_of

MEMBERSHIP: Final = ClientId(0)
"""The client id under which groups multicast these steps; no client has it."""

MEMBERS_MAX: Final = 99
ADDRESS_MAX: Final = 255
_NUMBER_MAX: Final = 2**63 - 1
_INCARNATION_MAX: Final = 2**64 - 1


class Configuration:
    """The members of one group during some ballots, and what makes a quorum of them."""

    __slots__ = ("addresses", "bit", "group", "members", "number", "quorum")

    def __init__(
        self, group: GroupId, number: int, members: Iterable[ReplicaId], addresses: Iterable[str] = ()
    ) -> None:
        self.group = group
        self.number = number
        self.members = tuple(members)
        self.addresses = tuple(addresses) or ("",) * len(self.members)
        """The address of each member, opaque to all but hosts."""
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
        if len(self.addresses) != len(self.members):
            raise InvalidArgument(f"group {group}: {len(self.members)} members at {self.addresses}")
        if len(self.members) > MEMBERS_MAX or max(map(len, self.addresses)) > ADDRESS_MAX:
            limits = f"more than {MEMBERS_MAX} members, or an address over {ADDRESS_MAX} characters"
            raise InvalidArgument(f"group {group} has {limits}")

    def is_quorum(self, votes: int) -> bool:
        """Return whether these members, as bits, are a quorum."""
        return votes.bit_count() >= self.quorum

    def has_quorum(self, replicas: Collection[ReplicaId]) -> bool:
        """Return whether these replicas include a quorum."""
        return sum(member in replicas for member in self.members) >= self.quorum

    def address_of(self, member: ReplicaId) -> str:
        """Return the member's address, as far as known."""
        return self.addresses[self.members.index(member)]

    def replace(self, old: ReplicaId, new: ReplicaId, address: str) -> Configuration:
        """Return the next configuration, with `new` instead of `old`."""
        found = [
            (new, address) if member == old else (member, known)
            for member, known in zip(self.members, self.addresses, strict=True)
        ]
        return Configuration(self.group, self.number + 1, [m for m, _ in found], [a for _, a in found])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Configuration({self.group}, {self.number}, [{_names(self.members)}])"

    def _key(self) -> tuple[object, ...]:
        """Addresses are left out: for a while, different processes may know different ones."""
        return self.group, self.number, self.members


class Membership:
    """The newest configuration of a group, and the previous one for as long as it counts too."""

    __slots__ = ("current", "everyone", "previous", "version")

    def __init__(self, current: Configuration, previous: Configuration | None = None) -> None:
        if previous is not None and (previous.group, previous.number) != (current.group, current.number - 1):
            raise InvalidArgument(f"{previous} does not come before {current}")
        self.current = current
        self.previous = previous
        self.version = 2 * current.number + (previous is None)
        old = () if previous is None else previous.members
        self.everyone = (*current.members, *(m for m in old if m not in current.bit))
        """All members that count: of the current configuration, then of the previous one."""

    @property
    def group(self) -> GroupId:
        """The group whose membership this is."""
        return self.current.group

    @property
    def is_complete(self) -> bool:
        """Whether the last change is complete: only the current configuration counts."""
        return self.previous is None

    def agrees(self, replicas: Collection[ReplicaId]) -> bool:
        """Return whether promises of these replicas suffice to open a ballot of the current configuration."""
        return self.current.has_quorum(replicas) and (
            self.previous is None or self.previous.has_quorum(replicas)
        )

    def completed(self) -> Membership:
        """Return the membership once the change is complete."""
        return Membership(self.current)

    def replace(self, old: ReplicaId, new: ReplicaId, address: str) -> Membership:
        """Return the membership that begins the change from a member to a new replica."""
        return Membership(self.current.replace(old, new, address), self.current)

    @property
    def mid(self) -> MessageId:
        """The id of the step that leads here, with `encode` as payload: the same at all members."""
        return MessageId(MEMBERSHIP, self.version, digest_of((self.group,), self.encode()))

    def after(self, step: bytes) -> Membership:
        """Return the membership after this step is delivered: unchanged, unless it is the next step."""
        try:
            found = Membership.decode(step)
        except InvalidArgument:
            return self
        base = found.current if found.previous is None else found.previous
        return found if found.version == self.version + 1 and base == self.current else self

    def encode(self) -> bytes:
        """Return the membership as bytes, for messages, disks and snapshots."""
        return json.dumps([self.group, _row(self.current), _row(self.previous)]).encode()

    @staticmethod
    def decode(data: bytes) -> Membership:
        """Return the membership that was encoded. Raise `InvalidArgument` for any other bytes."""
        try:
            group, current, previous = json.loads(data)
            found = _configuration(group, current)
            return Membership(found, None if previous is None else _configuration(group, previous))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidArgument(f"not a membership: {error!s:.200}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Membership) and (self.current, self.previous) == (
            other.current,
            other.previous,
        )

    def __hash__(self) -> int:
        return hash((self.current, self.previous))

    def __repr__(self) -> str:
        return f"Membership({self.current}, {self.previous})"


def _row(configuration: Configuration | None) -> list[Any] | None:
    if configuration is None:
        return None
    members = zip(configuration.members, configuration.addresses, strict=True)
    return [configuration.number, [[m.number, m.incarnation, address] for m, address in members]]


def _configuration(group: Any, row: Any) -> Configuration:
    number, members = row
    replicas, addresses = [], []
    for member, incarnation, address in members:
        if not isinstance(address, str):
            raise InvalidArgument(f"a member's address must be a string, not {address!r:.80}")
        _check(member, _NUMBER_MAX)
        _check(incarnation, _INCARNATION_MAX)
        replicas.append(ReplicaId(group, member, incarnation))
        addresses.append(address)
    _check(group, GROUPS_MAX - 1)
    _check(number, _NUMBER_MAX)
    return Configuration(group, number, replicas, addresses)


def _check(number: object, most: int) -> None:
    if type(number) is not int or not 0 <= number <= most:
        raise InvalidArgument(f"{number!r:.80} is not in 0..{most}")


def _names(members: Iterable[ReplicaId]) -> str:
    return ", ".join(map(str, members))
