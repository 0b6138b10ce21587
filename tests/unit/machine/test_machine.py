"""The machine's rules, one by one. What happens under any schedule is in `test_machine_model`."""

from __future__ import annotations

import pytest

from kvstore.machine.commands import ChangePlacement, Command, Compact, Delivered, Expire, Pin, Tick, Unpin
from kvstore.machine.machine import Effects, Machine, Picture, Store, Vote
from kvstore.machine.placement import Placement, Scheme
from kvstore.machine.request import (
    Arithmetic,
    Calculate,
    Compare,
    Delete,
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
    Entry,
    Failed,
    Fault,
    Got,
    Number,
    Outcome,
    Refusal,
    Refused,
    Result,
    Unmet,
    WrongPartition,
)
from kvstore.machine.versions import Compacted, NotYet
from multicast.errors import InvariantBroken
from multicast.types import ClientId, GroupId, MessageId, Timestamp, timestamp
from tests.unit.machine.test_machine_model import copy_of

A, B, C = GroupId(0), GroupId(1), GroupId(2)
PLACEMENT = Placement(1, Scheme.ORDERED, (b"", b"m", b"t"), (A, B, C), (A, B, C))
"""Keys from a are in A, from m in B, from t in C."""
ALL = Range(b"", None)


def ts(time: int) -> Timestamp:
    return timestamp(time, A)


def mid(time: int) -> MessageId:
    return MessageId(ClientId(1), time, 7)


def message(time: int, command: Command, destinations: str = "A") -> Delivered:
    groups = tuple(GroupId("ABC".index(g)) for g in destinations)
    return Delivered(ts(time), mid(time), groups, 0, command)


def exists(key: bytes) -> Compare:
    return Compare(key, Subject.EXISTS, Operator.EQUAL, 1)


def then(*operations: Operation) -> Transaction:
    return Transaction(then=operations)


class Group:
    """A machine, with all that it has said."""

    def __init__(
        self, group: GroupId = A, store: Store | None = None, picture: Picture | None = None
    ) -> None:
        self.group = group
        self.store = store or Store()
        self.machine = Machine(group, self.store, picture or Picture(PLACEMENT))
        self.results: dict[int, Result] = {}
        self.votes: list[tuple[int, bool, tuple[GroupId, ...]]] = []
        self.drain()

    def drain(self) -> Effects:
        effects = self.machine.drain()
        self.results |= {e.delivered.gts >> 10: e.result for e in effects.results}
        self.votes += [(vote.gts >> 10, vote.yes, groups) for vote, groups in effects.votes]
        return effects

    def deliver(self, time: int, command: Command, destinations: str = "A") -> Effects:
        self.machine.deliver(message(time, command, destinations))
        return self.drain()

    def vote(self, time: int, group: GroupId, *, yes: bool) -> Effects:
        self.machine.vote(Vote(ts(time), mid(time), group, yes))
        return self.drain()

    def refusal(self, time: int) -> Refusal:
        result = self.results[time]
        assert isinstance(result, Refused)
        return result.refusal

    def value(self, key: bytes) -> bytes | None:
        found = self.machine.versions.get(key)
        return found and found.value


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
        succeeded=True, unmet=(), results=((0, Got(Entry(b"a", b"then", ts(1), ts(1), 1))), (1, WRITTEN))
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
    assert g.machine.picture().votes == ()


def test_votes_survive_a_restart() -> None:
    g = Group()
    transaction = Transaction((exists(b"n"), exists(b"t")), (Put(b"a", b"then"),))
    g.deliver(1, transaction, "ABC")
    g.vote(1, B, yes=True)
    g.vote(2, B, yes=True)
    restored = Group(store=copy_of(g.store), picture=g.machine.picture())
    restored.vote(1, C, yes=True)
    restored.deliver(2, WAITS_FOR_B, "AB")
    assert list(restored.results) == [1, 2]


def test_votes_that_cannot_be() -> None:
    g = Group()
    g.deliver(1, WAITS_FOR_B, "AB")
    with pytest.raises(InvariantBroken, match="is not for 1:1"):
        g.machine.vote(Vote(ts(1), mid(9), B, yes=True))
    early = Vote(ts(5), mid(5), B, yes=True)
    g.machine.vote(early)
    with pytest.raises(InvariantBroken, match="contradicts"):
        g.machine.vote(early._replace(yes=False))


def test_votes_are_kept_until_nobody_can_ask() -> None:
    g = Group()
    g.deliver(1, Transaction((exists(b"a"),), (), ()), "AB")
    told = g.machine.told(ts(1))
    assert told == Vote(ts(1), mid(1), A, yes=False)
    again = Group(store=copy_of(g.store), picture=g.machine.picture())
    assert again.machine.told(ts(1)) == told
    again.machine.forget_vote(ts(1))
    assert again.machine.told(ts(1)) is None


def add(key: bytes) -> Transaction:
    return then(Calculate(key, Arithmetic.ADD, 1))


