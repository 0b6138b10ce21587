"""Sends transactions: many in flight at once, each retried under its id until its outcome is known."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Final, Protocol

import wbkv

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source.transactions import Task, WriteTransaction

ATTEMPTS: Final = 4
"""How often a transaction is sent, each for the client's time-out. After that, Spark retries the task."""
BYTES: Final = 16 << 20
"""Most bytes of keys and values in flight, unless one transaction alone has more."""

_AGAIN: Final = (wbkv.Unavailable, wbkv.OutcomeUnknown, wbkv.DeadlineExceeded)


class TransactionBatch(Protocol):
    """The part of `wbkv.Client.batch` that sending uses."""

    def transact(self, *then: wbkv.Operation, id: wbkv.RequestId) -> Future[Any]:  # noqa: A002 - its name
        """Send a transaction. The future has its result."""


def send(
    transactions: Iterable[WriteTransaction],
    task: Task,
    batch: TransactionBatch,
    in_flight: int,
    *,
    ordered: bool,
) -> int:
    """Execute all transactions, and return their number.

    `ordered`: transactions that share a key are executed in the given order.
    """
    window = _Window(task, batch)
    for transaction in transactions:
        while (
            len(window.under_way) >= in_flight
            or (window.under_way and window.size + transaction.size > BYTES)
            or (ordered and window.touches(transaction))
        ):
            window.finish_oldest()
        window.submit(transaction, ordered=ordered)
    while window.under_way:
        window.finish_oldest()
    return window.finished


class _Window:
    """The transactions in flight, the oldest first."""

    def __init__(self, task: Task, batch: TransactionBatch) -> None:
        self._task = task
        self._batch = batch
        self._keys: Counter[bytes] = Counter()
        self.under_way: deque[tuple[WriteTransaction, Future[Any]]] = deque()
        self.size = 0
        self.finished = 0

    def touches(self, transaction: WriteTransaction) -> bool:
        """Whether the transaction shares a key with one in flight."""
        return any(operation.key in self._keys for operation in transaction.operations)

    def submit(self, transaction: WriteTransaction, *, ordered: bool) -> None:
        self.under_way.append((transaction, self._ask(transaction)))
        self.size += transaction.size
        if ordered:
            self._keys.update(operation.key for operation in transaction.operations)

    def _ask(self, transaction: WriteTransaction) -> Future[Any]:
        return self._batch.transact(*transaction.operations, id=self._task.id_of(transaction))

    def finish_oldest(self) -> None:
        """Wait for the outcome of the oldest one. If it stays unknown, retry under the same id."""
        transaction, future = self.under_way[0]
        attempts = 1
        while not _executed(transaction, future):
            if attempts == ATTEMPTS:
                future.result()  # raises the reason
            future = self._ask(transaction)
            attempts += 1
        self.under_way.popleft()
        self.size -= transaction.size
        self.finished += 1
        if self._keys:
            for operation in transaction.operations:
                del self._keys[operation.key]  # no two in flight share a key


def _executed(transaction: WriteTransaction, future: Future[Any]) -> bool:
    """Wait for the outcome; False if it is unknown. Raises if retrying cannot succeed."""
    try:
        future.result()
    except _AGAIN:
        return False
    except wbkv.RequestMismatch:
        raise PipelineError(
            f"wbkv: the {transaction} differs from an earlier attempt's, which had other rows. "
            "Either the input is not deterministic (checkpoint it, or repartition it by key), "
            'or rows of one txn_id are in several tasks (df.repartition("txn_id"))'
        ) from None
    except wbkv.RequestExpired:
        raise PipelineError(
            f"wbkv: the {transaction} came too late: its job began about a day ago; "
            "whether an earlier attempt has written it is unknown"
        ) from None
    return True
