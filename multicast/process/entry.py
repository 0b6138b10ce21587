"""What a process keeps about one message, whatever the protocol."""

from __future__ import annotations

from typing import TypeVar

from multicast.errors import InvariantBroken
from multicast.messages import EntryState
from multicast.types import NO_TIMESTAMP, Destinations, GroupId, MessageId, Phase

START = Phase.START


class Entry:
    """The paper's phase[m], local_ts[m], global_ts[m], delivered[m]; protocols add what they count."""

    __slots__ = (
        "ack_below",
        "asked_at",
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
    )

    def __init__(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> None:
        self.mid = mid
        self.dest = dest
        self.payload = payload
        self.ack_below = ack_below
        self.phase = START
        self.local_ts = NO_TIMESTAMP
        self.global_ts = NO_TIMESTAMP
        self.delivered = False
        self.missing = len(dest)
        """How many destinations have not proposed a local timestamp yet, as far as we know."""
        self.proposals = [NO_TIMESTAMP] * self.missing
        """Lts, in the order of dest; bottom where a destination has not proposed."""
        self.retries = 0
        """At a leader: how often it was multicast again."""
        self.asked_at = 0.0
        """At a leader: when it was proposed, or last multicast again."""

    def take(self, state: EntryState) -> None:
        """Replace what was known by a recovered or durable state."""
        self.payload = state.payload
        self.ack_below = state.ack_below
        self.phase = state.phase
        self.local_ts = state.local_ts
        self.global_ts = state.global_ts

    def leave_ballot(self, group: GroupId) -> None:
        """What the own group's leader said, and all that was counted for it, ended with its ballot."""

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


E = TypeVar("E", bound=Entry)
"""A protocol's own kind of entry."""
