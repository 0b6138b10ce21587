"""Tables: whatever is written, indexes have what a look at all rows would find."""

from __future__ import annotations

import asyncio

import pytest
import wbkv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wbkv import aio
from wbkv.codecs import JSON, Json
from wbkv.core.requests import Requests

from tests.unit.wbkv.model import Clock, ModelLink, ModelTasks

NAMES, WORDS = ("a", "b", "a\0b"), ("x", "xy", "y")
INDEXES = {"first/": lambda row: row[0] if row else None, "all/": lambda row: row}
LIST = wbkv.codecs.json_of(list[str])
STEP = st.tuples(st.sampled_from(NAMES), st.one_of(st.none(), st.lists(st.sampled_from(WORDS), max_size=3)))
"""A name, and its new row, or None."""


def found(rows: dict[str, list[str]], index: str, term: str) -> list[tuple[bytes, list[str]]]:
    """What an index has to find, by a look at all rows."""
    return [
        (name.encode(), row)
        for name, row in sorted(rows.items())
        if term in (row if index == "all/" else row[:1])
    ]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=8), together=st.booleans())
def test_indexes_agree_with_the_rows(
    clock: Clock,
    requests: Requests[bytes],
    steps: list[tuple[str, list[str] | None]],
    together: bool,  # noqa: FBT001 - drawn
) -> None:
    link = ModelLink(clock)
    client, twin = wbkv.Client(link, requests), aio.Client(ModelTasks(link), requests)
    table, other = wbkv.Table("row/", LIST, INDEXES), aio.Table("row/", LIST, INDEXES)
    rows: dict[str, list[str]] = {}
    tx = client.transaction()
    for name, row in steps:
        if row is None:
            table.delete(tx, name)
            rows.pop(name, None)
        else:
            table.put(tx, name, row)
            rows[name] = row
        if not together:
            tx.commit()
            tx = client.transaction()
    tx.commit()

    async def as_twin(index: str, term: str) -> list[tuple[bytes, list[str]]]:
        async with twin.transaction() as tx:
            return [each async for each in other.find(tx, index, term)]

    with client.transaction() as tx:
        for index in INDEXES:
            for term in WORDS:
                expected = found(rows, index, term)
                assert list(table.find(tx, index, term)) == expected
                assert list(table.find(tx, index, term, limit=1)) == expected[:1]
                assert list(table.find(tx, index, term, after="a")) == [
                    each for each in expected if each[0] > b"a"
                ]
                assert asyncio.run(as_twin(index, term)) == expected
        assert tx.count("all/") == sum(len(set(row)) for row in rows.values())
        assert [table.get(tx, name) for name in NAMES] == [rows.get(name) for name in NAMES]


def test_a_row_that_appears_aborts_who_looked_for_it(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    table = wbkv.Table("row/", LIST, INDEXES)

    def insert(name: str) -> None:
        with client.transaction() as tx:
            table.put(tx, name, ["x"])

    with pytest.raises(wbkv.Aborted), client.transaction() as tx:  # noqa: PT012 - the block's end raises
        assert list(table.find(tx, "first/", "x")) == []
        insert("b")
        table.put(tx, "a", ["x"])
    assert client.count("row/") == 1
    with client.transaction() as tx:
        assert list(table.find(tx, "first/", "y")) == []
        insert("c")  # under another term
        table.put(tx, "a", ["y"])
    assert client.count("row/") == 3


def test_a_new_index_is_filled_by_putting_again(client: wbkv.Client[bytes]) -> None:
    for table in (wbkv.Table("row/", LIST, {}), wbkv.Table("row/", LIST, INDEXES)):
        with client.transaction() as tx:
            table.put(tx, "a", ["x", "y"])
    assert list(client.keys(wbkv.EVERYTHING)) == [b"all/x\0a", b"all/y\0a", b"first/x\0a", b"row/a"]


def test_misuse(client: wbkv.Client[bytes]) -> None:
    for prefix in ("row/", "row/index/", "r"):
        with pytest.raises(ValueError, match="would be among the rows"):
            wbkv.Table("row/", LIST, {prefix: lambda row: row})
    rows: wbkv.Table[Json] = wbkv.Table("row/", JSON, {"first/": str})
    assert repr(rows) == "<wbkv.Table of b'row/'>"
    with client.transaction() as tx:
        with pytest.raises(ValueError, match="no index b'last/', only b'first/'"):
            list(rows.find(tx, "last/", "x"))
        with pytest.raises(ValueError, match=r"term b'x.*' of the index b'first/' has a zero byte"):
            rows.put(tx, "a", "x\0")
        assert tx.get("row/a") is None
