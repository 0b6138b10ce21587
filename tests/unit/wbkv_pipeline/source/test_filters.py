from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from wbkv import EVERYTHING, KeyRange
from wbkv_pipeline.source.filters import MANY, Selection, push

KEY = ("key",)
keys = st.lists(st.sampled_from(b"\0a\xff"), max_size=2).map(bytes)  # few, so that they meet
filters = st.one_of(
    st.builds(EqualTo, st.just(KEY), keys),
    st.builds(EqualNullSafe, st.just(KEY), keys),
    st.builds(In, st.just(KEY), st.lists(keys, max_size=4).map(tuple)),
    st.builds(GreaterThan, st.just(KEY), keys),
    st.builds(GreaterThanOrEqual, st.just(KEY), keys),
    st.builds(LessThan, st.just(KEY), keys),
    st.builds(LessThanOrEqual, st.just(KEY), keys),
    st.builds(IsNotNull, st.just(KEY)),
)


def holds(each: Filter, key: bytes) -> bool:
    """Whether Spark's filter accepts the key."""
    match each:
        case EqualTo(_, value) | EqualNullSafe(_, value):
            return bool(key == value)
        case In(_, values):
            return key in values
        case GreaterThan(_, value):
            return bool(key > value)
        case GreaterThanOrEqual(_, value):
            return bool(key >= value)
        case LessThan(_, value):
            return bool(key < value)
        case LessThanOrEqual(_, value):
            return bool(key <= value)
    return True


def selects(selection: Selection, key: bytes) -> bool:
    """Whether the selection has the key."""
    if selection.empty:
        return False
    return key in (selection.keys if selection.points is None else selection.points)


@settings(deadline=None)
@given(st.lists(filters, max_size=4), keys, st.sampled_from([EVERYTHING, KeyRange(b"a", b"b\xff")]))
def test_the_store_finds_what_spark_would(asked: list[Filter], key: bytes, within: KeyRange) -> None:
    selection, rest = push(Selection(within), asked)
    assert not rest
    assert selects(selection, key) == (key in within and all(holds(each, key) for each in asked))


def test_partitions() -> None:
    asked: list[Filter] = [In(("partition",), (1, 2, 3)), In(("partition",), (2, 3, 4))]
    selection, rest = push(Selection(EVERYTHING), asked)
    assert (selection.partitions, rest) == (frozenset({2, 3}), [])
    selection, rest = push(selection, [EqualTo(("partition",), 7)])
    assert selection.empty
    assert not rest


@pytest.mark.parametrize(
    "each",
    [
        Not(EqualTo(KEY, b"a")),
        IsNull(KEY),
        EqualTo(KEY, "text"),
        EqualTo(("value",), b"a"),
        GreaterThan(("partition",), 1),
        In(KEY, (b"a", None)),
        StringStartsWith(KEY, "a"),
        EqualTo(("key", "nested"), b"a"),
        IsNotNull(("other",)),
    ],
)
def test_what_the_store_cannot_answer_is_sparks(each: Filter) -> None:
    selection = Selection(EVERYTHING)
    assert push(selection, [each]) == (selection, [each])


def test_very_many_keys_are_a_range_that_spark_still_looks_through() -> None:
    many = tuple(b"%05d" % number for number in range(MANY + 1))
    selection, rest = push(Selection(EVERYTHING), [In(KEY, many)])
    assert selection == Selection(KeyRange(many[0], many[-1] + b"\0"))
    assert rest == [In(KEY, many)]


def test_single_keys_are_only_those_within_the_range() -> None:
    asked: list[Filter] = [In(KEY, (b"a", b"b", b"c")), GreaterThan(KEY, b"a"), LessThan(KEY, b"c")]
    for order in (asked, asked[::-1]):
        selection, rest = push(Selection(EVERYTHING), order)
        assert (selection.points, rest) == ((b"b",), [])
