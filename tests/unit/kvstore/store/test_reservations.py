"""Reservations: which requests they delay, for how long, and how many of them there may be."""

from __future__ import annotations

import pytest

from kvstore.machine.request import Append, Delete, DeleteRange, Get, Put, Range, Transaction
from kvstore.store.errors import LimitExceeded, Overloaded
from kvstore.store.reservations import RESERVATIONS, RESERVED, WAITING, Reservations

OTHERS = 0


def writing(*operations: object) -> Transaction:
    return Transaction(then=operations)  # type: ignore[arg-type]  # of any kinds


def test_writes_of_reserved_keys_are_delayed_and_nothing_else_is() -> None:
    found = Reservations()
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
    found = Reservations()
    found.reserve(7, [b"a"], [], until=10.0)
    found.reserve(9, [b"a"], [], until=10.0)
    put = writing(Put(b"a", b""))
    assert found.in_the_way(put, 7) == 0
    assert found.in_the_way(put, 9) == 7
    assert found.in_the_way(put, 8) == 7


def test_delayed_requests_go_on_once_when_the_reservation_ends() -> None:
    found, gone_on = Reservations(), []
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
    found = Reservations()
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
