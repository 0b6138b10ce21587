"""Writes a DataFrame to the store: every row once, however often Spark runs a task.

Spark repeats a task that fails or is slow, perhaps while the first attempt still runs, and perhaps with its
rows in another order. So a task sorts its rows, cuts them into transactions, and gives each an id that every
attempt computes alike (`ids`): the store executes the first, and answers the others with its result. This
holds until the job's deadline. After it, the store rejects all attempts.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final
from uuid import uuid4

import pyarrow as pa
import wbkv
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source.connecting import DEADLINE_S, connect
from wbkv_pipeline.source.explaining import explained
from wbkv_pipeline.source.options import SourceOptions
from wbkv_pipeline.source.rows import Rows, check_columns
from wbkv_pipeline.source.sending import send
from wbkv_pipeline.source.sorting import Sorter
from wbkv_pipeline.source.transactions import Task, WriteTransaction, by_partition, by_txn_id, check_limits

NAMES: Final = 1 << 18
"""Most ids of a task's transactions that the driver receives: two megabytes."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriteReceipt(WriterCommitMessage):
    """What a task has written."""

    rows: int
    transactions: int
    names: bytes
    """Hashes of the first of its `txn_id`s, 64 bits each."""


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`. The driver makes one for each job; tasks use it."""

    def __init__(self, schema: StructType, options: SourceOptions, *, overwrite: bool) -> None:
        check_target(schema, overwrite=overwrite)
        with explained("writing"), connect(options) as client:
            check_limits(options, client.topology().limits)
            self._deadline = wbkv.later(client.revision(), DEADLINE_S)
        self._options = options
        self._named = "txn_id" in schema.names
        self._job = options.job_id or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteReceipt:
        """Write the rows of one task."""
        task = Task(("batch", self._job), task_number(), self._deadline)
        with explained("writing"), connect(self._options) as client:
            return write_rows(iterator, client, self._options, lambda: task, named=self._named)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Check and log what the tasks have written. All rows are in the store already."""
        check_whole(messages)
        log.info("job %s: %s", self._job, summary(messages))


def check_target(schema: StructType, *, overwrite: bool) -> None:
    """Raise `PipelineError` if the schema or the mode cannot be written."""
    check_columns(schema)
    if overwrite:
        raise PipelineError(
            "wbkv: the mode overwrite would remove all other keys: use append (streams: append or update), "
            "which replaces the values of the DataFrame's keys, and removes keys whose value is null"
        )


def task_number() -> int:
    """Return the number of Spark's partition, which all attempts of a task share."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("not in a Spark task")
    return context.partitionId()


def check_whole(messages: list[WriterCommitMessage | None]) -> None:
    """Raise if rows of one `txn_id` were in several tasks. They are written by then; the job still fails."""
    seen: set[int] = set()
    for message in messages:
        if isinstance(message, WriteReceipt):
            names = array("Q", message.names)
            if not seen.isdisjoint(names):
                raise PipelineError(
                    "wbkv: rows of one txn_id were in several tasks, so several transactions wrote them: "
                    'write df.repartition("txn_id")'
                )
            seen.update(names)


def summary(messages: list[WriterCommitMessage | None]) -> str:
    """Return a line for the log."""
    done = [message for message in messages if isinstance(message, WriteReceipt)]
    rows, transactions = sum(m.rows for m in done), sum(m.transactions for m in done)
    return f"{rows} rows in {transactions} transactions by {len(done)} tasks"


def write_rows(
    batches: Iterator[pa.RecordBatch],
    client: wbkv.Client[bytes],
    options: SourceOptions,
    begin: Callable[[], Task | None],
    *,
    named: bool,
) -> WriteReceipt:
    """Sort the rows, check them, and send them. `named`: by their `txn_id`.

    `begin` is called once all rows are valid. It returns the task's identity, or None if an earlier attempt
    has written the rows.
    """
    limits = client.topology().limits
    with Sorter() as sorter:
        rows = Rows(sorter, limits, client.partition_of)
        for batch in batches:
            rows.add(batch)

        def transactions() -> Iterator[WriteTransaction]:
            return by_txn_id(rows, limits) if named else by_partition(rows, options)

        deque(transactions(), maxlen=0)  # invalid transactions raise before anything is sent
        task = begin() if rows.count else None
        if task is None:
            return WriteReceipt(0, 0, b"")
        with client.batch() as batch:
            sent = send(transactions(), task, batch, options.in_flight, ordered=named)
        names = islice((task.id_of(each).client for each in transactions()), NAMES) if named else ()
        return WriteReceipt(rows.count, sent, array("Q", names).tobytes())
