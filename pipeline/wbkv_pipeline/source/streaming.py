"""Reads the store's changes as a stream.

An offset is a revision that every partition has closed. A micro-batch is everything above one offset and up
to another, so it holds whole transactions only, and is the same whenever it is read again. A named snapshot
at the last committed offset protects the changes that a query may still read from compaction.
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
"""How long after its end a query can be resumed, whatever is compacted meanwhile."""
RENEWED_S: Final = 600.0
QUIET_S: Final = 60.0
"""How long a query without changes keeps its offset. An empty batch then advances it, to allow compaction."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The position of a query. Spark keeps it in the checkpoint, as JSON."""

    cluster: str
    stream: str
    """The name of the snapshot that protects the query's history."""
    began: int
    """Where the first batch begins, which Spark does not record."""
    revision: int


@dataclass(frozen=True, slots=True)
class ChangesPart(InputPartition):
    """The part of a micro-batch that one task reads: one partition's changes."""

    partition: int
    after: int
    until: int


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream`. Plans batches in one process for each query, and reads in others."""

    def __init__(self, schema: StructType, options: SourceOptions, unused: str | None = None) -> None:
        """`unused` names a snapshot that `WbkvSource` took before Spark asked for a stream."""
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
        """Disconnect. The snapshot stays, so that the query can be resumed."""
        if self._client is not None:
            self._client.close()
            self._client = None

    # Offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return where a new query begins. Spark asks more than once."""
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
        """Let the query end at the present revision."""
        with explained("planning a batch"):
            self._target = self._connected().revision()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return where the next batch ends: at its start, if there are no changes."""
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
        """Return the first revision with a change in the range. No stretch is searched twice."""
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
            raise PipelineError(f"wbkv: the checkpoint is not of a wbkv stream: {offset}") from None
        cluster = self._connected().topology().cluster
        if found.cluster != cluster:
            raise PipelineError(
                f"wbkv: the checkpoint belongs to cluster {found.cluster}, the endpoints to {cluster}: "
                f"give the endpoints of {found.cluster}, or begin with a new checkpoint"
            )
        return found

    def _keep(self, stream: str, revision: int, *, moved: bool = False) -> None:
        """Protect the changes above a revision from compaction."""
        now = time.monotonic()
        if moved or not self._kept or now - self._kept > RENEWED_S:
            self._connected().snapshot(ttl=KEPT_S, name=stream, revision=revision)
            self._kept = now

    def commit(self, end: dict[str, Any]) -> None:
        """Release the history up to here: Spark does not read it again."""
        with explained("committing a batch"):
            offset = self._of_this_cluster(end)
            self._keep(offset.stream, offset.revision, moved=True)

    # Batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan one task for each partition, whatever the parallelism: a repeated batch has the same tasks."""
        with explained("planning a batch"):
            first, last = self._of_this_cluster(start), self._of_this_cluster(end)
            # A first batch that Spark repeats after a restart has a new start. The recorded one counts.
            after = first.revision if first.stream == last.stream else last.began
            self._keep(last.stream, after)
            if after >= last.revision:
                return []
            numbers = [partition.id for partition in self._connected().topology().partitions]
            return [ChangesPart(number, after, last.revision) for number in numbers]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the changes of one partition."""
        assert isinstance(partition, ChangesPart)
        number, after, until = partition.partition, partition.after, partition.until
        doing = f"reading the changes after revision {after}"
        with explained(doing), connect(self._options) as client:
            changes = client.changes(self._options.keys, after=after, until=until, partitions=[number])
            yield from change_batches(changes, number, arrow_schema(self._schema))


def oldest(client: wbkv.Client[bytes]) -> int:
    """Return the revision above which no change is compacted."""
    try:
        for _ in client.changes(after=1, until=2):
            pass
    except wbkv.Compacted as error:
        return error.revision
    return 1
