"""Transactions with writes that may fail: who votes, who waits, and what is executed or aborted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.machine.formula import FORMULA_DEPTH, Combined, all_hold, check_formula, roots_of
from kvstore.machine.merge import merge, merge_aborted
from kvstore.machine.operations import FAILURES_MAX, RESULTS_BYTES
from kvstore.machine.placement import share_of
from kvstore.machine.request import (
    Append,
    Arithmetic,
    Calculate,
    Compare,
    Delete,
    DeleteRange,
    Get,
    Limits,
    Operation,
    Operator,
    Put,
    Range,
    Subject,
    Swap,
    Transaction,
    Unchanged,
)
from kvstore.machine.results import (
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
    Unmet,
)
from kvstore.machine.state import Judgement, Vote
from kvstore.machine.waiting import decide
from multicast.errors import InvariantBroken, PeerViolation
from multicast.types import GroupId
from tests.sim.abort_mutants import ForgetsAborts
from tests.unit.kvstore.machine.test_machine import PLACEMENT, A, B, Group, exists, message, mid, then, ts

NO_NUMBER = Fault.NOT_A_NUMBER


def add(key: bytes, amount: int = 1, floor: int | None = None, ceiling: int | None = None) -> Calculate:
    return Calculate(key, Arithmetic.ADD, amount, floor, ceiling)


def number(key: bytes, how: Operator, operand: int) -> Compare:
    return Compare(key, Subject.NUMBER, how, operand)


def vote(group: GroupId, time: int = 1, **fields: bool | bytes) -> Vote:
    return Vote(ts(time), mid(time), group, **{"yes": True, **fields})  # type: ignore[arg-type]


BOTH = then(add(b"a"), add(b"n"))
"""b"a" is in group A, b"n" in group B."""


@pytest.mark.parametrize("can", [True, False])
def test_a_group_that_can_waits_until_the_other_has_said_so(can: bool) -> None:  # noqa: FBT001 - a case
    g = Group()
    effects = g.deliver(1, BOTH, "AB")
    assert effects.votes == [(vote(A), (B,))]
    assert g.value(b"a") is None, "B may not be able to"
    g.deliver(2, then(Get(b"a")))
    assert 2 not in g.results, "its keys are locked"
    g.machine.vote(vote(B, can_then=can))
    g.drain()
    if can:
        assert g.results[1] == Outcome(succeeded=True, unmet=(), results=((0, Number(1)),))
    else:
        assert g.results[1] == Aborted(in_then=True, failures=())
    assert g.value(b"a") == (b"1" if can else None)
    assert 2 in g.results
    assert g.machine.known_of(ts(1)) is (Decision.THEN if can else Decision.THEN_FAILS)


def test_a_group_that_cannot_aborts_without_waiting_and_tells() -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", b"word")))
    effects = g.deliver(2, BOTH, "AB")
    assert effects.votes == [(vote(A, 2, can_then=False), (B,))]
    assert g.results[2] == Aborted(in_then=True, failures=(Failure(0, NO_NUMBER),))
    assert g.value(b"a") == b"word"


def test_only_groups_that_write_wait_and_only_for_those_that_may_fail() -> None:
    mixed = then(add(b"a"), Put(b"n", b""), Get(b"z"))
    shares = {}
    for group in PLACEMENT.groups:
        share = share_of(mixed, PLACEMENT, group, tuple(PLACEMENT.groups))
        assert share is not None
        shares[group] = share
    assert {group: share.voters for group, share in shares.items()} == {
        group: frozenset((A,)) if share.footprint.writes else frozenset() for group, share in shares.items()
    }
    assert shares[A].listeners == (A, B)
    reads = then(add(b"a"), Get(b"n"))
    share = share_of(reads, PLACEMENT, B, (A, B))
    assert share is not None
    assert not share.voters
    g = Group(B)
    assert g.deliver(1, reads, "AB").votes == []
    assert g.results[1] == Outcome(succeeded=True, unmet=(), results=((1, Got(None)),))


@pytest.mark.parametrize(
    "operations",
    [
        (Put(b"a", b""), Delete(b"n")),
        (Get(b"a"), Put(b"n", b"")),
        (Swap(b"a", b""), Swap(b"n", b"")),
        (DeleteRange(Range(b"", None), 3), Put(b"n", b"")),
    ],
)
def test_what_cannot_fail_waits_for_nothing(operations: tuple[Operation, ...]) -> None:
    transaction = then(*operations)
    for group in (A, B):
        share = share_of(transaction, PLACEMENT, group, tuple(PLACEMENT.groups))
        assert share is not None
        assert (share.voters, share.then_may_fail) == (frozenset(), frozenset())


def test_two_values_that_a_group_returns_may_be_too_many() -> None:
    """The previous value of a swap must fit beside them: so it may fail."""
    share = share_of(then(Get(b"b"), Swap(b"a", b""), Put(b"n", b"")), PLACEMENT, B, (A, B))
    assert share is not None
    assert share.voters == {A}
    g = Group()
    g.deliver(1, then(Put(b"a", b"x" * (RESULTS_BYTES - 80)), Put(b"b", b"y" * 80)))
    g.deliver(2, then(Get(b"a"), Swap(b"b", b"z")))
    assert g.results[2] == Aborted(in_then=True, failures=(Failure(1, Fault.VALUE_TOO_LARGE),))
    assert g.value(b"b") == b"y" * 80


def test_a_swap_returns_what_was_there() -> None:
    g = Group()
    g.deliver(1, then(Swap(b"a", b"1"), Swap(b"a", b"2")))
    first = KeyValue(b"a", b"1", ts(1), ts(1), 1)
    assert g.results[1] == Outcome(succeeded=True, unmet=(), results=((0, Got(None)), (1, Got(first))))
    assert g.value(b"a") == b"2"


@pytest.mark.parametrize("destinations", ["A", "AB"])
def test_an_operation_sees_the_writes_before_it_also_when_it_is_tried(destinations: str) -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", b"word")))
    operations: list[Operation] = [Put(b"a", b"7"), add(b"a", 1, ceiling=8)]
    if destinations == "AB":
        operations.append(add(b"n"))
    g.deliver(2, then(*operations), destinations)
    if destinations == "AB":
        g.machine.vote(vote(B, 2))
        g.drain()
    assert g.results[2] == Outcome(succeeded=True, unmet=(), results=((0, WRITTEN), (1, Number(8))))
    assert g.value(b"a") == b"8"


def test_feasibility_is_judged_when_the_locks_are_granted() -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", b"word"), add(b"n")), "AB")  # waits for B
    effects = g.deliver(2, BOTH, "AB")
    assert effects.votes == []
    g.machine.vote(vote(B))
    assert g.drain().votes == [(vote(A, 2, can_then=False), (B,))]
    assert g.results[2] == Aborted(in_then=True, failures=(Failure(0, NO_NUMBER),))


def test_conditions_alone_pick_the_branch() -> None:
    """That `then` cannot be performed does not pick `otherwise`; and one that is not picked may be
    impossible.
    """
    g = Group()
    g.deliver(1, then(Put(b"a", b"word"), Put(b"b", b"")))
    for time, condition in ((2, exists(b"b")), (3, exists(b"c"))):
        branches = (add(b"a"),), (Put(b"c", b"otherwise"),)
        g.deliver(time, Transaction((condition,), *branches))
    assert g.results[2] == Aborted(in_then=True, failures=(Failure(0, NO_NUMBER),))
    assert g.value(b"c") == b"otherwise"
    g.deliver(4, Transaction((exists(b"f"),), (Put(b"d", b""),), (Put(b"d", b""), add(b"a"))))
    assert g.results[4] == Aborted(in_then=False, failures=(Failure(1, NO_NUMBER),))
    assert g.value(b"d") is None


def test_another_group_picks_the_branch_whose_failures_are_told() -> None:
    for yes in (True, False):
        g = Group()
        g.deliver(1, then(Put(b"a", b"word")))
        transaction = Transaction((exists(b"n"),), (add(b"a"),), (Get(b"a"), add(b"a")))
        effects = g.deliver(2, transaction, "AB")
        assert effects.votes == [(vote(A, 2, can_then=False, can_otherwise=False), (B,))]
        assert 2 not in g.results, "B decides which"
        g.machine.vote(vote(B, 2, yes=yes))
        g.drain()
        assert g.results[2] == Aborted(in_then=yes, failures=(Failure(0 if yes else 1, NO_NUMBER),))


def test_an_abort_is_kept_and_a_late_copy_is_not_executed() -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", b"word")))
    asked = message(2, then(add(b"a")), "A")
    g.machine.deliver(asked)
    g.deliver(3, then(Put(b"a", b"1")))
    again = message(4, then(add(b"a")), "A")
    g.machine.deliver(type(again)(again.gts, again.mid, again.destinations, asked.request))
    (executed,) = g.drain().results
    assert executed.result == Aborted(in_then=True, failures=(Failure(0, NO_NUMBER),))
    assert executed.revision == ts(2)
    assert g.value(b"a") == b"1"


def test_a_session_that_forgets_aborts_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.kvstore.machine.test_machine.Machine", ForgetsAborts)
    with pytest.raises(AssertionError):
        test_an_abort_is_kept_and_a_late_copy_is_not_executed()


def test_an_aborted_transaction_leaves_no_trace_in_the_data() -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", b"1"), Put(b"b", b"word"), Put(b"c", b"gone")))
    g.deliver(2, then(Delete(b"c")))
    before = g.store.latest.copy(), g.store.history.copy()  # type: ignore[attr-defined]
    g.deliver(3, then(add(b"a"), Put(b"c", b"new"), Put(b"d", b""), Delete(b"a"), add(b"b")))
    assert g.results[3] == Aborted(in_then=True, failures=(Failure(4, NO_NUMBER),))
    assert (g.store.latest, g.store.history) == before


def test_a_replica_that_restarts_judges_again_and_comes_to_the_same() -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", b"word")))
    g.deliver(2, Transaction((exists(b"n"),), (add(b"a"),), (Put(b"a", b"otherwise"),)), "AB")
    restored = g.restarted()
    assert restored.machine.known_of(ts(2)) == vote(A, 2, can_then=False)
    restored.outcome(2, Decision.THEN_FAILS)
    assert restored.results[2] == Aborted(in_then=True, failures=(Failure(0, NO_NUMBER),))
    with pytest.raises(PeerViolation, match="contradicts the decision THEN_FAILS"):
        restored.machine.vote(vote(B, 2, yes=False))


def test_failures_are_bounded() -> None:
    g = Group()
    g.deliver(1, then(*(add(b"a", -1, floor=0) for _ in range(40))))
    found = g.results[1]
    assert isinstance(found, Aborted)
    assert [each.operation for each in found.failures] == list(range(FAILURES_MAX))


@pytest.mark.parametrize(
    ("operation", "stored", "fault"),
    [
        (add(b"a", -8, floor=0), b"7", Fault.BELOW_FLOOR),
        (add(b"a", -1, floor=0), None, Fault.BELOW_FLOOR),
        (add(b"a", 2, floor=20), b"7", Fault.BELOW_FLOOR),
        (add(b"a", 2, ceiling=8), b"7", Fault.ABOVE_CEILING),
        (add(b"a", 1 << 62), b"%d" % (1 << 62), Fault.OVERFLOW),
        (Calculate(b"a", Arithmetic.MIN, 1), b"word", NO_NUMBER),
        (Append(b"a", b"12345", 6), b"12", Fault.VALUE_TOO_LARGE),
    ],
)
def test_each_reason(operation: Operation, stored: bytes | None, fault: Fault) -> None:
    g = Group()
    g.deliver(1, then(Put(b"b", b"") if stored is None else Put(b"a", stored)))
    g.deliver(2, then(operation))
    assert g.results[2] == Aborted(in_then=True, failures=(Failure(0, fault),))
    g.deliver(3, Transaction((), (operation, Put(b"b", b"done")), allow_failures=True))
    assert g.results[3] == Outcome(succeeded=True, unmet=(), results=((0, Failed(fault)), (1, WRITTEN)))
    assert (g.value(b"a"), g.value(b"b")) == (stored, b"done")


@pytest.mark.parametrize(
    ("value", "holds"),
    [(b"7", "!= >= <="), (b"8", "== >= <="), (b"9", "!= > >="), (None, ""), (b"word", ""), (b"08", "")],
)
def test_numbers_are_compared_only_if_there_is_one(value: bytes | None, holds: str) -> None:
    g = Group()
    g.deliver(1, then(Put(b"a", value) if value is not None else Put(b"b", b"")))
    signs = {"==": Operator.EQUAL, "!=": Operator.NOT_EQUAL, "<": Operator.LESS, ">": Operator.GREATER,
             "<=": Operator.LESS_EQUAL, ">=": Operator.GREATER_EQUAL}  # fmt: skip
    expected = {sign for sign in signs if sign in holds.split()} | ({"<"} if value == b"7" else set())
    if value == b"7":
        expected -= {">="}
    if value == b"9":
        expected -= {"<="}
    for time, (sign, how) in enumerate(signs.items(), 2):
        g.deliver(time, Transaction((number(b"a", how, 8),), (), (Get(b"b"),)))
        found = g.results[time]
        assert isinstance(found, Outcome)
        assert found.succeeded == (sign in expected), (value, sign)


# Any and all


def condition_of(key: bytes) -> Compare:
    return exists(key)


ANY = (Combined(any=True, members=(0, 1)),)


def test_any_one_yes_picks_then_and_otherwise_needs_every_no() -> None:
    transaction = Transaction(
        (exists(b"a"), exists(b"n")), (Put(b"a", b"then"),), (Put(b"a", b"otherwise"),), ANY
    )
    g = Group()
    g.deliver(1, then(Put(b"a", b"")))
    assert g.deliver(2, transaction, "AB").votes == [(vote(A, 2), (B,))]
    assert g.value(b"a") == b"then", "its own yes is enough"
    g.deliver(3, then(Delete(b"a")))
    assert g.deliver(4, transaction, "AB").votes == [(vote(A, 4, unmet=b"\1"), (B,))]
    assert 4 not in g.results
    g.machine.vote(vote(B, 4, unmet=b"\2"))
    g.drain()
    assert g.value(b"a") == b"otherwise"
    g.deliver(5, then(Delete(b"a")))
    g.deliver(6, transaction, "AB")
    g.machine.vote(vote(B, 6))
    g.drain()
    assert g.value(b"a") == b"then"


def test_a_condition_of_several_groups_holds_if_it_does_in_all() -> None:
    everywhere = Unchanged(Range(b"", None), ts(1))
    transaction = Transaction(
        (everywhere, exists(b"a")), (Put(b"a", b"then"),), (), (Combined(any=True, members=(0, 1)),)
    )
    share = share_of(transaction, PLACEMENT, A, tuple(PLACEMENT.groups))
    assert share is not None
    others = [group for group in PLACEMENT.groups if group != A]
    mine = Judgement((Unmet(1),))
    assert decide(share, A, mine, {}) is None
    votes = {group: vote(group) for group in others}
    assert decide(share, A, mine, votes) is Decision.THEN
    votes[others[0]] = vote(others[0], unmet=b"\1")
    assert decide(share, A, mine, votes) is Decision.OTHERWISE


NODES = st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 9), min_size=1, max_size=3)), max_size=4)


@given(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=6), NODES, st.data())
def test_what_follows_from_some_values_follows_from_all(
    values: list[bool | None], shapes: list[tuple[bool, set[int]]], data: st.DataObject
) -> None:
    free = list(range(len(values)))
    nodes: list[Combined] = []
    for any_, picks in shapes:
        members = tuple(sorted({free[pick % len(free)] for pick in picks}))
        free = [each for each in free if each not in members] + [len(values) + len(nodes)]
        nodes.append(Combined(any_, members))
    check_formula(len(values), nodes)
    assert set(roots_of(len(values), nodes)) == set(free)
    known = all_hold(values, nodes)
    full = [data.draw(st.booleans()) if value is None else value for value in values]
    if known is not None:
        assert all_hold(list(full), nodes) is known
    else:
        ends = {all_hold([v if v is not None else end for v in values], nodes) for end in (True, False)}
        assert ends == {True, False}, "nothing is left open without need"


@pytest.mark.parametrize(
    "nodes",
    [
        (Combined(any=True, members=()),),
        (Combined(any=True, members=(2,)),),
        (Combined(any=True, members=(-1,)),),
        (Combined(any=True, members=(0, 0)),),
        (Combined(any=True, members=(0,)), Combined(any=True, members=(0,))),
        tuple(Combined(any=True, members=(0 if at == 0 else at + 1,)) for at in range(FORMULA_DEPTH + 1)),
    ],
)
def test_formulas_that_are_none(nodes: tuple[Combined, ...]) -> None:
    with pytest.raises(ValueError, match=r"condition|nested deeper"):
        Transaction((exists(b"a"), exists(b"b")), (), (), nodes)


def test_unmet_conditions_are_told_as_their_client_numbers_them() -> None:
    conditions = (exists(b"a"), exists(b"b"), Unchanged(Range(b"a", b"b"), ts(9)), exists(b"c"))
    nodes = (Combined(any=True, members=(1, 2)),)
    transaction = Transaction(conditions, (), (), nodes)
    parts = {A: Outcome(False, (Unmet(1), Unmet(2, Fault.FUTURE_REVISION), Unmet(3)), ())}  # noqa: FBT003
    merged = merge(transaction, PLACEMENT, parts)
    assert merged.unmet == (Unmet(1, Fault.FUTURE_REVISION), Unmet(2))


# Merging


def test_failures_of_all_groups_are_merged() -> None:
    transaction = then(add(b"a"), add(b"n"), Get(b"z"))
    parts: dict[GroupId, Outcome | Aborted] = {
        A: Aborted(in_then=True, failures=(Failure(0, NO_NUMBER),)),
        B: Aborted(in_then=True, failures=(Failure(1, Fault.OVERFLOW),)),
        GroupId(2): Outcome(succeeded=True, unmet=(), results=((2, Got(None)),)),
    }
    expected = (True, (Failure(0, NO_NUMBER), Failure(1, Fault.OVERFLOW)))
    assert merge_aborted(transaction, parts) == expected
    with pytest.raises(InvariantBroken, match="has executed a transaction that another one has aborted"):
        merge_aborted(transaction, {**parts, B: Outcome(True, (), ((1, Number(1)),))})  # noqa: FBT003
    with pytest.raises(InvariantBroken, match="do not agree on why"):
        merge_aborted(transaction, {**parts, B: Aborted(in_then=False, failures=())})
    with pytest.raises(InvariantBroken, match="in which nothing fails"):
        merge_aborted(transaction, {A: Aborted(in_then=True, failures=())})


def test_the_limit_of_values_is_not_the_replicas_own() -> None:
    assert Limits(value_bytes=1).value_bytes == 1
    g = Group()
    g.machine._limits = Limits(value_bytes=1)
    g.deliver(1, then(Append(b"a", b"123", 3)))
    assert g.value(b"a") == b"123"
