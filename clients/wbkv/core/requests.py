"""Every call of the API as a plan: builds the request, and decodes the response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from wbkv_proto.v1 import cluster_pb2 as cluster
from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.codecs import Codecs, Values
from wbkv.core import effects, streams
from wbkv.core.calls import Calls, time_of
from wbkv.core.effects import Ask, Failure, Plan
from wbkv.data import (
    EVERYTHING,
    Change,
    Columns,
    Consistency,
    Entry,
    Event,
    Key,
    KeyRange,
    Keys,
    NodeStatus,
    PartitionStatus,
    RequestId,
    Scanned,
    Split,
    Topology,
    TxnResult,
    V,
    W,
    key_bytes,
    keys_bytes,
    later,
    range_of,
)
from wbkv.errors import LimitExceeded, OperationFailed
from wbkv.operations import (
    Condition,
    Get,
    Operation,
    Put,
    Result,
    Swap,
    absent,
    entry_of,
    named,
    number_of,
    result_of,
    value,
)

D = TypeVar("D")

AGAIN: Final = 64
AGAIN_BYTES: Final = 64 << 10
"""An aborted transaction returns the current values of at most so many keys, of about so many bytes."""

PIECES_MAX: Final = 1 << 16

RESERVED: Final = 1024
"""Keys and ranges that nodes accept in a reservation."""

RESERVE_CALL_S: Final = 0.5
"""How long to wait for a node to reserve keys."""

DELETE_KEYS: Final = 10_000
"""Keys of a range that one transaction removes, in each partition: as many as the cluster allows."""

_CONSISTENCY: Final[dict[str, kv.Consistency]] = {"strict": kv.STRICT, "serializable": kv.SERIALIZABLE}


def _consistency(name: str) -> kv.Consistency:
    try:
        return _CONSISTENCY[name]
    except KeyError:
        raise ValueError(f"consistency must be strict or serializable, not {name!r}") from None


class Requests(Generic[V]):
    """The requests of a client, with its codec. Several may share their `Calls`."""

    def __init__(self, calls: Calls, codec: Codecs[V], consistency: Consistency) -> None:
        self.calls = calls
        self.values = Values(codec)
        self.consistency: Consistency = consistency
        self._consistency = _consistency(consistency)

    def using(self, codec: Codecs[W], consistency: Consistency | None = None) -> Requests[W]:
        """Return these requests with another codec."""
        return Requests(self.calls, codec, consistency or self.consistency)

    def closing(self) -> None:
        """Flush the trace: the client is closed."""
        if self.calls.trace is not None:
            self.calls.trace.flush()

    def _level(self, asked: Consistency | None, revision: int) -> tuple[kv.Consistency, int]:
        """Return the consistency level of a read, and the lowest revision that it may return."""
        level = self._consistency if asked is None else _consistency(asked)
        if not isinstance(revision, int) or revision < 0:
            raise ValueError(f"the revision must be a positive int, or 0 for now, not {revision!r}")
        return level, 0 if revision or level == kv.STRICT else self.calls.seen

    # Reads

    def entry(
        self, key: Key, revision: int, consistency: Consistency | None, timeout_s: float | None
    ) -> Plan[Entry[V] | None]:
        """Read a key with its revisions."""
        raw = key_bytes(key)
        level, at_least = self._level(consistency, revision)
        request = kv.GetRequest(key=raw, consistency=level, revision=revision, min_revision=at_least)
        response: kv.GetResponse = yield from self.calls.read(effects.GET, request, raw, timeout_s)
        if not response.HasField("entry"):
            return None
        self.calls.saw(response.entry.mod_revision)
        return entry_of(response.entry, self.values)

    def get(
        self, key: Key, default: D, revision: int, consistency: Consistency | None, timeout_s: float | None
    ) -> Plan[V | D]:
        """Read a key's value."""
        entry = yield from self.entry(key, revision, consistency, timeout_s)
        return default if entry is None else entry.value

    def entries(
        self, keys: Iterable[Key], revision: int, consistency: Consistency | None, timeout_s: float | None
    ) -> Plan[list[Entry[V] | None]]:
        """Read several keys in one request."""
        raws = keys_bytes(keys)
        if not raws:
            return []
        level, at_least = self._level(consistency, revision)
        request = kv.TxnRequest(consistency=level, revision=revision, min_revision=at_least)
        for raw in raws:
            request.then.add().get.key = raw
        response: kv.TxnResponse = yield from self.calls.read(effects.TXN, request, raws[0], timeout_s)
        found: list[Entry[V] | None] = []
        for raw, result in zip(raws, response.results, strict=True):
            entry = result_of(result, self.values)
            if entry is not None and not isinstance(entry, Entry):
                number_of(raw, entry)  # raises the error
            assert entry is None or isinstance(entry, Entry)
            found.append(entry)
        self._saw(found)
        return found

    def get_many(
        self,
        keys: Iterable[Key],
        default: D,
        revision: int,
        consistency: Consistency | None,
        timeout_s: float | None,
    ) -> Plan[list[V | D]]:
        """Read several values in one request."""
        found = yield from self.entries(keys, revision, consistency, timeout_s)
        return [default if entry is None else entry.value for entry in found]

    def scan(
        self,
        keys: Keys,
        *,
        limit: int,
        reverse: bool,
        shape: kv.Shape,
        revision: int,
        consistency: Consistency | None,
        timeout_s: float | None,
        after: Key | None = None,
        partitions: Iterable[int] | None = None,
        columns: bool = False,
    ) -> Plan[None]:
        """Scan a range: emits `streams.Page`. With `after`, only what is behind that key."""
        check_limit(limit)
        asked = range_of(keys)
        level, at_least = self._level(consistency, revision)
        if after is not None:
            rest = self.calls.router.beyond(asked, key_bytes(after), reverse=reverse)
            if rest is None:
                return effects.nothing()
            asked = rest
        request = kv.ScanRequest(
            limit=limit, reverse=reverse, shape=shape, columns=columns, partitions=_partitions(partitions),
            consistency=level, revision=revision, min_revision=at_least,
        )  # fmt: skip
        return streams.scan(self.calls, request, asked, time_of(timeout_s, self.calls.timeout_s))

    def splits(
        self, keys: Keys, pieces: int, partitions: Iterable[int] | None, timeout_s: float | None
    ) -> Plan[list[Split]]:
        """Divide a range into pieces, each within one partition."""
        if not isinstance(pieces, int) or not 0 < pieces <= PIECES_MAX:
            raise ValueError(f"pieces must be from 1 to {PIECES_MAX}, not {pieces!r}")
        request = kv.SplitsRequest(
            range=range_of(keys).message(), pieces=pieces, partitions=_partitions(partitions)
        )
        found: kv.SplitsResponse = yield from self.calls.read(effects.SPLITS, request, None, timeout_s)
        return [
            Split(split.partition, KeyRange(split.keys.start, split.keys.end or None), split.count)
            for split in found.splits
        ]

    def barrier(self, timeout_s: float | None) -> Plan[None]:
        """Emit a `streams.Page` as of a revision that contains everything completed before."""
        return self.scan(
            EVERYTHING, limit=1, reverse=False, shape=kv.COUNT,
            revision=0, consistency="strict", timeout_s=timeout_s,
        )  # fmt: skip

    def page_entries(self, page: streams.Page) -> list[Entry[V]]:
        """Decode the entries of a page."""
        entries = page.entries
        if self.values.plain:
            return [
                Entry(e.key, e.value, e.create_revision, e.mod_revision, e.version)  # type: ignore[arg-type]  # V is bytes
                for e in entries
            ]
        return [entry_of(entry, self.values) for entry in entries]

    # Writes

    def put(self, key: Key, value: V, timeout_s: float | None) -> Plan[int]:
        """Write a key. The result is the revision."""
        raw = key_bytes(key)
        request = kv.PutRequest(key=raw, value=self.values.encode(raw, value))
        response: kv.PutResponse = yield from self.calls.write(effects.PUT, request, raw, timeout_s)
        return response.header.transaction_revision

    def delete(self, keys: Key | KeyRange, timeout_s: float | None) -> Plan[int]:
        """Remove a key or a range. The result is the number of keys removed.

        A large range is removed in several transactions, from the first key on.
        """
        response: kv.DeleteResponse
        if not isinstance(keys, KeyRange):
            raw = key_bytes(keys)
            request = kv.DeleteRequest(key=raw)
            response = yield from self.calls.write(effects.DELETE, request, raw, timeout_s)
            return response.count
        removed, rest = 0, keys
        while True:
            request = kv.DeleteRequest(range=rest.message(), limit=DELETE_KEYS)
            response = yield from self.calls.write(effects.DELETE, request, rest.start, timeout_s)
            removed += response.count
            if not response.resume:
                return removed
            rest = KeyRange(response.resume, keys.end)

    def number(self, operation: Operation, timeout_s: float | None) -> Plan[int]:
        """Execute one operation whose result is a number."""
        result = yield from self.transact((), (operation,), (), timeout_s)
        return number_of(operation.key, result.results[0])

    def swap(self, key: Key, new: V, timeout_s: float | None) -> Plan[V | None]:
        """Write a key, and return its value before."""
        result = yield from self.transact((), (Swap(key_bytes(key), new),), (), timeout_s)
        (before,) = result.results
        return before.value if isinstance(before, Entry) else None

    def put_if_absent(self, key: Key, new: V, timeout_s: float | None) -> Plan[bool]:
        """Write a key that is absent. The result is whether it was."""
        result = yield from self.transact((absent(key),), (Put(key_bytes(key), new),), (), timeout_s)
        return result.succeeded

    def compare_and_set(self, key: Key, expected: V, new: V, timeout_s: float | None) -> Plan[bool]:
        """Write a key that has the expected value. The result is whether it had."""
        if expected is None:
            raise ValueError(
                f"{key!r}: None is not a value to compare with; use put_if_absent for an absent key"
            )
        put = Put(key_bytes(key), new)
        result = yield from self.transact((value(key) == expected,), (put,), (), timeout_s)
        return result.succeeded

    def transact(
        self,
        conditions: Sequence[Condition],
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
        timeout_s: float | None,
        request_id: RequestId | None = None,
        reservation: int = 0,
        *,
        allow_failures: bool = False,
    ) -> Plan[TxnResult[V]]:
        """Execute a transaction: conditions and two branches, at one position in the order. Raises
        `OperationFailed`, with nothing written, if an operation cannot be performed.
        """
        request = kv.TxnRequest(reservation=reservation, allow_failures=allow_failures)
        values = self.values
        for condition in conditions:
            condition.fill(request.conditions.add(), values)
        writes = False
        add = request.then.add
        for operation in then:
            operation.fill(add(), values)
            writes = writes or operation.writes
        for operation in otherwise:
            operation.fill(request.otherwise.add(), values)
            writes = writes or operation.writes
        key = _first_key(conditions, then, otherwise)
        response: kv.TxnResponse
        if writes:
            try:
                response = yield from self.calls.write(effects.TXN, request, key, timeout_s, request_id)
            except OperationFailed as error:
                raise named(error, then, otherwise) from None
        else:
            response = yield from self.calls.read(effects.TXN, request, key, timeout_s)
        header = response.header
        if not response.succeeded and not any(operation.writes for operation in otherwise):
            _check_rows(response, conditions)
        results = tuple([result_of(result, values) for result in response.results])
        if not header.transaction_revision:
            self._saw(results)
        return TxnResult(
            response.succeeded,
            header.transaction_revision or header.revision,
            results,
            tuple([unmet.condition for unmet in response.unmet]),
        )

    def commit(
        self,
        reads: Mapping[bytes, Entry[bytes] | None],
        conditions: Sequence[Condition],
        writes: Sequence[Operation],
        timeout_s: float | None,
        reservation: int = 0,
    ) -> Plan[TxnResult[V]]:
        """Commit an interactive transaction that has read `reads`. If a condition fails, the results are the
        current values of the same keys, unless there are too many.
        """
        return self.transact(conditions, writes, again(reads), timeout_s, None, reservation)

    def reserve(
        self, name: int, keys: Iterable[bytes], ranges: Iterable[KeyRange], ttl_s: float
    ) -> Plan[None]:
        """Ask all nodes to delay other clients' writes of these keys for a moment; failures are ignored."""
        request = kv.ReserveRequest(name=name, keys=keys, ttl_ms=int(ttl_s * 1000))
        for found in ranges:
            request.ranges.append(found.message())
        if len(request.keys) + len(request.ranges) <= RESERVED:
            for address in self.calls.router.reachable():
                yield Ask(address, effects.RESERVE, request, RESERVE_CALL_S, RESERVE_CALL_S)

    def _saw(self, results: Iterable[Result[V]]) -> None:
        """Remember the revisions of results: they may be above the revision of the response."""
        for result in results:
            if isinstance(result, Entry):
                self.calls.saw(result.mod_revision)
            elif isinstance(result, Scanned):
                self._saw(result.entries)

    # Snapshots, watches, housekeeping

    def snapshot(
        self, ttl_s: float, name: str | None, revision: int, timeout_s: float | None
    ) -> Plan[tuple[str, int]]:
        """Keep a revision readable. The result is the snapshot's name, and the revision."""
        if not ttl_s > 0:
            raise ValueError(f"the ttl must be positive, not {ttl_s!r}")
        if name is not None and not (isinstance(name, str) and name):
            raise ValueError(f"a snapshot's name must be a str that is not empty, not {name!r}")
        if not isinstance(revision, int) or revision < 0:
            raise ValueError(f"the revision must be a positive int, or 0 for now, not {revision!r}")
        request = kv.SnapshotRequest(ttl_ms=max(int(ttl_s * 1000), 1), name=name or "", revision=revision)
        taken: kv.SnapshotResponse = yield from self.calls.read(effects.SNAPSHOT, request, None, timeout_s)
        return taken.name, taken.revision

    def release(self, name: str, timeout_s: float | None) -> Plan[None]:
        """End a snapshot."""
        yield from self.calls.read(effects.RELEASE, kv.ReleaseSnapshotRequest(name=name), None, timeout_s)

    def oldest_kept(self, revision: int | None, keep_s: float, now: int) -> int:
        """Return the revision of so many seconds before another."""
        if revision is not None:
            raise ValueError("pass a revision or keep, not both")
        if not (isinstance(keep_s, int | float) and 0 <= keep_s < float("inf")):
            raise ValueError(f"keep must be a number of seconds, not {keep_s!r}")
        return max(later(now, -keep_s), 1)

    def compact(self, revision: int | None, timeout_s: float | None) -> Plan[int]:
        """Discard versions that only reads below a revision need. The result is the revision."""
        if not isinstance(revision, int) or revision < 1:
            raise ValueError(f"the revision must be a positive int, not {revision!r}")
        yield from self.calls.read(effects.COMPACT, kv.CompactRequest(revision=revision), None, timeout_s)
        return revision

    def watch(self, ranges: Sequence[Keys], after: int | None, timeout_s: float | None) -> Plan[None]:
        """Follow changes: emits `streams.Progress`."""
        if not ranges:
            raise ValueError("a watch needs at least one range; pass EVERYTHING for all keys")
        if after is not None and (not isinstance(after, int) or after < 1):
            raise ValueError(f"after must be a revision, or None for now, not {after!r}")
        request = kv.WatchRequest(ranges=[range_of(keys).message() for keys in ranges], after=after or 0)
        return streams.watch(self.calls, request, time_of(timeout_s, self.calls.timeout_s))

    def changes(
        self, keys: Keys, after: int, until: int, partitions: Iterable[int] | None, timeout_s: float | None
    ) -> Plan[None]:
        """Follow changes up to a revision: emits `streams.Progress`."""
        for name, revision in (("after", after), ("until", until)):
            if not isinstance(revision, int) or revision < 1:
                raise ValueError(f"{name} must be a revision, not {revision!r}")
        if until < after:
            raise ValueError(f"until ({until}) must not be less than after ({after})")
        request = kv.WatchRequest(
            ranges=[range_of(keys).message()], after=after, until=until, partitions=_partitions(partitions)
        )
        return streams.watch(self.calls, request, time_of(timeout_s, self.calls.timeout_s))

    def change(self, revision: int, events: Iterable[kv.Event]) -> Change[V]:
        """Decode the changes of a transaction."""
        decode = self.values.decode
        return Change(
            revision,
            tuple(
                Event(
                    event.key,
                    decode(event.key, event.value) if event.HasField("value") else None,
                    event.create_revision,
                    event.version,
                )
                for event in events
            ),
        )

    def topology(self, timeout_s: float | None) -> Plan[Topology]:
        """Fetch the topology from a node."""
        request = cluster.TopologyRequest()
        found: Any = yield from self.calls.read(effects.TOPOLOGY, request, None, timeout_s)
        self.calls.router.learn(found)
        assert self.calls.router.topology is not None
        return self.calls.router.topology

    def status(self, timeout_s: float | None) -> Plan[list[NodeStatus]]:
        """Fetch the status of every node, including nodes that do not answer."""
        topology = yield from self.topology(timeout_s)
        left = time_of(timeout_s, self.calls.timeout_s)
        found = []
        for name, address in sorted(topology.nodes.items()):
            if not address:
                found.append(NodeStatus(name, address, None, "the node has no API"))
                continue
            answer = yield Ask(address, effects.STATUS, cluster.StatusRequest(), min(left, 2.0), 2.0)
            if isinstance(answer, Failure):
                found.append(NodeStatus(name, address, None, answer.error.message))
                continue
            partitions = tuple(
                PartitionStatus(p.id, p.serving, p.leads, p.revision) for p in answer.partitions
            )
            found.append(NodeStatus(name, address, partitions, answer.json))
        return found


