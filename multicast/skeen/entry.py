"""What a process of Skeen's family keeps about one message."""

from __future__ import annotations

from multicast import process
from multicast.types import NO_TIMESTAMP, Destinations, GroupId, MessageId, Phase, Timestamp


class Entry(process.Entry):
    """One message, and the local timestamps its destinations have proposed."""

    __slots__ = ("asked", "decided", "passed", "undecided")

    def __init__(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> None:
        super().__init__(mid, dest, payload, ack_below)
        self.decided = [False] * len(dest)
        """Which of the proposals their groups have decided: those are facts."""
        self.undecided = len(dest)
        self.asked = NO_TIMESTAMP
        """At a leader: what it has last asked its group to let the clock pass."""
        self.passed = NO_TIMESTAMP
        """The group has decided that its clock passes this, for this message."""

    def note(self, group: GroupId, local_ts: Timestamp, *, decided: bool) -> bool:
        """A destination proposes. False if it had decided something else: that cannot be."""
        at = self.dest.index(group)
        known = self.proposals[at]
        if self.decided[at]:
            return known == local_ts or not decided
        if not known:
            self.missing -= 1
        self.proposals[at] = local_ts
        if decided:
            self.decided[at] = True
            self.undecided -= 1
        return True

    def is_decided(self, group: GroupId) -> bool:
        """Whether the group's local timestamp is a fact."""
        return self.phase is Phase.COMMITTED or self.decided[self.dest.index(group)]

    def leave_ballot(self, group: GroupId) -> None:
        """The own group's proposal ended with its ballot; the next begins with what was decided."""
        at = self.dest.index(group)
        if self.proposals[at]:
            self.missing += 1
        if self.decided[at]:
            self.undecided += 1
        self.proposals[at] = self.asked = NO_TIMESTAMP
        self.decided[at] = False
