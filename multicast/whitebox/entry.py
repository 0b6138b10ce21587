"""What a process of the white-box protocol counts for one message, and the ballots in which it counts."""

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
    """Bal, the ballots of a message's proposals, with the members that vote in them.

    While leaders stay the same, all messages to the same destinations share one object. So its attributes are
    computed once, and a comparison by identity nearly always suffices.
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
        """The leader of the own group, as a bit: a process that counts is that leader, or follows it."""
        self.quorums = [(sum(self.bits[m] for m in c.members), c.quorum) for c in voters]
        """Of each destination: its members, as bits, and the size of a quorum."""
        self.least = sum(configuration.quorum for configuration in voters)
        """The least number of acknowledgements that can suffice."""
        self.noted = False
        """Whether its ballots, in which something was accepted here, have been noted."""
        self.verdicts: dict[int, bool] = {}
        """Whether a set of acknowledgements suffices, of sets that were evaluated before."""

    def is_agreed(self, votes: int) -> bool:
        """Return whether the votes include quorums of all destinations, and the own group's leader."""
        return bool(votes & self.own) and all(
            (votes & members).bit_count() >= quorum for members, quorum in self.quorums
        )


class AckBallots:
    """The ballots that an ACCEPT_ACK names, one of each group; and Bal of messages to some of these."""

    __slots__ = ("ballots", "bals")

    def __init__(self, vector: Vector) -> None:
        self.ballots: dict[GroupId, Ballot] = {ballot.leader.group: ballot for ballot in vector}
        self.bals: dict[Destinations, BallotVector] = {}
        """Those computed so far."""


class Entry(process.Entry):
    """One message, and the ACCEPTs and ACCEPT_ACKs counted so far."""

    __slots__ = ("bal", "ballots", "early", "votes")

    def __init__(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> None:
        # As in the base class, without the call: every replica makes an entry for every message.
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
        """In the order of dest, the highest ballot that has proposed: it supersedes lower ones."""
        self.bal: BallotVector | None = None
        """Bal of the proposals accepted last."""
        self.votes = 0
        """At a leader: the acknowledgements of these proposals, as bits of `bal`."""
        self.early: dict[Vector, int] | None = None
        """At a leader: acknowledgements of proposals that have not all arrived here yet, by their ballots."""

    def leave_ballot(self, group: GroupId) -> None:
        """Discard the own group's proposal, and all that was counted for it: its ballot has ended."""
        at = self.dest.index(group)
        if self.ballots[at] is not NO_BALLOT:
            self.ballots[at] = NO_BALLOT
            self.missing += 1
        self.bal = None
        self.votes = 0
        self.early = None
