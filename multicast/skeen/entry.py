"""The state that a process of Skeen's family keeps of one message."""

from __future__ import annotations

from multicast import process
from multicast.types import NO_TIMESTAMP, Destinations, GroupId, MessageId, Phase, Timestamp


class Entry(process.Entry):
    """One message, and the local timestamps its destinations have proposed."""

    __slots__ = ("asked", "decided", "passed", "undecided")

    def __init__(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> None:
        super().__init__(mid, dest, payload, ack_below)
        self.decided = 0
        """The proposals that their groups have decided, as bits in the order of dest: these are facts."""
        self.undecided = len(dest)
        self.asked = NO_TIMESTAMP
        """At a leader: the timestamp that it has last proposed for the group's clock to pass."""
        self.passed = NO_TIMESTAMP
        """The timestamp that the group has decided to let its clock pass, for this message."""

    def note(self, group: GroupId, local_ts: Timestamp, *, decided: bool) -> bool:
        """Record a destination's proposal. Return False if it contradicts a decision of that group."""
        at = self.dest.index(group)
        known, bit = self.proposals[at], 1 << at
        if self.decided & bit:
            return known == local_ts or not decided
        if not known:
            self.missing -= 1
        self.proposals[at] = local_ts
        if decided:
            self.decided |= bit
            self.undecided -= 1
        return True

    def contradicts(self, group: GroupId, local_ts: Timestamp) -> bool:
        """Return whether the group is known to have decided another timestamp."""
        at = self.dest.index(group)
        return bool(self.decided >> at & 1) and self.proposals[at] != local_ts

    def is_decided(self, group: GroupId) -> bool:
        """Return whether the group's local timestamp is decided."""
        return self.phase is Phase.COMMITTED or bool(self.decided >> self.dest.index(group) & 1)

    def leave_ballot(self, group: GroupId) -> None:
        """Discard the own group's proposal, since its ballot has ended; the next begins with decisions."""
        at = self.dest.index(group)
        if self.proposals[at]:
            self.missing += 1
        if self.decided >> at & 1:
            self.undecided += 1
            self.decided ^= 1 << at
        self.proposals[at] = self.asked = NO_TIMESTAMP
