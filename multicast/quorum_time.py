"""Quorum time: the time of day that a quorum of a group has reached, and how far a group lets it go.

A leader never uses its own time of day alone. The members of its configuration report theirs when they
acknowledge the leader in its ballot. *Quorum time* is the q-th highest of the fresh reports (q is the size of
a quorum) and of the leader's own clock, read now: the highest time that a quorum has reached. At most q - 1
clocks can be wrong while a quorum is right, so a right clock is among the q highest: clocks that are ahead
cannot move quorum time. A report counts for an election time-out, counted from the question that it answers;
the monotonic time since then is added to it.

The *anchor* bounds what a wrong majority, or the only clock of a group of one, can do. It is a time in ticks
that the group has ordered (`ANCHOR`). A replica lets quorum time count up to the anchor, plus the monotonic
time since this replica delivered it, plus a step. Anchors move by ordered messages, each at most by `PACE`
times the time since the last. Beyond the limit the leader counts on by one, until an operator moves the
anchor to quorum time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

from multicast.membership import MEMBERSHIP, Configuration
from multicast.types import TICKS_PER_S, TIME_MAX, ClientId, GroupId, MessageId, ReplicaId, digest_of

ANCHOR: Final = ClientId(2**64 - 1)
"""The client id under which groups order their anchors; no client has it. The sequence number of such a
message is the anchor, so that the group's delivered ids know the highest."""

OWN_CLIENTS: Final = frozenset((MEMBERSHIP, ANCHOR))
"""The client ids of messages that a group orders for itself. They are not for its application."""

PACE: Final = 2
"""How many seconds an anchor may move in a second. One would do, if a group never stopped: the second one
makes up for the time in which no replica of the group ran, and for slow monotonic clocks."""

WRONG_S: Final = 0.5
"""A clock that differs by more from quorum time, including the travel time of its report, is reported as
wrong."""

WallClock: TypeAlias = Callable[[], float]
"""Returns the time of day, in seconds since an epoch that all groups share. It may be wrong, and may jump."""


def anchor_id(anchor: int, group: GroupId) -> MessageId:
    """Return the id of the message that moves a group's anchor. Its payload is empty."""
    return MessageId(ANCHOR, anchor, digest_of((group,), b""))


class QuorumTime:
    """The quorum time of a leader. Monotonic time is an argument, in seconds."""

    __slots__ = ("_fresh_s", "_lower", "_me", "_others", "_quorum", "_read", "_read_at", "_recount_at",
    "_reports", "_upper", "_wall")  # fmt: skip

    def __init__(self, me: ReplicaId, wall: WallClock, fresh_s: float) -> None:
        """`fresh_s` is how long a report counts."""
        self._me = me
        self._wall = wall
        self._fresh_s = fresh_s
        self.stop()

    def stop(self) -> None:
        """Forget all reports: this replica does not lead any more."""
        self._quorum = 0
        self._others: tuple[ReplicaId, ...] = ()
        self._reports: dict[ReplicaId, tuple[float, float]] = {}
        """Of each member, what to add to the monotonic time for its time of day; and when it was asked."""
        self._upper = self._lower = -math.inf
        self._forget_reading()

    def lead(self, configuration: Configuration) -> None:
        """Begin to lead a ballot of this configuration: reports of other ballots do not count."""
        self.stop()
        self._quorum = configuration.quorum
        self._others = tuple(member for member in configuration.members if member != self._me)

    def _forget_reading(self) -> None:
        self._recount_at = -math.inf
        self._read_at = math.nan
        self._read: int | None = None

    def own(self) -> float:
        """Return the own time of day in seconds, read now."""
        return self._wall()

    def report(self, member: ReplicaId, wall_s: float, asked_at: float, now: float) -> None:
        """Count a member's time of day, in this ballot, by its answer to a question sent at `asked_at`.

        The member has read its clock between the question and now: half of that time is added.
        """
        known = self._reports.get(member)
        if member in self._others and asked_at <= now and (known is None or known[1] <= asked_at):
            self._reports[member] = wall_s + (now - asked_at) / 2 - now, asked_at
            self._forget_reading()

    def now(self, now: float) -> int | None:
        """Return quorum time in ticks; None without reports of a quorum, or if no timestamp can express
        it.
        """
        if now == self._read_at:
            return self._read
        if now >= self._recount_at:
            self._recount(now)
        own_s = self._wall()
        time_s = max(self._lower + now, min(self._upper + now, own_s))
        found = int(time_s * TICKS_PER_S) if -1 < time_s < TIME_MAX else -1
        self._read_at, self._read = now, found if 0 <= found <= TIME_MAX else None
        return self._read

    def _recount(self, now: float) -> None:
        """Find the reports next to which the own clock decides: those at place q - 1 and q, of the fresh
        ones.

        With the own clock x among them, the q-th highest is x, unless x is above the first or below the
        second.
        """
        quorum = self._quorum
        fresh = self._fresh(now)
        offsets = sorted((self._reports[member][0] for member in fresh), reverse=True)
        self._upper = self._lower = -math.inf
        if quorum == 1:
            self._upper = math.inf
        elif quorum and len(offsets) >= quorum - 1:
            self._upper = offsets[quorum - 2]
        if quorum and len(offsets) >= quorum:
            self._lower = offsets[quorum - 1]
        self._recount_at = min((self._reports[m][1] + self._fresh_s for m in fresh), default=math.inf)

    def _fresh(self, now: float) -> list[ReplicaId]:
        return [m for m in self._others if m in self._reports and now - self._reports[m][1] < self._fresh_s]

    def wrong(self, now: float) -> dict[ReplicaId, float]:
        """Return the members whose clocks differ from quorum time, and by how many seconds."""
        ticks = self.now(now)
        if ticks is None:
            return {}
        time_s = ticks / TICKS_PER_S
        found = {self._me: self._wall() - time_s}
        found |= {member: self._reports[member][0] + now - time_s for member in self._fresh(now)}
        return {member: round(by_s, 3) for member, by_s in sorted(found.items()) if abs(by_s) > WRONG_S}


class Anchor:
    """A replica's view of its group's anchor."""

    __slots__ = ("_step_s", "at", "ticks")

    def __init__(self, ticks: int, at: float, step_s: float) -> None:
        """`ticks` is the anchor, 0 before the first, as delivered by `at`."""
        self.ticks = ticks
        self.at = at
        self._step_s = step_s

    def deliver(self, ticks: int, now: float) -> None:
        """Take over an anchor that the group has ordered. It never falls."""
        if ticks > self.ticks:
            self.ticks = ticks
            self.at = now

    def holds(self, time: int, now: float) -> bool:
        """Return whether a quorum time is beyond the limit, and must not be used."""
        return bool(self.ticks) and time > self.ticks + int((now - self.at + self._step_s) * TICKS_PER_S)

    def next(self, time: int, now: float) -> int:
        """Return where the next anchor may be at most: the first one is the quorum time."""
        if not self.ticks:
            return time
        return min(time, self.ticks + int(PACE * (now - self.at) * TICKS_PER_S))
