"""Cuts sorted rows into transactions.

Without a `txn_id`, the rows of a partition become transactions of bounded size, which is fastest. With a
`txn_id`, all rows of an id are one transaction over any partitions. Either way the transactions and their
ids depend on the set of rows only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from wbkv import Operation, RequestId, delete, put

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source.ids import NamePart, counted_id, named_id
from wbkv_pipeline.source.options import SourceOptions
from wbkv_pipeline.source.rows import Row


@dataclass(frozen=True, slots=True)
class WriteTransaction:
    """The puts and deletes of one transaction."""

    group: bytes | int
    """Its `txn_id`; or its partition, in which `number` counts."""
    number: int | None
    operations: list[Operation]
    size: int
    """Bytes of keys and values."""

    def __str__(self) -> str:
        if self.number is None:
            return f"transaction {_shown(self.group)}"
        return f"transaction from {self.operations[0].key!r} to {self.operations[-1].key!r}"


@dataclass(frozen=True, slots=True)
class Task:
    """The identity of a Spark task: everything but the rows that its transactions' ids depend on."""

    job: tuple[NamePart, ...]
    number: int
    """Spark's partition."""
    deadline: int
    """The revision after which the store rejects the transactions."""

    def id_of(self, transaction: WriteTransaction) -> RequestId:
        """Return the id that every attempt gives the transaction. With a `txn_id`, all tasks agree on it.

        Without one, the partition is part of the id: the store deduplicates by partition, so only then does
        it detect another transaction under the same id.
        """
        group, number = transaction.group, transaction.number
        if number is None:
            return named_id(self.deadline, *self.job, "txn", group)
        return counted_id(self.deadline, number, *self.job, "task", self.number, group)


def check_limits(options: SourceOptions, limits: Mapping[str, int]) -> None:
    """Raise `PipelineError` if the cluster would reject transactions of the chosen size."""
    for name, asked, limit in (
        ("batchRows", options.batch_rows, "operations"),
        ("batchBytes", options.batch_bytes, "transaction_bytes"),
    ):
        if asked > limits[limit]:
            raise PipelineError(
                f"wbkv: the option {name} must be at most {limits[limit]}, not {asked}: "
                f"the cluster's limit (limits.{limit})"
            )


def by_partition(rows: Iterable[Row], options: SourceOptions) -> Iterator[WriteTransaction]:
    """Yield transactions of one partition each. Raises `PipelineError` if a key occurs twice."""
    for partition, group in groupby(rows, itemgetter(0)):
        operations: list[Operation] = []
        size = number = 0
        last = None
        for _, key, value in group:
            if key == last:
                raise PipelineError(
                    f"wbkv: key {key!r} occurs twice in a task, in no defined order: "
                    'drop a row, as with df.dropDuplicates(["key"]), or add a txn_id'
                )
            last = key
            length = len(key) + (0 if value is None else len(value))
            if operations and (len(operations) == options.batch_rows or size + length > options.batch_bytes):
                yield WriteTransaction(partition, number, operations, size)
                operations, size, number = [], 0, number + 1
            operations.append(_operation(key, value))
            size += length
        yield WriteTransaction(partition, number, operations, size)


def by_txn_id(rows: Iterable[Row], limits: Mapping[str, int]) -> Iterator[WriteTransaction]:
    """Yield one transaction for each id, in the order of ids.

    Raises `PipelineError` if a key occurs twice in a transaction, or if a transaction is too large.
    """
    most, most_bytes = limits["operations"], limits["transaction_bytes"]
    for name, group in groupby(rows, itemgetter(0)):
        operations: list[Operation] = []
        size = 0
        for _, key, value in group:
            if operations and operations[-1].key == key:
                raise PipelineError(f"wbkv: key {key!r} occurs twice in the transaction {_shown(name)}")
            operations.append(_operation(key, value))
            size += len(key) + (0 if value is None else len(value))
            if len(operations) > most or size > most_bytes:
                raise PipelineError(
                    f"wbkv: the transaction {_shown(name)} is too large: the cluster's limit is "
                    f"{most} rows and {most_bytes} bytes of keys and values in a transaction"
                )
        yield WriteTransaction(name, None, operations, size)


def _operation(key: bytes, value: bytes | None) -> Operation:
    return delete(key) if value is None else put(key, value)


def _shown(name: bytes | int) -> str:
    """Return a `txn_id` for messages: as the user wrote it, if it is text."""
    return repr(name.decode(errors="backslashreplace")) if isinstance(name, bytes) else str(name)
