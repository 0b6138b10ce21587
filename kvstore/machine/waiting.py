"""Transactions that wait for locks or votes, and what other replicas have reported of them."""

from __future__ import annotations

from collections.abc import Generator

from kvstore.machine.commands import Delivered
from kvstore.machine.placement import GroupShare, Placement
from kvstore.machine.results import Unmet
from kvstore.machine.state import Vote
from multicast.errors import InvariantBroken
from multicast.types import GroupId, Timestamp


class Facts:
    """What other replicas have reported of a message: votes of other groups, and its outcome."""

    __slots__ = ("outcome", "votes")

    def __init__(self) -> None:
        self.votes: dict[GroupId, Vote] = {}
        self.outcome: bool | None = None

    def vote(self, vote: Vote) -> None:
        """Take a vote. Votes may repeat."""
        if self.votes.setdefault(vote.group, vote) != vote:
            raise InvariantBroken(f"{vote} contradicts an earlier one")

    def decide(self, gts: Timestamp, *, succeeded: bool) -> None:
        """Take the outcome of the message at this position. It may repeat."""
        if self.outcome not in (None, succeeded):
            raise InvariantBroken(f"{gts} is reported both as succeeded and as failed")
        self.outcome = succeeded


class OpenTransaction:
    """A transaction that is delivered and not executed."""

    __slots__ = ("delivered", "facts", "floor", "others", "part", "placement", "repeats", "unmet", "work")

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
        self.repeats: list[Delivered] = []
        """The same request, delivered again."""
        self.work: Generator[None, None, None] | None = None
        """Its evaluation or execution, while that is done in slices."""

    def outcome(self) -> bool | None:
        """Whether all conditions hold, in all groups; None if that is not known yet. After evaluation."""
        votes, reported = self.facts.votes, self.facts.outcome
        if self.unmet or any(not vote.yes for vote in votes.values()):
            found = False
        elif self.others.issubset(votes):
            found = True
        else:
            return reported
        if reported not in (None, found):
            outcomes = "succeeded" if reported else "failed", "succeeded" if found else "failed"
            raise InvariantBroken(f"{self.delivered.mid} is reported as {outcomes[0]}, but has {outcomes[1]}")
        return found
