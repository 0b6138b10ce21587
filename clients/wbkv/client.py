# Generated from aio/client.py by clients/tools/sync_client.py (`make sync-client`): do not edit.
"""The client for threads. `wbkv.aio` has the same names, awaited."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
)
from contextlib import closing, suppress
from typing import Any, Generic, TypeVar, overload

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.batching import Batch
from wbkv.codecs import BYTES, Codecs
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
    V,
    key_bytes,
    short,
)
from wbkv.errors import Aborted, Compacted, Error
from wbkv.iterators import Closes, Scan, Watch, all_of
from wbkv.links.threads import Link, Puller, run
from wbkv.lock import Lock
from wbkv.operations import add, append
from wbkv.transaction import Transaction, Txn

D = TypeVar("D")
T = TypeVar("T")
W = TypeVar("W")


class Client(Closes, Generic[V]):
    """A connection to a cluster, or an embedded store. Any number of threads may use it.

    `wbkv.connect` and `wbkv.open` return one. Times are in seconds. A call's `timeout` covers all
    of its attempts.
    """

    def __init__(self, link: Link, requests: Requests[V]) -> None:
        self._link = link
        self._requests = requests

    def __repr__(self) -> str:
        topology = self._requests.calls.router.topology
        return f"<wbkv.Client of {topology.cluster if topology else 'an unknown cluster'}>"

    def _run(self, plan: Plan[T]) -> T:
        return run(self._link, plan)

    @property
    def timeout(self) -> float:
        """The default time limit of a call, all attempts together."""
        return self._requests.calls.timeout_s

    def using(self, codec: Codecs[W]) -> Client[W]:
        """Return this client with another codec, or with codecs by prefixes of keys: see `wbkv.codecs`. Both
        clients share all connections; closing one closes both.
        """
        return Client(self._link, self._requests.using(codec))

    def close(self) -> None:
        """Close all connections."""
        self._link.close()
        self._requests.closing()

    # Reads

    @overload
    def get(
        self,
        key: Key,
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> V | None: ...

    @overload
    def get(
        self,
        key: Key,
        default: D,
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> V | D: ...

    def get(
        self,
        key: Key,
        default: Any = None,
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Return the key's value, or the default if the key is absent: now, or at a revision.

        With a default, a JSON null that is stored (None) differs from an absent key.
        """
        return self._run(self._requests.get(key, default, revision, consistency, timeout))

    def entry(
        self,
        key: Key,
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> Entry[V] | None:
        """Return the key with its value and revisions, or None if the key is absent."""
        return self._run(self._requests.entry(key, revision, consistency, timeout))

    @overload
    def get_many(
        self,
        keys: Iterable[Key],
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> list[V | None]: ...

    @overload
    def get_many(
        self,
        keys: Iterable[Key],
        default: D,
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> list[V | D]: ...

    def get_many(
        self,
        keys: Iterable[Key],
        default: Any = None,
        *,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Return the values of the keys, all as of one revision, in the order of the arguments. An absent key
        has the default.
        """
        return self._run(self._requests.get_many(keys, default, revision, consistency, timeout))

    def scan(
        self,
        keys: Keys,
        *,
        after: Key | None = None,
        limit: int = 0,
        reverse: bool = False,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> Scan[Entry[V]]:
        """Iterate over a range of any size, in the order of keys, all of it as of one revision.

        A str or bytes is a prefix. `after` continues behind a key, in the direction of the scan. Pages are
        fetched as they are consumed; the scan continues on another node if one fails. The time limit is for
        each page.
        """
        plan = self._requests.scan(
            keys, after=after, limit=limit, reverse=reverse, shape=kv.ENTRIES,
            revision=revision, consistency=consistency, timeout_s=timeout,
        )  # fmt: skip
        return Scan(self._link, plan, self._requests.page_entries)

    def keys(
        self,
        keys: Keys,
        *,
        after: Key | None = None,
        limit: int = 0,
        reverse: bool = False,
        revision: int = 0,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> Scan[bytes]:
        """Iterate over the keys of a range, without their values. See `scan`."""
        plan = self._requests.scan(
            keys, after=after, limit=limit, reverse=reverse, shape=kv.KEYS,
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
        """Iterate over a range page by page, each page as columns: the fastest way to read much data.

        Without `partitions`, all partitions are read. See `scan`.
        """
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
        """Divide a range into about `pieces` splits for parallel scans, each within one partition.

        The splits have about equally many keys. The store reads all keys to find them.
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
        """Return the number of keys in a range of any size, as of one revision. The time limit is for each
        sign of progress.
        """
        plan = self._requests.scan(
            keys, limit=0, reverse=False, shape=kv.COUNT,
            revision=revision, consistency=consistency, timeout_s=timeout,
        )  # fmt: skip
        found = 0
        pages: Puller[Page] = Puller(self._link, plan)
        for page in all_of(pages):
            found = page.count
        return found

    # Writes

    def put(self, key: Key, value: V, *, timeout: float | None = None) -> int:
        """Write a key. Return the revision of the write."""
        return self._run(self._requests.put(key, value, timeout))

    def put_if_absent(self, key: Key, value: V, *, timeout: float | None = None) -> bool:
        """Write a key if it is absent. Return whether it was."""
        return self._run(self._requests.put_if_absent(key, value, timeout))

    def compare_and_set(self, key: Key, expected: V, value: V, *, timeout: float | None = None) -> bool:
        """Write a key if it has the expected value. Return whether it had."""
        return self._run(self._requests.compare_and_set(key, expected, value, timeout))

    def swap(self, key: Key, value: V, *, timeout: float | None = None) -> V | None:
        """Write a key. Return its value before, or None if it was absent."""
        return self._run(self._requests.swap(key, value, timeout))

    def delete(self, keys: Key | KeyRange, *, timeout: float | None = None) -> int:
        """Remove a key, or all keys of a `prefix(...)`, `between(...)` or `EVERYTHING`. Return how many keys
        were removed.

        A range is removed in one transaction if no partition has more than 10,000 keys of it; a larger one in
        several transactions, each within the time limit, in the order of keys.
        """
        return self._run(self._requests.delete(keys, timeout))

    def add(
        self,
        key: Key,
        amount: int = 1,
        *,
        floor: int | None = None,
        ceiling: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Add to a number, stored as decimal digits; an absent key counts as 0. Return the new number.

        Raises `OperationFailed`, with nothing changed, if the value is not a number, or if the sum would be
        below the `floor`, above the `ceiling`, or more than a signed 64-bit number.
        """
        operation = add(key, amount, floor=floor, ceiling=ceiling)
        return self._run(self._requests.number(operation, timeout))

    def append(self, key: Key, value: V, *, timeout: float | None = None) -> int:
        """Append to a value; an absent key counts as empty. Return the new length in bytes."""
        return self._run(self._requests.number(append(key, value), timeout))

    # Transactions

    def txn(self, *, id: RequestId | None = None, allow_failures: bool = False) -> Txn[V]:  # noqa: A002 - what it is
        """Build a transaction in one message: `client.txn().when(...).then(...).otherwise(...).commit()`.

        It is all or nothing: if an operation cannot be performed, nothing is written in any partition, and
        the commit raises `OperationFailed`. With `allow_failures`, each operation is performed by itself, and
        one that cannot be performed has the result `Failed`.

        A transaction with an `id` is executed once, whichever client repeats it; each repetition returns the
        first result.
        """
        return Txn(self._link, self._requests, id, allow_failures=allow_failures)

    def transaction(self, *, timeout: float | None = None) -> Transaction[V]:
        """Begin an interactive transaction: `with client.transaction() as tx:`.

        The end of the block commits, or raises `Aborted` if another transaction has changed a key that this
        one read. `@wbkv.transactional` retries then.
        """
        return Transaction(self._link, Attempt(self._requests, timeout), self._requests.values)

    def _transact(self, function: Callable[[Transaction[V]], T], timeout_s: float | None) -> T:
        """Run a function in a transaction, and retry after each conflict: the loop of `transactional`."""
        patience = Patience(timeout_s, self.timeout, self._requests.calls.environment)
        tx = self.transaction(timeout=patience.left_s)
        try:
            return self._attempts(tx, function, patience)
        finally:
            if patience.reservation:
                tx._release(patience)  # noqa: SLF001 - made for this

    def _attempts(self, tx: Transaction[V], function: Callable[[Transaction[V]], T], patience: Patience) -> T:
        while True:
            try:
                with tx:
                    result = function(tx)
            except Aborted as conflict:
                wait_s = patience.pause(conflict)
            except Error:
                raise
            except Exception as error:
                # The function may have read keys as of different revisions, and have failed only for that.
                try:
                    holds = tx.holds()
                except Error:
                    raise error from None  # whether the reads were consistent stays unknown
                if holds:
                    raise
                wait_s = patience.pause(Aborted(STALE))
            else:
                return result
            if wait_s:
                self._run(pause(wait_s))
            if patience.starves:
                tx = tx._reserved(patience)  # noqa: SLF001 - made for this
            elif wait_s:
                tx = self.transaction(timeout=patience.left_s)
            else:
                tx = tx._again(patience.left_s)  # noqa: SLF001 - made for this

    def batch(self) -> Batch[V]:
        """Make many calls at once on one stream to each node: each returns a `concurrent.futures.Future`."""
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
        """Keep a revision readable for `ttl` seconds, or until the end of the `with` block.

        It is the given revision, or one that contains everything completed before the call. A snapshot that
        already has the `name` is replaced, so any process can extend its time.
        """
        return Snapshot(self, *self._run(self._requests.snapshot(ttl, name, revision, timeout)))

    def watch(
        self, *keys: Keys, after: int | None = None, progress: bool = False, timeout: float | None = None
    ) -> Watch[V]:
        """Follow every transaction that changes a key in these ranges, whole, in the order of revisions.

        The watch begins when its `with` block is entered, or after the revision `after`. It resumes
        on another node if one fails, and raises `Compacted` if the changes it needs were compacted. With
        `progress`, it also yields changes without events: nothing else has changed up to their revision.
        The time limit is for finding a node that serves the watch.
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
        """Iterate over the transactions above the revision `after`, up to and including `until`, that change
        a key in a range: a `watch` that ends. `until` must not be in the future.
        """
        plan = self._requests.changes(keys, after, until, partitions, timeout)
        pages: Puller[Progress] = Puller(self._link, plan)
        change = self._requests.change
        return (change(*each) for page in all_of(pages) for each in page.changes)

    def compact(
        self, revision: int | None = None, *, keep: float | None = None, timeout: float | None = None
    ) -> int:
        """Discard versions that only reads below a revision need. Return that revision.

        Pass either the revision, or `keep`: how many seconds of history to keep, by the cluster's time. That
        some of it was discarded before is not an error then.
        """
        if keep is None:
            return self._run(self._requests.compact(revision, timeout))
        oldest = self._requests.oldest_kept(revision, keep, self.revision(timeout=timeout))
        with suppress(Compacted):
            self._run(self._requests.compact(oldest, timeout))
        return oldest

    def release(self, name: str, *, timeout: float | None = None) -> None:
        """End a snapshot, by its name, before its time. Releasing one that has ended is not an error."""
        self._run(self._requests.release(name, timeout))

    def revision(self, *, timeout: float | None = None) -> int:
        """Return a revision that contains everything completed before the call, in all partitions.

        It is one to read at, or to follow changes up to. It stays readable until it is compacted; a
        `snapshot` prevents that.
        """
        pages: Puller[Page] = Puller(self._link, self._requests.barrier(timeout))
        with closing(pages):
            page = pages.pull()
            return page.revision

    # Recipes

    def counter(self, key: Key) -> Counter:
        """Return a counter stored under a key."""
        return Counter(self, key)

    def lock(self, name: Key, *, ttl: float = 10.0) -> Lock:
        """Return a lock with fencing tokens. A holder that dies blocks the others for `ttl` seconds."""
        return Lock(self._link, raw(self._requests), name, ttl)

    # The cluster

    def topology(self, *, timeout: float | None = None) -> Topology:
        """Return the cluster's nodes, partitions, leaders and limits."""
        return self._run(self._requests.topology(timeout))

    def partition_of(self, key: Key) -> int:
        """Return the partition of a key, as far as this client knows the topology."""
        return self._requests.calls.router.partition_of(key_bytes(key))

    def status(self, *, timeout: float | None = None) -> list[NodeStatus]:
        """Return the status of every node, including nodes that do not answer."""
        return self._run(self._requests.status(timeout))


class Snapshot(Closes, Generic[V]):
    """All partitions as of one revision. `client.snapshot` returns one."""

    def __init__(self, client: Client[V], name: str, revision: int) -> None:
        self._client = client
        self.name = name
        self.revision = revision

    def __repr__(self) -> str:
        return f"<wbkv.Snapshot {short(self.name)} at revision {self.revision}>"

    def using(self, codec: Codecs[W]) -> Snapshot[W]:
        """Return this snapshot with another codec. Closing one closes both."""
        return Snapshot(self._client.using(codec), self.name, self.revision)

    @overload
    def get(self, key: Key, *, timeout: float | None = None) -> V | None: ...

    @overload
    def get(self, key: Key, default: D, *, timeout: float | None = None) -> V | D: ...

    def get(self, key: Key, default: Any = None, *, timeout: float | None = None) -> Any:
        """Return the key's value, or the default if the key is absent."""
        return self._client.get(key, default, revision=self.revision, timeout=timeout)

    def entry(self, key: Key, *, timeout: float | None = None) -> Entry[V] | None:
        """Return the key with its value and revisions, or None."""
        return self._client.entry(key, revision=self.revision, timeout=timeout)

    @overload
    def get_many(self, keys: Iterable[Key], *, timeout: float | None = None) -> list[V | None]: ...

    @overload
    def get_many(self, keys: Iterable[Key], default: D, *, timeout: float | None = None) -> list[V | D]: ...

    def get_many(self, keys: Iterable[Key], default: Any = None, *, timeout: float | None = None) -> Any:
        """Return the values of several keys. An absent key has the default."""
        return self._client.get_many(keys, default, revision=self.revision, timeout=timeout)

    def scan(
        self,
        keys: Keys,
        *,
        after: Key | None = None,
        limit: int = 0,
        reverse: bool = False,
        timeout: float | None = None,
    ) -> Scan[Entry[V]]:
        """Iterate over a range. `after` continues behind a key."""
        return self._client.scan(
            keys, after=after, limit=limit, reverse=reverse, revision=self.revision, timeout=timeout
        )

    def keys(
        self,
        keys: Keys,
        *,
        after: Key | None = None,
        limit: int = 0,
        reverse: bool = False,
        timeout: float | None = None,
    ) -> Scan[bytes]:
        """Iterate over the keys of a range. `after` continues behind a key."""
        return self._client.keys(
            keys, after=after, limit=limit, reverse=reverse, revision=self.revision, timeout=timeout
        )

    def count(self, keys: Keys, *, timeout: float | None = None) -> int:
        """Return the number of keys in a range."""
        return self._client.count(keys, revision=self.revision, timeout=timeout)

    def close(self) -> None:
        """Release the snapshot: its revision may be compacted."""
        self._client._run(self._client._requests.release(self.name, None))  # noqa: SLF001 - a snapshot belongs to its client


class Counter:
    """A number under a key, which any number of clients may change without conflicts."""

    def __init__(self, client: Client[Any], key: Key) -> None:
        self._client = client
        self._key = key

    def __repr__(self) -> str:
        return f"<wbkv.Counter {short(self._key)}>"

    def add(
        self,
        amount: int = 1,
        *,
        floor: int | None = None,
        ceiling: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Add to the number. Return the new number. Raises `OperationFailed`, with nothing changed, if it
        would pass the `floor` or the `ceiling`.
        """
        return self._client.add(self._key, amount, floor=floor, ceiling=ceiling, timeout=timeout)

    def value(self, *, timeout: float | None = None) -> int:
        """Return the number; 0 if the key is absent."""
        return int(self._client.using(BYTES).get(self._key, timeout=timeout) or 0)
