"""Arrow record batches: from pages of the store without copying rows, or from its changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType
from wbkv import Change, Columns

from wbkv_pipeline.errors import PipelineError

SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("create_revision", LongType()),
        StructField("mod_revision", LongType()),
        StructField("version", LongType()),
        StructField("partition", IntegerType()),
    ]
)
"""The columns of a DataFrame that is read, in batches and in streams."""

ROWS: Final = 10_000
BYTES: Final = 4 << 20
"""Largest batches of changes: Spark's own default of rows, and about this many bytes."""


def check_schema(schema: StructType) -> None:
    """Raise `PipelineError` if a user's schema has a column or type that the source does not provide."""
    types = {field.name: field.dataType for field in SCHEMA}
    for field in schema:
        if field.name not in types:
            raise PipelineError(f"wbkv: there is no column {field.name}, only {', '.join(types)}")
        expected = types[field.name]
        if field.dataType != expected:
            raise PipelineError(
                f"wbkv: the column {field.name} is {expected.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches."""
    return to_arrow_schema(schema, timezone="UTC")


def page_batch(page: Columns, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return a page of a scan of one partition as a batch, which shares the store's buffers."""
    rows = page.count

    def binary(data: bytes, ends: bytes) -> pa.Array:
        offsets = pa.py_buffer(bytes(4) + ends)
        return pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(data)])

    def numbers(data: bytes) -> pa.Array:
        return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(data)])

    makers = {
        "key": lambda: binary(page.keys, page.key_ends),
        "value": lambda: binary(page.values, page.value_ends),
        "create_revision": lambda: numbers(page.create_revisions),
        "mod_revision": lambda: numbers(page.mod_revisions),
        "version": lambda: numbers(page.versions),
        "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), rows),
    }
    return pa.RecordBatch.from_arrays([makers[name]() for name in schema.names], schema=schema)


def change_batches(
    changes: Iterable[Change[bytes]], partition: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of one partition: a row for each event, with its transaction's revision."""
    rows: list[tuple[bytes, bytes | None, int, int, int, int]] = []
    size = 0
    for change in changes:
        revision = change.revision
        for key, value, create_revision, version in change.events:
            rows.append((key, value, create_revision, revision, version, partition))
            size += len(key) + (0 if value is None else len(value))
            if len(rows) >= ROWS or size >= BYTES:
                yield _rows_batch(rows, schema)
                rows, size = [], 0
    if rows:
        yield _rows_batch(rows, schema)


def _rows_batch(
    rows: list[tuple[bytes, bytes | None, int, int, int, int]], schema: pa.Schema
) -> pa.RecordBatch:
    columns = dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True))
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
