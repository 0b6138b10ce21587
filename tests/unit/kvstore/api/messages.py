"""Requests as clients write them."""

from __future__ import annotations

from typing import Any, assert_never

from hypothesis import strategies as st
from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.machine.request import (
    INT64_MAX,
    INT64_MIN,
    REVISION_MAX,
    Append,
    Arithmetic,
    Calculate,
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Get,
    Operation,
    Operator,
    Put,
    Range,
    Scan,
    Shape,
    Subject,
    Transaction,
    Unchanged,
)


def txn(transaction: Transaction) -> kv.TxnRequest:
    """A transaction's request."""
    return kv.TxnRequest(
        conditions=map(condition, transaction.conditions),
        then=map(operation, transaction.then),
        otherwise=map(operation, transaction.otherwise),
    )


def range_(asked: Range) -> kv.Range:
    """A range as a prefix where it is one."""
    if asked == Range.of_prefix(asked.start):
        return kv.Range(prefix=asked.start)
    return kv.Range(interval=kv.Interval(start=asked.start, end=asked.end or b""))


def condition(condition: Condition) -> kv.Condition:
    """A condition's message."""
    if isinstance(condition, Unchanged):
        return kv.Condition(unchanged=kv.Unchanged(range=range_(condition.range), since=condition.since))
    if not isinstance(condition, Compare):
        assert_never(condition)
    operand: Any = condition.operand
    if condition.subject is Subject.EXISTS:
        operand = bool(operand)
    found = kv.Compare(key=condition.key, operator=condition.operator.name)
    setattr(found, condition.subject.value, operand)
    return kv.Condition(compare=found)


def operation(operation: Operation) -> kv.Operation:
    """An operation's message."""
    match operation:
        case Get():
            return kv.Operation(get=kv.Get(key=operation.key))
        case Put():
            return kv.Operation(put=kv.Put(key=operation.key, value=operation.value))
        case Delete():
            return kv.Operation(delete=kv.Delete(key=operation.key))
        case Append():
            return kv.Operation(append=kv.Append(key=operation.key, value=operation.value))
        case Calculate():
            found = kv.Operation()
            getattr(found, operation.arithmetic.value).CopyFrom(
                kv.Calculate(key=operation.key, operand=operation.operand)
            )
            return found
        case DeleteRange(asked, limit):
            return kv.Operation(delete_range=kv.DeleteRange(range=range_(asked), limit=limit))
        case Scan(asked, limit, limit_bytes, reverse, shape):
            return kv.Operation(
                scan=kv.Scan(
                    range=range_(asked),
                    limit=limit,
                    limit_bytes=limit_bytes,
                    reverse=reverse,
                    shape=shape.name,
                )
            )
        case _:
            assert_never(operation)


def transactions(keys: st.SearchStrategy[bytes], values: st.SearchStrategy[bytes]) -> Any:
    """Transactions that are well formed, but for the sizes of keys and values."""
    ranges = st.one_of(
        st.builds(Range.of_prefix, keys),
        st.tuples(keys, keys)
        .filter(lambda bounds: bounds[0] != bounds[1])
        .map(lambda bounds: Range(min(bounds), max(bounds))),
    )
    numbers = st.integers(INT64_MIN, INT64_MAX)
    revisions = st.integers(0, REVISION_MAX)
    operators = st.sampled_from(Operator)
    numbered = st.sampled_from([Subject.VERSION, Subject.CREATE_REVISION, Subject.MOD_REVISION])
    conditions = st.one_of(
        st.builds(Compare, keys, st.just(Subject.VALUE), operators, values),
        st.builds(
            Compare,
            keys,
            st.just(Subject.EXISTS),
            st.sampled_from([Operator.EQUAL, Operator.NOT_EQUAL]),
            st.integers(0, 1),
        ),
        st.builds(Compare, keys, numbered, operators, revisions),
        st.builds(Unchanged, ranges, revisions),
    )
    operations = st.one_of(
        st.builds(Get, keys),
        st.builds(Put, keys, values),
        st.builds(Delete, keys),
        st.builds(Append, keys, values),
        st.builds(Calculate, keys, st.sampled_from(Arithmetic), numbers),
        st.builds(
            Scan,
            ranges,
            st.integers(0, INT64_MAX),
            st.integers(1, 8 << 20),
            st.booleans(),
            st.sampled_from(Shape),
        ),
    )
    then = st.lists(operations | st.builds(DeleteRange, ranges, st.integers(0, 9)), max_size=4)
    otherwise = st.lists(operations | st.builds(DeleteRange, ranges, st.integers(1, 9)), max_size=4)
    return st.builds(
        Transaction, st.lists(conditions, max_size=4).map(tuple), then.map(tuple), otherwise.map(tuple)
    )
