"""Which memberships that other processes tell are believed (departure 19).

A membership is a fact, so one correct process that tells it would suffice. But a membership that is believed
is durable, and names the processes whose promises count: so a process that is wrong must not be able to make
others believe one. A process believes a membership

- of the *next* configuration, or that the newest one is complete, if a member of the membership that it knows
  tells it;
- of any later configuration, if it was away for too long to follow step by step, once a quorum of that
  configuration, or of the newest one that it knows, has told it, each member for itself.

What is not believed yet is a *claim*. It is volatile and bounded; the process asks all members that it knows,
or that the claim names, what they know.
"""

from __future__ import annotations

from typing import Final

from multicast.errors import PeerViolation
from multicast.membership import Membership
from multicast.types import GroupId, Process, ReplicaId, disk_of

CLAIMS_MAX: Final = 4
"""Claims about one group that are kept; beyond it, the oldest is dropped."""


class MembershipClaims:
    """Memberships that were told and are not believed yet, and the processes that told them."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[GroupId, dict[Membership, set[ReplicaId]]] = {}

    def believes(self, known: Membership, told: Membership, teller: Process) -> bool:
        """Return whether a membership, newer than the known one, is to be believed now that it was told.

        Raises `PeerViolation` if it cannot follow the known one.
        """
        if not _can_follow(known, told):
            raise PeerViolation(f"{teller} told {told}, which cannot follow {known}")
        if not isinstance(teller, ReplicaId):
            return False
        if is_next(known, told) and teller in known.everyone:
            self._told.pop(known.group, None)
            return True
        claims = self._told.setdefault(known.group, {})
        if told not in claims and len(claims) >= CLAIMS_MAX:
            del claims[next(iter(claims))]
        tellers = claims.setdefault(told, set())
        if teller in told.current.bit or teller in known.current.bit:
            tellers.add(teller)
        if told.current.has_quorum(tellers) or known.current.has_quorum(tellers):
            del self._told[known.group]
            return True
        return False


def is_next(known: Membership, told: Membership) -> bool:
    """Return whether no configuration lies between the two."""
    if told.current == known.current:
        return True
    if told.current.number != known.current.number + 1:
        return False
    replaced = sum(a != b for a, b in zip(known.current.members, told.current.members, strict=True))
    return replaced == 1 and told.previous in (None, known.current)


def _can_follow(known: Membership, told: Membership) -> bool:
    """Return whether changes can lead from one to the other: they replace members, each by one of its number.

    All members of a configuration are on different disks.
    """
    numbers = [member.number for member in known.current.members]
    disks = {disk_of(member.incarnation) for member in told.current.members}
    same_disks = len({disk_of(member.incarnation) for member in known.current.members}) < len(numbers)
    return (
        [member.number for member in told.current.members] == numbers
        and (len(disks) == len(numbers) or same_disks)
        and (told.current.number != known.current.number or told.current == known.current)
    )
