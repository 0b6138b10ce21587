from __future__ import annotations

from typing import Any

import pytest
import wbkv
from pyspark.sql.types import StructType
from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source import arrow
from wbkv_pipeline.source.arrow import SCHEMA, arrow_schema, change_batches, check_schema, page_batch


def numbers(*found: int, size: int = 8) -> bytes:
    return b"".join(number.to_bytes(size, "little") for number in found)


PAGE = wbkv.Columns(
    revision=99,
    count=3,
    keys=b"abbccc",
    key_ends=numbers(1, 3, 6, size=4),
    values=b"12",
    value_ends=numbers(1, 1, 2, size=4),
    create_revisions=numbers(1, 2, 3),
    mod_revisions=numbers(4, 2**52, 6),
    versions=numbers(7, 8, 9),
)


def test_a_page_becomes_a_batch() -> None:
    batch = page_batch(PAGE, 2, arrow_schema(SCHEMA))
    batch.validate(full=True)
    assert batch.schema == arrow_schema(SCHEMA)
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        (b"a", b"1", 1, 4, 7, 2),
        (b"bb", b"", 2, 2**52, 8, 2),
        (b"ccc", b"2", 3, 6, 9, 2),
    ]


def test_only_columns_that_are_asked_for() -> None:
    wanted = arrow_schema(StructType([SCHEMA["version"], SCHEMA["key"]]))
    assert page_batch(PAGE, 2, wanted).to_pydict() == {"version": [7, 8, 9], "key": [b"a", b"bb", b"ccc"]}


def test_the_stores_buffers_are_not_copied() -> None:
    batch = page_batch(PAGE, 2, arrow_schema(SCHEMA))
    data = batch.column("key").buffers()[2]
    again = page_batch(PAGE, 2, arrow_schema(SCHEMA)).column("key").buffers()[2]
    assert data.address == again.address


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ({"name": "name", "type": "binary"}, "there is no column name, only key, value, create_revision"),
        ({"name": "key", "type": "string"}, "the column key is binary, not string"),
    ],
)
def test_another_schema_is_refused(field: dict[str, Any], line: str) -> None:
    asked = StructType.fromJson({"type": "struct", "fields": [{**field, "nullable": True, "metadata": {}}]})
    with pytest.raises(PipelineError, match=line):
        check_schema(asked)


def test_changes_become_batches_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [
        wbkv.Change(10, (wbkv.Event(b"a", b"1", 10, 1), wbkv.Event(b"b", None, 0, 0))),
        wbkv.Change(20, (wbkv.Event(b"a", b"22", 10, 2),)),
    ]
    monkeypatch.setattr(arrow, "ROWS", 2)
    batches = list(change_batches(changes, 5, arrow_schema(SCHEMA)))
    assert [[tuple(row.values()) for row in batch.to_pylist()] for batch in batches] == [
        [(b"a", b"1", 10, 10, 1, 5), (b"b", None, 0, 10, 0, 5)],
        [(b"a", b"22", 10, 20, 2, 5)],
    ]
    monkeypatch.setattr(arrow, "BYTES", 3)
    monkeypatch.setattr(arrow, "ROWS", 100)
    assert [len(batch) for batch in change_batches(changes, 5, arrow_schema(SCHEMA))] == [2, 1]
    assert list(change_batches([], 5, arrow_schema(SCHEMA))) == []
