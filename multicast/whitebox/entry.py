"""What a process of the white-box protocol counts for one message, and the ballots it counts for."""

from __future__ import annotations

from collections.abc import Sequence

from multicast import process
from multicast.membership import Configuration
from multicast.process.entry import START
from multicast.types import (
    NO_BALLOT,
    NO_TIMESTAMP,
    Ballot,
    Destinations,
    GroupId,
    MessageId,
    Vector,
)


class BallotVector:
    """Bal, the ballots of a message's proposals, and who votes in them.

    While leaders stay the same, so does this object: one for all messages to the same destinations. So
    what there is to know of it is found out once, and nearly always it is enough to compare by identity.
    """

    __slots__ = (
        "ballots",
        "bits",
        "dest",
        "leaders",
        "least",
        "noted",
        "own",
        "quorums",
        "vector",
        "verdicts",
        "voters",
    )

    def __init__(self, vector: Vector, voters: Sequence[Configuration], group: GroupId) -> None:
        self.vector = vector
        self.ballots = list(vector)
        self.leaders = tuple([ballot.leader for ballot in vector])
        self.dest: Destinations = tuple([configuration.group for configuration in voters])
        self.voters = tuple([member for configuration in voters for member in configuration.members])
        self.bits = {member: 1 << index for index, member in enumerate(self.voters)}
        """The members of all destinations as bits, so that a set of acknowledgements is one integer."""
        self.own = sum(self.bits.get(leader, 0) for leader in self.leaders if leader.group == group)
        """The leader of the own group: who counts is that leader, or follows it."""
        self.quorums = [(sum(self.bits[m] for m in c.members), c.quorum) for c in voters]
        """Of each destination: its members, as bits, and how many make a quorum."""
        self.least = sum(configuration.quorum for configuration in voters)
        """No fewer acknowledgements than this can be enough."""
        self.noted = False
        """Whether we have taken note of its ballots, in which something was accepted here."""
        self.verdicts: dict[int, bool] = {}
        """Sets of acknowledgements that were looked at before, and whether they are enough."""

    def is_agreed(self, votes: int) -> bool:
        """Whether quorums of all destinations, and our leader, are among these."""
        return bool(votes & self.own) and all(
            (votes & members).bit_count() >= quorum for members, quorum in self.quorums
        )


class AckBallots:
    """The ballots that an acknowledgement names, one of each group; and Bal of messages to some of these."""

    __slots__ = ("ballots", "bals")

    def __init__(self, vector: Vector) -> None:
        self.ballots: dict[GroupId, Ballot] = {ballot.leader.group: ballot for ballot in vector}
        self.bals: dict[Destinations, BallotVector] = {}
        """Those that were asked for."""


class Entry(process.Entry):
    """One message, and the ACCEPTs and ACCEPT_ACKs counted so far."""

    __slots__ = ("bal", "ballots", "early", "votes")

    def __init__(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> None:
        # As in the class above, without the call: one is made of every message at every replica.
        self.mid = mid
        self.dest = dest
        self.payload = payload
        self.ack_below = ack_below
        self.phase = START
        self.local_ts = NO_TIMESTAMP
        self.global_ts = NO_TIMESTAMP
        self.delivered = False
        self.missing = groups = len(dest)
        self.proposals = [NO_TIMESTAMP] * groups
        self.retries = 0
        self.asked_at = 0.0
        self.ballots = [NO_BALLOT] * groups
        """In the order of dest, the highest ballot that has proposed: it replaces the older ones."""
        self.bal: BallotVector | None = None
        """Bal of the proposals accepted last."""
        self.votes = 0
        """At a leader: who has acknowledged these proposals, as bits of `bal`."""
        self.early: dict[Vector, int] | None = None
        """At a leader: who has acknowledged proposals that have not all come here yet, by their ballots."""

    def leave_ballot(self, group: GroupId) -> None:
        """The own group's proposal, and all that was counted for it, ended with its ballot."""
        at = self.dest.index(group)
        if self.ballots[at] is not NO_BALLOT:
            self.ballots[at] = NO_BALLOT
            self.missing += 1
        self.bal = None
        self.votes = 0
        self.early = None
