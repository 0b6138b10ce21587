"""The client for event loops. `wbkv.client`, the client for threads, is generated from this module."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.aio.lock import Lock
from wbkv.aio.opening import Opening
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
from wbkv.links.tasks import AsyncLink, AsyncPuller, run
from wbkv.operations import Condition, Operation, add, append, checked

T = TypeVar("T")
W = TypeVar("W")


class _Closes:
    """Something to be used in an `async with` block."""

    async def close(self) -> None:
        """Give back what it holds."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Client(_Closes, Generic[V]):
    """A connection to a cluster, or an embedded store. It belongs to one event loop.

    Made by `wbkv.aio.connect` and `wbkv.aio.open`. Times are in seconds; a call's `timeout` is for all its
    attempts.
    """

    def __init__(self, link: AsyncLink, requests: Requests[V]) -> None:
        self._link = link
        self._requests = requests

    def __repr__(self) -> str:
        topology = self._requests.calls.router.topology
        return f"<wbkv.aio.Client of {topology.cluster if topology else 'nothing yet'}>"

    async def _run(self, plan: Plan[T]) -> T:
        return await run(self._link, plan)

    @property
    def timeout(self) -> float:
        """How long a call may take, unless it says otherwise."""
        return self._requests.calls.timeout_s

    def using(self, codec: Codec[W]) -> Client[W]:
        """The same client with another codec. They share everything else; closing one closes both."""
        return Client(self._link, self._requests.using(codec))

    async def close(self) -> None:
        """End all connections."""
        await self._link.close()
        self._requests.closing()

    # Reads

    async def get(
        self,
        key: Key,
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> V | None:
        """The key's value, or None: as of now, or as of a revision."""
        return await self._run(self._requests.get(key, revision, consistency, timeout))

    async def entry(
        self,
        key: Key,
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> Entry[V] | None:
        """The key with its value and revisions, or None."""
        return await self._run(self._requests.entry(key, revision, consistency, timeout))

    async def get_many(
        self,
        keys: Iterable[Key],
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> list[V | None]:
        """The keys' values, all as of one moment, in the order asked for."""
        return await self._run(self._requests.get_many(keys, revision, consistency, timeout))

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

    async def splits(
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
        return await self._run(self._requests.splits(keys, pieces, partitions, timeout))

    async def count(
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
        pages: AsyncPuller[Page] = AsyncPuller(self._link, plan)
        async for page in _all(pages):
            found = page.count
        return found

    # Writes

    async def put(self, key: Key, value: V, *, timeout: float | None = None) -> int:
        """Write a key. The revision."""
        return await self._run(self._requests.put(key, value, timeout))

    async def delete(self, keys: Key | KeyRange, *, timeout: float | None = None) -> int:
        """Remove a key, or all keys of a `prefix(...)`, `between(...)` or `EVERYTHING`. How many there
        were.
        """
        return await self._run(self._requests.delete(keys, timeout))

    async def add(self, key: Key, amount: int = 1, *, timeout: float | None = None) -> int:
        """Add to a number, stored in decimal digits; an absent one counts as 0. The new number."""
        return await self._run(self._requests.number(add(key, amount), timeout))

    async def append(self, key: Key, value: V, *, timeout: float | None = None) -> int:
        """Add to the end of a value; an absent one counts as empty. Its new length in bytes."""
        return await self._run(self._requests.number(append(key, value), timeout))

    # Transactions

    def txn(self, *, id: RequestId | None = None) -> Txn[V]:  # noqa: A002 - what it is
        """A transaction in one message: `client.txn().when(...).then(...).otherwise(...).commit()`.

        One that has an id is executed once, whoever sends it again; each time the first result is returned.
        """
        return Txn(self._link, self._requests, id)

    def transaction(self, *, timeout: float | None = None) -> Transaction[V]:
        """An interactive transaction: `async with client.transaction() as tx:`; it commits at the end of
        the block.

        Raises `Aborted` there if something that it read was changed meanwhile: `@wbkv.transactional`
        repeats it.
        """
        return Transaction(self._link, Attempt(self._requests, timeout))

    async def _transact(
        self, function: Callable[[Transaction[V]], Awaitable[T]], timeout_s: float | None
    ) -> T:
        """For `transactional`: run the function in a transaction, again after each conflict."""
        patience = Patience(timeout_s, self.timeout)
        tx = self.transaction(timeout=patience.left_s)
        while True:
            try:
                async with tx:
                    result = await function(tx)
            except Aborted as conflict:
                wait_s = patience.pause(conflict)
            except Error:
                raise
            except Exception as error:
                # It may have read keys of different moments, and be confused by that only.
                try:
                    holds = await tx.holds()
                except Error:
                    raise error from None  # nobody can tell
                if holds:
                    raise
                wait_s = patience.pause(Aborted(STALE))
            else:
                return result
            if wait_s:
                await self._run(pause(wait_s))
                tx = self.transaction(timeout=patience.left_s)
            else:
                tx = tx._again(patience.left_s)  # noqa: SLF001 - made for this

    # History

    def snapshot(
        self,
        *,
        ttl: float = 60.0,
        name: str | None = None,
        revision: int = 0,
        timeout: float | None = None,
    ) -> Opening[Snapshot[V]]:
        """A revision with everything completed before, or a given one, which stays readable for `ttl` seconds
        or to the end of the `async with` block.

        What has the same name already becomes this one: so any process can extend its time.
        """

        async def take() -> Snapshot[V]:
            return Snapshot(self, *await self._run(self._requests.snapshot(ttl, name, revision, timeout)))

        return Opening(take)

    def watch(
        self, *keys: Keys, after: int | None = None, progress: bool = False, timeout: float | None = None
    ) -> Watch[V]:
        """Every transaction that changes anything in these ranges, whole, in the order of revisions.

        From the moment that its `async with` block is entered, or after a revision. It goes on by itself
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
    ) -> AsyncIterator[Change[V]]:
        """Every transaction above a revision and up to another, which must not be in the future, that changes
        anything in a range; of some partitions, or all. Like a `watch` that ends.
        """
        plan = self._requests.changes(keys, after, until, partitions, timeout)
        pages: AsyncPuller[Progress] = AsyncPuller(self._link, plan)
        change = self._requests.change
        return (change(*each) async for page in _all(pages) for each in page.changes)

    async def compact(self, revision: int, *, timeout: float | None = None) -> None:
        """Forget what only reads below a revision need."""
        await self._run(self._requests.compact(revision, timeout))

    async def release(self, name: str, *, timeout: float | None = None) -> None:
        """End a snapshot, by its name, before its time. One that is not there any more is no error."""
        await self._run(self._requests.release(name, timeout))

    async def revision(self, *, timeout: float | None = None) -> int:
        """A revision with everything completed before, in all partitions: to read at, or to follow changes up
        to. It stays readable until somebody compacts it; a `snapshot` is kept from that.
        """
        pages: AsyncPuller[Page] = AsyncPuller(self._link, self._requests.barrier(timeout))
        with closing(pages):
            page = await pages.pull()
            return page.revision

    # Recipes

    def counter(self, key: Key) -> Counter:
        """A number under a key."""
        return Counter(self, key)

    def lock(self, name: Key, *, ttl: float = 10.0) -> Lock:
        """A lock with fencing tokens. A holder that dies is in others' way for `ttl` seconds."""
        return Lock(self._link, raw(self._requests), name, ttl)

    # The cluster

    async def topology(self, *, timeout: float | None = None) -> Topology:
        """Nodes, partitions, leaders and limits."""
        return await self._run(self._requests.topology(timeout))

    def partition_of(self, key: Key) -> int:
        """The partition that has a key, as far as this client knows."""
        return self._requests.calls.router.partition_of(key_bytes(key))

    async def status(self, *, timeout: float | None = None) -> list[NodeStatus]:
        """How every node is, those included that do not answer."""
        return await self._run(self._requests.status(timeout))


class Txn(Generic[V]):
    """A transaction that is being put together."""

    def __init__(self, link: AsyncLink, requests: Requests[V], named: RequestId | None) -> None:
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

    async def commit(self, *, timeout: float | None = None) -> TxnResult[V]:
        """Send it: one message to just the partitions concerned."""
        plan = self._requests.transact(self._conditions, self._then, self._otherwise, timeout, self._named)
        return await run(self._link, plan)


class Transaction(Generic[V]):
    """An interactive transaction. It belongs to one thread at a time."""

    def __init__(self, link: AsyncLink, attempt: Attempt[V]) -> None:
        self._link = link
        self._attempt = attempt

    @property
    def revision(self) -> int:
        """Of the commit, when it is done; 0 if it wrote nothing."""
        return self._attempt.revision

    async def get(self, key: Key) -> V | None:
        """The key's value, as this transaction sees it."""
        return await run(self._link, self._attempt.get(key))

    async def entry(self, key: Key) -> Entry[V] | None:
        """The key with its revisions, which are 0 if this transaction has written it."""
        return await run(self._link, self._attempt.entry(key))

    async def get_many(self, keys: Iterable[Key]) -> list[V | None]:
        """Several values. Those not read before are read in one step."""
        return await run(self._link, self._attempt.get_many(keys))

    def scan(self, keys: Keys, *, limit: int = 0, reverse: bool = False) -> AsyncIterator[Entry[V]]:
        """A range, with what the transaction has written so far. As far as it is consumed, no key may appear
        in it or change before the commit.
        """
        plan = self._attempt.scan(keys, limit, reverse=reverse)
        return _first(AsyncPuller(self._link, plan), limit)

    def put(self, key: Key, value: V) -> None:
        """Write a key at the commit."""
        self._attempt.put(key, value)

    def delete(self, key: Key) -> None:
        """Remove a key at the commit."""
        self._attempt.delete(key)

    async def add(self, key: Key, amount: int = 1) -> int:
        """Read a number, and write the sum at the commit. (`client.add` conflicts with nobody.)"""
        return await run(self._link, self._attempt.add(key, amount))

    async def append(self, key: Key, value: V) -> int:
        """Read a value, and write a longer one at the commit. Its new length in bytes."""
        return await run(self._link, self._attempt.append(key, value))

    async def commit(self) -> None:
        """Write all of it, or raise `Aborted`. The end of the `async with` block does it."""
        await run(self._link, self._attempt.commit())

    def rollback(self) -> None:
        """Write nothing."""
        self._attempt.roll_back()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.rollback()
        elif not self._attempt.ended:
            await self.commit()

    def _again(self, timeout: float) -> Transaction[V]:
        """For `transactional`: the next attempt, after this one was aborted."""
        return Transaction(self._link, self._attempt.next(timeout))

    async def holds(self) -> bool:
        """Whether what it has read so far holds together, as of one moment."""
        return await run(self._link, self._attempt.holds())


class Snapshot(_Closes, Generic[V]):
    """All partitions as of one revision."""

    def __init__(self, client: Client[V], name: str, revision: int) -> None:
        self._client = client
        self.name = name
        self.revision = revision

    async def get(self, key: Key, *, timeout: float | None = None) -> V | None:
        """The key's value."""
        return await self._client.get(key, revision=self.revision, timeout=timeout)

    async def entry(self, key: Key, *, timeout: float | None = None) -> Entry[V] | None:
        """The key with its value and revisions."""
        return await self._client.entry(key, revision=self.revision, timeout=timeout)

    async def get_many(self, keys: Iterable[Key], *, timeout: float | None = None) -> list[V | None]:
        """The keys' values."""
        return await self._client.get_many(keys, revision=self.revision, timeout=timeout)

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

    async def count(self, keys: Keys, *, timeout: float | None = None) -> int:
        """How many keys there were in a range."""
        return await self._client.count(keys, revision=self.revision, timeout=timeout)

    async def close(self) -> None:
        """It is not needed any more."""
        await self._client._run(self._client._requests.release(self.name, None))  # noqa: SLF001 - it is its client's


class Scan(_Closes, AsyncIterator[T]):
    """What a scan finds, as it is consumed."""

    def __init__(self, link: AsyncLink, plan: Plan[None], convert: Callable[[Page], list[T]]) -> None:
        self._puller: AsyncPuller[Page] = AsyncPuller(link, plan)
        self._convert = convert
        self._page: Iterator[T] = iter(())
        self.revision = 0
        """What all of it is as of: known when the first page has come."""

    async def _turn(self) -> None:
        page = await self._puller.pull()
        self.revision = page.revision
        self._page = iter(self._convert(page))

    async def __aiter__(self) -> AsyncIterator[T]:
        # A generator is faster than `self`. It is not kept: a scan that nobody has any more ends.
        while True:
            for item in self._page:
                yield item
            try:
                await self._turn()
            except StopAsyncIteration:
                return

    async def __anext__(self) -> T:
        while True:
            for item in self._page:
                return item
            await self._turn()

    async def close(self) -> None:
        """No more of it is wanted."""
        self._page = iter(())
        self._puller.close()


class Watch(_Closes, Generic[V]):
    """Changes, as they happen."""

    def __init__(self, link: AsyncLink, requests: Requests[V], plan: Plan[None], *, marks: bool) -> None:
        self._requests = requests
        self._puller: AsyncPuller[Progress] = AsyncPuller(link, plan)
        self._marks = marks
        self._ready: deque[tuple[int, Sequence[kv.Event]]] = deque()
        self._position = 0
        self.revision = 0
        """All changes up to here were given to the caller: where to go on from (`after`) another time."""

    async def __aenter__(self) -> Self:
        if not self._position:
            await self._pull(None)
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change[V]:
        found = await self.next()
        assert found is not None
        return found

    async def next(self, timeout: float | None = None) -> Change[V] | None:
        """The next change; None if there is none in time. Raises `StopAsyncIteration` once it is closed."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            try:
                await self._pull(None if until is None else max(until - time.monotonic(), 0.0))
            except queue.Empty:
                return None
        self.revision, events = self._ready.popleft()
        return self._requests.change(self.revision, events)

    async def _pull(self, timeout_s: float | None) -> None:
        self.revision = self._position  # all up to there were taken, or there would be no need for more
        progress = await self._puller.pull(timeout_s)
        self._ready += progress.changes
        if self._marks:
            self._ready.append((progress.revision, ()))
        self._position = progress.revision
        if not self._ready:
            self.revision = self._position

    async def close(self) -> None:
        """No more is wanted: also from another task, which ends the iteration."""
        self._puller.close()


class Counter:
    """A number under a key, which any number of clients may count on without conflicts."""

    def __init__(self, client: Client[Any], key: Key) -> None:
        self._client = client
        self._key = key

    async def add(self, amount: int = 1, *, timeout: float | None = None) -> int:
        """Count, up or down. The new number."""
        return await self._client.add(self._key, amount, timeout=timeout)

    async def value(self, *, timeout: float | None = None) -> int:
        """The number now; 0 if nobody has counted yet."""
        return int(await self._client.using(BYTES).get(self._key, timeout=timeout) or 0)


async def _all(puller: AsyncPuller[T]) -> AsyncGenerator[T, None]:
    try:
        while True:
            try:
                item = await puller.pull()
            except StopAsyncIteration:
                return
            yield item
    finally:
        puller.close()


async def _first(puller: AsyncPuller[list[Entry[V]]], limit: int) -> AsyncIterator[Entry[V]]:
    given = 0
    async with aclosing(_all(puller)) as pages:
        async for page in pages:
            for entry in page:
                yield entry
                given += 1
                if given == limit:
                    return
