# Generated from aio/transaction.py by clients/tools/sync_client.py (`make sync-client`): do not edit.
"""Transactions for threads."""

from __future__ import annotations

from collections.abc import (
    Iterable,
    Iterator,
)
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.codecs import Codecs, Values
from wbkv.core.requests import Requests
from wbkv.core.transactions import Attempt, Patience
from wbkv.data import Entry, Key, KeyRange, Keys, RequestId, TxnResult, V, several
from wbkv.iterators import all_of, first_of
from wbkv.links.threads import Link, Puller, run
from wbkv.operations import Condition, Operation, checked

D = TypeVar("D")
W = TypeVar("W")


class Txn(Generic[V]):
    """A transaction that is being built. `client.txn` returns one."""

    def __init__(
        self, link: Link, requests: Requests[V], request_id: RequestId | None, *, allow_failures: bool
    ) -> None:
        self._link = link
        self._requests = requests
        self._request_id = request_id
        self._allow_failures = allow_failures
        self._conditions: tuple[Condition, ...] = ()
        self._then: tuple[Operation, ...] = ()
        self._otherwise: tuple[Operation, ...] = ()

    def __repr__(self) -> str:
        parts = {"when": self._conditions, "then": self._then, "otherwise": self._otherwise}
        shown = "".join(f".{name}({several(given)})" for name, given in parts.items() if given)
        return f"<wbkv.Txn{shown}>"

    def when(self, *conditions: Condition) -> Self:
        """Add conditions. If all conditions hold, `then` is executed."""
        self._conditions += checked(conditions, Condition)
        return self

    def then(self, *operations: Operation) -> Self:
        """Add operations for when all conditions hold. Each one sees the writes of those before it."""
        self._then += checked(operations, Operation)
        return self

    def otherwise(self, *operations: Operation) -> Self:
        """Add operations for when a condition does not hold."""
        self._otherwise += checked(operations, Operation)
        return self

    def commit(self, *, timeout: float | None = None) -> TxnResult[V]:
        """Execute the transaction: one message to each partition concerned, and to no other. Raises
        `OperationFailed`, with nothing written, if an operation cannot be performed.
        """
        plan = self._requests.transact(
            self._conditions, self._then, self._otherwise, timeout, self._request_id,
            allow_failures=self._allow_failures,
        )  # fmt: skip
        return run(self._link, plan)


class Transaction(Generic[V]):
    """An interactive transaction. Only one thread may use it at a time."""

    def __init__(self, link: Link, attempt: Attempt, values: Values[V]) -> None:
        self._link = link
        self._attempt = attempt
        self._values = values

    def __repr__(self) -> str:
        return f"<wbkv.Transaction: {self._attempt.state}>"

    def using(self, codec: Codecs[W]) -> Transaction[W]:
        """Return this transaction with another codec. Both are one transaction, which commits once."""
        return Transaction(self._link, self._attempt, Values(codec))

    @property
    def revision(self) -> int:
        """The revision of the commit; 0 before it, and if the transaction wrote nothing."""
        return self._attempt.revision

    @overload
    def get(self, key: Key) -> V | None: ...

    @overload
    def get(self, key: Key, default: D) -> V | D: ...

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the key's value, with the writes of this transaction, or the default if it is absent."""
        return run(self._link, self._attempt.get(self._values, key, default))

    def entry(self, key: Key) -> Entry[V] | None:
        """Return the key with its revisions, which are 0 if this transaction has written the key."""
        return run(self._link, self._attempt.entry(self._values, key))

    @overload
    def get_many(self, keys: Iterable[Key]) -> list[V | None]: ...

    @overload
    def get_many(self, keys: Iterable[Key], default: D) -> list[V | D]: ...

    def get_many(self, keys: Iterable[Key], default: Any = None) -> Any:
        """Return the values of several keys. Keys not read before are read in one request."""
        return run(self._link, self._attempt.get_many(self._values, keys, default))

    def scan(
        self, keys: Keys, *, after: Key | None = None, limit: int = 0, reverse: bool = False
    ) -> Iterator[Entry[V]]:
        """Iterate over a range, with the writes of this transaction so far. The commit fails if a key in the
        part that was consumed has been added, changed or removed since. `after` continues behind a key.
        """
        plan = self._attempt.scan(self._values, keys, after, limit, reverse=reverse)
        return first_of(Puller(self._link, plan), limit)

    def count(self, keys: Keys) -> int:
        """Return the number of keys in a range, with the writes of this transaction. The commit fails if a
        key of the range has been added, changed or removed since.
        """
        plan = self._attempt.rows(keys, None, 0, reverse=False, shape=kv.KEYS)
        pages: Puller[list[Entry[bytes]]] = Puller(self._link, plan)
        return sum([len(page) for page in all_of(pages)])

    def put(self, key: Key, value: V) -> None:
        """Write a key when the transaction commits."""
        self._attempt.put(self._values, key, value)

    def delete(self, keys: Key | KeyRange) -> None:
        """Remove a key, or all keys of a `prefix(...)`, `between(...)` or `EVERYTHING`, when the transaction
        commits: also keys that others add until then, unless this transaction has read the range. The commit
        raises `OperationFailed`, and writes nothing, if a partition has more than 10,000 keys of a range.
        """
        self._attempt.delete(keys)

    def add(self, key: Key, amount: int = 1, *, floor: int | None = None, ceiling: int | None = None) -> int:
        """Read a number, and write the sum when the transaction commits. (`client.add` never conflicts.)
        Raises `OperationFailed` as `client.add` does.
        """
        return run(self._link, self._attempt.add(key, amount, floor, ceiling))

    def append(self, key: Key, value: V) -> int:
        """Read a value, and write a longer one when the transaction commits. Return its length in bytes."""
        return run(self._link, self._attempt.append(self._values, key, value))

    def commit(self) -> None:
        """Write everything, or raise `Aborted`. The end of the `with` block calls it."""
        run(self._link, self._attempt.commit())

    def rollback(self) -> None:
        """End the transaction without writing. A transaction that was committed cannot be rolled back."""
        self._attempt.roll_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._attempt.ended:
            return
        if kind is not None:
            self.rollback()
        else:
            self.commit()

    def _again(self, timeout: float) -> Transaction[V]:
        """Return the next attempt, after this one was aborted: for `transactional`."""
        return Transaction(self._link, self._attempt.next(timeout), self._values)

    def _reserved(self, patience: Patience) -> Transaction[V]:
        """Return the next attempt, with what this one has read reserved for it: for `transactional`."""
        attempt = run(self._link, self._attempt.reserved_next(patience))
        return Transaction(self._link, attempt, self._values)

    def _release(self, patience: Patience) -> None:
        """End the reservation of the transaction: for `transactional`."""
        run(self._link, self._attempt.release(patience))

    def holds(self) -> bool:
        """Return whether all reads so far are consistent as of one revision."""
        return run(self._link, self._attempt.holds())
