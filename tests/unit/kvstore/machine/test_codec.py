"""The machine's values as bytes: what was written is read, and nothing else is."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvstore.machine.codec import (
    TABLES,
    Unreadable,
    decode_machine_state,
    decode_request,
    decode_result,
    encode_machine_state,
    encode_request,
    encode_result,
)
from kvstore.machine.commands import ChangePlacement, Delivered, Malformed, Request, Tick
from kvstore.machine.machine import Machine
from kvstore.machine.placement import Placement, Scheme
from kvstore.machine.request import Arithmetic, Calculate, Compare, Operator, Put, Subject, Transaction
from kvstore.machine.results import Fault, Outcome, Refusal, Refused, Result, Unmet, WrongPartition
from kvstore.machine.sessions import Session, Stored
from kvstore.machine.state import MachineState, Store, Waiting
from kvstore.machine.versions import KeyChange, Version
from multicast.types import ClientId, GroupId, MessageId, timestamp
from tests.unit.kvstore.machine.workload import LIMITS, WINDOW, some_workload

A, B = GroupId(0), GroupId(1)
TOP = (1 << 63) - 1


@pytest.mark.parametrize("seed", range(5))
def test_all_that_happens_survives(seed: int) -> None:
    """Requests, results, pictures with what waits, and rows, of random runs in which no vote comes."""
    workload = some_workload(random.Random(seed), 150)
    group = workload.placement.groups[0]
    store = Store()
    machine = Machine(group, store, MachineState(workload.placement), LIMITS, WINDOW)
    for message in workload.messages:
        assert decode_request(encode_request(message.request)) == message.request
        if group in message.destinations:
            machine.deliver(message)
    state = machine.state()
    assert decode_machine_state(encode_machine_state(state)) == state
    for executed in machine.drain().results:
        assert decode_result(encode_result(executed.result)) == executed.result
    lowest: dict[str, Any] = {"latest": b"", "sessions": (0, ()), "results": (0, (), 0)}
    for name, table in TABLES.items():
        for key, value in getattr(store, name).items(lowest.get(name, 0), None):
            assert table.decode_key(table.encode_key(key)) == key
            assert table.decode(table.encode(value)) == value


def test_the_largest_numbers() -> None:
    request = Request(
        TOP, TOP, TOP, TOP, (1 << 64) - 1, Transaction(then=(Calculate(b"k", Arithmetic.MAX, -TOP - 1),))
    )
    assert decode_request(encode_request(request)) == request
    for number in (0, 1, 255, 256, TOP, TOP + 1):
        assert TABLES["history"].decode_key(TABLES["history"].encode_key(number)) == number
    mid = MessageId(ClientId(TOP), TOP, (1 << 64) - 1)
    key = (TOP, tuple(GroupId(g) for g in range(1024)), TOP)
    assert TABLES["results"].decode_key(TABLES["results"].encode_key(key)) == key
    assert decode_machine_state(encode_machine_state(picture_with(mid))) == picture_with(mid)


def picture_with(mid: MessageId) -> MachineState:
    delivered = Delivered(timestamp(5, A), mid, (A, B), Request(1, 1, 1, 1, 1, Tick()))
    return MachineState(Placement.evenly([A, B]), waiting=(Waiting(delivered, 1, 0),))


NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, TOP))
KEYS = st.tuples(
    NUMBERS,
    st.lists(st.sampled_from([0, 1, 2, 255, 256, 1023]), unique=True, max_size=4).map(sorted).map(tuple),
    NUMBERS,
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(KEYS, KEYS)
def test_keys_as_bytes_have_the_same_order(one: Any, other: Any) -> None:
    results, sessions, history = TABLES["results"], TABLES["sessions"], TABLES["history"]
    assert (one < other) == (results.encode_key(one) < results.encode_key(other))
    assert (one[:2] < other[:2]) == (sessions.encode_key(one[:2]) < sessions.encode_key(other[:2]))
    assert (one[0] < other[0]) == (history.encode_key(one[0]) < history.encode_key(other[0]))
    assert results.decode_key(results.encode_key(one)) == one
    assert sessions.decode_key(sessions.encode_key(one[:2])) == one[:2]


GOOD = encode_request(Request(1, 2, 0, 9, 7, Transaction(then=(Put(b"k", b"v"),))))


def raw(*fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


def command(*fields: object) -> bytes:
    return raw(1, 2, 0, 9, 7, fields)


COMPARE = (1, b"k", "value", "=", b"v")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "truncated"),
        (b"\xc1", "invalid opcode"),
        (GOOD[:-1], "truncated"),
        (GOOD + b"\x00", "trailing characters"),
        (raw(1, 2, 0, 9, 7), "length 6"),
        (raw(1, 2, 0, 9, 7, (6,), 8), "length 6"),
        (raw(-1, 2, 0, 9, 7, (6,)), ">= 0"),
        (raw(1, 1 << 63, 0, 9, 7, (6,)), "<= 9223372036854775807"),
        (raw(1, *(True,), 0, 9, 7, (6,)), "Expected `int`, got `bool`"),
        (raw(1, 2.0, 0, 9, 7, (6,)), "Expected `int`, got `float`"),
        (command(), "length"),
        (command(99), "Invalid value 99"),
        (command(1, (), ((2, "text", b"v"),), ()), "Expected `bytes`, got `str`"),
        (command(1, (), ((2, b"k", b"v", b"more"),), ()), "length"),
        (command(1, (), ((4, b"k", "multiply", 2),), ()), "Invalid enum value 'multiply'"),
        (command(1, (), ((4, b"k", "add", 2.5),), ()), "Expected `int`, got `float`"),
        (command(1, (), ((6, (b"a",)),), ()), "length 2"),
        (command(1, ((1, b"k", "value", "=", 1),), (), ()), "the value of b'k' is not compared with int"),
        (
            command(1, ((1, b"k", "version", "<", b"v"),), (), ()),
            "version of b'k' is not compared with bytes",
        ),
        (command(7, (1, "ordered", (b"b",), (0,), (0,))), "begin at the lowest token"),
        (b"\x96\x01\x02\x00\x09\x07\x92\x08\xa2\xff\xff", "utf-8"),
        (b"\x91" * 100_000, "length"),
        (b"\x96\x01\x02\x00\x09\x07" + b"\x91" * 100_000, "Expected `int`"),
    ],
)
def test_what_is_malformed_says_why(payload: bytes, reason: str) -> None:
    found = decode_request(payload).command
    assert isinstance(found, Malformed)
    assert reason in found.reason


def test_good_ones_are_not_malformed() -> None:
    assert decode_request(GOOD).command == Transaction(then=(Put(b"k", b"v"),))
    assert decode_request(command(1, (COMPARE,), (), ())).command == Transaction(
        (Compare(b"k", Subject.VALUE, Operator.EQUAL, b"v"),)
    )


DECODERS: list[Callable[[bytes], object]] = [
    decode_result,
    decode_machine_state,
    *(table.decode for table in TABLES.values()),
    *(table.decode_key for table in TABLES.values()),
]

RESULTS: list[Result] = [
    Outcome(succeeded=False, unmet=(Unmet(0), Unmet(2, Fault.COMPACTED)), results=()),
    Refused(Refusal.MISMATCH, "so"),
    WrongPartition(Placement(3, Scheme.ORDERED, (b"", b"k"), (B, A), (A, B))),
]
SAMPLES = [
    GOOD,
    encode_machine_state(MachineState(Placement.evenly([A, B]))),
    *(encode_result(result) for result in RESULTS),
    TABLES["latest"].encode(Version(b"v", 1, 2, 3)),
    TABLES["history"].encode((KeyChange(b"k", None, 0, 0, 7, Version(b"v", 1, 2, 3)),)),
    TABLES["sessions"].encode(Session(1, 2, 3)),
    TABLES["results"].encode(Stored(7, timestamp(3, A), RESULTS[1])),
    TABLES["outcomes"].encode(RESULTS[0] is None),
    TABLES["results"].encode_key((1, (A, B), 5)),
]


def damaged(rng: random.Random, good: bytes) -> bytes:
    data = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(3)
        at = rng.randrange(len(data) + 1)
        if kind == 0:
            data[at : at + 1] = bytes((rng.randrange(256),))
        elif kind == 1:
            del data[at : at + rng.randint(1, 4)]
        else:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
    return bytes(data)


ODD = [0, 1, -1, 7, 1 << 63, (1 << 64) - 1, -TOP - 1, b"", b"k", b"9" * 30, None, True, "add", "", (), 0.5]


def odd(rng: random.Random, good: Any) -> Any:
    """The same with some other value at one place."""
    if not isinstance(good, list) or not good or rng.random() < 0.1:
        return rng.choice(ODD)
    at = rng.randrange(len(good))
    return [*good[:at], odd(rng, good[at]), *good[at + 1 :]]


def test_garbage_raises_one_kind_of_error_or_none() -> None:
    rng = random.Random(1)
    refused = 0
    for _ in range(2000):
        data = damaged(rng, rng.choice(SAMPLES))
        for decode in DECODERS:
            try:
                decode(data)
            except Unreadable:
                refused += 1
    assert refused > 10_000


@pytest.mark.parametrize("seed", range(4))
def test_no_garbage_stops_the_machine(seed: int) -> None:
    """Whatever can be read has a result, and what cannot has one too."""
    rng = random.Random(seed)
    store = Store()
    workload = some_workload(rng, 300)
    machine = Machine(A, store, MachineState(Placement.evenly([A])), LIMITS, WINDOW)
    readable = 0
    for i in range(3000):
        good = replace(rng.choice(workload.messages).request, client=i, deadline=TOP)
        request = decode_request(damaged(rng, encode_request(good)))
        if rng.random() < 0.5:
            request = decode_request(
                msgspec.msgpack.encode(odd(rng, msgspec.msgpack.decode(encode_request(good))))
            )
        assert decode_request(encode_request(request)) == request
        readable += not isinstance(request.command, Malformed)
        machine.deliver(Delivered(timestamp(i + 1, A), MessageId(ClientId(1), i, 0), (A,), request))
        while machine.running:
            machine.run()
        (executed,) = machine.drain().results
        assert decode_result(encode_result(executed.result)) == executed.result
        machine.work()
    assert readable > 250
    for name, table in TABLES.items():
        lowest: dict[str, Any] = {"latest": b"", "sessions": (0, ()), "results": (0, (), 0)}
        for key, value in getattr(store, name).items(lowest.get(name, 0), None):
            assert table.decode(table.encode(value)) == value
            assert table.decode_key(table.encode_key(key)) == key
    assert decode_machine_state(encode_machine_state(machine.state())) == machine.state()


def test_reasons_are_short() -> None:
    found = decode_request(command(1, ((1, b"k" * 1000, "value", "=", 1),), (), ())).command
    assert isinstance(found, Malformed)
    assert len(found.reason) <= 200


@pytest.mark.parametrize("decode", DECODERS[:2])
def test_bad_bytes_name_what_they_should_be(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(Unreadable, match=r"a (result|machine state): Input data was truncated"):
        decode(b"")
    with pytest.raises(Unreadable):
        decode(b"\x91" * 100_000)


def test_keys_that_are_none() -> None:
    for name, data in (
        ("history", b"1234567"),
        ("sessions", b"12345678"),
        ("sessions", b"12345678\0\0\0\1\0\0"),
        ("sessions", b"12345678\0\1"),
        ("results", b"12345678\0\1\0\0"),
    ):
        with pytest.raises(Unreadable, match="key"):
            TABLES[name].decode_key(data)


def test_a_claimed_length_allocates_nothing() -> None:
    tracemalloc.start()
    for huge in (
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
    ):
        for start in (b"", b"\x96\x01\x02\x00\x09\x07", b"\x96\x01\x02\x00\x09\x07\x94\x01\x90"):
            assert isinstance(decode_request(start + huge).command, Malformed)
            with pytest.raises(Unreadable):
                decode_result(start + huge)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_placements_are_checked_as_they_are_read() -> None:
    good = encode_request(Request(1, 1, 0, 9, 7, ChangePlacement(Placement.evenly([A, B]))))
    assert isinstance(decode_request(good).command, ChangePlacement)
    assert isinstance(decode_request(good.replace(b"hashed", b"hasted")).command, Malformed)
