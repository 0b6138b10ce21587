"""The leader selection service of a group: who should lead, and when to stop.

Leaders send heartbeats. A member that hears none for a randomised time asks the others, before it spends a
ballot, whether they hear a leader (pre-vote): without that, a process that can send but not hear
deposes working leaders for ever. A leader that a quorum has not acknowledged for a time-out steps down.
The service only gives verdicts; the protocol acts on them, and its safety never depends on them.
"""

from __future__ import annotations

import math
import random

from multicast.membership import Configuration, Membership
from multicast.protocol import Timing
from multicast.types import ReplicaId


class LeaderSelection:
    """One member's view of who leads its group. Time and randomness come from outside."""

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
        """Whose pre-votes count."""
        self._configuration: Configuration = membership.current
        """Whose members a leader must hear of."""
        self._timing = timing
        self._rng = rng
        self._heard_leader_at = -math.inf
        self._heard_members: dict[ReplicaId, float] = {}
        self._pre_votes: set[ReplicaId] = set()
        self._attempts = 0
        """Times we stood since a leader was last heard."""
        self.stand_at = math.inf
        """When to ask for pre-votes, if no leader is heard until then."""

    def expect_leader(self, now: float, *, at_once: bool = False) -> None:
        """From now on, a leader should be heard within a randomised time-out."""
        self._pre_votes = set()
        wait = self._timing.election_s * (1 + self._rng.random()) * self._backoff()
        self.stand_at = now if at_once else now + wait

    def heard_leader(self, now: float) -> None:
        """A leader that leads is alive."""
        self._attempts = 0
        self.promised(now)

    def promised(self, now: float) -> None:
        """We have promised to follow somebody, who gets a time-out to take over."""
        self._heard_leader_at = now
        self.expect_leader(now)

    def forget_leader(self) -> None:
        """The leader we followed has stepped down or been replaced."""
        self._heard_leader_at = -math.inf

    def grants(self, now: float) -> bool:
        """Whether another member may stand: no leader has been heard for the shortest time-out."""
        return now - self._heard_leader_at >= self._timing.election_s

    def begin_pre_vote(self, electorate: Membership, now: float) -> bool:
        """Stand, first of all with our own vote. True if that is enough already."""
        self._electorate = electorate
        self.expect_leader(now)
        self._attempts += 1
        return self.pre_vote(self._me)

    def pre_vote(self, member: ReplicaId) -> bool:
        """A member would join us. True, once, when that makes it enough."""
        had = self._electorate.agrees(self._pre_votes)
        self._pre_votes.add(member)
        return not had and self._electorate.agrees(self._pre_votes)

    def lead(self, configuration: Configuration, now: float) -> None:
        """This member now leads; others get one time-out to say that they hear it."""
        self._configuration = configuration
        self._heard_members = dict.fromkeys(self._configuration.members, now)
        self.stand_at = math.inf

    def heard_member(self, member: ReplicaId, now: float) -> None:
        """A member acknowledges that this one leads."""
        self._heard_members[member] = now

    def hears_us(self, member: ReplicaId, now: float) -> bool:
        """Whether the member has acknowledged this leader within a time-out."""
        return self._heard_members.get(member, -math.inf) > now - self._timing.election_s

    def keeps_quorum(self, now: float) -> bool:
        """Whether a leader has been acknowledged by a quorum within a time-out, and by itself.

        Its own acknowledgement waits for its own disk: a leader whose disk hangs can commit nothing.
        """
        horizon = now - 2 * self._timing.election_s * self._backoff()
        votes = 0
        for member, bit in self._configuration.bit.items():
            if self._heard_members[member] > horizon:
                votes |= bit
        return self._heard_members[self._me] > horizon and self._configuration.is_quorum(votes)

    def _backoff(self) -> int:
        """Every attempt after the first doubles the time-outs, up to 16 times: links or disks may be slow."""
        return 1 << min(max(self._attempts - 1, 0), 4)
