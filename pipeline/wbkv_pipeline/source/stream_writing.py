"""Writes a streaming DataFrame to the store: every micro-batch once, even if Spark repeats it later."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from wbkv_pipeline.source.batch_log import BatchLog
from wbkv_pipeline.source.connecting import connect
from wbkv_pipeline.source.explaining import explained
from wbkv_pipeline.source.options import SourceOptions
from wbkv_pipeline.source.transactions import Task
from wbkv_pipeline.source.writing import (
    WriteReceipt,
    check_target,
    check_whole,
    summary,
    task_number,
    write_rows,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamWriteReceipt(WriteReceipt):
    """What a task has written, and in which query: only tasks know their query."""

    query: str


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of one micro-batch of `df.writeStream`."""

    def __init__(self, schema: StructType, options: SourceOptions, *, overwrite: bool) -> None:
        check_target(schema, overwrite=overwrite)
        self._options = options
        self._named = "txn_id" in schema.names

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamWriteReceipt:
        """Write the rows of one task of one batch."""
        query, batch, number = _property("sql.streaming.queryId"), _batch(), task_number()
        options = self._options
        with explained("writing"), connect(options) as client:

            def begin() -> Task | None:
                deadline = BatchLog(client, query).begin(batch, rewrite=options.rewrite)
                return None if deadline is None else Task(("stream", query, batch), number, deadline)

            done = write_rows(iterator, client, options, begin, named=self._named)
        return StreamWriteReceipt(done.rows, done.transactions, done.names, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Record that the batch is complete: all its tasks have succeeded."""
        check_whole(messages)
        queries = {message.query for message in messages if isinstance(message, StreamWriteReceipt)}
        for query in sorted(queries):
            with explained("finishing a batch"), connect(self._options) as client:
                BatchLog(client, query).finish(batchId)
            log.info("query %s, batch %d: %s", query, batchId, summary(messages))


def _batch() -> int:
    return int(_property("streaming.sql.batchId"))


def _property(name: str) -> str:
    """Return a property of the running task's query."""
    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(name)
    if found is None:
        raise RuntimeError(f"not in a task of a streaming query: the property {name} is missing")
    return found