def test_a_single_applied_position_would_be_wrong() -> None:
    """After a crash between the execution of 2 and of 1, either number would repeat or lose one of them."""
    g = Group()
    g.deliver(1, Transaction((exists(b"n"),), (), (Calculate(b"a", Arithmetic.ADD, 1),)), "AB")
    g.deliver(2, add(b"b"))
    picture = g.machine.picture()
    assert (picture.watermark, picture.executed, picture.delivered) == (0, (ts(2),), ts(2))
    assert [w.delivered.gts for w in picture.waiting] == [ts(1)]

    restored = Group(store=copy_of(g.store), picture=picture)
    restored.deliver(2, add(b"b"))
    restored.vote(1, B, yes=False)
    restored.deliver(3, add(b"a"))
    assert (restored.value(b"a"), restored.value(b"b")) == (b"2", b"1")
    assert restored.machine.watermark == ts(3)

    # "Applied up to the watermark": 2 is delivered again, on a store that has its effects.
    behind = Group(store=copy_of(g.store), picture=Picture(PLACEMENT))
    behind.store.results.delete((ClientId(1), 2))
    behind.deliver(1, Transaction((exists(b"n"),), (), (Calculate(b"a", Arithmetic.ADD, 1),)), "AB")
    behind.deliver(2, add(b"b"))
    assert behind.value(b"b") == b"2", "executed twice"

    # "Applied up to the last delivery": 1 is never executed.
    ahead = Group(store=copy_of(g.store), picture=Picture(PLACEMENT, delivered=ts(2), watermark=ts(2)))
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
    restored = Group(store=copy_of(g.store), picture=g.machine.picture())
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
    g.deliver(1, then(Put(b"a", b"1"), Put(b"b", b"1")))
    slow = Transaction((Unchanged(Range(b"a", b"b"), ts(1)), exists(b"n")), (), ())
    g.deliver(2, WAITS_FOR_B, "AB")
    g.deliver(3, slow, "AB")
    g.deliver(4, Compact(ts(3)))
    assert 4 not in g.results
    g.deliver(5, Transaction((Unchanged(Range(b"h", b"i"), ts(1)),)))
    assert g.results[5] == Outcome(succeeded=False, unmet=(Unmet(0, Fault.COMPACTED),), results=())
    with pytest.raises(Compacted, match=f"revision {ts(1)} is compacted; the oldest one is {ts(3)}"):
        g.machine.versions.get_at(b"a", ts(1))
    restored = Group(store=copy_of(g.store), picture=g.machine.picture())
    for each in (g, restored):
        each.vote(2, B, yes=True)
        assert each.results[3] == Outcome(succeeded=False, unmet=(Unmet(0),), results=())
        assert each.results[4] == DONE
        assert each.machine.watermark == ts(5)
    assert g.store == restored.store


def test_compaction_does_not_overtake_pins() -> None:
    g = Group()
    for time in (1, 2, 3):
        g.deliver(time, then(Put(b"a", b"%d" % time)))
    g.deliver(4, Pin("snapshot", ts(2)))
    g.deliver(5, Compact(ts(3)))
    assert g.results[5] == Refused(Refusal.PINNED, f"snapshot holds revision {ts(2)}, below {ts(3)}")
    g.deliver(6, Compact(ts(2)))
    found = g.machine.versions.get_at(b"a", ts(2))
    assert found is not None
    assert found.value == b"2"
    g.deliver(7, Pin("late", ts(1)))
    assert g.refusal(7) is Refusal.COMPACTED
    g.deliver(8, Unpin(("snapshot", "unknown")))
    g.deliver(9, Compact(ts(10)))
    assert g.refusal(9) is Refusal.FUTURE_REVISION
    g.deliver(10, Compact(ts(9)))
    assert g.results[10] == DONE
    assert list(g.store.history.items(0, None)) == []
    assert g.value(b"a") == b"3"


def test_what_is_removed_leaves_with_compaction() -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", b""), Put(b"b", b"")))
    g.deliver(2, then(Delete(b"a"), Put(b"d", b""), Delete(b"d")))
    g.deliver(3, add(b"b"))
    assert g.results[3] == Outcome(succeeded=True, unmet=(), results=((0, Failed(Fault.NOT_A_NUMBER)),))
    assert [r for r, _ in g.store.history.items(0, None)] == [ts(1), ts(2)], "3 has written nothing"
    assert [key for key, _ in g.store.latest.items(b"", None)] == [b"a", b"b"], "d was never there"
    g.deliver(4, Compact(ts(3)))
    assert [key for key, _ in g.store.latest.items(b"", None)] == [b"b"]


def test_rows_do_not_tell_whether_compaction_came_before_a_later_write() -> None:
    early, late = Group(), Group()
    for g in (early, late):
        g.deliver(1, then(Put(b"b", b"1"), Put(b"c", b"1")))
        g.deliver(2, then(Delete(b"b")))
        g.deliver(3, WAITS_FOR_B, "AB")
        g.deliver(4, Compact(ts(2)))
    early.vote(3, B, yes=True)
    for g in (early, late):
        g.deliver(5, then(Put(b"b", b"5"), Put(b"c", b"5")))
    assert list(early.results) != list(late.results)
    late.vote(3, B, yes=True)
    assert early.store == late.store


