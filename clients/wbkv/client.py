# Generated from aio/client.py by clients/tools/sync_client.py (`make sync-client`): do not edit.
"""The client for threads. `wbkv.aio` has the same names, awaited."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import closing
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.batching import Batch
from wbkv.codecs import BYTES, Codec
from wbkv.core.effects import Plan
from wbkv.core.locks import raw
from wbkv.core.requests import Requests, columns_of, keys_of
from wbkv.core.streams import Page, Progress
from wbkv.core.transactions import STALE, Attempt, Patience, pause
from wbkv.data import (
    EVERYTHING,
    Change,
    Columns,
    Consistency,
    Entry,
    Key,
    KeyRange,
    Keys,
    NodeStatus,
    RequestId,
    Split,
    Topology,
    TxnResult,
    V,
    key_bytes,
)
from wbkv.errors import Aborted, Error
from wbkv.links.threads import Link, Puller, run
from wbkv.lock import Lock
from wbkv.operations import Condition, Operation, add, append, checked

T = TypeVar("T")
W = TypeVar("W")


class _Closes:
    """Something to be used in a `with` block."""

    def close(self) -> None:
        """Give back what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client(_Closes, Generic[V]):
    """A connection to a cluster, or an embedded store. Any number of threads may use it.

    Made by `wbkv.connect` and `wbkv.open`. Times are in seconds; a call's `timeout` is for all its
    attempts.
    """

    def __init__(self, link: Link, requests: Requests[V]) -> None:
        self._link = link
        self._requests = requests

    def __repr__(self) -> str:
        topology = self._requests.calls.router.topology
        return f"<wbkv.Client of {topology.cluster if topology else 'nothing yet'}>"

    def _run(self, plan: Plan[T]) -> T:
        return run(self._link, plan)

    @property
    def timeout(self) -> float:
        """How long a call may take, unless it says otherwise."""
        return self._requests.calls.timeout_s

    def using(self, codec: Codec[W]) -> Client[W]:
        """The same client with another codec. They share everything else; closing one closes both."""
        return Client(self._link, self._requests.using(codec))

    def close(self) -> None:
        """End all connections."""
        self._link.close()
        self._requests.closing()

    # Reads

    def get(
        self,
        key: Key,
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> V | None:
        """The key's value, or None: as of now, or as of a revision."""
        return self._run(self._requests.get(key, revision, consistency, timeout))

    def entry(
        self,
        key: Key,
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> Entry[V] | None:
        """The key with its value and revisions, or None."""
        return self._run(self._requests.entry(key, revision, consistency, timeout))

    def get_many(
        self,
        keys: Iterable[Key],
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> list[V | None]:
        """The keys' values, all as of one moment, in the order asked for."""
        return self._run(self._requests.get_many(keys, revision, consistency, timeout))

    def scan(
        self,
        keys: Keys,
        *,
        limit: int = 0,
        reverse: bool = False,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> Scan[Entry[V]]:
        """A range of any size, in the order of keys, all of it as of one revision; read as it is consumed.

        A str or bytes is a prefix. It survives nodes that fail; the time-out is for each page.
        """
        plan = self._requests.scan(
            keys, limit=limit, reverse=reverse, shape=kv.ENTRIES,
            revision=revision, consistency=consistency, timeout_s=timeout,
        )  # fmt: skip
        return Scan(self._link, plan, self._requests.page_entries)

    def keys(
        self,
        keys: Keys,
        *,
        limit: int = 0,
        reverse: bool = False,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> Scan[bytes]:
        """Like `scan`, the keys only."""
        plan = self._requests.scan(
            keys, limit=limit, reverse=reverse, shape=kv.KEYS,
            revision=revision, consistency=consistency, timeout_s=timeout,
        )  # fmt: skip
        return Scan(self._link, plan, keys_of)

    def scan_columns(
        self,
        keys: Keys = EVERYTHING,
        *,
        values: bool = True,
        partitions: Iterable[int] | None = None,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> Scan[Columns]:
        """Like `scan`, page by page, each as columns: for those who read much. Of some partitions, or all."""
        plan = self._requests.scan(
            keys, limit=0, reverse=False, shape=kv.ENTRIES if values else kv.KEYS, columns=True,
            partitions=partitions, revision=revision, consistency=consistency, timeout_s=timeout,
        )  # fmt: skip
        return Scan(self._link, plan, columns_of)

    def splits(
        self,
        keys: Keys = EVERYTHING,
        pieces: int = 16,
        *,
        partitions: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> list[Split]:
        """About so many pieces of a range, with about equally many keys, each of one partition, for those who
        scan in parallel. The store looks at all keys to find out.
        """
        return self._run(self._requests.splits(keys, pieces, partitions, timeout))

    def count(
        self,
        keys: Keys,
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> int:
        """How many keys there are in a range."""
        plan = self._requests.scan(
            keys, limit=0, reverse=False, shape=kv.COUNT,
            revision=revision, consistency=consistency, timeout_s=timeout,
        )  # fmt: skip
        found = 0
        pages: Puller[Page] = Puller(self._link, plan)
        for page in _all(pages):
            found = page.count
        return found

    # Writes

    def put(self, key: Key, value: V, *, timeout: float | None = None) -> int:
        """Write a key. The revision."""
        return self._run(self._requests.put(key, value, timeout))

    def delete(self, keys: Key | KeyRange, *, timeout: float | None = None) -> int:
        """Remove a key, or all keys of a `prefix(...)`, `between(...)` or `EVERYTHING`. How many there
        were.
        """
        return self._run(self._requests.delete(keys, timeout))

    def add(self, key: Key, amount: int = 1, *, timeout: float | None = None) -> int:
        """Add to a number, stored in decimal digits; an absent one counts as 0. The new number."""
        return self._run(self._requests.number(add(key, amount), timeout))

    def append(self, key: Key, value: V, *, timeout: float | None = None) -> int:
        """Add to the end of a value; an absent one counts as empty. Its new length in bytes."""
        return self._run(self._requests.number(append(key, value), timeout))

    # Transactions

    def txn(self, *, id: RequestId | None = None) -> Txn[V]:  # noqa: A002 - what it is
        """A transaction in one message: `client.txn().when(...).then(...).otherwise(...).commit()`.

        One that has an id is executed once, whoever sends it again; each time the first result is returned.
        """
        return Txn(self._link, self._requests, id)

    def transaction(self, *, timeout: float | None = None) -> Transaction[V]:
        """An interactive transaction: `with client.transaction() as tx:`; it commits at the end of
        the block.

        Raises `Aborted` there if something that it read was changed meanwhile: `@wbkv.transactional`
        repeats it.
        """
        return Transaction(self._link, Attempt(self._requests, timeout))

    def _transact(self, function: Callable[[Transaction[V]], T], timeout_s: float | None) -> T:
        """For `transactional`: run the function in a transaction, again after each conflict."""
        patience = Patience(timeout_s, self.timeout)
        tx = self.transaction(timeout=patience.left_s)
        while True:
            try:
                with tx:
                    result = function(tx)
            except Aborted as conflict:
                wait_s = patience.pause(conflict)
            except Error:
                raise
            except Exception as error:
                # It may have read keys of different moments, and be confused by that only.
                try:
                    holds = tx.holds()
                except Error:
                    raise error from None  # nobody can tell
                if holds:
                    raise
                wait_s = patience.pause(Aborted(STALE))
            else:
                return result
            if wait_s:
                self._run(pause(wait_s))
                tx = self.transaction(timeout=patience.left_s)
            else:
                tx = tx._again(patience.left_s)  # noqa: SLF001 - made for this

    def batch(self) -> Batch[V]:
        """Many calls at once on one stream: each gives a `concurrent.futures.Future`."""
        return Batch(self._requests, self._link.in_loop)

    # History

    def snapshot(
        self,
        *,
        ttl: float = 60.0,
        name: str | None = None,
        revision: int = 0,
        timeout: float | None = None,
    ) -> Snapshot[V]:
        """A revision with everything completed before, or a given one, which stays readable for `ttl` seconds
        or to the end of the `with` block.

        What has the same name already becomes this one: so any process can extend its time.
        """
        return Snapshot(self, *self._run(self._requests.snapshot(ttl, name, revision, timeout)))

    def watch(
        self, *keys: Keys, after: int | None = None, progress: bool = False, timeout: float | None = None
    ) -> Watch[V]:
        """Every transaction that changes anything in these ranges, whole, in the order of revisions.

        From the moment that its `with` block is entered, or after a revision. It goes on by itself
        when a node fails; raises `Compacted` if what follows is gone. With `progress`, changes without
        events tell that there was nothing up to their revision. The time-out is for finding a node that
        serves it.
        """
        return Watch(self._link, self._requests, self._requests.watch(keys, after, timeout), marks=progress)

    def changes(
        self,
        keys: Keys = EVERYTHING,
        *,
        after: int,
        until: int,
        partitions: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> Iterator[Change[V]]:
        """Every transaction above a revision and up to another, which must not be in the future, that changes
        anything in a range; of some partitions, or all. Like a `watch` that ends.
        """
        plan = self._requests.changes(keys, after, until, partitions, timeout)
        pages: Puller[Progress] = Puller(self._link, plan)
        change = self._requests.change
        return (change(*each) for page in _all(pages) for each in page.changes)

    def compact(self, revision: int, *, timeout: float | None = None) -> None:
        """Forget what only reads below a revision need."""
        self._run(self._requests.compact(revision, timeout))

    def release(self, name: str, *, timeout: float | None = None) -> None:
        """End a snapshot, by its name, before its time. One that is not there any more is no error."""
        self._run(self._requests.release(name, timeout))

    def revision(self, *, timeout: float | None = None) -> int:
        """A revision with everything completed before, in all partitions: to read at, or to follow changes up
        to. It stays readable until somebody compacts it; a `snapshot` is kept from that.
        """
        pages: Puller[Page] = Puller(self._link, self._requests.barrier(timeout))
        with closing(pages):
            page = pages.pull()
            return page.revision

    # Recipes

    def counter(self, key: Key) -> Counter:
        """A number under a key."""
        return Counter(self, key)

    def lock(self, name: Key, *, ttl: float = 10.0) -> Lock:
        """A lock with fencing tokens. A holder that dies is in others' way for `ttl` seconds."""
        return Lock(self._link, raw(self._requests), name, ttl)

    # The cluster

    def topology(self, *, timeout: float | None = None) -> Topology:
        """Nodes, partitions, leaders and limits."""
        return self._run(self._requests.topology(timeout))

    def partition_of(self, key: Key) -> int:
        """The partition that has a key, as far as this client knows."""
        return self._requests.calls.router.partition_of(key_bytes(key))

    def status(self, *, timeout: float | None = None) -> list[NodeStatus]:
        """How every node is, those included that do not answer."""
        return self._run(self._requests.status(timeout))


class Txn(Generic[V]):
    """A transaction that is being put together."""

    def __init__(self, link: Link, requests: Requests[V], named: RequestId | None) -> None:
        self._link = link
        self._requests = requests
        self._named = named
        self._conditions: tuple[Condition, ...] = ()
        self._then: tuple[Operation, ...] = ()
        self._otherwise: tuple[Operation, ...] = ()

    def when(self, *conditions: Condition) -> Self:
        """All of these must hold for `then` to be performed."""
        self._conditions += checked(conditions, Condition)
        return self

    def then(self, *operations: Operation) -> Self:
        """If they do, these, in order, each seeing what those before it wrote."""
        self._then += checked(operations, Operation)
        return self

    def otherwise(self, *operations: Operation) -> Self:
        """If not, these."""
        self._otherwise += checked(operations, Operation)
        return self

    def commit(self, *, timeout: float | None = None) -> TxnResult[V]:
        """Send it: one message to just the partitions concerned."""
        plan = self._requests.transact(self._conditions, self._then, self._otherwise, timeout, self._named)
        return run(self._link, plan)


class Transaction(Generic[V]):
    """An interactive transaction. It belongs to one thread at a time."""

    def __init__(self, link: Link, attempt: Attempt[V]) -> None:
        self._link = link
        self._attempt = attempt

    @property
    def revision(self) -> int:
        """Of the commit, when it is done; 0 if it wrote nothing."""
        return self._attempt.revision

    def get(self, key: Key) -> V | None:
        """The key's value, as this transaction sees it."""
        return run(self._link, self._attempt.get(key))

    def entry(self, key: Key) -> Entry[V] | None:
        """The key with its revisions, which are 0 if this transaction has written it."""
        return run(self._link, self._attempt.entry(key))

    def get_many(self, keys: Iterable[Key]) -> list[V | None]:
        """Several values. Those not read before are read in one step."""
        return run(self._link, self._attempt.get_many(keys))

    def scan(self, keys: Keys, *, limit: int = 0, reverse: bool = False) -> Iterator[Entry[V]]:
        """A range, with what the transaction has written so far. As far as it is consumed, no key may appear
        in it or change before the commit.
        """
        plan = self._attempt.scan(keys, limit, reverse=reverse)
        return _first(Puller(self._link, plan), limit)

    def put(self, key: Key, value: V) -> None:
        """Write a key at the commit."""
        self._attempt.put(key, value)

    def delete(self, key: Key) -> None:
        """Remove a key at the commit."""
        self._attempt.delete(key)

    def add(self, key: Key, amount: int = 1) -> int:
        """Read a number, and write the sum at the commit. (`client.add` conflicts with nobody.)"""
        return run(self._link, self._attempt.add(key, amount))

    def append(self, key: Key, value: V) -> int:
        """Read a value, and write a longer one at the commit. Its new length in bytes."""
        return run(self._link, self._attempt.append(key, value))

    def commit(self) -> None:
        """Write all of it, or raise `Aborted`. The end of the `with` block does it."""
        run(self._link, self._attempt.commit())

    def rollback(self) -> None:
        """Write nothing."""
        self._attempt.roll_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.rollback()
        elif not self._attempt.ended:
            self.commit()

    def _again(self, timeout: float) -> Transaction[V]:
        """For `transactional`: the next attempt, after this one was aborted."""
        return Transaction(self._link, self._attempt.next(timeout))

    def holds(self) -> bool:
        """Whether what it has read so far holds together, as of one moment."""
        return run(self._link, self._attempt.holds())


class Snapshot(_Closes, Generic[V]):
    """All partitions as of one revision."""

    def __init__(self, client: Client[V], name: str, revision: int) -> None:
        self._client = client
        self.name = name
        self.revision = revision

    def get(self, key: Key, *, timeout: float | None = None) -> V | None:
        """The key's value."""
        return self._client.get(key, revision=self.revision, timeout=timeout)

    def entry(self, key: Key, *, timeout: float | None = None) -> Entry[V] | None:
        """The key with its value and revisions."""
        return self._client.entry(key, revision=self.revision, timeout=timeout)

    def get_many(self, keys: Iterable[Key], *, timeout: float | None = None) -> list[V | None]:
        """The keys' values."""
        return self._client.get_many(keys, revision=self.revision, timeout=timeout)

    def scan(
        self, keys: Keys, *, limit: int = 0, reverse: bool = False, timeout: float | None = None
    ) -> Scan[Entry[V]]:
        """A range."""
        return self._client.scan(keys, limit=limit, reverse=reverse, revision=self.revision, timeout=timeout)

    def keys(
        self, keys: Keys, *, limit: int = 0, reverse: bool = False, timeout: float | None = None
    ) -> Scan[bytes]:
        """A range's keys."""
        return self._client.keys(keys, limit=limit, reverse=reverse, revision=self.revision, timeout=timeout)

    def count(self, keys: Keys, *, timeout: float | None = None) -> int:
        """How many keys there were in a range."""
        return self._client.count(keys, revision=self.revision, timeout=timeout)

    def close(self) -> None:
        """It is not needed any more."""
        self._client._run(self._client._requests.release(self.name, None))  # noqa: SLF001 - it is its client's


class Scan(_Closes, Iterator[T]):
    """What a scan finds, as it is consumed."""

    def __init__(self, link: Link, plan: Plan[None], convert: Callable[[Page], list[T]]) -> None:
        self._puller: Puller[Page] = Puller(link, plan)
        self._convert = convert
        self._page: Iterator[T] = iter(())
        self.revision = 0
        """What all of it is as of: known when the first page has come."""

    def _turn(self) -> None:
        page = self._puller.pull()
        self.revision = page.revision
        self._page = iter(self._convert(page))

    def __iter__(self) -> Iterator[T]:
        # A generator is faster than `self`. It is not kept: a scan that nobody has any more ends.
        while True:
            yield from self._page
            try:
                self._turn()
            except StopIteration:
                return

    def __next__(self) -> T:
        while True:
            for item in self._page:
                return item
            self._turn()

    def close(self) -> None:
        """No more of it is wanted."""
        self._page = iter(())
        self._puller.close()


class Watch(_Closes, Generic[V]):
    """Changes, as they happen."""

    def __init__(self, link: Link, requests: Requests[V], plan: Plan[None], *, marks: bool) -> None:
        self._requests = requests
        self._puller: Puller[Progress] = Puller(link, plan)
        self._marks = marks
        self._ready: deque[tuple[int, Sequence[kv.Event]]] = deque()
        self._position = 0
        self.revision = 0
        """All changes up to here were given to the caller: where to go on from (`after`) another time."""

    def __enter__(self) -> Self:
        if not self._position:
            self._pull(None)
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change[V]:
        found = self.next()
        assert found is not None
        return found

    def next(self, timeout: float | None = None) -> Change[V] | None:
        """The next change; None if there is none in time. Raises `StopIteration` once it is closed."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            try:
                self._pull(None if until is None else max(until - time.monotonic(), 0.0))
            except queue.Empty:
                return None
        self.revision, events = self._ready.popleft()
        return self._requests.change(self.revision, events)

    def _pull(self, timeout_s: float | None) -> None:
        self.revision = self._position  # all up to there were taken, or there would be no need for more
        progress = self._puller.pull(timeout_s)
        self._ready += progress.changes
        if self._marks:
            self._ready.append((progress.revision, ()))
        self._position = progress.revision
        if not self._ready:
            self.revision = self._position

    def close(self) -> None:
        """No more is wanted: also from another thread, which ends the iteration."""
        self._puller.close()


class Counter:
    """A number under a key, which any number of clients may count on without conflicts."""

    def __init__(self, client: Client[Any], key: Key) -> None:
        self._client = client
        self._key = key

    def add(self, amount: int = 1, *, timeout: float | None = None) -> int:
        """Count, up or down. The new number."""
        return self._client.add(self._key, amount, timeout=timeout)

    def value(self, *, timeout: float | None = None) -> int:
        """The number now; 0 if nobody has counted yet."""
        return int(self._client.using(BYTES).get(self._key, timeout=timeout) or 0)


def _all(puller: Puller[T]) -> Generator[T, None, None]:
    try:
        while True:
            try:
                item = puller.pull()
            except StopIteration:
                return
            yield item
    finally:
        puller.close()


def _first(puller: Puller[list[Entry[V]]], limit: int) -> Iterator[Entry[V]]:
    given = 0
    with closing(_all(puller)) as pages:
        for page in pages:
            for entry in page:
                yield entry
                given += 1
                if given == limit:
                    return
