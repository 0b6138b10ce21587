"""What a gateway knows of the groups' clocks: which revisions are confirmed, and what time it is."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.store.group_clocks import AGAIN_S, CONFIRM_S, DOUBTED, DOUBTED_S, LEARN_S, GroupClocks, Verdict
from multicast.membership import Membership
from multicast.topology import Topology
from multicast.types import TICKS_PER_S, GroupId, ReplicaId, Timestamp, timestamp

TOPOLOGY = Topology.uniform(2, 3)
A, B = GroupId(0), GroupId(1)
EVERYONE = [*TOPOLOGY.members(A), *TOPOLOGY.members(B)]


class Known:
    """The clocks, as a gateway knows them, and the verdicts."""

    def __init__(self, *, learned: bool = True, kind: type[GroupClocks] = GroupClocks) -> None:
        self.local = 0
        self.topology = TOPOLOGY.copy()
        self.clocks = kind(lambda: self.topology, lambda: self.local)
        self.clocks._learned = self.clocks.informed = learned
        self.verdicts: list[Verdict] = []

    def ask(self, time: int, now: float = 0.0) -> int:
        """Return the number of the round."""
        self.clocks.ask(timestamp(time, A), self.verdicts.append, now)
        number, asked = self.clocks.questions(now)
        assert asked == EVERYONE
        return number


def test_a_revision_that_a_group_has_told_is_known() -> None:
    known = Known()
    assert known.clocks.knows(0, 0.0)
    assert not known.clocks.knows(timestamp(50, B), 0.0)
    known.clocks.tell(50, 0.0)
    assert known.clocks.knows(timestamp(50, GroupId(1023)), 0.0)
    assert not known.clocks.knows(timestamp(51, A), 0.0)
    known.local = 70
    assert known.clocks.knows(timestamp(70, A), 0.0), "a replica of its own node has seen it"


def test_the_monotonic_time_since_a_revision_confirms_nothing() -> None:
    known = Known()
    known.clocks.tell(50, 0.0)
    assert known.clocks.now(10.0) == 50 + 10 * TICKS_PER_S
    assert not known.clocks.knows(timestamp(51, A), 10.0)


def test_now_follows_what_groups_tell_and_does_not_run_away() -> None:
    known = Known()
    known.clocks.tell(50, 0.0)
    assert known.clocks.now(1e9) == 50 + 3600 * TICKS_PER_S, (
        "a group that is held back does not follow the time"
    )
    known.clocks.tell(60, 1e9)
    assert known.clocks.now(1e9 + 1) == 60 + TICKS_PER_S
    known.clocks.tell(55, 1e9 + 1)
    assert known.clocks.now(1e9 + 1) == 60 + TICKS_PER_S


def test_any_group_confirms_a_revision() -> None:
    known = Known()
    number = known.ask(50)
    known.clocks.answered(EVERYONE[0], number, 49, 1, 0.1)
    assert known.verdicts == []
    known.clocks.answered(EVERYONE[5], number, 50, 1, 0.1)
    assert known.verdicts == [Verdict.CONFIRMED]
    assert known.clocks.waiting == 0
    assert known.clocks.wake_at == float("inf")


def test_quorums_of_all_groups_refute_it() -> None:
    known = Known()
    number = known.ask(50)
    for member in (*EVERYONE[:3], EVERYONE[3], EVERYONE[3]):
        known.clocks.answered(member, number, 49, 1, 0.1)
        assert known.verdicts == []
    known.clocks.answered(EVERYONE[4], number, 49, 1, 0.1)
    assert known.verdicts == [Verdict.REFUTED]


def test_if_a_group_does_not_answer_nothing_is_known() -> None:
    known = Known()
    number = known.ask(50)
    for member in EVERYONE[:3]:
        known.clocks.answered(member, number, 49, 1, 0.01)
    assert known.clocks.questions(AGAIN_S) == (number, EVERYONE[3:]), "the others are asked again"
    known.clocks.tick(CONFIRM_S - 0.01)
    assert known.verdicts == []
    known.clocks.tick(CONFIRM_S)
    assert known.verdicts == [Verdict.UNKNOWN]
    revision = timestamp(50, A)
    assert known.clocks.doubt(revision, CONFIRM_S)
    assert not known.clocks.doubt(revision, CONFIRM_S + DOUBTED_S + 0.01)


def test_answers_from_before_a_question_do_not_refute_it() -> None:
    known = Known()
    first = known.ask(50)
    for member in EVERYONE[:4]:
        known.clocks.answered(member, first, 49, 1, 0.1)
    late: list[Verdict] = []
    known.clocks.ask(timestamp(50, B), late.append, 0.2)  # a client has seen it in between
    known.clocks.answered(EVERYONE[4], first, 48, 1, 0.2)
    assert (known.verdicts, late) == ([Verdict.REFUTED], [])
    second, asked = known.clocks.questions(0.2)
    assert (second, asked) == (first + 1, EVERYONE)
    for member in EVERYONE:
        known.clocks.answered(member, first, 48, 1, 0.2)
    assert late == [], "they answer the first question"
    known.clocks.answered(EVERYONE[0], second, 50, 1, 0.3)
    assert late == [Verdict.CONFIRMED]


def test_doubts_are_bounded() -> None:
    known = Known()
    for time in range(50, 50 + 2 * DOUBTED):
        known.clocks.ask(timestamp(time, A), known.verdicts.append, 0.0)
        known.clocks.tick(CONFIRM_S)
        known.clocks.tick(2 * CONFIRM_S)
    assert len(known.clocks._doubted) == DOUBTED
    assert known.clocks.doubt(timestamp(49 + 2 * DOUBTED, A), 1.0)


def test_after_a_start_all_groups_are_asked_until_they_have_answered() -> None:
    known = Known(learned=False)
    assert known.clocks.wake_at == 0.0
    known.clocks.tick(0.0)
    number, asked = known.clocks.questions(0.0)
    assert asked == EVERYONE
    assert known.clocks.waiting == 0, "no call waits for it"
    for member in EVERYONE[:3]:
        known.clocks.answered(member, number, 70, 1, 0.1)
    assert known.clocks.now(0.1) == 70
    known.clocks.tick(CONFIRM_S)
    assert known.clocks.wake_at == LEARN_S
    known.clocks.tick(LEARN_S)
    number, asked = known.clocks.questions(LEARN_S)
    assert asked == EVERYONE
    for member in EVERYONE:
        known.clocks.answered(member, number, 71, 1, 1.1)
    assert known.clocks.wake_at == 2 * LEARN_S, "no leader has told the time"
    known.clocks.inform(72, 1.2)
    assert known.clocks.wake_at == float("inf")
    assert known.clocks.knows(Timestamp(timestamp(71, B)), 1.1)


def test_what_needs_a_deadline_waits_until_a_leader_has_told_the_time() -> None:
    known = Known(learned=False)
    called: list[int] = []
    known.clocks.when_informed(lambda: called.append(known.clocks.highest), 0.0)
    assert known.clocks.waiting == 1
    number, _ = known.clocks.questions(0.0)
    for member in EVERYONE:
        known.clocks.answered(member, number, 70, 1, 0.1)
    assert called == [], "followers do not know quorum time"
    assert known.clocks.questions(0.1)[1] == [], "not at once: no group has a leader"
    assert known.clocks.questions(0.2)[1] == EVERYONE, "they are asked again: one may lead by now"
    known.clocks.inform(500, 0.2)
    assert called == [500]
    assert known.clocks.waiting == 0


def replaced(kind: type[GroupClocks]) -> None:
    """g1r0 was replaced, and does not know it. A revision was delivered by the new member and g1r2; g1r1 is
    slow, but has promised the ballot of the new configuration, and so knows that.
    """
    known = Known(kind=kind)
    before = known.topology.membership(B)
    begun = before.replace(EVERYONE[3], ReplicaId(B, 0, 1), "")
    number = known.ask(50)
    for member in EVERYONE[:4]:
        known.clocks.answered(member, number, 49, before.version, 0.1)
    known.clocks.answered(EVERYONE[4], number, 49, begun.version, 0.1)
    assert known.verdicts == [], "g1r1 tells that there are other members"
    known.topology.learn(begun)
    known.clocks.answered(EVERYONE[4], number, 49, begun.version, 0.2)
    assert known.verdicts == [], "of the new members only one has answered"
    new = begun.current.members[0]
    assert new in known.clocks.questions(0.3)[1]
    known.clocks.answered(new, number, 50, begun.version, 0.4)
    assert known.verdicts == [Verdict.CONFIRMED]


class AsksTheReplaced(GroupClocks):
    """A quorum of the members that the gateway knows says what the group has not reached."""

    def _has_quorum(self, membership: Membership, current: Any) -> bool:
        return membership.agrees(set(current.answered))


def test_members_that_were_replaced_refute_nothing() -> None:
    replaced(GroupClocks)
    with pytest.raises(AssertionError, match="there are other members"):
        replaced(AsksTheReplaced)


def test_a_revision_is_refuted_by_quorums_of_both_configurations() -> None:
    known = Known()
    begun = known.topology.membership(B).replace(EVERYONE[3], ReplicaId(B, 0, 1), "")
    known.topology.learn(begun)
    known.clocks.ask(timestamp(50, A), known.verdicts.append, 0.0)
    number, _ = known.clocks.questions(0.0)
    for member in EVERYONE[:5]:
        known.clocks.answered(member, number, 49, 1, 0.1)
    assert known.verdicts == []
    known.clocks.answered(begun.current.members[0], number, 49, begun.version, 0.1)
    assert known.verdicts == [Verdict.REFUTED]
