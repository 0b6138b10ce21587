"""The state that a process keeps of one message, under any protocol."""

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
        """The number of destinations whose proposal of a local timestamp is not known here."""
        self.proposals = [NO_TIMESTAMP] * self.missing
        """Lts, in the order of dest; bottom where a destination has not proposed."""
        self.retries = 0
        """At a leader: how often the message was multicast again."""
        self.asked_at = 0.0
        """At a leader: when the message was proposed, or last multicast again."""

    def take(self, state: EntryState) -> None:
        """Replace the entry's state by a recovered or durable one."""
        self.payload = state.payload
        self.ack_below = state.ack_below
        self.phase = state.phase
        self.local_ts = state.local_ts
        self.global_ts = state.global_ts

    def leave_ballot(self, group: GroupId) -> None:
        """Discard the own group's proposal, and all that was counted for it: its ballot has ended."""

    def restart(self) -> None:
        """Return to START: only other groups' proposals remain."""
        self.phase = Phase.START
        self.payload = None
        self.local_ts = self.global_ts = NO_TIMESTAMP

    def state(self) -> EntryState:
        """Return the state for recovery and disks: of accepted or committed entries only, with a payload."""
        if self.payload is None:
            raise InvariantBroken(f"{self.mid} is {self.phase.name}, but its payload is missing")
        return EntryState(
            self.mid, self.dest, self.payload, self.ack_below, self.phase, self.local_ts, self.global_ts
        )


E = TypeVar("E", bound=Entry)
"""A protocol's own kind of entry."""
