"""The machine's rules, one by one. What happens under any schedule is in `test_machine_model`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from kvstore.machine.codec import decode_request
from kvstore.machine.commands import (
    ChangePlacement,
    Command,
    Compact,
    Delivered,
    Expire,
    Malformed,
    Pin,
    Request,
    Tick,
    Unpin,
)
from kvstore.machine.machine import Machine
from kvstore.machine.ordered import MemoryMap
from kvstore.machine.placement import Placement, Scheme
from kvstore.machine.request import (
    Arithmetic,
    Calculate,
    Compare,
    Delete,
    Footprint,
    Get,
    Operation,
    Operator,
    Put,
    Range,
    Scan,
    Subject,
    Transaction,
    Unchanged,
)
from kvstore.machine.results import (
    DONE,
    WRITTEN,
    Aborted,
    Decision,
    Failed,
    Failure,
    Fault,
    Got,
    KeyValue,
    Number,
    Outcome,
    Refusal,
    Refused,
    Result,
    Unmet,
    WrongPartition,
)
from kvstore.machine.sessions import WINDOW
from kvstore.machine.state import Effects, MachineState, Store, Vote
from kvstore.machine.versions import Compacted, NotYet, Version
from multicast.errors import PeerViolation
from multicast.types import ClientId, GroupId, MessageId, Timestamp, timestamp
from tests.unit.kvstore.machine.test_machine_model import copy_of

A, B, C, D = (GroupId(g) for g in range(4))
PLACEMENT = Placement(1, Scheme.ORDERED, (b"", b"m", b"t"), (A, B, C), (A, B, C))
"""Keys from a are in A, from m in B, from t in C."""
ALL = Range(b"", None)
FROM_B = frozenset((B,))
LATER = 1 << 50


def ts(time: int) -> Timestamp:
    return timestamp(time, A)


def mid(time: int) -> MessageId:
    return MessageId(ClientId(1), time, 7)


def message(time: int, command: Command, destinations: str = "A") -> Delivered:
    groups = tuple(GroupId("ABCD".index(g)) for g in destinations)
    return Delivered(ts(time), mid(time), groups, Request(1, time, 0, LATER, 7, command))


def again(time: int, first: Delivered, digest: int = 7) -> Delivered:
    """The same request, multicast again."""
    return Delivered(ts(time), mid(time), first.destinations, replace(first.request, digest=digest))


def exists(key: bytes) -> Compare:
    return Compare(key, Subject.EXISTS, Operator.EQUAL, 1)


def then(*operations: Operation) -> Transaction:
    return Transaction(then=operations)


class Group:
    """A machine, with all that it has said."""

    def __init__(
        self, group: GroupId = A, store: Store | None = None, state: MachineState | None = None
    ) -> None:
        self.group = group
        self.store = store or Store()
        self.machine = Machine(group, self.store, state or MachineState(PLACEMENT))
        self.results: dict[int, Result] = {}
        self.votes: list[tuple[int, bool, tuple[GroupId, ...]]] = []
        self.outcomes: list[tuple[int, Decision]] = []
        self.drain()

    def drain(self) -> Effects:
        effects = self.machine.drain()
        self.results |= {e.delivered.gts >> 10: e.result for e in effects.results}
        self.votes += [(vote.gts >> 10, vote.yes, groups) for vote, groups in effects.votes]
        self.outcomes += [(gts >> 10, decision) for gts, _, decision in effects.outcomes]
        return effects

    def deliver(self, time: int, command: Command, destinations: str = "A") -> Effects:
        self.machine.deliver(message(time, command, destinations))
        return self.drain()

    def vote(self, time: int, group: GroupId, *, yes: bool) -> Effects:
        self.machine.vote(Vote(ts(time), mid(time), group, yes))
        return self.drain()

    def outcome(self, time: int, decision: Decision) -> Effects:
        self.machine.outcome(ts(time), decision)
        return self.drain()

    def restarted(self) -> Group:
        return Group(self.group, copy_of(self.store), self.machine.state())

    def work(self) -> None:
        while self.machine.work():
            pass

    def refusal(self, time: int) -> Refusal:
        result = self.results[time]
        assert isinstance(result, Refused)
        return result.refusal

    def value(self, key: bytes) -> bytes | None:
        found = self.machine.versions.get(key)
        return None if found is None else found.value


WAITS_FOR_B = Transaction((exists(b"n"),), (Put(b"a", b"then"),), (Put(b"a", b"otherwise"),))


def test_a_far_vote_delays_only_those_that_touch_its_keys() -> None:
    g = Group()
    g.deliver(1, WAITS_FOR_B, "AB")
    g.deliver(2, then(Put(b"b", b"2")))
    g.deliver(3, then(Get(b"a"), Put(b"c", b"3")))
    g.deliver(4, then(Scan(Range(b"b", b"c"))))
    g.deliver(5, then(Get(b"c")))
    assert sorted(g.results) == [2, 4], "3 touches a, and 5 what 3 writes"
    assert g.machine.watermark == 0
    assert g.machine.delivered == ts(5)
    g.vote(1, B, yes=True)
    assert sorted(g.results) == [1, 2, 3, 4, 5]
    assert g.results[3] == Outcome(
        succeeded=True, unmet=(), results=((0, Got(KeyValue(b"a", b"then", ts(1), ts(1), 1))), (1, WRITTEN))
    )
    assert g.machine.watermark == ts(5)


def test_conditions_are_evaluated_when_locks_are_granted() -> None:
    g = Group()
    g.deliver(1, WAITS_FOR_B, "AB")
    g.deliver(2, Transaction((exists(b"a"),), (Put(b"n", b""),)), "AB")
    assert g.votes == [], "a may still be written"
    g.vote(1, B, yes=False)
    assert g.votes == [(2, True, (B,))]


def test_one_no_decides_at_once() -> None:
    g = Group()
    transaction = Transaction((exists(b"n"), exists(b"t")), (Put(b"a", b"then"),), (Put(b"a", b"no"),))
    g.deliver(1, transaction, "ABC")
    g.deliver(2, transaction, "ABC")
    g.vote(1, C, yes=False)
    assert g.results[1] == Outcome(succeeded=False, unmet=(), results=((0, WRITTEN),))
    g.vote(2, B, yes=True)
    assert 2 not in g.results
    g.vote(2, C, yes=True)
    assert g.value(b"a") == b"then"


def test_its_own_no_decides_at_once_and_is_told() -> None:
    g = Group()
    g.deliver(1, Transaction((exists(b"a"), exists(b"n")), (), (Put(b"a", b"no"),)), "ABC")
    assert g.votes == [(1, False, (B, C))]
    assert g.results[1] == Outcome(succeeded=False, unmet=(Unmet(0),), results=((0, WRITTEN),))


def test_a_group_without_conditions_does_not_vote_and_one_alone_tells_nobody() -> None:
    g = Group()
    g.deliver(1, WAITS_FOR_B, "AB")
    g.deliver(2, Transaction((exists(b"z"),), (), ()), "C")
    g.deliver(3, Transaction((exists(b"b"),), (), ()))
    assert g.votes == []


def test_votes_come_before_their_message_and_twice() -> None:
    g = Group()
    g.vote(1, B, yes=True)
    g.vote(1, B, yes=True)
    g.deliver(1, WAITS_FOR_B, "AB")
    assert g.value(b"a") == b"then"
    g.vote(1, B, yes=True)
    assert g.machine.open_votes() == []


def test_votes_that_cannot_be() -> None:
    """They are the fault of the peer that sends them, and change nothing."""
    g = Group()
    g.deliver(1, WAITS_FOR_B, "AB")
    for wrong in (Vote(ts(1), mid(9), B, yes=True), Vote(ts(1), mid(1), GroupId(7), yes=False)):
        with pytest.raises(PeerViolation, match="is not for 1:1"):
            g.machine.vote(wrong)
    assert g.machine.open_votes() == [(ts(1), FROM_B)]
    early = Vote(ts(5), mid(5), B, yes=True)
    g.machine.vote(early)
    with pytest.raises(PeerViolation, match="contradicts"):
        g.machine.vote(replace(early, yes=False))
    g.machine.vote(early)
    g.vote(1, B, yes=True)
    assert g.value(b"a") == b"then"


def test_an_outcome_that_cannot_be() -> None:
    """A transaction has not succeeded whose conditions do not hold here."""
    g = Group()
    g.deliver(1, Transaction((exists(b"b"), exists(b"n")), (Put(b"a", b"then"),)), "AB")
    with pytest.raises(PeerViolation, match="is reported as THEN, and was not decided so"):
        g.machine.outcome(ts(1), Decision.THEN)
    assert g.value(b"a") is None


def add(key: bytes) -> Transaction:
    return then(Calculate(key, Arithmetic.ADD, 1))


def test_a_single_applied_position_would_be_wrong() -> None:
    """After a crash between the execution of 2 and of 1, either number would repeat or lose one of them."""
    g = Group()
    g.deliver(1, Transaction((exists(b"n"),), (), (Calculate(b"a", Arithmetic.ADD, 1),)), "AB")
    g.deliver(2, add(b"b"))
    state = g.machine.state()
    assert (state.watermark, state.executed, state.delivered) == (0, (ts(2),), ts(2))
    assert [w.delivered.gts for w in state.waiting] == [ts(1)]

    restored = Group(store=copy_of(g.store), state=state)
    restored.deliver(2, add(b"b"))
    restored.vote(1, B, yes=False)
    restored.deliver(3, add(b"a"))
    assert (restored.value(b"a"), restored.value(b"b")) == (b"2", b"1")
    assert restored.machine.watermark == ts(3)

    # "Applied up to the watermark": 2 is delivered again, on a store that has its effects.
    behind = Group(store=copy_of(g.store), state=MachineState(PLACEMENT))
    behind.store.results.delete((1, (A,), 2))
    behind.deliver(1, Transaction((exists(b"n"),), (), (Calculate(b"a", Arithmetic.ADD, 1),)), "AB")
    behind.deliver(2, add(b"b"))
    assert behind.value(b"b") == b"2", "executed twice"

    # "Applied up to the last delivery": 1 is never executed.
    ahead = Group(store=copy_of(g.store), state=MachineState(PLACEMENT, delivered=ts(2), watermark=ts(2)))
    ahead.vote(1, B, yes=False)
    ahead.deliver(3, add(b"a"))
    assert ahead.value(b"a") == b"1", "lost"


def test_a_restored_machine_has_its_locks_and_tells_its_votes_again() -> None:
    g = Group()
    g.deliver(1, Transaction((exists(b"a"), exists(b"n")), (), (Put(b"a", b"1"),)), "AB")
    g.deliver(2, then(Put(b"b", b"")))
    g.deliver(3, Transaction((exists(b"b"), exists(b"n")), (Put(b"c", b""),)), "AB")
    g.deliver(4, then(Put(b"c", b"4")))
    assert g.votes == [(1, False, (B,)), (3, True, (B,))]
    restored = Group(store=copy_of(g.store), state=g.machine.state())
    assert restored.votes == [(3, True, (B,))]
    restored.deliver(5, then(Get(b"c")))
    assert restored.results == {}
    restored.vote(3, B, yes=True)
    assert list(restored.results) == [3, 4, 5]


def test_nothing_above_the_watermark_is_shown() -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", b"0")))
    g.deliver(2, WAITS_FOR_B, "AB")
    g.deliver(3, then(Put(b"b", b"3")))
    assert g.machine.watermark == ts(1)
    assert [e.key for e in g.machine.versions.scan_at(ALL, ts(1))] == [b"a"]
    with pytest.raises(NotYet, match=f"revision {ts(3)} is not executed yet; the newest one is {ts(1)}"):
        g.machine.versions.get_at(b"b", ts(3))
    assert [r for r, _ in g.machine.versions.changes(0)] == [ts(1)]
    g.vote(2, B, yes=True)
    assert [r for r, _ in g.machine.versions.changes(0)] == [ts(1), ts(2), ts(3)]


def test_compaction_waits_for_slower_earlier_transactions() -> None:
    """Their conditions may be about revisions below the floor."""
    g = Group()
    g.deliver(1, then(Put(b"a", b"1"), Put(b"b", b"1"), Put(b"c", b"1")))
    g.deliver(2, WAITS_FOR_B, "AB")
    g.deliver(3, then(Delete(b"c")))
    g.deliver(4, Transaction((Unchanged(Range(b"a", b"d"), ts(1)), exists(b"n")), (), ()), "AB")
    g.deliver(5, Compact(ts(3)))
    assert g.results[5] == DONE
    assert not g.machine.work(), "2 and 4 are not executed"
    g.deliver(6, Transaction((Unchanged(Range(b"h", b"i"), ts(1)),)))
    assert g.results[6] == Outcome(succeeded=False, unmet=(Unmet(0, Fault.COMPACTED),), results=())
    with pytest.raises(Compacted, match=f"revision {ts(1)} is compacted; the oldest one is {ts(3)}"):
        g.machine.versions.get_at(b"a", ts(1))
    restored = g.restarted()
    for each in (g, restored):
        each.vote(2, B, yes=False)
        assert each.results[4] == Outcome(succeeded=False, unmet=(Unmet(0),), results=()), "c was removed"
        assert each.machine.watermark == ts(6)
        each.work()
        assert [key for key, _ in each.store.latest.items(b"", None)] == [b"a", b"b"]
    assert g.store == restored.store


def test_compaction_does_not_overtake_pins() -> None:
    g = Group()
    for time in (1, 2, 3):
        g.deliver(time, then(Put(b"a", b"%d" % time)))
    g.deliver(4, Pin("snapshot", ts(2), LATER))
    g.deliver(5, Compact(ts(3)))
    assert g.results[5] == Refused(Refusal.PINNED, f"snapshot holds revision {ts(2)}, below {ts(3)}")
    g.deliver(6, Compact(ts(2)))
    g.work()
    found = g.machine.versions.get_at(b"a", ts(2))
    assert found is not None
    assert found.value == b"2"
    g.deliver(7, Pin("late", ts(1), LATER))
    assert g.refusal(7) is Refusal.COMPACTED
    g.deliver(8, Unpin(("snapshot", "unknown")))
    g.deliver(9, Compact(ts(10)))
    assert g.refusal(9) is Refusal.FUTURE_REVISION
    g.deliver(10, Compact(ts(9)))
    assert g.results[10] == DONE
    g.work()
    assert list(g.store.history.items(0, None)) == []
    assert g.value(b"a") == b"3"


def test_a_pin_ends_by_itself() -> None:
    g = Group()
    g.deliver(1, Tick())
    g.deliver(2, Pin("short", ts(1), ts(4)))
    g.deliver(3, Pin("long", ts(2), ts(9)))
    assert g.machine.pins == {"short": Pin("short", ts(1), ts(4)), "long": Pin("long", ts(2), ts(9))}
    g.deliver(4, Compact(ts(2)))
    assert g.results[4] == Refused(Refusal.PINNED, f"short holds revision {ts(1)}, below {ts(2)}")
    restored = g.restarted()
    for each in (g, restored):
        each.deliver(5, Compact(ts(2)))
        assert each.results[5] == DONE
        assert list(each.machine.pins) == ["long"]
        each.deliver(6, Compact(ts(3)))
        assert each.refusal(6) is Refusal.PINNED
        each.deliver(7, Pin("late", ts(6), ts(6)))
        assert each.results[7] == Refused(Refusal.EXPIRED, f"late was to end at {ts(6)}, before {ts(7)}")


def test_pins_that_have_ended_are_forgotten_with_the_next() -> None:
    machine = Machine(A, Store(), MachineState(PLACEMENT))
    for time in range(1, 100):
        machine.deliver(message(time, Pin(f"snapshot {time}", ts(time), ts(time + 5))))
    assert sorted(machine.pins) == [f"snapshot {time}" for time in range(94, 100)]


def test_what_is_removed_leaves_with_compaction() -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", b""), Put(b"b", b"")))
    g.deliver(2, then(Delete(b"a"), Put(b"d", b""), Delete(b"d")))
    g.deliver(3, add(b"b"))
    assert g.results[3] == Aborted(in_then=True, failures=(Failure(0, Fault.NOT_A_NUMBER),))
    assert [r for r, _ in g.store.history.items(0, None)] == [ts(1), ts(2)], "3 has written nothing"
    assert [key for key, _ in g.store.latest.items(b"", None)] == [b"a", b"b"], "d was never there"
    g.deliver(4, Compact(ts(3)))
    g.work()
    assert [key for key, _ in g.store.latest.items(b"", None)] == [b"b"]


def test_compaction_leaves_later_removals() -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", b"1")))
    g.deliver(2, then(Delete(b"a")))
    g.deliver(3, Compact(ts(2)))
    g.deliver(4, then(Put(b"a", b"4")))
    g.deliver(5, then(Delete(b"a")))
    g.work()
    assert g.machine.versions.get_at(b"a", ts(4)) == Version(b"4", ts(4), ts(4), 1)
    assert g.machine.versions.get_at(b"a", ts(5)) is None


def test_rows_do_not_tell_when_compaction_was_done() -> None:
    """Before, amid or after later writes, and in one go or in slices with a restart in between."""
    early, amid, late = Group(), Group(), Group()
    for g in (early, amid, late):
        g.deliver(1, then(Put(b"b", b"1"), Put(b"c", b"1"), Put(b"d", b"1")))
        g.deliver(2, then(Delete(b"b"), Put(b"d", b"2")))
        for time in range(10, 400):
            g.deliver(time, then(Put(b"k%d" % (time % 7), b""), Put(b"l%d" % time, b"")))
        g.deliver(400, WAITS_FOR_B, "AB")
        g.deliver(401, Compact(ts(399)))
    early.vote(400, B, yes=True)
    early.work()
    amid.vote(400, B, yes=True)
    assert amid.machine.work()
    for g in (early, amid, late):
        g.deliver(500, then(Put(b"b", b"5"), Put(b"c", b"5"), Delete(b"k3")))
        g.deliver(501, then(Put(b"k3", b"5"), Put(b"l390", b"5")))
    assert amid.machine.state().chores == ((ts(401), Compact(ts(399))),)
    assert 0 < len(list(amid.store.history.items(0, None))) < len(list(late.store.history.items(0, None)))
    restored = amid.restarted()
    late.vote(400, B, yes=True)
    for g in (amid, restored, late):
        g.work()
        assert g.store == early.store
        assert g.machine.state() == early.machine.state()
    assert [r for r, _ in early.store.history.items(0, None)] == [ts(400), ts(500), ts(501)]


def test_a_slice_of_compaction_is_bounded_even_for_one_hot_key() -> None:
    g = Group()
    for time in range(1, 2001):
        g.deliver(time, then(Put(b"hot", b"%d" % time)))
    g.deliver(2001, Compact(ts(10)))
    slices = 1
    while g.machine.work():
        slices += 1
    # A row to decode and a change to look at, of each.
    assert slices == pytest.approx(2 * 2000 / 64, abs=1), "its chain of versions is followed in slices, too"


class CountingMap(MemoryMap[Any, Any]):
    """A map that counts the bytes of the values in what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0
        get = self.get
        self.get = lambda key, *_: self.count(get(key))

    def count(self, row: Any) -> Any:
        self.read += sum(len(change.value or b"") for change in row or ())
        return row

    def items(self, start: Any, end: Any, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        return ((key, self.count(row)) for key, row in super().items(start, end, reverse=reverse))


@pytest.mark.parametrize("floor", [1, 60], ids=["followed from above", "dropped"])
def test_a_slice_of_compaction_is_bounded_for_large_values(floor: int) -> None:
    """Rows of 64 KiB each: a slice does not decode 64 of them, nor go through many."""
    g = Group(store=Store(history=CountingMap()))
    history: Any = g.store.history
    for time in range(1, 61):
        g.deliver(time, then(*(Put(b"k%d" % key, bytes(1024)) for key in range(64))))
    g.deliver(100, Compact(ts(floor)))
    most, more, slices = 0, True, 0
    while more:
        history.read = 0
        more = g.machine.work()
        slices += 1
        most = max(most, history.read)
    assert 0 < most < 1 << 20
    if floor == 60:  # a row costs 25, for 64 changes and their values, and each change one more
        assert slices == pytest.approx(60 * (25 + 64) / 64, abs=4)
    assert len(list(g.store.history.items(0, None))) == (60 if floor == 1 else 0)


def test_many_compactions_are_one() -> None:
    g = Group()
    for time in range(1, 50):
        g.deliver(time, then(Put(b"a%d" % time, b"")))
    for time in range(200, 240):
        g.deliver(time, Compact(ts(time)))
    g.work()
    assert g.machine.state().chores == ()
    assert list(g.store.history.items(0, None)) == []


def test_a_version_that_was_compacted_is_still_read_after_it_is_overwritten() -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", b"old")))
    g.deliver(2, Compact(ts(2)))
    g.deliver(3, then(Put(b"a", b"new")))
    g.work()
    assert g.machine.versions.get_at(b"a", ts(2)) == Version(b"old", ts(1), ts(1), 1)
    assert g.machine.versions.get_at(b"a", ts(3)) == Version(b"new", ts(1), ts(3), 2, ts(1))


WIDER = Placement(2, Scheme.ORDERED, (b"", b"b", b"m", b"t"), (A, A, B, C), (A, B, C, D))
"""The same owners, another range and another group."""


def test_a_map_changes_without_moving_anything() -> None:
    g = Group()
    g.deliver(1, ChangePlacement(WIDER), "ABC")
    assert g.results[1] == Refused(Refusal.NOT_TO_ALL, "it was sent to (0, 1, 2), not to all of (0, 1, 2, 3)")
    g.deliver(2, ChangePlacement(WIDER), "ABCD")
    assert g.results[2] == DONE
    assert g.machine.placement == WIDER
    g.deliver(3, then(Put(b"a", b""), Put(b"n", b"")))
    assert g.results[3] == WrongPartition(WIDER)
    assert g.value(b"a") is None
    g.deliver(4, then(Put(b"a", b""), Put(b"n", b"")), "AB")
    assert g.results[4] == Outcome(succeeded=True, unmet=(), results=((0, WRITTEN),))
    g.deliver(5, ChangePlacement(replace(WIDER, version=4)), "ABCD")
    assert g.refusal(5) is Refusal.STALE_PLACEMENT
    g.deliver(6, ChangePlacement(Placement.evenly([A, B, C, D], 3)), "ABCD")
    assert g.refusal(6) is Refusal.STALE_PLACEMENT


def test_a_map_that_moves_keys_is_refused() -> None:
    g = Group()
    moved = Placement(2, Scheme.ORDERED, (b"", b"k", b"t"), (A, B, C), (A, B, C))
    g.deliver(1, ChangePlacement(moved), "ABC")
    assert g.results[1] == Refused(Refusal.MOVES_DATA, "keys from token b'k' on would go to another group")
    assert g.machine.placement == PLACEMENT


def test_groups_that_start_from_another_map_judge_by_it() -> None:
    """A client that routes by an older map than the groups have gets theirs, in all groups alike."""
    newer = Placement(5, Scheme.ORDERED, (b"", b"b"), (A, B), (A, B, C))
    by_old_map = then(Put(b"a", b""), Put(b"c", b""))
    for destinations in ("A", "AC"):
        found = [Group(GroupId("ABC".index(name)), state=MachineState(newer)) for name in destinations]
        for g in found:
            g.deliver(1, by_old_map, destinations)
            assert g.results[1] == WrongPartition(newer)
    for g in (Group(A, state=MachineState(newer)), Group(B, state=MachineState(newer))):
        g.deliver(1, by_old_map, "AB")
        assert isinstance(g.results[1], Outcome)


def test_a_transaction_keeps_the_map_of_its_place() -> None:
    g = Group()
    g.deliver(1, WAITS_FOR_B, "AB")
    g.deliver(2, ChangePlacement(WIDER), "ABCD")
    restored = g.restarted()
    assert g.machine.state().older == (PLACEMENT,)
    for each in (g, restored):
        each.vote(1, B, yes=True)
        assert each.value(b"a") == b"then"
        assert each.machine.state().older == ()
    assert restored.machine.placement == WIDER


def test_housekeeping_of_one_group_is_sent_to_it_alone() -> None:
    g = Group()
    commands: list[Command] = [Compact(0), Pin("p", 0, LATER), Unpin(("p",)), Expire(0)]
    for time, command in enumerate(commands, 1):
        g.deliver(time, command, "AB")
        assert g.results[time] == Refused(Refusal.NOT_ALONE, "it is about one group, and was sent to (0, 1)")
    g.deliver(9, Tick(), "AB")
    assert g.results[9] == DONE


def test_a_repeated_request_gets_its_result() -> None:
    g = Group()
    first = message(1, add(b"a"))
    g.machine.deliver(first)
    footprint = g.machine.deliver(again(2, first))
    g.drain()
    assert footprint.writes == (b"a",), "its answer waits at the gate as the first did"
    assert g.machine.stored(first.request, (A,)) == (first.gts, g.results[1])
    assert g.results[2] == g.results[1]
    assert g.value(b"a") == b"1"
    g.machine.deliver(again(3, first, digest=8))
    g.drain()
    assert g.refusal(3) is Refusal.MISMATCH


def test_a_repetition_of_what_waits_is_answered_with_it() -> None:
    g = Group()
    first = message(1, WAITS_FOR_B, "AB")
    g.machine.deliver(first)
    g.machine.deliver(again(2, first))
    g.drain()
    assert g.machine.stored(first.request, (A, B)) is None
    assert g.results == {}
    g.vote(1, B, yes=True)
    assert g.results[2] == g.results[1]
    assert g.machine.watermark == ts(2)


def refusal_of(stored: tuple[Timestamp, Result] | None) -> Refusal | None:
    return stored[1].refusal if stored is not None and isinstance(stored[1], Refused) else None


def test_what_was_refused_is_refused_again_when_somebody_asks_again() -> None:
    g = Group()
    late = Request(2, 1, 0, ts(4), 7, add(b"a"))
    far = Request(2, WINDOW, 0, ts(9), 7, add(b"a"))
    g.machine.deliver(Delivered(ts(5), mid(5), (A,), late))
    g.machine.deliver(Delivered(ts(6), mid(6), (A,), far))
    assert refusal_of(g.machine.stored(late, (A,))) is Refusal.EXPIRED
    assert refusal_of(g.machine.stored(far, (A,))) is Refusal.WINDOW_FULL


def test_after_its_deadline_a_request_has_no_effect() -> None:
    g = Group()
    request = Request(2, 1, 0, ts(4), 7, add(b"a"))
    g.machine.deliver(Delivered(ts(4), mid(4), (A,), request))
    g.machine.deliver(Delivered(ts(5), mid(5), (A,), request))
    g.drain()
    assert g.refusal(5) is Refusal.EXPIRED
    assert g.value(b"a") == b"1"
    g.deliver(6, Expire(ts(7)))
    assert g.refusal(6) is Refusal.FUTURE_REVISION
    g.deliver(7, Expire(ts(5)))
    assert g.machine.state().chores == ((ts(7), Expire(ts(5))),)
    restored = g.restarted()
    for each in (g, restored):
        assert each.machine.stored(request, (A,)) == (ts(4), g.results[4])
        each.work()
        assert refusal_of(each.machine.stored(request, (A,))) is Refusal.EXPIRED
        assert each.store.sessions.get((2, (A,))) is None


def test_what_cannot_be_read_is_refused_whoever_sent_it() -> None:
    g = Group()
    for time in (1, 2):
        g.machine.deliver(Delivered(ts(time), mid(time), (A,), decode_request(b"\xc1")))
    g.drain()
    assert g.refusal(1) is g.refusal(2) is Refusal.MALFORMED
    assert isinstance(decode_request(b"\xc1").command, Malformed)
    assert g.machine.stored(decode_request(b"\xc1"), (A,)) == (0, g.results[1])
    assert list(g.store.sessions.items((0, ()), None)) == []


def test_a_delivery_that_is_not_for_the_store_moves_on() -> None:
    g = Group()
    g.deliver(1, WAITS_FOR_B, "AB")
    g.machine.skip(ts(2))
    g.machine.skip(ts(2))
    assert (g.machine.delivered, g.machine.watermark) == (ts(2), 0)
    restored = g.restarted()
    restored.vote(1, B, yes=True)
    assert restored.machine.watermark == ts(2)


def test_outcomes_are_told_to_those_who_come_late() -> None:
    g = Group()
    mine = Transaction((exists(b"a"),), (), ())
    g.deliver(1, mine, "AB")
    g.deliver(2, WAITS_FOR_B, "AB")
    g.deliver(3, Transaction((exists(b"a"), exists(b"n")), (), ()), "AB")
    assert g.machine.known_of(ts(1)) is Decision.OTHERWISE
    assert g.machine.known_of(ts(2)) is None, "it has no say"
    assert g.machine.known_of(ts(3)) is None, "it waits for a"
    assert g.outcomes == [], "replicas of this group find it out alone"
    assert g.machine.open_votes() == [(ts(2), FROM_B), (ts(3), FROM_B)]
    g.vote(2, B, yes=True)
    assert g.machine.known_of(ts(2)) is Decision.THEN
    assert g.machine.known_of(ts(3)) == Vote(ts(3), mid(3), A, yes=True)
    assert g.machine.open_votes() == [(ts(3), FROM_B)]
    restored = g.restarted()
    assert restored.machine.known_of(ts(1)) is Decision.OTHERWISE
    assert restored.machine.known_of(ts(2)) is Decision.THEN
    assert restored.machine.known_of(ts(3)) == Vote(ts(3), mid(3), A, yes=True)
    g.outcome(3, Decision.THEN)
    assert g.outcomes == [(2, Decision.THEN), (3, Decision.THEN)]
    assert isinstance(g.results[3], Outcome)
    g.machine.forget_outcomes(ts(3), keep=3)
    assert [g.machine.known_of(ts(time)) for time in (1, 2, 3)] == [
        Decision.OTHERWISE,
        Decision.THEN,
        Decision.THEN,
    ]
    g.machine.forget_outcomes(ts(3), keep=2)
    assert [g.machine.known_of(ts(time)) for time in (1, 2, 3)] == [None, Decision.THEN, Decision.THEN]
    g = g.restarted()
    g.machine.forget_outcomes(ts(3), keep=0)
    assert [g.machine.known_of(ts(time)) for time in (1, 2, 3)] == [None, None, Decision.THEN]


def test_outcomes_come_before_their_message_and_twice() -> None:
    g = Group()
    g.outcome(1, Decision.OTHERWISE)
    g.outcome(1, Decision.OTHERWISE)
    g.deliver(1, WAITS_FOR_B, "AB")
    assert g.value(b"a") == b"otherwise"
    g.outcome(1, Decision.OTHERWISE)
    g.deliver(2, WAITS_FOR_B, "AB")
    g.deliver(3, WAITS_FOR_B, "AB")
    g.outcome(3, Decision.THEN)
    assert g.machine.known_of(ts(3)) is Decision.THEN, "known, though 2 is not executed"
    assert g.machine.open_votes() == [(ts(2), FROM_B)]
    assert 3 not in g.results
    g.outcome(2, Decision.THEN)
    assert g.value(b"a") == b"then"


def test_outcomes_that_cannot_be() -> None:
    """They are the fault of the peer that sends them, and change nothing."""
    g = Group()
    g.outcome(1, Decision.OTHERWISE)
    with pytest.raises(PeerViolation, match="reported both as"):
        g.machine.outcome(ts(1), Decision.THEN)
    g.deliver(1, WAITS_FOR_B, "AB")
    with pytest.raises(PeerViolation, match="is reported as THEN, and was not decided so"):
        g.machine.outcome(ts(1), Decision.THEN)
    g.deliver(2, WAITS_FOR_B, "AB")
    g.outcome(2, Decision.THEN)
    with pytest.raises(PeerViolation, match="contradicts the decision THEN"):
        g.machine.vote(Vote(ts(2), mid(2), B, yes=False))
    g.vote(1, B, yes=True)
    g.vote(3, B, yes=False)
    with pytest.raises(PeerViolation, match="a group's vote contradicts"):
        g.machine.outcome(ts(3), Decision.THEN)
    g.outcome(4, Decision.THEN)
    with pytest.raises(PeerViolation, match="contradicts the reported decision THEN"):
        g.machine.vote(Vote(ts(4), mid(4), B, yes=False))
    g.deliver(3, WAITS_FOR_B, "AB")
    assert g.value(b"a") == b"otherwise"
    g.deliver(4, WAITS_FOR_B, "AB")
    assert g.value(b"a") == b"then"


def test_an_early_vote_for_another_message_does_not_count() -> None:
    """Nor does one of a group that has no vote: a peer may say anything before the delivery."""
    g = Group()
    g.machine.vote(Vote(ts(1), mid(9), B, yes=False))
    g.machine.vote(Vote(ts(1), mid(1), GroupId(7), yes=False))
    g.deliver(1, WAITS_FOR_B, "AB")
    assert g.machine.open_votes() == [(ts(1), FROM_B)]
    g.vote(1, B, yes=True)
    assert g.value(b"a") == b"then"


def test_what_this_replica_knows_counts_more_than_a_report() -> None:
    g = Group()
    g.outcome(1, Decision.THEN)  # before it can be compared with anything
    both = (exists(b"a"), exists(b"n"))
    g.deliver(1, Transaction(both, (Put(b"a", b"then"),), (Put(b"a", b"otherwise"),)), "AB")
    assert g.value(b"a") == b"otherwise"


def test_facts_of_messages_that_never_come_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.machine.machine.EARLY", 3)
    g = Group()
    for time in (5, 1, 2, 3):
        g.vote(time, B, yes=True)
    assert len(g.machine._early) == 3
    for time in (1, 2, 3):
        g.deliver(time, WAITS_FOR_B, "AB")
        assert time in g.results
    g.deliver(5, WAITS_FOR_B, "AB")
    assert g.machine.open_votes() == [(ts(5), FROM_B)], "it was dropped, and is asked for"


def test_reads_come_after_what_is_delivered_and_delay_nobody_else() -> None:
    g = Group()
    g.deliver(1, then(Put(b"b", b"1")))
    g.machine.read(1, Footprint((b"a", b"b")))
    g.machine.read(2, Footprint((b"b",), (), (ALL,)))
    assert g.drain().reads == [1, 2], "readers share"
    g.deliver(2, WAITS_FOR_B, "AB")
    g.machine.read(3, Footprint((b"b",)))
    g.machine.read(4, Footprint((b"a", b"c")))
    assert g.drain().reads == [3]
    g.deliver(3, then(Put(b"b", b"3")))
    assert 3 in g.results
    g.machine.read(5, Footprint((b"c",)))
    assert g.drain().reads == [5], "not behind another read that waits"
    g.deliver(4, then(Put(b"c", b"4"), Put(b"a", b"4")))
    assert 4 not in g.results, "it would change what the read is about to see"
    assert g.vote(2, B, yes=True).reads == [4]
    assert (g.value(b"a"), g.value(b"c")) == (b"then", None)
    assert not g.drain().reads
    assert (g.value(b"a"), g.value(b"c")) == (b"4", b"4")
    assert g.machine.watermark == ts(4)
    assert not g.machine._locks._claims


def test_a_read_that_nobody_was_told_of_still_holds_what_it_is_about() -> None:
    g = Group()
    g.machine.read(1, Footprint((b"a",)))
    g.machine.deliver(message(1, then(Put(b"a", b"1"))))
    effects = g.drain()
    assert (effects.reads, effects.results, g.value(b"a")) == ([1], [], None)
    g.drain()
    assert g.value(b"a") == b"1"


def test_a_tick_moves_an_idle_group() -> None:
    g = Group()
    g.deliver(7, Tick())
    assert g.results[7] == DONE
    assert g.machine.watermark == ts(7)
    assert list(g.machine.versions.changes(0)) == []


def test_an_error_of_an_operation_aborts_its_transaction() -> None:
    g = Group()
    top = (1 << 63) - 1
    operations = (Calculate(b"a", Arithmetic.MAX, top), Calculate(b"a", Arithmetic.ADD, 1), Put(b"b", b""))
    g.deliver(1, then(*operations))
    assert g.results[1] == Aborted(in_then=True, failures=(Failure(1, Fault.OVERFLOW),))
    assert (g.value(b"a"), g.value(b"b")) == (None, None)
    assert list(g.store.history.items(0, None)) == []
    g.deliver(2, Transaction((), operations, allow_failures=True))
    assert g.results[2] == Outcome(
        succeeded=True, unmet=(), results=((0, Number(top)), (1, Failed(Fault.OVERFLOW)), (2, WRITTEN))
    )
    assert g.value(b"a") == b"9223372036854775807"
