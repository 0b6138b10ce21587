"""Replicas compare digests: who is right, who steps aside, and when nothing may be touched."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.machine import Machine, MachineState, Placement, Store
from kvstore.machine.commands import Deviates
from kvstore.machine.versions import KeyChange, Version
from kvstore.storage.ports import Origin
from kvstore.store import comparison as module
from kvstore.store.comparison import SLICE, WAIT_S, Comparison, root_of
from kvstore.store.messages import CopyConfirmed, Digest, DigestWanted
from multicast.errors import PeerViolation
from multicast.types import GroupId, ReplicaId, Timestamp

G0 = GroupId(0)
WATERMARK = Timestamp(10_000)


def keys(count: int) -> list[bytes]:
    return [f"key-{number:05}".encode() for number in range(count)]


class Member:
    """One replica, with content of its own."""

    def __init__(self, me: ReplicaId, members: list[ReplicaId], count: int, *, leads: bool) -> None:
        self.me = me
        self.store = Store()
        for number, key in enumerate(keys(count)):
            self.store.latest.put(key, Version(b"value", 1 + number, 1 + number, 1))
        state = MachineState(Placement.evenly((G0,)), delivered=WATERMARK, watermark=WATERMARK)
        self.machine = Machine(G0, self.store, state)
        self.origin: Origin | None = None
        self.replica: Any = SimpleNamespace(
            me=me, is_leader=leads, is_current=True,
            others=tuple(m for m in members if m != me), readers=(tuple(members), len(members) // 2 + 1),
            membership=SimpleNamespace(is_complete=True),
        )  # fmt: skip
        self.comparison = Comparison(
            self.replica, self.machine, pass_s=60.0, rows=lambda: 4 * count, origin=lambda: self.origin,
            confirm=self.confirm,
        )  # fmt: skip

    def confirm(self) -> None:
        self.origin = None

    def set(self, key: bytes, value: bytes) -> None:
        found = self.store.latest.get(key)
        assert found is not None
        self.store.latest.put(key, Version(value, found.create_revision, found.mod_revision, 1))


class Group:
    """Members that hear each other at once."""

    def __init__(self, size: int = 3, count: int = 2000) -> None:
        members = [ReplicaId(G0, number, 7) for number in range(size)]
        self.members = {me: Member(me, members, count, leads=me.number == 0) for me in members}
        self.all = list(self.members.values())
        self.leader = self.all[0].comparison
        self.asked: list[DigestWanted] = []
        self.deaf: set[ReplicaId] = set()
        self.now = 0.0

    def run(self, until: Callable[[], bool]) -> None:
        for _ in range(2000):
            if until():
                return
            for member in self.all:
                member.comparison.turn(self.now)
            for member in self.all:
                for sender, receivers, message in member.comparison.outgoing:
                    for receiver in receivers:
                        if isinstance(receiver, ReplicaId) and receiver not in self.deaf:
                            self._take(self.members[receiver].comparison, sender, message)
                member.comparison.outgoing.clear()
            self.now += 0.3
        pytest.fail("the pass does not end")

    def _take(self, receiver: Comparison, sender: Any, message: Any) -> None:
        if isinstance(message, DigestWanted):
            self.asked.append(message)
            receiver.wanted(sender, message, self.now)
        elif isinstance(message, Digest):
            receiver.answered(sender, message)
        else:
            assert isinstance(message, CopyConfirmed)
            receiver.confirmed(sender, message)

    def pass_once(self) -> list[Deviates]:
        wanted = self.leader.passes + 1
        self.run(lambda: self.leader.passes >= wanted)
        return self.leader.verdicts


def test_equal_replicas_are_compared_in_slices_of_bounded_size() -> None:
    group = Group(count=5 * SLICE)
    assert group.pass_once() == []
    assert not group.leader.alarms
    spans = [each.span for each in itertools.takewhile(lambda each: not each.span.history, group.asked)]
    assert len(spans) >= 2 * 5
    assert spans[0].start == b""
    assert spans[-1].end is None
    numbers = [each.number for each in group.asked[:: len(group.all) - 1]]
    assert numbers == sorted(set(numbers))
    assert numbers[0] >= group.asked[0].revision, "an answer to a former life of the leader has a lower one"
    assert all(after.start in (before.start, before.end) for before, after in itertools.pairwise(spans))


@pytest.mark.parametrize("wrong", [0, 1, 2])
@pytest.mark.parametrize("change", ["value", "missing", "invented"])
def test_one_of_three_that_differs_is_named_with_the_key(wrong: int, change: str) -> None:
    """Also the leader itself."""
    group = Group()
    bad, key = group.all[wrong], keys(2000)[777]
    if change == "value":
        bad.set(key, b"other")
    elif change == "missing":
        bad.store.latest.delete(key)
    else:
        key += b"-invented"
        bad.store.latest.put(key, Version(b"value", 5, 5, 1))
    [verdict] = group.pass_once()
    assert verdict.replica == bad.me
    assert verdict.start <= key
    assert verdict.end is not None
    assert key < verdict.end
    named = [each for each in keys(2000) if verdict.start <= each < verdict.end]
    assert len(named) <= 2, "the range was not narrowed down"
    assert "differs from the majority" in group.leader.alarms[0]
    assert [member.me for member in group.all if member.comparison.reason(verdict)] == [bad.me]


def test_history_is_compared_too() -> None:
    group = Group(count=10)
    for member in group.all:
        for revision in range(1, 50):
            value = b"bad" if member.me.number == 1 and revision == 33 else b"good"
            member.store.history.put(revision, (KeyChange(b"k", value, revision, 1, 0),))
    [verdict] = group.pass_once()
    assert verdict.replica.number == 1
    assert verdict.history
    assert int.from_bytes(verdict.start, "big") == 32
    assert verdict.end is not None
    assert int.from_bytes(verdict.end, "big") == 33


def test_rows_that_do_not_fit_together_are_a_difference() -> None:
    """A latest version whose history is not there: a reader would find no older version."""
    for wrong in (0, 1):
        group = Group()
        key = keys(2000)[600]
        group.all[wrong].store.latest.put(key, Version(b"value", 1, WATERMARK + 5, 2, previous=601))
        verdicts = group.pass_once()
        assert [verdict.replica.number for verdict in verdicts] == [wrong]
        assert verdicts[0].start <= key


@pytest.mark.parametrize("size", [2, 3, 4])
def test_without_a_majority_nothing_is_touched(size: int) -> None:
    group = Group(size)
    for number, member in enumerate(group.all):
        member.set(keys(2000)[777], b"%d" % (number if size == 3 else number % 2))
    assert group.pass_once() == []
    assert "no majority" in group.leader.alarms[0]
    assert "an operator must decide" in group.leader.alarms[0]


def test_a_member_that_does_not_answer_is_not_outvoted_and_does_not_stop_the_pass() -> None:
    group = Group()
    group.all[1].set(keys(2000)[777], b"other")
    group.deaf.add(group.all[2].me)
    assert group.pass_once() == []
    assert "no majority" in group.leader.alarms[0]


def test_a_copy_and_its_source_are_one_voice() -> None:
    """Else a wrong state, copied once, would be a majority, and the right one would be destroyed."""
    group = Group()
    for member in group.all[1:]:
        member.set(keys(2000)[777], b"wrong")
    group.all[2].origin = Origin(group.all[1].me, Timestamp(5))
    assert group.pass_once() == []
    assert "no majority" in group.leader.alarms[0]
    assert group.all[2].origin is not None, "confirmed though it differs from an independent one"


def test_a_copy_that_agrees_with_a_third_replica_outvotes_its_source() -> None:
    group = Group()
    group.all[1].set(keys(2000)[777], b"wrong since")
    group.all[2].origin = Origin(group.all[1].me, Timestamp(5))
    [verdict] = group.pass_once()
    assert verdict.replica == group.all[1].me


def test_a_whole_pass_confirms_a_copy_and_a_half_one_does_not() -> None:
    group = Group()
    copy = group.all[1]
    copy.origin = Origin(group.all[0].me, Timestamp(5))
    group.run(lambda: group.leader.slices >= 2)
    copy.replica.is_current = False
    group.run(lambda: group.leader.slices >= 4)
    copy.replica.is_current = True
    group.pass_once()
    assert copy.origin is not None
    group.pass_once()
    group.run(lambda: copy.origin is None)
    assert not group.leader.alarms


def test_copies_without_any_independent_replica_are_accepted_with_an_alarm() -> None:
    group = Group()
    for member in group.all[1:]:
        member.origin = Origin(group.all[0].me, Timestamp(5))
    group.deaf.add(group.all[2].me)
    group.pass_once()
    assert group.all[1].origin is not None
    group.deaf.clear()
    group.pass_once()
    group.run(lambda: all(member.origin is None for member in group.all))
    assert "no other can confirm" in group.leader.alarms[0]


def test_a_verdict_is_about_one_state_of_a_replica() -> None:
    group = Group()
    bad = group.all[1]
    bad.set(keys(2000)[777], b"other")
    [verdict] = group.pass_once()
    assert bad.comparison.reason(verdict)
    bad.origin = Origin(group.all[2].me, Timestamp(9))
    assert bad.comparison.reason(verdict) is None, "it has restored its state since"


def test_roots() -> None:
    a, b, c, d = (ReplicaId(G0, number, 7) for number in range(4))
    position = Timestamp(1)
    origins = {a: Origin(b, position), b: Origin(c, position), c: None}
    assert [root_of(each, origins) for each in (a, b, c)] == [c, c, c]
    assert root_of(a, {a: Origin(d, position)}) == d
    circle = {a: Origin(b, position), b: Origin(a, position)}
    assert root_of(a, circle) == root_of(b, circle)


def test_others_are_not_believed() -> None:
    group = Group()
    span = module.FIRST
    stranger = ReplicaId(G0, 9, 9)
    group.leader.wanted(stranger, DigestWanted(1, WATERMARK, span), 0.0)
    group.leader.turn(0.0)
    assert all(isinstance(message, DigestWanted) for _, _, message in group.leader.outgoing)
    with pytest.raises(PeerViolation):
        group.leader.wanted(ReplicaId(GroupId(1), 1, 7), DigestWanted(1, WATERMARK, span), 0.0)
    group.all[1].origin = origin = Origin(group.all[0].me, Timestamp(5))
    group.all[1].comparison.confirmed(stranger, CopyConfirmed(origin))
    assert group.all[1].origin == origin
    group.all[1].comparison.confirmed(group.all[0].me, CopyConfirmed(Origin(stranger, Timestamp(4))))
    assert group.all[1].origin == origin


def test_a_question_ahead_of_what_is_executed_waits() -> None:
    group = Group()
    follower = group.all[1]
    follower.machine.versions.watermark = 10
    follower.comparison.wanted(group.all[0].me, DigestWanted(1, WATERMARK, module.FIRST), 0.0)
    follower.comparison.turn(0.1)
    assert not follower.comparison.outgoing
    assert follower.comparison.due
    follower.machine.versions.watermark = WATERMARK
    follower.comparison.turn(0.2)
    [(_, _, answer)] = follower.comparison.outgoing
    assert isinstance(answer, Digest)
    follower.comparison.wanted(group.all[0].me, DigestWanted(2, Timestamp(WATERMARK + 1), module.FIRST), 0.3)
    follower.comparison.turn(0.4 + WAIT_S)
    assert not follower.comparison.due


def test_nothing_is_asked_until_a_verdict_can_be_executed() -> None:
    """The replica that is named would help to name the next one, and both would step aside."""
    group = Group(count=2)
    group.all[2].set(b"key-00000", b"wrong")
    group.all[1].set(b"key-00001", b"wrong")
    group.run(lambda: bool(group.leader.verdicts))
    assert not group.asked[-1].span.history, "the next slice is asked for at once"
    named = group.now
    group.leader.verdicts.clear()
    group.run(lambda: group.asked[-1].span.history)
    assert group.now - named > WAIT_S - 0.6  # turns are 0.3 s apart
