"""Transactions that wait for locks or votes, and what other replicas have reported of them."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping

from kvstore.machine.commands import Delivered
from kvstore.machine.formula import all_hold
from kvstore.machine.placement import GroupShare, Placement
from kvstore.machine.results import Decision
from kvstore.machine.state import Judgement, Vote
from multicast.errors import PeerViolation
from multicast.types import GroupId, Timestamp


def truth_of(
    part: GroupShare, group: GroupId, judged: Judgement, votes: Mapping[GroupId, Vote]
) -> bool | None:
    """Return whether a transaction's conditions hold, by this group's own and these votes; None if that is
    not known yet.
    """
    if part.formula:
        return _truth_of_formula(part, group, judged, votes)
    if judged.unmet or not all(vote.yes for vote in votes.values()):
        return False
    known = part.judges <= votes.keys() | {group}
    return True if known else None


def _truth_of_formula(
    part: GroupShare, group: GroupId, judged: Judgement, votes: Mapping[GroupId, Vote]
) -> bool | None:
    heard = votes.keys() | {group}
    unmet = {each.condition for each in judged.unmet}
    bits = 0
    for vote in votes.values():
        bits |= int.from_bytes(vote.unmet, "little")
    values = [
        False if i in unmet or bits >> i & 1 else True if owners <= heard else None
        for i, owners in enumerate(part.owners)
    ]
    return all_hold(values, part.formula)


def decide(
    part: GroupShare, group: GroupId, judged: Judgement, votes: Mapping[GroupId, Vote]
) -> Decision | None:
    """Return what becomes of a transaction, by this group's own judgement and these votes; None if that is
    not known yet. What follows from some of the votes follows from all of them.
    """
    holds = truth_of(part, group, judged, votes)
    if holds is None:
        return None
    if holds:
        may_fail = part.then_may_fail
        fails = judged.then or not all(vote.can_then for vote in votes.values())
    else:
        may_fail = part.otherwise_may_fail
        fails = judged.otherwise or not all(vote.can_otherwise for vote in votes.values())
    if fails:
        return Decision.THEN_FAILS if holds else Decision.OTHERWISE_FAILS
    if not may_fail <= votes.keys() | {group}:
        return None
    return Decision.THEN if holds else Decision.OTHERWISE


class Facts:
    """What other replicas have reported of a message: votes of other groups, and the decision."""

    __slots__ = ("decision", "votes")

    def __init__(self) -> None:
        self.votes: dict[GroupId, Vote] = {}
        self.decision: Decision | None = None

    def vote(self, vote: Vote) -> None:
        """Take a vote. Votes may repeat. Raises `PeerViolation`, with nothing changed, if it contradicts."""
        if self.votes.get(vote.group, vote) != vote:
            raise PeerViolation(f"{vote} contradicts an earlier one")
        if self.decision is not None and not vote.allows(self.decision):
            raise PeerViolation(f"{vote} contradicts the reported decision {self.decision.name}")
        self.votes[vote.group] = vote

    def decide(self, gts: Timestamp, decision: Decision) -> None:
        """Take the decision on the message at this position. It may repeat.

        Raises `PeerViolation`, with nothing changed, if it contradicts.
        """
        if self.decision not in (None, decision):
            raise PeerViolation(f"{gts} is reported both as {self.decision} and as {decision}")
        if not all(vote.allows(decision) for vote in self.votes.values()):
            raise PeerViolation(f"{gts} is reported as {decision.name}, but a group's vote contradicts")
        self.decision = decision

    def keep(self, delivered: Delivered, voters: Collection[GroupId]) -> None:
        """Drop votes that arrived before the delivery and are not for this message, or of no voter of it."""
        self.votes = {
            group: vote for group, vote in self.votes.items() if group in voters and vote.mid == delivered.mid
        }


class OpenTransaction:
    """A transaction that is delivered and not executed."""

    __slots__ = (
        "decision",
        "delivered",
        "facts",
        "floor",
        "group",
        "judged",
        "others",
        "part",
        "placement",
        "repeats",
        "rows",
        "work",
    )

    def __init__(
        self,
        delivered: Delivered,
        part: GroupShare,
        placement: Placement,
        floor: int,
        group: GroupId,
    ) -> None:
        self.delivered = delivered
        self.part = part
        self.placement = placement
        self.floor = floor
        self.group = group
        self.others = part.voters - {group}
        """The other groups whose votes decide with this group's."""
        self.facts = Facts()
        self.judged: Judgement | None = None
        """What this group knows of it; None until the locks are granted."""
        self.decision: Decision | None = None
        """What becomes of it, from when the execution of a long one begins."""
        self.repeats: list[Delivered] = []
        """The same request, delivered again."""
        self.rows = 0
        """Rows that it has looked at, after its first step."""
        self.work: Generator[None, None, None] | None = None
        """Its evaluation or execution, while that is done in slices."""

    def decided(self) -> Decision | None:
        """Return what becomes of it; None if that is not known yet. After it was judged.

        What this replica knows counts more than what a peer has reported, which may be wrong.
        """
        if self.judged is None:
            return None
        return decide(self.part, self.group, self.judged, self.facts.votes) or self.facts.decision
