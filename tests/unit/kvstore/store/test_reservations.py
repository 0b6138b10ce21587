"""Reservations: which requests they delay, for how long, and how many of them there may be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvstore.machine.request import Append, Delete, DeleteRange, Get, Put, Range, Transaction
from kvstore.store.errors import InvalidRequest, LimitExceeded, Overloaded
from kvstore.store.gateway import Identity
from kvstore.store.reservations import (
    BURST_S,
    RESERVATIONS,
    RESERVE_S,
    RESERVED,
    SHARE,
    WAITING,
    Reservations,
)
from kvstore.store.service import Service

OTHERS = 0


def still() -> Reservations:
    """Reservations at a clock that stands still."""
    return Reservations(lambda: 0.0)


def writing(*operations: object) -> Transaction:
    return Transaction(then=operations)  # type: ignore[arg-type]  # of any kinds


def test_writes_of_reserved_keys_are_delayed_and_nothing_else_is() -> None:
    found = still()
    assert not found
    found.reserve(7, [b"a", b"k"], [Range(b"m", b"p")], until=10.0)
    assert found
    delayed = [
        writing(Put(b"a", b"")),
        writing(Get(b"x"), Append(b"k", b"1")),
        writing(Delete(b"n")),
        writing(DeleteRange(Range(b"j", b"l"))),
        writing(DeleteRange(Range(b"o", b"z"))),
        Transaction(then=(), otherwise=(Put(b"a", b""),)),
    ]
    for transaction in delayed:
        assert found.in_the_way(transaction, OTHERS) == 7
    passed = [
        writing(Put(b"b", b"")),
        writing(Get(b"a"), Put(b"p", b"")),
        writing(DeleteRange(Range(b"b", b"k"))),
        writing(DeleteRange(Range(b"p", None))),
    ]
    for transaction in passed:
        assert found.in_the_way(transaction, OTHERS) == 0


def test_of_two_reservations_the_lower_name_goes_first() -> None:
    found = still()
    found.reserve(7, [b"a"], [], until=10.0)
    found.reserve(9, [b"a"], [], until=10.0)
    put = writing(Put(b"a", b""))
    assert found.in_the_way(put, 7) == 0
    assert found.in_the_way(put, 9) == 7
    assert found.in_the_way(put, 8) == 7


def test_delayed_requests_go_on_once_when_the_reservation_ends() -> None:
    found, gone_on = still(), []
    found.reserve(7, [b"a"], [], until=10.0)
    end = found.delay(7, lambda: gone_on.append("first"))
    found.delay(7, lambda: gone_on.append("second"))
    end()
    end()
    assert gone_on == ["first"]
    found.reserve(7, [b"b"], [], until=20.0)  # the same name: other keys, and the same requests wait
    assert found.in_the_way(writing(Put(b"a", b"")), OTHERS) == 0
    found.expire(19.0)
    assert gone_on == ["first"]
    found.expire(20.0)
    assert gone_on == ["first", "second"]
    assert not found
    found.release(7)


def test_there_are_limits() -> None:
    found = still()
    with pytest.raises(LimitExceeded, match=str(RESERVED)):
        found.reserve(7, [b"%d" % i for i in range(RESERVED)], [Range(b"", None)], until=1.0)
    assert not found
    for name in range(2, RESERVATIONS + 2):
        found.reserve(name, [b"a"], [], until=1.0)
    with pytest.raises(Overloaded, match=str(RESERVATIONS)):
        found.reserve(1000, [b"a"], [], until=1.0)
    put = writing(Put(b"a", b""))
    ends = [found.delay(found.in_the_way(put, OTHERS), lambda: None) for _ in range(WAITING)]
    assert found.in_the_way(put, OTHERS) == 0  # no more are delayed
    ends[0]()
    assert found.in_the_way(put, OTHERS) == 2


class Clock:
    """A clock that is moved by hand."""

    now = 5.0

    def __call__(self) -> float:
        return self.now


def test_whatever_is_reserved_requests_are_delayed_for_a_share_of_the_time_only() -> None:
    """A client that puts as often as it can, beside one that reserves everything all the time."""
    clock = Clock()
    found = Reservations(clock)
    put = writing(Put(b"a", b""))
    found.reserve(7, [], [Range(b"", None)], until=1e9)
    delayed_s, delayed, passed = 0.0, 0, 0
    while clock.now < 1000.0:
        if name := found.in_the_way(put, OTHERS):
            end = found.delay(name, lambda: None)
            clock.now += RESERVE_S
            end()
            delayed_s += RESERVE_S
            delayed += 1
        else:
            clock.now += 0.01
            passed += 1
    assert 0.2 < delayed_s / 995 < SHARE + (BURST_S + RESERVE_S) / 995
    assert delayed < passed / 100


def test_time_without_delays_counts_up_to_a_bound() -> None:
    clock = Clock()
    found = Reservations(clock)
    put = writing(Put(b"a", b""))
    found.reserve(7, [b"a"], [], until=1e9)
    clock.now = 1e6
    began = clock.now
    ends = []
    while name := found.in_the_way(put, OTHERS):
        ends.append(found.delay(name, lambda: None))
        clock.now += 0.5
    assert clock.now - began == pytest.approx(BURST_S / (1 - SHARE), abs=0.5)


BYTES = st.binary(max_size=2)
RANGES = st.builds(Range, BYTES, st.none() | BYTES)


@given(st.lists(BYTES, max_size=5), st.lists(RANGES, max_size=5), BYTES, RANGES)
def test_keys_and_ranges_are_found_as_one_by_one(
    keys: list[bytes], ranges: list[Range], key: bytes, asked: Range
) -> None:
    ranges = [each for each in ranges if each.end is None or each.start < each.end]
    assume(asked.end is None or asked.start < asked.end)
    found = still()
    found.reserve(7, keys, ranges, until=10.0)
    expected = key in keys or any(each.covers(key) for each in ranges)
    assert (found.in_the_way(writing(Put(key, b"")), OTHERS) == 7) == expected
    start, end = asked
    met = any(asked.covers(each) for each in keys) or any(each.overlaps(start, end) for each in ranges)
    assert (found.in_the_way(writing(DeleteRange(asked)), OTHERS) == 7) == met


class Judging:
    """A gateway that finds fault with the requests of identified clients, and executes others."""

    def transact(self, _: Transaction, done: Any, *, identity: Identity | None, min_revision: int) -> None:
        if identity is not None:
            raise InvalidRequest("its deadline is too far ahead")
        done(min_revision)


def test_a_delayed_request_that_turns_out_to_be_invalid_fails_and_the_others_go_on() -> None:
    async def test() -> None:
        gateway: Any = Judging()
        service = Service(gateway, lambda: None)
        service.reserve(7, [b"a"], [], 1.0)
        put = writing(Put(b"a", b""))
        identity = Identity(5, 1, 1, 1 << 52)
        invalid = service.transact(put, identity=identity, timeout_s=5.0)
        valid: Any = service.transact(put, min_revision=3, timeout_s=5.0)
        service.reserve(7, [], [], 0.0)
        assert invalid.done(), "it would not end at all"
        assert isinstance(invalid.exception(), InvalidRequest)
        await asyncio.sleep(0)
        assert valid.done()
        assert valid.result() == 3

    asyncio.run(test())
