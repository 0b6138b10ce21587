"""The rows that a task writes: checked as they arrive, before anything is sent, then sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, BooleanType, DataType, IntegerType, LongType, StringType, StructType

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source.sorting import Sorter

_TEXT: Final = (BinaryType, StringType)
_COLUMNS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "key": _TEXT,
    "value": _TEXT,
    "txn_id": (BinaryType, StringType, LongType, IntegerType),
    "delete": (BooleanType,),
}

Row: TypeAlias = tuple[Any, bytes, bytes | None]
"""The `txn_id`, or the key's partition; a key; its value, or None to remove the key."""


def check_columns(schema: StructType) -> None:
    """Raise `PipelineError` unless a DataFrame of this schema can be written."""
    for name in ("key", "value"):
        if name not in schema.names:
            removal = "; null removes the key" if name == "value" else ""
            raise PipelineError(f"wbkv: the DataFrame has no column {name} (binary or string{removal})")
    for field in schema:
        allowed = _COLUMNS.get(field.name)
        if allowed is None:
            raise PipelineError(
                f"wbkv: the column {field.name} cannot be written, only key, value, txn_id and delete: "
                'select what is to be written, as in df.select("key", "value")'
            )
        if not isinstance(field.dataType, allowed):
            kinds = " or ".join(kind().simpleString() for kind in allowed)
            raise PipelineError(
                f"wbkv: the column {field.name} must be {kinds}, not {field.dataType.simpleString()}"
            )


class Rows:
    """The rows of one task."""

    def __init__(
        self, sorter: Sorter, limits: Mapping[str, int], partition_of: Callable[[bytes], int]
    ) -> None:
        self._sorter = sorter
        self._limits = limits
        self._partition_of = partition_of
        self.count = 0

    def __iter__(self) -> Iterator[Row]:
        """Yield rows by transaction or partition, then by key. May be called repeatedly."""
        return self._sorter.rows()

    def add(self, batch: pa.RecordBatch) -> None:
        """Check a batch of Spark's, and add it. Raises `PipelineError` if a row cannot be written."""
        names = batch.schema.names
        keys = _plain(batch.column("key"))
        values = _plain(batch.column("value"))
        if "delete" in names:
            kept = pc.equal(pc.fill_null(batch.column("delete"), pa.scalar(False)), pa.scalar(False))  # noqa: FBT003 - pyarrow's
            values = pc.if_else(kept, values, pa.scalar(None, pa.binary()))
        self._check_keys(keys)
        self._check_length("key", keys)
        self._check_length("value", values)
        if "txn_id" in names:
            groups = _plain(batch.column("txn_id"))
            self._refuse("txn_id is null", groups.is_null())
        else:
            partition_of = self._partition_of
            groups = pa.array([partition_of(key) for key in keys.to_pylist()], pa.int32())
        self._sorter.add(pa.record_batch([groups, keys, values], names=["group", "key", "value"]))
        self.count += batch.num_rows

    def _check_keys(self, keys: pa.Array) -> None:
        self._refuse("key is null", keys.is_null())
        self._refuse("key is empty", pc.equal(pc.binary_length(keys), 0))

    def _check_length(self, name: str, column: pa.Array) -> None:
        limit = self._limits[f"{name}_bytes"]
        self._refuse(
            f"{name} exceeds the cluster's limit of {limit} bytes (limits.{name}_bytes)",
            pc.greater(pc.binary_length(column), limit),
        )

    def _refuse(self, problem: str, wrong: pa.Array) -> None:
        """Raise if any row is wrong, naming the first one."""
        index = pc.index(wrong, pa.scalar(True)).as_py()  # noqa: FBT003 - pyarrow's
        if index >= 0:
            raise PipelineError(f"wbkv: {problem}, in row {self.count + index + 1} of this task")


def _plain(column: pa.Array) -> pa.Array:
    """Cast text, and arrays with long offsets, to bytes; and integers to 64 bits."""
    return column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.binary())
