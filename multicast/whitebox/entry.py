"""What a process of the white-box protocol counts for one message."""

from __future__ import annotations

from typing import Final

from multicast import process
from multicast.messages import Accept
from multicast.types import (
    NO_BALLOT,
    NO_TIMESTAMP,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Vector,
)

NO_PROPOSAL: Final = Accept(MessageId(ClientId(0), 0, 0), (), GroupId(-1), NO_BALLOT, NO_TIMESTAMP, None, 0)
"""Stands where a destination has not proposed yet: below every proposal."""


class Votes:
    """ACCEPT_ACKs for one ballot vector, at a leader: members as bits, by destination group."""

    __slots__ = ("global_ts", "members", "quorums", "vector")

    def __init__(self, vector: Vector, dest: Destinations, quorums: dict[GroupId, int]) -> None:
        self.vector = vector
        self.quorums = quorums
        self.members = dict.fromkeys(dest, 0)
        self.global_ts = NO_TIMESTAMP
        """The maximum of the vector's proposals, once this leader has accepted them itself."""


class Entry(process.Entry):
    """One message, and the ACCEPTs and ACCEPT_ACKs counted so far."""

    __slots__ = ("proposals", "vector", "votes")

    def __init__(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> None:
        super().__init__(mid, dest, payload, ack_below)
        self.proposals = [NO_PROPOSAL] * len(dest)
        """In the order of dest, the ACCEPT of the highest ballot: a newer proposal replaces the older."""
        self.vector: Vector | None = None
        """Bal of the proposals accepted last."""
        self.votes: list[Votes] | None = None
        """At a leader: what has been acknowledged; one item unless some group changes its leader."""

    def leave_ballot(self, group: GroupId) -> None:
        """The own group's proposal, and all that was counted for it, ended with its ballot."""
        at = self.dest.index(group)
        if self.proposals[at] is not NO_PROPOSAL:
            self.proposals[at] = NO_PROPOSAL
            self.missing += 1
        self.vector = None
        self.votes = None