def check_limit(limit: int) -> None:
    """Raise `ValueError` if the limit of a scan is invalid."""
    if not isinstance(limit, int) or limit < 0:
        raise ValueError(f"the limit must be a positive int, or 0 for none, not {limit!r}")


def keys_of(page: streams.Page) -> list[bytes]:
    """Return the keys of a page."""
    return [entry.key for entry in page.entries]


def columns_of(page: streams.Page) -> list[Columns]:
    """Return the columns of a page, as a list of one, or of none if the page is empty."""
    found = page.columns
    count = len(found.key_ends) // 4
    if not count:
        return []
    return [
        Columns(
            page.revision, count, found.keys, found.key_ends, found.values, found.value_ends,
            found.create_revisions, found.mod_revisions, found.versions,
        )
    ]  # fmt: skip


def _partitions(asked: Iterable[int] | None) -> list[int]:
    """Return the partitions; none means all. The API cannot express an empty selection, so it is rejected."""
    if asked is None:
        return []
    found = list(asked)
    if not found:
        raise ValueError("partitions must not be empty; pass None for all partitions")
    return found


def again(reads: Mapping[bytes, Entry[bytes] | None]) -> list[Operation]:
    """Return reads of the same keys, for the next attempt, unless there are too many."""
    size = sum(len(entry.value) for entry in reads.values() if entry is not None)
    return [Get(key) for key in reads] if len(reads) <= AGAIN and size <= AGAIN_BYTES else []


def _check_rows(response: kv.TxnResponse, conditions: Sequence[Condition]) -> None:
    """Raise `LimitExceeded` if a range is too large for a condition: no retry helps."""
    for unmet in response.unmet:
        if unmet.fault == kv.TOO_MANY_ROWS:
            at = unmet.condition
            raise LimitExceeded(
                f"condition {at}, {conditions[at]!r}: a partition has too many rows of the range "
                f"(transaction_rows); use fewer or smaller ranges. Nothing was written"
            )


def _first_key(*parts: Sequence[Condition] | Sequence[Operation]) -> bytes:
    """Return the key whose partition's leader is asked: that of the first write, as any node can read."""
    for part in (parts[1], parts[0], parts[2]):
        for each in part:
            return each.key
    return b""
