"""Requests as clients write them."""

from __future__ import annotations

from typing import Any, assert_never

from hypothesis import strategies as st
from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.machine.formula import Combined, roots_of
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
    Limits,
    Operation,
    Operator,
    Put,
    Range,
    Scan,
    Shape,
    Subject,
    Swap,
    Transaction,
    Unchanged,
)


def txn(transaction: Transaction) -> kv.TxnRequest:
    """A transaction's request."""
    conditions = [condition(each) for each in transaction.conditions]
    inner: set[int] = set()
    for node in transaction.formula:
        combined = kv.Conditions(conditions=[conditions[member] for member in node.members])
        inner.update(node.members)
        conditions.append(kv.Condition(any=combined) if node.any else kv.Condition(all=combined))
    roots = roots_of(len(transaction.conditions), transaction.formula)
    return kv.TxnRequest(
        conditions=[conditions[root] for root in roots],
        then=map(operation, transaction.then),
        otherwise=map(operation, transaction.otherwise),
        allow_failures=transaction.allow_failures,
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
        case Swap():
            return kv.Operation(swap=kv.Put(key=operation.key, value=operation.value))
        case Delete():
            return kv.Operation(delete=kv.Delete(key=operation.key))
        case Append():
            return kv.Operation(append=kv.Append(key=operation.key, value=operation.value))
        case Calculate():
            found = kv.Operation()
            getattr(found, operation.arithmetic.value).CopyFrom(
                kv.Calculate(
                    key=operation.key,
                    operand=operation.operand,
                    floor=operation.floor,
                    ceiling=operation.ceiling,
                )
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


def transactions(keys: st.SearchStrategy[bytes], values: st.SearchStrategy[bytes], limits: Limits) -> Any:
    """Transactions that are well formed, but for the sizes of keys and values."""
    ranges = st.one_of(
        st.builds(Range.of_prefix, keys),
        st.tuples(keys, keys)
        .filter(lambda bounds: bounds[0] != bounds[1])
        .map(lambda bounds: Range(min(bounds), max(bounds))),
    )
    numbers = st.integers(INT64_MIN, INT64_MAX)
    revisions = st.integers(0, REVISION_MAX)
    operators = st.sampled_from([each for each in Operator if each is not Operator.STARTS_WITH])
    numbered = st.sampled_from([Subject.VERSION, Subject.CREATE_REVISION, Subject.MOD_REVISION])
    conditions = st.one_of(
        st.builds(Compare, keys, st.just(Subject.VALUE), st.sampled_from(Operator), values),
        st.builds(Compare, keys, st.just(Subject.NUMBER), operators, numbers),
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
        st.builds(Append, keys, values, st.just(limits.value_bytes)),
        st.builds(Swap, keys, values),
        st.builds(Calculate, keys, st.sampled_from(Arithmetic), numbers),
        st.builds(
            Calculate,
            keys,
            st.just(Arithmetic.ADD),
            numbers,
            st.none() | st.integers(INT64_MIN, 0),
            st.none() | st.integers(0, INT64_MAX),
        ),
        st.builds(
            Scan,
            ranges,
            st.integers(0, INT64_MAX),
            st.integers(1, 8 << 20),
            st.booleans(),
            st.sampled_from(Shape),
        ),
    )
    branch = st.lists(operations | st.builds(DeleteRange, ranges, st.integers(0, 9)), max_size=4).map(tuple)
    return st.lists(conditions, max_size=4).flatmap(
        lambda found: st.builds(
            Transaction, st.just(tuple(found)), branch, branch, formulas(len(found)), st.booleans()
        )
    )


def formulas(conditions: int) -> st.SearchStrategy[tuple[Combined, ...]]:
    """Formulas as messages have them: what is combined stands side by side."""
    if conditions < 2:
        return st.just(())
    first = st.builds(Combined, st.booleans(), st.integers(1, conditions).map(lambda n: tuple(range(n))))
    twice = st.tuples(first, st.booleans()).map(
        lambda made: (
            made[0],
            Combined(made[1], (conditions, *range(len(made[0].members), conditions))),
        )
    )
    return st.just(()) | first.map(lambda node: (node,)) | twice
