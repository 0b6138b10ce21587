"""The leader selection service of a group: which member should lead, and when a leader should stop.

Leaders send heartbeats. A member that hears none for a randomised time asks the others, before it spends a
ballot, whether they hear a leader (pre-vote): without that, a process that can send but not receive deposes
working leaders for ever. A leader that a quorum has not acknowledged for a time-out steps down. The service
only gives verdicts; the protocol acts on them, and its safety never depends on them.
"""

from __future__ import annotations

import math
import random

from multicast.membership import Configuration, Membership
from multicast.protocol import Timing
from multicast.types import ReplicaId


class LeaderSelection:
    """One member's view of its group's leader. Time and randomness are arguments."""

    __slots__ = (
        "_attempts",
        "_configuration",
        "_electorate",
        "_heard_leader_at",
        "_heard_members",
        "_me",
        "_pre_votes",
        "_rng",
        "_timing",
        "stand_at",
    )

    def __init__(self, me: ReplicaId, membership: Membership, timing: Timing, rng: random.Random) -> None:
        self._me = me
        self._electorate = membership
        """The membership whose pre-votes count."""
        self._configuration: Configuration = membership.current
        """The configuration whose members must acknowledge a leader."""
        self._timing = timing
        self._rng = rng
        self._heard_leader_at = -math.inf
        self._heard_members: dict[ReplicaId, float] = {}
        self._pre_votes: set[ReplicaId] = set()
        self._attempts = 0
        """How often this member stood since it last heard a leader."""
        self.stand_at = math.inf
        """When to ask for pre-votes, unless a leader is heard before."""

    def expect_leader(self, now: float, *, at_once: bool = False) -> None:
        """Start a randomised time-out within which a leader should be heard."""
        self._pre_votes = set()
        wait = self._timing.election_s * (1 + self._rng.random()) * self._backoff()
        self.stand_at = now if at_once else now + wait

    def stand_early(self, membership: Membership, now: float) -> None:
        """Stand soon, unless a leader was heard: this member has just started, maybe with all others.

        That is after a heartbeat, in which a living leader would be heard, and in turn, from the preferred
        leader on, so that members that have started together do not stand together.
        """
        if self.grants(now) and self.stand_at < math.inf:  # a leader does not stand
            members = membership.current.members
            turn = (members.index(self._me) - membership.group) % len(members)
            self.stand_at = min(self.stand_at, now + (1 + turn) * self._timing.heartbeat_s)

    def heard_leader(self, now: float) -> None:
        """Record a heartbeat of a leader."""
        self._attempts = 0
        self.promised(now)

    def promised(self, now: float) -> None:
        """Record a promise to follow a candidate, which gets a time-out to take over."""
        self._heard_leader_at = now
        self.expect_leader(now)

    def forget_leader(self) -> None:
        """Record that the leader has stepped down or been replaced."""
        self._heard_leader_at = -math.inf

    def grants(self, now: float) -> bool:
        """Return whether another member may stand: no leader was heard for the shortest time-out."""
        return now - self._heard_leader_at >= self._timing.election_s

    def begin_pre_vote(self, electorate: Membership, now: float) -> bool:
        """Stand, with this member's own pre-vote. Return whether that suffices already."""
        self._electorate = electorate
        self.expect_leader(now)
        self._attempts += 1
        return self.pre_vote(self._me)

    def pre_vote(self, member: ReplicaId) -> bool:
        """Count a member's pre-vote. Return True, once, when the pre-votes suffice."""
        had = self._electorate.agrees(self._pre_votes)
        self._pre_votes.add(member)
        return not had and self._electorate.agrees(self._pre_votes)

    def lead(self, configuration: Configuration, now: float) -> None:
        """Record that this member leads; the others get one time-out to acknowledge it."""
        self._configuration = configuration
        self._heard_members = dict.fromkeys(self._configuration.members, now)
        self.stand_at = math.inf

    def heard_member(self, member: ReplicaId, now: float) -> None:
        """Record a member's acknowledgement of this leader."""
        self._heard_members[member] = now

    def hears_us(self, member: ReplicaId, now: float) -> bool:
        """Return whether the member has acknowledged this leader within a time-out."""
        return self._heard_members.get(member, -math.inf) > now - self._timing.election_s

    def keeps_quorum(self, now: float) -> bool:
        """Return whether a quorum has acknowledged this leader within a time-out, itself included.

        Its own acknowledgement waits for its own disk: a leader whose disk hangs can commit nothing.
        """
        horizon = now - 2 * self._timing.election_s * self._backoff()
        votes = 0
        for member, bit in self._configuration.bit.items():
            if self._heard_members[member] > horizon:
                votes |= bit
        return self._heard_members[self._me] > horizon and self._configuration.is_quorum(votes)

    def _backoff(self) -> int:
        """Return the factor of time-outs: every attempt after the first doubles it, up to 16 (slow links)."""
        return 1 << min(max(self._attempts - 1, 0), 4)
