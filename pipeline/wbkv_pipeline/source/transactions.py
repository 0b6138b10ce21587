"""Rows in order, cut into transactions.

Without a `txn_id`, the rows of one partition make up transactions of a bounded size, which is fastest. With
one, all rows of an id are one transaction, whatever partitions they go to. Either way the transactions and
their ids depend on the set of rows only.
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
    """What is sent at once."""

    group: bytes | int
    """Its `txn_id`; or its partition, of which it is the number-th."""
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
    """Whose transactions they are: all that goes into their ids beside the rows."""

    job: tuple[NamePart, ...]
    number: int
    """Spark's partition."""
    deadline: int
    """The revision after which none of them is executed any more."""

    def id_of(self, transaction: WriteTransaction) -> RequestId:
        """The id that any attempt gives it. With a `txn_id` it is the same in all tasks. Without one, the
        partition is part of it: the store knows ids by partitions, so only then does it find out that
        something else is sent under an id.
        """
        group, number = transaction.group, transaction.number
        if number is None:
            return named_id(self.deadline, *self.job, "txn", group)
        return counted_id(self.deadline, number, *self.job, "task", self.number, group)


def check_limits(options: SourceOptions, limits: Mapping[str, int]) -> None:
    """Refuse to make transactions that the cluster would not take."""
    for name, asked, limit in (
        ("batchRows", options.batch_rows, "operations"),
        ("batchBytes", options.batch_bytes, "transaction_bytes"),
    ):
        if asked > limits[limit]:
            raise PipelineError(
                f"wbkv: the option {name} must be at most {limits[limit]}, the cluster's limit, not {asked}"
            )


def by_partition(rows: Iterable[Row], options: SourceOptions) -> Iterator[WriteTransaction]:
    """Transactions of one partition each. A key comes once."""
    for partition, group in groupby(rows, itemgetter(0)):
        operations: list[Operation] = []
        size = number = 0
        last = None
        for _, key, value in group:
            if key == last:
                raise PipelineError(
                    f"wbkv: key {key!r} comes twice in a task: which row is the last is not known; "
                    'drop one, as with df.dropDuplicates(["key"]), or give a txn_id'
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
    """One transaction for each id, in the order of ids. A key comes once in each."""
    most, most_bytes = limits["operations"], limits["transaction_bytes"]
    for name, group in groupby(rows, itemgetter(0)):
        operations: list[Operation] = []
        size = 0
        for _, key, value in group:
            if operations and operations[-1].key == key:
                raise PipelineError(f"wbkv: key {key!r} comes twice in the transaction {_shown(name)}")
            operations.append(_operation(key, value))
            size += len(key) + (0 if value is None else len(value))
            if len(operations) > most or size > most_bytes:
                raise PipelineError(
                    f"wbkv: the transaction {_shown(name)} is too large: "
                    f"the cluster takes {most} rows and {most_bytes} bytes of keys and values in one"
                )
        yield WriteTransaction(name, None, operations, size)


def _operation(key: bytes, value: bytes | None) -> Operation:
    return delete(key) if value is None else put(key, value)


def _shown(name: bytes | int) -> str:
    """A `txn_id`, as the user wrote it if it was text."""
    return repr(name.decode(errors="backslashreplace")) if isinstance(name, bytes) else str(name)
