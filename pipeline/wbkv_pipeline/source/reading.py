"""Reads the store at one revision, however often and in however many tasks.

A named snapshot protects the revision from compaction while it is in use: every task that reads renews it.

Filters are pushed to the store only if the user asks for it (`pushFilters`). Spark, up to 4.3 at least, plans
a read with the filters of one query, and reuses that plan for every other query of the same loaded DataFrame,
and for every other occurrence in one query: these would miss rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pyarrow as pa
import wbkv
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType
from wbkv import KeyRange

from wbkv_pipeline.source.arrow import arrow_schema, check_schema, page_batch
from wbkv_pipeline.source.connecting import connect
from wbkv_pipeline.source.explaining import explained
from wbkv_pipeline.source.filters import Selection, push
from wbkv_pipeline.source.options import SourceOptions

SPLITS: Final = 2
"""Tasks for each partition, unless the option `splits` says otherwise."""


@dataclass(frozen=True, slots=True)
class Pin:
    """The revision of a DataFrame, and the snapshot that protects it."""

    name: str
    revision: int
    ttl_s: float

    @classmethod
    def take(cls, options: SourceOptions) -> Pin:
        """Pin the revision that the options name, or one with everything completed before this call."""
        doing = f"reading revision {options.revision}" if options.revision else "reading"
        with explained(doing), connect(options, wait_s=0.0) as client:
            name, ttl_s = f"spark/{uuid4().hex}", options.snapshot_ttl_s
            taken = client.snapshot(ttl=ttl_s, name=name, revision=options.revision)
            return cls(name, taken.revision, ttl_s)

    def renew(self, client: wbkv.Client[bytes]) -> None:
        """Extend the snapshot by its time to live."""
        client.snapshot(ttl=self.ttl_s, name=self.name, revision=self.revision)

    @property
    def doing(self) -> str:
        """The activity, for errors."""
        return (
            f"reading revision {self.revision}, kept for {self.ttl_s:g} s after each use of the DataFrame "
            "(load it again, or set a longer snapshotTtl)"
        )


@dataclass(frozen=True, slots=True)
class ScanPart(InputPartition):
    """The part of a scan that one task reads: ranges of keys of one partition."""

    partition: int
    ranges: tuple[KeyRange, ...]


class SnapshotReader(DataSourceReader):
    """The reader of `spark.read`. Plans the tasks in one process, and reads in others."""

    def __init__(self, schema: StructType, options: SourceOptions, pin: Pin) -> None:
        check_schema(schema)
        self._schema = schema
        self._options = options
        self._pin = pin
        self._selection = Selection(options.keys)

    @property
    def pushFilters(self) -> _FilterPush:  # noqa: N802 - Spark's
        """Accept the filters that the store can evaluate, and return the others."""
        return _FilterPush(self)

    def push(self, filters: Sequence[Filter]) -> list[Filter]:
        """Do so, if the user allows it."""
        if not self._options.push_filters:
            return list(filters)
        self._selection, rest = push(self._selection, filters)
        return rest

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Together they read all that is selected."""
        if self._selection.empty:
            return []
        with explained(self._pin.doing), connect(self._options) as client:
            self._pin.renew(client)
            return scan_parts(client, self._selection, self._options.splits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's part, page by page."""
        if not isinstance(partition, ScanPart):
            return  # where nothing is selected, Spark invents a partition
        schema = arrow_schema(self._schema)
        pin = self._pin
        with explained(pin.doing), connect(self._options) as client:
            pin.renew(client)
            renewed = time.monotonic()
            for keys in partition.ranges:
                for page in client.scan_columns(
                    keys,
                    partitions=[partition.partition],
                    revision=pin.revision,
                    values="value" in schema.names,
                ):
                    if page.count:
                        yield page_batch(page, partition.partition, schema)
                    if time.monotonic() - renewed > pin.ttl_s / 3:
                        pin.renew(client)
                        renewed = time.monotonic()


class _FilterPush:
    """A method `pushFilters` that Spark does not recognise as overridden.

    Spark rejects a reader that overrides `pushFilters` in a session without filter pushdown, and calls the
    method in a session with it. Spark recognises an overridden method by its `__func__`.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.push(filters)


def scan_parts(client: wbkv.Client[bytes], selection: Selection, splits: int) -> list[InputPartition]:
    """Return the part of each task."""
    numbers = [partition.id for partition in client.topology().partitions]
    if selection.partitions is not None:
        numbers = [number for number in numbers if number in selection.partitions]
    if not numbers:
        return []
    if selection.points is None:
        found = client.splits(selection.keys, splits or SPLITS * len(numbers), partitions=numbers)
        return [ScanPart(split.partition, (split.keys,)) for split in found]
    points: dict[int, list[KeyRange]] = {number: [] for number in numbers}
    for key in selection.points:
        if (number := client.partition_of(key)) in points:
            points[number].append(KeyRange(key, key + b"\0"))
    return [ScanPart(number, tuple(ranges)) for number, ranges in points.items() if ranges]
