"""Admission of transactions on ranges: estimates of their rows, and what a gateway has in flight."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.machine.request import DeleteRange, Get, Limits, Put, Range, Scan, Shape, Transaction, Unchanged
from kvstore.store import errors
from kvstore.store.admission import BUDGET_ROWS, SMALL_ROWS, WAIT_S, WAITING_LONG
from kvstore.store.estimates import COUNTED, RANGES, SPARE, has_ranges, rows_of
from kvstore.store.gateway import Gateway, Identity
from multicast.types import GroupId
from tests.unit.kvstore.store.test_admission import answer, multicasts
from tests.unit.kvstore.store.test_gateway import gateway_of
from tests.unit.kvstore.store.test_partition import PLACEMENT, A, B, C

ALL = Range(b"", None)
LIMITS = Limits()
COUNT = Scan(ALL, shape=Shape.COUNT)
LONG = Transaction(then=(COUNT,) * 25)


def estimate(transaction: Transaction, rows: int | None, groups: tuple[GroupId, ...] = (A, B, C)) -> int:
    return rows_of(transaction, PLACEMENT, groups, LIMITS, lambda _group, _range, _most: rows)


def test_transactions_without_ranges_are_not_long() -> None:
    points = Transaction(then=(Put(b"a", b""), Get(b"b")))
    assert not has_ranges(points)
    assert estimate(points, None) == 0


@pytest.mark.parametrize(
    "asked",
    [
        Transaction(then=(Put(b"a", b""), COUNT)),
        Transaction(then=(Put(b"a", b""),), otherwise=(Get(b"b"), Scan(ALL, limit=1))),
        Transaction((Unchanged(ALL, 1),), (Put(b"a", b""),)),
        Transaction(then=(DeleteRange(ALL, 1),)),
    ],
)
def test_a_range_in_any_part_is_estimated(asked: Transaction) -> None:
    assert has_ranges(asked)
    assert estimate(asked, 1)


def test_small_ranges_count_as_what_they_have() -> None:
    asked = Transaction((Unchanged(ALL, 1),), (COUNT, DeleteRange(Range(b"a", b"b"))), (COUNT,))
    assert estimate(asked, 3) == 3 * 3 * 3 + 3, "three times in each group, and a range of one group"


def test_what_is_not_known_to_be_small_counts_as_the_limit() -> None:
    for rows in (None, COUNTED):
        assert estimate(Transaction(then=(COUNT,)), rows) == 3 * LIMITS.transaction_rows
    many = Transaction(then=tuple(Scan(Range(b"%d" % i, None)) for i in range(RANGES + 1)))
    assert estimate(many, 0, (A,)) == LIMITS.transaction_rows


def test_limits_bound_what_is_looked_at() -> None:
    asked = Transaction(then=(Scan(ALL, limit=10), DeleteRange(ALL, 5)))
    assert estimate(asked, None, (A,)) == 15 + 2 * SPARE
    counts = Transaction(then=(Scan(ALL, limit=10, shape=Shape.COUNT),))
    assert estimate(counts, None, (A,)) == LIMITS.transaction_rows


def ask(gateway: Gateway, client: int, sequence: int, outcomes: list[Any]) -> None:
    gateway.transact(LONG, outcomes.append, identity=Identity(client, sequence, 1, 0))


def test_only_so_many_rows_are_in_flight_and_clients_take_turns() -> None:
    assert 2 * 3 * LIMITS.transaction_rows > BUDGET_ROWS
    gateway = gateway_of()
    outcomes: list[Any] = []
    for sequence in range(1, 4):
        ask(gateway, 1, sequence, outcomes)
    ask(gateway, 2, 1, outcomes)
    gateway.transact(Transaction(then=(Put(b"a", b""),)), outcomes.append)  # which does not wait
    first, short = sorted(multicasts(gateway, 0.0), key=lambda message: len(message.dest), reverse=True)
    assert len(short.dest) == 1
    seen = [first]
    for step in range(1, 4):
        answer(gateway, seen[-1], step / 10)
        seen += multicasts(gateway, step / 10)
    assert len(seen) == 4
    requests = [message.payload for message in seen]
    assert len(set(requests)) == 4
    answer(gateway, seen[-1], 0.5)
    answer(gateway, short, 0.5)
    assert gateway.in_flight == 0


def test_what_waits_for_too_long_was_never_ordered() -> None:
    gateway = gateway_of()
    outcomes: list[Any] = []
    ask(gateway, 1, 1, [])
    (first,) = multicasts(gateway, 0.0)
    ask(gateway, 2, 1, outcomes)
    for turn in range(20):
        assert {message.mid for message in multicasts(gateway, turn * WAIT_S / 10)} <= {first.mid}
    (error,) = outcomes
    assert isinstance(error, errors.Overloaded)
    assert "count outside of transactions" in str(error)
    answer(gateway, first, 3.0)
    assert gateway.in_flight == 0
    ask(gateway, 2, 1, outcomes)
    assert len(multicasts(gateway, 3.1)) == 1


def test_too_many_that_wait_are_rejected_at_once() -> None:
    gateway = gateway_of()
    for client in range(WAITING_LONG + 1):
        ask(gateway, client + 1, 1, [])
    with pytest.raises(errors.Overloaded, match="transactions on ranges of 90000 rows are in flight"):
        ask(gateway, 9999, 1, [])
    assert len(multicasts(gateway, 0.0)) == 1


def test_small_ranges_do_not_wait() -> None:
    gateway = gateway_of()
    gateway._count = lambda _group, _range, _most: SMALL_ROWS // 3
    ask(gateway, 1, 1, [])
    for client in range(10):
        gateway.transact(Transaction(then=(COUNT,)), lambda _: None, identity=Identity(2 + client, 1, 1, 0))
    assert len(multicasts(gateway, 0.0)) == 11