def test_a_version_that_was_compacted_is_still_read_after_it_is_overwritten() -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", b"old")))
    g.deliver(2, Compact(ts(2)))
    g.deliver(3, then(Put(b"a", b"new")))
    assert g.machine.versions.get_at(b"a", ts(2)) == (b"old", ts(1), ts(1), 1)
    assert g.machine.versions.get_at(b"a", ts(3)) == (b"new", ts(1), ts(3), 2)


def test_wrong_partition_carries_the_map_and_does_nothing() -> None:
    g = Group()
    everywhere = Placement(2, Scheme.ORDERED, (b"", b"b"), (A, B), (A, B, C))
    g.deliver(1, ChangePlacement(everywhere), "ABC")
    g.deliver(2, then(Put(b"a", b""), Put(b"b", b"")))
    assert g.results[2] == WrongPartition(everywhere)
    assert g.value(b"a") is None
    g.deliver(3, then(Put(b"a", b""), Put(b"b", b"")), "AB")
    assert g.results[3] == Outcome(succeeded=True, unmet=(), results=((0, WRITTEN),))
    assert g.machine.placement == everywhere


def test_a_transaction_keeps_the_map_of_its_place() -> None:
    g = Group()
    g.deliver(1, WAITS_FOR_B, "AB")
    other = Placement(2, Scheme.ORDERED, (b"",), (C,), (A, B, C))
    g.deliver(2, ChangePlacement(other), "ABC")
    assert g.results[2] == DONE
    restored = Group(store=copy_of(g.store), picture=g.machine.picture())
    for each in (g, restored):
        each.vote(1, B, yes=True)
        assert each.value(b"a") == b"then"
    assert restored.machine.placement == other


def test_what_must_go_to_all_groups() -> None:
    g = Group()
    g.deliver(1, ChangePlacement(Placement(2, Scheme.ORDERED, (b"",), (A,), (A, B, C))), "AB")
    assert g.results[1] == Refused(Refusal.NOT_TO_ALL, "it was sent to (0, 1), not to all of (0, 1, 2)")
    g.deliver(2, Expire((ClientId(1),)), "A")
    assert g.refusal(2) is Refusal.NOT_TO_ALL
    g.deliver(3, ChangePlacement(Placement(3, Scheme.ORDERED, (b"",), (A,), (A, B, C))), "ABC")
    assert g.refusal(3) is Refusal.STALE_PLACEMENT
    g.deliver(4, ChangePlacement(Placement.evenly([A, B, C], 2)), "ABC")
    assert g.refusal(4) is Refusal.STALE_PLACEMENT


def test_a_repeated_request_gets_its_result() -> None:
    g = Group()
    g.deliver(1, add(b"a"))
    first = g.results[1]
    g.machine.deliver(message(2, add(b"a"))._replace(mid=mid(1)))
    g.drain()
    assert g.results[2] == first == g.machine.stored(mid(1))
    assert g.value(b"a") == b"1"
    g.machine.deliver(message(3, add(b"a"))._replace(mid=mid(1)._replace(digest=8)))
    g.drain()
    assert g.refusal(3) is Refusal.MISMATCH
    g.deliver(4, WAITS_FOR_B, "AB")
    assert g.machine.stored(mid(4)) is None
    g.machine.deliver(message(5, WAITS_FOR_B, "AB")._replace(mid=mid(4)))
    g.drain()
    assert 5 not in g.results, "the first will answer"
    assert g.machine.watermark == ts(3)


def test_an_expired_client_executes_as_expired() -> None:
    g = Group()
    g.deliver(1, WAITS_FOR_B, "AB")
    g.deliver(2, Expire((ClientId(1),)), "ABC")
    g.deliver(3, add(b"b"))
    assert g.refusal(3) is Refusal.EXPIRED
    g.vote(1, B, yes=True)
    assert 1 in g.results, "it was delivered before its client expired"
    assert g.machine.stored(mid(1)) is None
    assert g.machine.watermark == ts(3)


def test_a_tick_moves_an_idle_group() -> None:
    g = Group()
    g.deliver(7, Tick())
    assert g.results[7] == DONE
    assert g.machine.watermark == ts(7)
    assert list(g.machine.versions.changes(0)) == []


def test_errors_of_operations_abort_nothing() -> None:
    g = Group()
    top = (1 << 63) - 1
    g.deliver(
        1, then(Calculate(b"a", Arithmetic.MAX, top), Calculate(b"a", Arithmetic.ADD, 1), Put(b"b", b""))
    )
    assert g.results[1] == Outcome(
        succeeded=True, unmet=(), results=((0, Number(top)), (1, Failed(Fault.OVERFLOW)), (2, WRITTEN))
    )
    assert g.value(b"a") == b"9223372036854775807"
