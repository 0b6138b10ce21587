"""Transactions that wait for locks or votes, and what other replicas have reported of them."""

from __future__ import annotations

from collections.abc import Collection, Generator

from kvstore.machine.commands import Delivered
from kvstore.machine.placement import GroupShare, Placement
from kvstore.machine.results import Unmet
from kvstore.machine.state import Vote
from multicast.errors import PeerViolation
from multicast.types import GroupId, Timestamp


class Facts:
    """What other replicas have reported of a message: votes of other groups, and its outcome."""

    __slots__ = ("outcome", "votes")

    def __init__(self) -> None:
        self.votes: dict[GroupId, Vote] = {}
        self.outcome: bool | None = None

    def vote(self, vote: Vote) -> None:
        """Take a vote. Votes may repeat. Raises `PeerViolation`, with nothing changed, if it contradicts."""
        if self.votes.get(vote.group, vote) != vote:
            raise PeerViolation(f"{vote} contradicts an earlier one")
        if self.outcome and not vote.yes:
            raise PeerViolation(f"{vote} contradicts the reported outcome")
        self.votes[vote.group] = vote

    def decide(self, gts: Timestamp, *, succeeded: bool) -> None:
        """Take the outcome of the message at this position. It may repeat.

        Raises `PeerViolation`, with nothing changed, if it contradicts.
        """
        if self.outcome not in (None, succeeded):
            raise PeerViolation(f"{gts} is reported both as succeeded and as failed")
        if succeeded and any(not vote.yes for vote in self.votes.values()):
            raise PeerViolation(f"{gts} is reported as succeeded, but a group has voted against it")
        self.outcome = succeeded

    def keep(self, delivered: Delivered, voters: Collection[GroupId]) -> None:
        """Drop votes that arrived before the delivery and are not for this message, or of no voter of it."""
        self.votes = {
            group: vote for group, vote in self.votes.items() if group in voters and vote.mid == delivered.mid
        }


class OpenTransaction:
    """A transaction that is delivered and not executed."""

    __slots__ = (
        "delivered",
        "facts",
        "floor",
        "others",
        "part",
        "placement",
        "repeats",
        "rows",
        "succeeded",
        "unmet",
        "work",
    )

    def __init__(
        self,
        delivered: Delivered,
        part: GroupShare,
        placement: Placement,
        floor: int,
        others: frozenset[GroupId],
    ) -> None:
        self.delivered = delivered
        self.part = part
        self.placement = placement
        self.floor = floor
        self.others = others
        """The other groups whose votes decide with this group's."""
        self.facts = Facts()
        self.unmet: tuple[Unmet, ...] | None = None
        """This group's conditions that do not hold; None until the locks are granted."""
        self.succeeded: bool | None = None
        """The outcome, from when the execution of a long one begins."""
        self.repeats: list[Delivered] = []
        """The same request, delivered again."""
        self.rows = 0
        """Rows that it has looked at, after its first step."""
        self.work: Generator[None, None, None] | None = None
        """Its evaluation or execution, while that is done in slices."""

    def outcome(self) -> bool | None:
        """Whether all conditions hold, in all groups; None if that is not known yet. After evaluation.

        What this replica knows counts more than what a peer has reported, which may be wrong.
        """
        votes, reported = self.facts.votes, self.facts.outcome
        if self.unmet or any(not vote.yes for vote in votes.values()):
            return False
        return True if self.others.issubset(votes) else reported
