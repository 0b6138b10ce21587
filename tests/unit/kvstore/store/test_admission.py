"""Admission of large messages: what is admitted, what waits, in which order, and what is rejected."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.machine.codec import encode_result
from kvstore.machine.placement import groups_of
from kvstore.machine.request import Put, Range, Scan, Transaction
from kvstore.machine.results import WRITTEN, Outcome, Scanned
from kvstore.store import errors
from kvstore.store.admission import BUDGET_BYTES, SMALL_BYTES, WAIT_S, WAITING_BYTES, Admission
from kvstore.store.gateway import (
    IN_FLIGHT_BYTES,
    IN_FLIGHT_GROUP,
    STALLED,
    STALLED_S,
    Committed,
    Gateway,
    Identity,
)
from kvstore.store.messages import Results
from multicast.messages import Multicast
from multicast.types import GroupId, Timestamp
from tests.unit.kvstore.store.test_gateway import gateway_of
from tests.unit.kvstore.store.test_partition import PLACEMENT, A, B, C, members

LARGE = Transaction(then=tuple(Put(key, bytes(8 << 20)) for key in (b"a", b"m", b"t")))
"""Its weight in all three groups is above the budget."""
SMALL = Transaction(then=(Put(b"a", b"x"),))


def test_the_transactions_are_what_the_tests_need() -> None:
    assert groups_of(LARGE, PLACEMENT) == (A, B, C)
    assert BUDGET_BYTES < 3 * 3 * (8 << 20)


def multicasts(gateway: Gateway, now: float) -> list[Multicast]:
    """What is multicast for the first time by a turn."""
    found: dict[Any, Multicast] = {}
    for _, _, message in gateway.turn(now):
        if isinstance(message, Multicast):
            found[message.mid] = message
    return list(found.values())


def answer(gateway: Gateway, message: Multicast, now: float) -> None:
    for group in message.dest:
        result = encode_result(Outcome(succeeded=True, unmet=(), results=((int(group), WRITTEN),)))
        results = Results(group, Timestamp(9), (message.mid,), (Timestamp(9),), (result,))
        gateway.receive(members(group)[0], [results], now)


def test_a_transaction_beyond_the_budget_is_admitted_alone_and_the_next_one_waits() -> None:
    gateway = gateway_of()
    outcomes: list[object] = []
    gateway.transact(LARGE, outcomes.append, identity=Identity(1, 1, 1, 0))
    gateway.transact(LARGE, outcomes.append, identity=Identity(2, 1, 1, 0))
    gateway.transact(SMALL, outcomes.append)  # which does not wait
    first, small = sorted(multicasts(gateway, 0.0), key=lambda message: message.mid.sequence)
    assert len(first.payload) > 3 * (8 << 20) > len(small.payload)
    assert gateway.in_flight == 3
    answer(gateway, first, 0.1)
    (second,) = multicasts(gateway, 0.1)
    answer(gateway, second, 0.2)
    assert [type(outcome) for outcome in outcomes] == [Committed, Committed]
    answer(gateway, small, 0.3)
    assert gateway.in_flight == 0


def test_what_has_waited_for_too_long_is_rejected_and_was_never_multicast() -> None:
    gateway = gateway_of()
    outcomes: list[Any] = []
    gateway.transact(LARGE, lambda _: None)
    gateway.transact(LARGE, outcomes.append)
    (first,) = multicasts(gateway, 0.0)
    for turn in range(20):
        assert {message.mid for message in multicasts(gateway, turn * WAIT_S / 10)} <= {first.mid}
    (error,) = outcomes
    assert isinstance(error, errors.Overloaded)
    assert "3 partitions" in str(error)
    answer(gateway, first, 3.0)
    assert gateway.in_flight == 0
    gateway.transact(LARGE, outcomes.append)
    assert len(multicasts(gateway, 3.1)) == 1


def test_a_retry_of_a_large_request_joins_the_one_under_way() -> None:
    gateway = gateway_of()
    outcomes: list[object] = []
    for client in (1, 2):
        for _ in range(3):
            gateway.transact(LARGE, outcomes.append, identity=Identity(client, 1, 1, 0))
    assert gateway.in_flight == 2
    (first,) = multicasts(gateway, 0.0)
    answer(gateway, first, 0.1)
    assert len(outcomes) == 3
    (second,) = multicasts(gateway, 0.1)
    answer(gateway, second, 0.2)
    assert len(outcomes) == 6
    assert gateway.in_flight == 0


def test_too_much_that_waits_is_rejected_at_once() -> None:
    gateway = gateway_of()
    for client in range(1 + WAITING_BYTES // (24 << 20)):
        gateway.transact(LARGE, lambda _: None, identity=Identity(client + 1, 1, 1, 0))
    with pytest.raises(errors.Overloaded, match="large transactions are in flight"):
        gateway.transact(LARGE, lambda _: None, identity=Identity(99, 1, 1, 0))
    assert len(multicasts(gateway, 0.0)) == 1


def test_clients_take_turns() -> None:
    admission: Admission[str] = Admission()
    assert admission.admit(BUDGET_BYTES)
    for number in range(3):
        assert admission.wait(1, f"a{number}", 1, BUDGET_BYTES, 0.0)
    assert admission.wait(2, "b0", 1, BUDGET_BYTES, 0.0)
    assert not admission.admit(1)  # nothing passes what waits
    found = []
    while admission.in_flight:
        admission.finished(BUDGET_BYTES)
        if (item := admission.next()) is not None:
            found.append(item)
    assert found == ["a0", "b0", "a1", "a2"]


STEP = st.tuples(st.sampled_from("wfen"), st.integers(1, 4), st.integers(1, 2 * BUDGET_BYTES))


@given(st.lists(STEP, max_size=60))
@settings(max_examples=60, deadline=None)
def test_the_budget_is_kept_and_nothing_is_lost(steps: list[tuple[str, int, int]]) -> None:
    """Whatever comes: each message is admitted or rejected once, and a lone one is never held back."""
    admission: Admission[int] = Admission()
    now, number = 0.0, 0
    waiting: set[int] = set()
    weights: dict[int, int] = {}
    flying: list[int] = []
    for step, client, weight in steps:
        now += 0.1
        if step == "w":
            number += 1
            weights[number] = weight
            if admission.admit(weight):
                flying.append(number)
            elif admission.wait(client, number, weight // 3, weight, now):
                waiting.add(number)
        elif step == "f" and flying:
            admission.finished(weights[flying.pop(0)])
        elif step == "e":
            waiting -= set(admission.expired(now))
        elif (item := admission.next()) is not None:
            waiting.remove(item)
            flying.append(item)
        assert admission.weight == sum(weights[each] for each in flying)
        assert admission.weight <= BUDGET_BYTES or len(flying) == 1
        assert admission.waiting == len(waiting)
        assert admission.waiting_bytes <= max(WAITING_BYTES, 2 * BUDGET_BYTES)
    for each in flying:
        admission.finished(weights[each])
    while waiting:
        item = admission.next()
        assert item is not None
        waiting.remove(item)
        admission.finished(weights[item])
    assert (admission.in_flight, admission.weight, admission.waiting_bytes) == (0, 0, 0)


def test_what_is_small_is_never_delayed() -> None:
    gateway = gateway_of()
    gateway.transact(LARGE, lambda _: None)
    gateway.transact(LARGE, lambda _: None)
    edge = Transaction(then=(Put(b"a", bytes(SMALL_BYTES - 1000)),))
    gateway.transact(edge, lambda _: None)
    assert len(multicasts(gateway, 0.0)) == 2
    assert GroupId(0) in groups_of(edge, PLACEMENT)


IN_A: dict[str, Transaction] = {
    "bytes": Transaction(then=(Put(b"a", bytes(SMALL_BYTES)),)),
    "rows": Transaction(then=(Scan(Range(b"a", b"b")),)),
}
IN_C: dict[str, Transaction] = {
    "bytes": Transaction(then=(Put(b"t", bytes(SMALL_BYTES)),)),
    "rows": Transaction(then=(Scan(Range(b"t", b"u")),)),
}


@pytest.mark.parametrize("budget", IN_A)
def test_a_group_that_is_down_does_not_keep_the_budget_from_others(budget: str) -> None:
    """Clients send large transactions to two groups all the time, and one of these answers nothing."""
    gateway = gateway_of()
    gateway._admission = Admission(3 * SMALL_BYTES)
    assert (groups_of(IN_A[budget], PLACEMENT), groups_of(IN_C[budget], PLACEMENT)) == ((A,), (C,))
    stuck: dict[Any, Multicast] = {}
    rejected = begun = 0
    outcomes: list[Any] = []
    for turn in range(int(40 * STALLED_S)):
        now = turn / 4
        try:
            gateway.transact(IN_A[budget], lambda _: None)
        except errors.Overloaded as error:
            rejected += f"partition {A} has not answered {STALLED} large" in str(error)
        if now > STALLED * (STALLED_S + 1):
            begun += 1
            gateway.transact(IN_C[budget], outcomes.append)
        for message in multicasts(gateway, now):
            if message.dest == (A,):
                stuck[message.mid] = message
            else:
                _answer(gateway, message, now)
    answered = sum(isinstance(outcome, Committed) for outcome in outcomes)
    assert answered >= begun - 1 > 0
    assert STALLED <= len(stuck) <= STALLED + 2
    assert rejected > 0
    for message in stuck.values():  # the group is back
        _answer(gateway, message, 100.0)
    for message in multicasts(gateway, 100.1):
        _answer(gateway, message, 100.1)
    for admission in (gateway._admission, gateway._long):
        assert (admission.in_flight, admission.weight) == (0, 0)
    assert (gateway.in_flight, gateway._heavy, +gateway._stalled) == (0, {}, {})
    gateway.transact(IN_A[budget], lambda _: None)
    assert len(multicasts(gateway, 100.2)) == 1


def _answer(gateway: Gateway, message: Multicast, now: float) -> None:
    (group,) = message.dest
    command = gateway._calls[message.mid].command
    assert isinstance(command, Transaction)
    found: Any = WRITTEN if isinstance(command.then[0], Put) else Scanned((), 0, more=False)
    result = encode_result(Outcome(succeeded=True, unmet=(), results=((0, found),)))
    results = Results(group, Timestamp(9), (message.mid,), (Timestamp(9),), (result,))
    gateway.receive(members(group)[0], [results], now)


def test_small_messages_to_a_group_that_is_down_leave_half_of_the_bytes_to_others() -> None:
    gateway = gateway_of()
    value = bytes(SMALL_BYTES // 2)
    put = Transaction(then=(Put(b"a", value),))
    while gateway._under_way[A] < IN_FLIGHT_GROUP:
        gateway.transact(put, lambda _: None)
    with pytest.raises(errors.Overloaded, match=f"to partition {A}"):
        gateway.transact(put, lambda _: None)
    assert IN_FLIGHT_BYTES // 3 < gateway._bytes < 2 * IN_FLIGHT_BYTES // 3
    outcomes: list[Any] = []
    gateway.transact(Transaction(then=(Put(b"t", value),)), outcomes.append)
    sent = {message.mid: message for message in multicasts(gateway, 0.0)}
    for message in sent.values():
        _answer(gateway, message, 0.1)
    assert [type(outcome) for outcome in outcomes] == [Committed]
    assert (+gateway._under_way, gateway._bytes) == ({}, 0)
