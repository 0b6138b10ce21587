"""The store's changes as a stream.

An offset is a revision that every partition has closed. A micro-batch is everything after one and up to
another, so it holds whole transactions only, and is the same whenever it is read again. What a query may
still ask for is kept from compaction by a named snapshot, at the offset that was committed last.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import wbkv
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source.arrow import arrow_schema, change_batches, check_schema
from wbkv_pipeline.source.connecting import connect
from wbkv_pipeline.source.explaining import explained
from wbkv_pipeline.source.options import SourceOptions

KEPT_S: Final = 24 * 3600.0
"""How long a query that is stopped can be started again, whatever is compacted meanwhile."""
RENEWED_S: Final = 600.0
QUIET_S: Final = 60.0
"""How long a query without changes stays where it is. An empty batch then moves it on, so history can go."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a query is. Spark keeps it in the checkpoint, as JSON."""

    cluster: str
    stream: str
    """The query's own name for the snapshot that keeps its history."""
    began: int
    """Where its first batch begins, which Spark does not write down."""
    revision: int


@dataclass(frozen=True, slots=True)
class ChangesPart(InputPartition):
    """What one task reads: one partition's part of a micro-batch."""

    partition: int
    after: int
    until: int


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in a process that lives as long as the query, and reads in others."""

    def __init__(self, schema: StructType, options: SourceOptions, unused: str | None = None) -> None:
        """`unused` is a snapshot that was taken before anybody knew that it would be a stream."""
        check_schema(schema)
        self._schema = schema
        self._options = options
        self._unused = unused
        self._client: wbkv.Client[bytes] | None = None
        self._initial: Offset | None = None
        self._target: int | None = None
        self._quiet = 0
        self._kept = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def _connected(self) -> wbkv.Client[bytes]:
        if self._client is None:
            self._client = connect(self._options)
            if self._unused is not None:
                self._client.release(self._unused)
        return self._client

    def stop(self) -> None:
        """The query ends. What it needs when it is started again stays."""
        if self._client is not None:
            self._client.close()
            self._client = None

    # Offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Where a new query begins. Spark asks more than once."""
        if self._initial is None:
            with explained("beginning a stream"):
                client = self._connected()
                began = self._starting(client)
                cluster = client.topology().cluster
                self._initial = Offset(cluster, f"spark/{uuid4().hex}", began, began)
        return asdict(self._initial)

    def _starting(self, client: wbkv.Client[bytes]) -> int:
        start = self._options.starting_revision
        if start == "latest":
            return client.revision()
        if start == "earliest":
            return oldest(client)
        return start

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """The query ends at what is there now."""
        with explained("planning a batch"):
            self._target = self._connected().revision()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Where the next batch ends; at its start, if there is nothing in it."""
        with explained("planning a batch"):
            client = self._connected()
            begin = self._of_this_cluster(start)
            self._keep(begin.stream, begin.revision)
            now = self._target or client.revision()
            first = self._first_change(client, begin.revision, now)
            if first is not None:
                most_s = self._options.max_batch_s
                end = min(now, wbkv.later(first, most_s)) if most_s else now
            elif self._target is None and now > wbkv.later(begin.revision, QUIET_S):
                end = now
            else:
                end = begin.revision
            return asdict(replace(begin, revision=end))

    def _first_change(self, client: wbkv.Client[bytes], start: int, now: int) -> int | None:
        """The first revision with anything of interest. What was looked through is not looked at again."""
        after = max(start, self._quiet)
        if after >= now:
            return None
        first = next(client.changes(self._options.keys, after=after, until=now), None)
        if first is None:
            self._quiet = now
        return None if first is None else first.revision

    def _of_this_cluster(self, offset: dict[str, Any]) -> Offset:
        try:
            found = Offset(**offset)
        except TypeError:
            raise PipelineError(f"wbkv: the checkpoint is of another kind of stream: {offset}") from None
        cluster = self._connected().topology().cluster
        if found.cluster != cluster:
            raise PipelineError(
                f"wbkv: the checkpoint is of cluster {found.cluster}, the endpoints are those of {cluster}: "
                "give that cluster's endpoints, or begin with a new checkpoint"
            )
        return found

    def _keep(self, stream: str, revision: int, *, moved: bool = False) -> None:
        """Keep what comes after a revision from compaction."""
        now = time.monotonic()
        if moved or not self._kept or now - self._kept > RENEWED_S:
            self._connected().snapshot(ttl=KEPT_S, name=stream, revision=revision)
            self._kept = now

    def commit(self, end: dict[str, Any]) -> None:
        """Spark will not ask for anything up to here again."""
        with explained("moving on"):
            offset = self._of_this_cluster(end)
            self._keep(offset.stream, offset.revision, moved=True)

    # Batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task for each partition, whatever the parallelism: a batch that is repeated has the same."""
        with explained("planning a batch"):
            first, last = self._of_this_cluster(start), self._of_this_cluster(end)
            # A first batch that is repeated after a restart comes with a new beginning. The old one counts.
            after = first.revision if first.stream == last.stream else last.began
            self._keep(last.stream, after)
            if after >= last.revision:
                return []
            numbers = [partition.id for partition in self._connected().topology().partitions]
            return [ChangesPart(number, after, last.revision) for number in numbers]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition's changes."""
        assert isinstance(partition, ChangesPart)
        number, after, until = partition.partition, partition.after, partition.until
        doing = f"reading the changes after revision {after}"
        with explained(doing), connect(self._options) as client:
            changes = client.changes(self._options.keys, after=after, until=until, partitions=[number])
            yield from change_batches(changes, number, arrow_schema(self._schema))


def oldest(client: wbkv.Client[bytes]) -> int:
    """The revision from which on all changes are there."""
    try:
        for _ in client.changes(after=1, until=2):
            pass
    except wbkv.Compacted as error:
        return error.revision
    return 1
