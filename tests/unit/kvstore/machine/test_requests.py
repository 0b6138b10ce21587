"""What may be ordered, and what the refusal of the rest says."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.machine.request import (
    INT64_MAX,
    INT64_MIN,
    Append,
    Arithmetic,
    Calculate,
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Footprint,
    Get,
    InvalidRequest,
    Limits,
    Operation,
    Operator,
    Put,
    Range,
    Scan,
    Subject,
    Transaction,
    Unchanged,
    footprint_of,
    validate,
)

LIMITS = Limits(key_bytes=8, value_bytes=16, transaction_bytes=40, operations=4, scan_bytes=2 << 20)
NOT_BYTES: Any = "text"


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (Get(b""), "^the key is empty"),
        (Delete(b"k" * 9), r"a key of 9 bytes exceeds the limit of 8 bytes \(key_bytes\)"),
        (Get(NOT_BYTES), "a key must be bytes, not str"),
        (Put(b"k", b"v" * 17), "a value of 17 bytes exceeds the limit of 16 bytes"),
        (Append(b"k", NOT_BYTES), "a value must be bytes, not str"),
        (Calculate(b"k", Arithmetic.ADD, INT64_MAX + 1), "operand must be an integer from -92.*, not 92"),
        (Calculate(b"k", Arithmetic.MIN, INT64_MIN - 1), "operand must be an integer"),
        (Scan(Range(b"b", b"b")), "start b'b' is not below its end b'b'"),
        (DeleteRange(Range(b"", b"k" * 9)), "the end of a range of 9 bytes exceeds the limit of 8"),
        (Scan(Range(NOT_BYTES, None)), "the start of a range must be bytes, not str"),
        (Scan(Range(b"", None), limit=-1), "limit must be an integer from 0"),
        (Scan(Range(b"", None), limit_bytes=0), "limit_bytes must be an integer from 1 to 1.*, not 0"),
        (
            Scan(Range(b"", None), limit_bytes=2**64 - 1),
            "limit_bytes of 18446744073709551615 bytes exceeds the limit of 2097152",
        ),
        (
            Scan(Range(b"", None), limit_bytes=2 << 20 | 1),
            "limit_bytes of 2097153 bytes exceeds the limit of 2097152",
        ),
    ],
)
def test_operations_that_are_refused(operation: Operation, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        validate(Transaction(then=(operation,)), LIMITS)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (Compare(b"", Subject.VALUE, Operator.EQUAL, b""), "^the key is empty"),
        (Compare(b"k", Subject.EXISTS, Operator.LESS, 1), "existence is compared by = or !=, not by <"),
        (Compare(b"k", Subject.EXISTS, Operator.EQUAL, 2), "existence must be an integer from 0 to 1"),
        (Compare(b"k", Subject.MOD_REVISION, Operator.LESS, -1), "mod_revision must be an integer from 0"),
        (Compare(b"k", Subject.CREATE_REVISION, Operator.GREATER, 1 << 53), "create_revision must be an int"),
        (Unchanged(Range(b"b", b"a"), 0), "start b'b' is not below its end b'a'"),
        (Unchanged(Range(b"a", b"b"), -1), "since must be an integer from 0"),
    ],
)
def test_conditions_that_are_refused(condition: Condition, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        validate(Transaction(conditions=(condition,)), LIMITS)


def test_what_is_compared_with_the_wrong_kind_of_thing() -> None:
    with pytest.raises(InvalidRequest, match="the value of b'k' is not compared with int"):
        Compare(b"k", Subject.VALUE, Operator.EQUAL, 1)
    with pytest.raises(InvalidRequest, match="the version of b'k' is not compared with bytes"):
        Compare(b"k", Subject.VERSION, Operator.EQUAL, b"1")
    truth = Compare(b"k", Subject.EXISTS, Operator.EQUAL, operand=True)
    with pytest.raises(InvalidRequest, match="existence must be an integer from 0 to 1, not True"):
        validate(Transaction((truth,)), LIMITS)


def test_transactions_that_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="the transaction is empty"):
        validate(Transaction(), LIMITS)
    with pytest.raises(InvalidRequest, match="5 conditions and operations exceed the limit of 4"):
        validate(Transaction(then=(Get(b"k"),) * 3, otherwise=(Get(b"k"),) * 2), LIMITS)
    big = Put(b"k", b"v" * 13)
    validate(Transaction(then=(big,) * 2), LIMITS)
    with pytest.raises(InvalidRequest, match="keys and values of 42 bytes exceeds the limit of 40"):
        validate(Transaction(then=(big,) * 2, otherwise=(big,)), LIMITS)
    with pytest.raises(InvalidRequest, match=r"otherwise\[1\]: the key is empty"):
        validate(Transaction(otherwise=(Get(b"k"), Get(b""))), LIMITS)


def test_the_limits_themselves_are_allowed() -> None:
    validate(Transaction(then=(Put(b"k" * 8, b"v" * 16), Get(b"k" * 8), Get(b"k" * 8))), LIMITS)
    validate(Transaction((Compare(b"k", Subject.VERSION, Operator.EQUAL, (1 << 53) - 1),)), LIMITS)
    validate(Transaction(then=(Calculate(b"k", Arithmetic.ADD, INT64_MIN),)), LIMITS)
    assert (Limits().key_bytes, Limits().value_bytes) == (4096, 1 << 20)
    assert (Limits().transaction_bytes, Limits().operations) == (8 << 20, 4096)


def test_prefixes_are_ranges() -> None:
    assert Range.of_prefix(b"ab") == (b"ab", b"ac")
    assert Range.of_prefix(b"a\xff") == (b"a\xff", b"b")
    assert Range.of_prefix(b"\xff\xff") == (b"\xff\xff", None)
    assert Range.of_prefix(b"") == (b"", None)


def test_both_branches_and_the_conditions_are_the_footprint() -> None:
    conditions = (Compare(b"c", Subject.VERSION, Operator.EQUAL, 0), Unchanged(Range(b"x", b"y"), 0))
    operations = (Get(b"b"), Put(b"b", b""), Delete(b"d"), Get(b"e"), Scan(Range(b"p", None)))
    ranges = (DeleteRange(Range(b"q", b"r")), Calculate(b"n", Arithmetic.ADD, 1), Append(b"m", b""))
    assert footprint_of(enumerate(conditions), enumerate(operations + ranges)) == Footprint(
        reads=(b"c", b"e"),
        writes=(b"b", b"d", b"n", b"m"),
        read_ranges=(Range(b"x", b"y"), Range(b"p", None)),
        write_ranges=(Range(b"q", b"r"),),
    )
