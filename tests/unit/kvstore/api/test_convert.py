"""What comes from clients becomes a transaction that may be ordered, or an error that names what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.api.convert import Reader, fill_txn, identity_of, results_size
from kvstore.machine.request import (
    REVISION_MAX,
    InvalidRequest,
    LimitExceeded,
    Limits,
    Transaction,
    validate,
)
from kvstore.machine.results import WRITTEN, Deleted, Failed, Fault, Got, KeyValue, Number, Scanned, Unmet
from kvstore.store.service import Committed, Identity
from tests.unit.kvstore.api import messages

LIMITS = Limits(key_bytes=8, value_bytes=16, transaction_bytes=40, operations=4, scan_bytes=2 << 20)
HUGE = Limits(1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40)
KEYS = st.binary(min_size=1, max_size=10)
VALUES = st.binary(max_size=20)


def read(message: kv.TxnRequest, limits: Limits = LIMITS) -> Transaction:
    return Reader(limits).transaction(message)


def sent(transaction: Transaction) -> kv.TxnRequest:
    """What comes out at the other end of a wire."""
    return kv.TxnRequest.FromString(messages.txn(transaction).SerializeToString())


@given(messages.transactions(KEYS, VALUES, HUGE))
def test_a_transaction_arrives_as_it_was_meant(transaction: Transaction) -> None:
    if transaction.conditions or transaction.then or transaction.otherwise:
        assert read(sent(transaction), HUGE) == transaction


@given(messages.transactions(KEYS, VALUES, LIMITS))
def test_the_limits_are_those_of_the_machine(transaction: Transaction) -> None:
    try:
        validate(transaction, LIMITS)
    except InvalidRequest:
        with pytest.raises(InvalidRequest):
            read(sent(transaction))
    else:
        assert read(sent(transaction)) == transaction


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_harmless(garbage: bytes) -> None:
    try:
        message = kv.TxnRequest.FromString(garbage)
    except DecodeError:
        return
    try:
        transaction = read(message)
    except InvalidRequest:
        return
    validate(transaction, LIMITS)


@given(messages.transactions(KEYS, VALUES, LIMITS), st.data())
def test_a_damaged_request_is_refused_or_may_be_ordered(
    transaction: Transaction, data: st.DataObject
) -> None:
    raw = bytearray(messages.txn(transaction).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))) if raw else ():
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(kv.TxnRequest.FromString(bytes(raw)))
    except (DecodeError, InvalidRequest):
        return
    validate(found, LIMITS)


def get(key: bytes = b"k") -> kv.Operation:
    return kv.Operation(get=kv.Get(key=key))


def put(key: bytes, value: bytes) -> kv.Operation:
    return kv.Operation(put=kv.Put(key=key, value=value))


def compare(**fields: Any) -> kv.TxnRequest:
    return kv.TxnRequest(conditions=[kv.Condition(compare=kv.Compare(**fields))])


def scan(**fields: Any) -> kv.TxnRequest:
    return kv.TxnRequest(then=[kv.Operation(scan=kv.Scan(**fields))])


def any_of(*conditions: kv.Condition) -> kv.TxnRequest:
    return kv.TxnRequest(conditions=[kv.Condition(any=kv.Conditions(conditions=conditions))])


def nested(depth: int) -> kv.Condition:
    found = compare(key=b"k", operator=kv.EQUAL, exists=True).conditions[0]
    for _ in range(depth):
        found = kv.Condition(all=kv.Conditions(conditions=[found]))
    return found


def add(**bounds: int) -> kv.TxnRequest:
    return kv.TxnRequest(then=[kv.Operation(add=kv.Calculate(key=b"k", **bounds))])


ALL = kv.Range(prefix=b"")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (kv.TxnRequest(), "the transaction is empty"),
        (kv.TxnRequest(then=[kv.Operation()]), "then[0]: this server does not know the operation"),
        (kv.TxnRequest(otherwise=[get(), get(b"")]), "otherwise[1]: the key is empty"),
        (
            kv.TxnRequest(conditions=[kv.Condition()]),
            "conditions[0]: a condition must be compare, unchanged, any or all",
        ),
        (compare(operator=kv.EQUAL, value=b""), "the key is empty"),
        (
            compare(key=b"k", value=b""),
            "the operator must be =, !=, <, >, <=, >= or starts_with, not number 0",
        ),
        (compare(key=b"k", operator=77, value=b""), "not number 77"),
        (compare(key=b"k", operator=kv.EQUAL), "nothing to compare with"),
        (compare(key=b"k", operator=kv.STARTS_WITH, number=1), "only a value is compared by starts_with"),
        (any_of(), "conditions[0]: any combines no conditions; leave it out"),
        (kv.TxnRequest(conditions=[nested(9)]), "nested deeper than 8 levels"),
        (add(floor=2, ceiling=1), "the floor 2 is above the ceiling 1"),
        (
            kv.TxnRequest(then=[kv.Operation(max=kv.Calculate(key=b"k", floor=2))]),
            "only an addition has a floor",
        ),
        (compare(key=b"k", operator=kv.LESS, exists=True), "existence is compared by = or !=, not by <"),
        (
            compare(key=b"k", operator=kv.LESS, version=1 << 60),
            f"version must be an integer from 0 to {REVISION_MAX}",
        ),
        (
            kv.TxnRequest(conditions=[kv.Condition(unchanged=kv.Unchanged(range=ALL, since=1 << 53))]),
            f"since must be an integer from 0 to {REVISION_MAX}",
        ),
        (scan(), "then[0]: a range must have a prefix or an interval"),
        (scan(range=ALL, limit=1 << 63), "limit must be an integer from 0 to"),
        (scan(range=ALL, shape=9), "the shape must be entries, keys or count, not number 9"),
        (
            scan(range=kv.Range(interval=kv.Interval(start=b"b", end=b"a"))),
            "the range's start b'b' is not below its end b'a'",
        ),
        (
            kv.TxnRequest(then=[kv.Operation(delete_range=kv.DeleteRange())]),
            "then[0]: a range must have a prefix or an interval",
        ),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(message: kv.TxnRequest, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(message)
    assert said in str(caught.value)
    assert not isinstance(caught.value, LimitExceeded)


@pytest.mark.parametrize(
    ("message", "name", "value", "said"),
    [
        (kv.TxnRequest(then=[get()] * 5), "operations", 4, "5 conditions and operations exceed"),
        (any_of(*[nested(0)] * 5), "operations", 4, "5 conditions and operations exceed"),
        (kv.TxnRequest(conditions=[nested(1)] * 2, then=[get()] * 3), "operations", 4, "5 conditions and"),
        (kv.TxnRequest(then=[get(b"k" * 9)]), "key_bytes", 8, "a key of 9 bytes exceeds"),
        (kv.TxnRequest(then=[put(b"k", b"v" * 17)]), "value_bytes", 16, "a value of 17 bytes exceeds"),
        (kv.TxnRequest(then=[put(b"k", b"v" * 16)] * 3), "transaction_bytes", 40, "values of 51 bytes"),
        (scan(range=ALL, limit_bytes=3 << 20), "scan_bytes", 2 << 20, "limit_bytes of 3145728 bytes"),
        (scan(range=kv.Range(prefix=b"p" * 9)), "key_bytes", 8, "the start of a range of 9 bytes"),
        (
            compare(key=b"k", operator=kv.EQUAL, value=b"v" * 17),
            "value_bytes",
            16,
            "a value of 17 bytes",
        ),
    ],
)
def test_a_limit_is_named(message: kv.TxnRequest, name: str, value: int, said: str) -> None:
    with pytest.raises(LimitExceeded) as caught:
        read(message)
    assert (caught.value.name, caught.value.value) == (name, value)
    assert said in str(caught.value)


def test_a_request_id_is_optional() -> None:
    assert identity_of(kv.TxnRequest()) is None
    assert identity_of(kv.PutRequest(id=kv.RequestId(client=7, sequence=3, ack_below=2, deadline=99))) == (
        Identity(7, 3, 2, 99)
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "id.client must be an integer from 1 to"),
        ({"client": 1 << 63, "sequence": 1}, "id.client must be an integer from 1 to"),
        ({"client": 1}, "id.sequence must be an integer from 1 to"),
        ({"client": 1, "sequence": 1 << 63}, "id.sequence must be an integer from 1 to"),
        ({"client": 1, "sequence": 3, "ack_below": 4}, "id.ack_below, 4, is above id.sequence, 3"),
        ({"client": 1, "sequence": 1, "deadline": 1 << 53}, "id.deadline must be an integer from 0"),
    ],
)
def test_a_bad_request_id_is_refused(fields: dict[str, int], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        identity_of(kv.TxnRequest(id=kv.RequestId(**fields)))


ENTRY = KeyValue(b"key", b"value", 10, 20, 3)


def test_every_result_has_its_message() -> None:
    scanned = Scanned((ENTRY, KeyValue(b"key", b"", 10, 20, 3)), 2, more=True)
    committed = Committed(
        revision=30,
        complete=29,
        succeeded=True,
        unmet=(),
        results=(Got(ENTRY), Got(None), WRITTEN, Deleted(2), Number(-5), scanned, *map(Failed, Fault)),
    )
    found = kv.TxnResponse()
    fill_txn(found, committed)
    entry = kv.Entry(key=b"key", value=b"value", create_revision=10, mod_revision=20, version=3)
    only_key = kv.Entry(key=b"key", create_revision=10, mod_revision=20, version=3)
    assert found.header == kv.Header(revision=29, transaction_revision=30)
    assert found.succeeded
    assert list(found.results[:6]) == [
        kv.OperationResult(got=kv.Got(entry=entry)),
        kv.OperationResult(got=kv.Got()),
        kv.OperationResult(written=kv.Written()),
        kv.OperationResult(deleted=kv.Deleted(count=2)),
        kv.OperationResult(number=kv.Number(value=-5)),
        kv.OperationResult(scanned=kv.Scanned(entries=[entry, only_key], count=2, more=True)),
    ]
    assert [result.WhichOneof("result") for result in found.results[6:]] == ["failed"] * len(Fault)
    assert [kv.Fault.Name(result.failed.fault) for result in found.results[6:]] == [f.name for f in Fault]
    assert results_size(committed.results) == 8 + 8 + 3


def test_conditions_that_did_not_hold_are_named() -> None:
    unmet = (Unmet(0), Unmet(3, Fault.COMPACTED))
    found = kv.TxnResponse()
    fill_txn(found, Committed(5, 5, succeeded=False, unmet=unmet, results=()))
    assert not found.succeeded
    assert list(found.unmet) == [kv.Unmet(), kv.Unmet(condition=3, fault=kv.COMPACTED)]
