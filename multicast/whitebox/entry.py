"""What a process keeps about one message."""

from __future__ import annotations

from typing import Final

from multicast.errors import InvariantBroken
from multicast.messages import Accept, EntryState
from multicast.types import (
    NO_BALLOT,
    NO_TIMESTAMP,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    Vector,
)

NO_PROPOSAL: Final = Accept(MessageId(ClientId(0), 0, 0), (), GroupId(-1), NO_BALLOT, NO_TIMESTAMP, None, 0)
"""Stands where a destination has not proposed yet: below every proposal."""


class Votes:
    """ACCEPT_ACKs for one ballot vector, at a leader: members as bits, by destination group."""

    __slots__ = ("global_ts", "members", "vector")

    def __init__(self, vector: Vector, dest: Destinations) -> None:
        self.vector = vector
        self.members = dict.fromkeys(dest, 0)
        self.global_ts = NO_TIMESTAMP
        """The maximum of the vector's proposals, once this leader has accepted them itself."""


class Entry:
    """The paper's phase[m], local_ts[m], global_ts[m], delivered[m], and the messages counted so far."""

    __slots__ = (
        "ack_below",
        "delivered",
        "dest",
        "global_ts",
        "local_ts",
        "mid",
        "missing",
        "payload",
        "phase",
        "proposals",
        "retries",
        "retry_at",
        "vector",
        "votes",
    )

    def __init__(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> None:
        self.mid = mid
        self.dest = dest
        self.payload = payload
        self.ack_below = ack_below
        self.phase = Phase.START
        self.local_ts = NO_TIMESTAMP
        self.global_ts = NO_TIMESTAMP
        self.delivered = False
        self.missing = len(dest)
        """How many destinations have not proposed yet."""
        self.proposals = [NO_PROPOSAL] * self.missing
        """In the order of dest, the ACCEPT of the highest ballot: a newer proposal replaces the older."""
        self.vector: Vector | None = None
        """Bal of the proposals accepted last."""
        self.votes: list[Votes] | None = None
        """At a leader: what has been acknowledged; one item unless some group changes its leader."""
        self.retries = 0
        self.retry_at = 0.0

    @classmethod
    def of(cls, state: EntryState) -> Entry:
        """The entry with this recovered or durable state."""
        entry = cls(state.mid, state.dest, state.payload, state.ack_below)
        entry.take(state)
        return entry

    def take(self, state: EntryState) -> None:
        """Replace what was known by a recovered state."""
        self.payload = state.payload
        self.ack_below = state.ack_below
        self.phase = state.phase
        self.local_ts = state.local_ts
        self.global_ts = state.global_ts

    def leave_ballot(self, group: GroupId) -> None:
        """The own group's proposal, and all that was counted for it, ended with its ballot."""
        at = self.dest.index(group)
        if self.proposals[at] is not NO_PROPOSAL:
            self.proposals[at] = NO_PROPOSAL
            self.missing += 1
        self.vector = None
        self.votes = None

    def restart(self) -> None:
        """Back to START: only what other groups have proposed remains."""
        self.phase = Phase.START
        self.payload = None
        self.local_ts = self.global_ts = NO_TIMESTAMP

    def state(self) -> EntryState:
        """What recovery and disks carry. Only for accepted or committed entries, which have a payload."""
        if self.payload is None:
            raise InvariantBroken(f"{self.mid} is {self.phase.name} without its payload")
        return EntryState(
            self.mid, self.dest, self.payload, self.ack_below, self.phase, self.local_ts, self.global_ts
        )
