"""The service `KV`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message
from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.api.bounds import Bounds
from kvstore.api.changes import encoded_piece
from kvstore.api.columns import columns_of
from kvstore.api.convert import (
    Reader,
    consistency_of,
    fill_entry,
    fill_header,
    fill_results,
    fill_txn,
    identity_of,
    partitions_of,
    range_of,
    results_size,
    revision_of,
    shape_of,
)
from kvstore.api.errors import ResponseTooLarge
from kvstore.api.methods import ApiContext, Encoded, Methods, Streaming, Unary
from kvstore.machine.request import (
    INT64_MAX,
    Delete,
    DeleteRange,
    Get,
    Put,
    Shape,
    Transaction,
    check_integer,
)
from kvstore.machine.results import Deleted, Got, KeyValue
from kvstore.store.errors import InvalidRequest
from kvstore.store.reservations import ALWAYS_FIRST, RESERVE_S
from kvstore.store.retention import SNAPSHOT_S, SNAPSHOT_S_MAX
from kvstore.store.service import Batch, Committed, Consistency

SERVICE: Final = "wbkv.v1.KV"
PAGE_BYTES: Final = 1 << 20
"""Of a page of a scan, about, and of what a watch sends at once, unless a transaction is larger."""
SILENT_S: Final = 0.5
"""How long a scan may send nothing. Then it says how far it is, so that its client keeps waiting, and can go
on from there at another node.
"""
SCAN_BYTES: Final = 1 << 20
"""What a scan holds beside its page."""
PROGRESS_S: Final = 5.0
PROGRESS_S_MIN: Final = 0.05
PROGRESS_S_MAX: Final = 3600.0
RANGES_MAX: Final = 1024
PIECES_MAX: Final = 1 << 16
NAME_MAX: Final = 200
"""Characters of a snapshot's name."""

Fill: TypeAlias = Callable[[Any, Committed], None]
Begun: TypeAlias = tuple[Awaitable[Committed], Fill]
"""The awaitable outcome, and how it is filled into the response: see `Requests.answer`."""


class Requests:
    """Requests of unary calls and of sessions: each begins at once and is answered later."""

    def __init__(self, api: ApiContext) -> None:
        self._service = api.service
        self._response_bytes = api.options.response_bytes
        self._reader = Reader(api.service.limits)
        partitions = len(api.facts.topology().placement.groups)
        self._bounds = Bounds(api.service.limits, partitions, api.options.response_bytes)
        self._begin: Final[Mapping[str, Callable[[Any, float], Begun]]] = {
            "txn": self._txn,
            "get": self._get,
            "put": self._put,
            "delete": self._delete,
        }

    def begin(self, name: str, message: Any, timeout_s: float) -> Begun:
        """Begin a request of a kind. Raises, with nothing done, if it is invalid."""
        return self._begin[name](message, timeout_s)

    def bound(self, name: str, message: Any) -> int:
        """Return the largest size of the response."""
        return self._bounds.of(name, message)

    def answer(self, fill: Fill, response: Any, committed: Committed) -> None:
        """Fill an outcome into an empty response, unless the results are too large to be sent."""
        if results_size(committed.results) > self._response_bytes:
            raise ResponseTooLarge(self._response_bytes, committed.revision)
        fill(response, committed)

    def _txn(self, message: kv.TxnRequest, timeout_s: float) -> Begun:
        transaction = self._reader.transaction(message)
        identity = identity_of(message)
        consistency = consistency_of(message.consistency)
        revision = revision_of("revision", message.revision)
        min_revision = revision_of("min_revision", message.min_revision)
        if identity is None and _only_reads(transaction):
            reading = self._service.read(
                transaction.then,  # type: ignore[arg-type]  # gets and scans, as was just seen
                consistency=consistency,
                revision=revision,
                min_revision=min_revision,
                timeout_s=timeout_s,
            )
            return reading, _fill_read
        if consistency is not Consistency.STRICT or revision:
            raise InvalidRequest(
                "consistency and revision are for transactions that only read, without conditions and id"
            )
        committing = self._service.transact(
            transaction,
            identity=identity,
            min_revision=min_revision,
            reservation=message.reservation,
            timeout_s=timeout_s,
        )
        return committing, fill_txn

    def _get(self, message: kv.GetRequest, timeout_s: float) -> Begun:
        get = Get(message.key)
        self._reader.single(get)
        reading = self._service.read(
            (get,),
            consistency=consistency_of(message.consistency),
            revision=revision_of("revision", message.revision),
            min_revision=revision_of("min_revision", message.min_revision),
            timeout_s=timeout_s,
        )
        return reading, _fill_get

    def _put(self, message: kv.PutRequest, timeout_s: float) -> Begun:
        put = self._reader.single(Put(message.key, message.value))
        return self._write(message, put, timeout_s), _fill_put

    def _delete(self, message: kv.DeleteRequest, timeout_s: float) -> Begun:
        target = message.WhichOneof("target")
        if target == "key":
            delete = self._reader.single(Delete(message.key))
        elif target == "range":
            delete = self._reader.single(DeleteRange(range_of(message.range), message.limit))
        else:
            raise InvalidRequest("a delete must have a key or a range")
        return self._write(message, delete, timeout_s), self._fill_delete

    def _fill_delete(self, response: kv.DeleteResponse, committed: Committed) -> None:
        (result,) = committed.results
        if not isinstance(result, Deleted):
            raise TypeError(f"a delete has the result {result}")
        fill_header(response.header, committed)
        response.count = result.count
        response.resume = result.resume

    def _write(
        self, message: kv.PutRequest | kv.DeleteRequest, write: Transaction, timeout_s: float
    ) -> Awaitable[Committed]:
        return self._service.transact(
            write,
            identity=identity_of(message),
            min_revision=revision_of("min_revision", message.min_revision),
            timeout_s=timeout_s,
        )


def _only_reads(transaction: Transaction) -> bool:
    if transaction.conditions or transaction.otherwise:
        return False
    return not any(operation.writes for operation in transaction.then)


def _fill_read(response: kv.TxnResponse, committed: Committed) -> None:
    response.header.revision = committed.complete
    fill_results(response, committed)


def _fill_get(response: kv.GetResponse, committed: Committed) -> None:
    (result,) = committed.results
    if not isinstance(result, Got):
        raise TypeError(f"a get has the result {result}")
    response.header.revision = committed.complete
    if result.entry is not None:
        fill_entry(response.entry, result.entry)


def _fill_put(response: kv.PutResponse, committed: Committed) -> None:
    fill_header(response.header, committed)


class KV:
    """The servicer."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api
        self._service = api.service
        self._requests = Requests(api)
        self._reader = Reader(api.service.limits)
        self.methods: Methods = {
            "Txn": self._single("txn", kv.TxnRequest, kv.TxnResponse),
            "Get": self._single("get", kv.GetRequest, kv.GetResponse),
            "Put": self._single("put", kv.PutRequest, kv.PutResponse),
            "Delete": self._single("delete", kv.DeleteRequest, kv.DeleteResponse),
            "Scan": Streaming(kv.ScanRequest, self._scan, "scans", self._scan_bound),
            "Splits": Unary(kv.SplitsRequest, self._splits, self._splits_bound),
            "Snapshot": Unary(kv.SnapshotRequest, self._snapshot, reads=False),
            "ReleaseSnapshot": Unary(kv.ReleaseSnapshotRequest, self._release, reads=False),
            "Compact": Unary(kv.CompactRequest, self._compact, reads=False),
            "Watch": Streaming(kv.WatchRequest, self._watch, "watches"),
            "Reserve": Unary(kv.ReserveRequest, self._reserve),
        }

    def _single(self, name: str, asked: type[Message], answered: Callable[..., Any]) -> Unary:
        requests, options = self._requests, self._api.options

        def respond(fill: Fill, committed: Committed) -> Message:
            response = answered()
            requests.answer(fill, response, committed)
            header = response.header
            header.cluster, header.node = options.cluster, options.node
            return response  # type: ignore[no-any-return]  # what `answered` returns

        def begin(
            message: Any, timeout_s: float
        ) -> tuple[asyncio.Future[Committed], Callable[[Committed], Message]]:
            begun, fill = requests.begin(name, message, timeout_s)
            return asyncio.ensure_future(begun), partial(respond, fill)

        async def call(message: Any, timeout_s: float) -> Message:
            begun, fill = requests.begin(name, message, timeout_s)
            return respond(fill, await begun)

        return Unary(asked, call, partial(self._requests.bound, name), name == "get", begin)

    # Scans

    async def _scan(
        self, message: kv.ScanRequest, timeout_s: float | None
    ) -> AsyncGenerator[kv.ScanResponse, None]:
        shape = shape_of(message.shape)
        parts = self._service.scan(
            self._reader.range(message.range),
            revision=revision_of("revision", message.revision),
            consistency=consistency_of(message.consistency),
            min_revision=revision_of("min_revision", message.min_revision),
            limit=0 if not message.limit else min(message.limit, INT64_MAX - 1) + 1,
            reverse=message.reverse,
            keys_only=shape is not Shape.ENTRIES,
            partitions=partitions_of(message.partitions),
            timeout_s=timeout_s or self._api.options.default_timeout_s,
        )
        most = self._page_bytes(message)
        room = _Room(message.limit, message.limit_bytes)
        revision = 0
        page: list[KeyValue] = []
        make = partial(_page, shape=shape, columns=message.columns)
        now = asyncio.get_running_loop().time
        silent_since = now()
        async with aclosing(parts):  # type: ignore[type-var]  # a generator
            async for part in parts:
                revision = part.revision
                for entries, full in room.take(part.entries, most):
                    if shape is not Shape.COUNT:
                        page += entries
                        if full:
                            yield make(self._api.header(revision=revision), page)
                            page, silent_since = [], now()
                if room.more:
                    break
                if part.resume is not None and now() - silent_since >= SILENT_S:
                    progress = make(self._api.header(revision=revision), page)
                    if len(part.resume) <= self._service.limits.key_bytes:  # else no range can begin there
                        progress.count, progress.resume = room.count, part.resume
                    yield progress
                    page, silent_since = [], now()
        last = make(self._api.header(revision=revision), page)
        last.count, last.more = room.count, room.more
        yield last

    def _page_bytes(self, message: kv.ScanRequest) -> int:
        return min(message.page_bytes or PAGE_BYTES, self._api.options.response_bytes // 4)

    def _scan_bound(self, message: kv.ScanRequest) -> int:
        """What a scan holds: a page, and what is fetched ahead of every partition."""
        return self._page_bytes(message) + SCAN_BYTES

    def _splits_bound(self, message: kv.SplitsRequest) -> int:
        size = message.pieces * (2 * self._service.limits.key_bytes + 32)
        return min(size, self._api.options.response_bytes)

    async def _splits(self, message: kv.SplitsRequest, timeout_s: float) -> Message:
        check_integer("pieces", message.pieces, 1, PIECES_MAX)
        found = await self._service.splits(
            self._reader.range(message.range),
            message.pieces,
            partitions=partitions_of(message.partitions),
            timeout_s=timeout_s,
        )
        response = kv.SplitsResponse(header=self._api.header())
        for group, (start, end), count in found:
            response.splits.add(partition=group, keys={"start": start, "end": end or b""}, count=count)
        return response

    # Snapshots and history

    async def _snapshot(self, message: kv.SnapshotRequest, timeout_s: float) -> Message:
        ttl_s = message.ttl_ms / 1000 or SNAPSHOT_S
        if ttl_s > SNAPSHOT_S_MAX:
            raise InvalidRequest(f"ttl_ms must be at most {SNAPSHOT_S_MAX * 1000:.0f}, not {message.ttl_ms}")
        if len(message.name) > NAME_MAX:
            raise InvalidRequest(f"a snapshot's name must have at most {NAME_MAX} characters")
        taken = await self._service.snapshot(
            name=message.name or self._api.new_name(),
            ttl_s=ttl_s,
            revision=revision_of("revision", message.revision),
            timeout_s=timeout_s,
        )
        return kv.SnapshotResponse(
            header=self._api.header(revision=taken.revision),
            name=taken.name,
            revision=taken.revision,
            ttl_ms=max(int(taken.expires_s * 1000), 0),
        )

    async def _release(self, message: kv.ReleaseSnapshotRequest, timeout_s: float) -> Message:
        if not message.name:
            raise InvalidRequest("the snapshot's name is empty")
        await self._service.release(message.name, timeout_s=timeout_s)
        return kv.ReleaseSnapshotResponse(header=self._api.header())

    async def _compact(self, message: kv.CompactRequest, timeout_s: float) -> Message:
        if not message.revision:
            raise InvalidRequest("the revision is missing")
        await self._service.compact(revision_of("revision", message.revision), timeout_s=timeout_s)
        return kv.CompactResponse(header=self._api.header(revision=message.revision))

    async def _reserve(self, message: kv.ReserveRequest, _: float) -> Message:
        check_integer("name", message.name, ALWAYS_FIRST + 1, INT64_MAX)
        check_integer("ttl_ms", message.ttl_ms, 0, int(RESERVE_S * 1000))
        for key in message.keys:
            self._reader.single(Get(key))
        self._service.reserve(
            message.name, message.keys, tuple(map(self._reader.range, message.ranges)), message.ttl_ms / 1000
        )
        return kv.ReserveResponse(header=self._api.header())

    # Watches

    async def _watch(self, message: kv.WatchRequest, _: float | None) -> AsyncGenerator[Encoded, None]:
        if not 0 < len(message.ranges) <= RANGES_MAX:
            raise InvalidRequest(
                f"a watch must have from 1 to {RANGES_MAX} ranges, not {len(message.ranges)}"
            )
        ranges = tuple(map(self._reader.range, message.ranges))
        after = revision_of("after", message.after)
        until = revision_of("until", message.until)
        if until and not 0 < after <= until:
            raise InvalidRequest(f"a watch until {until} must be after a revision up to that, not {after}")
        progress_s = message.progress_ms / 1000 or PROGRESS_S
        progress_s = min(max(progress_s, PROGRESS_S_MIN), PROGRESS_S_MAX)
        batches = self._service.watch(
            after=after,
            ranges=ranges,
            partitions=partitions_of(message.partitions),
            until=until,
            progress_s=progress_s,
        )
        async with aclosing(batches):  # type: ignore[type-var]  # a generator
            if after:
                yield self._response(after, ())
            async for batch in batches:
                for response in self._changes(after, batch):
                    yield response
                after = batch.revision

    def _changes(self, after: int, batch: Batch) -> Iterator[Encoded]:
        """A batch in messages of about a page. Only a transaction too large for one is split."""
        if batch.encoded is not None:
            yield batch.encoded
            return
        single = True
        chunks: list[bytes] = []
        size = 0
        for piece in batch.transactions:
            for chunk in encoded_piece(piece, self._api.options.response_bytes // 2):
                if chunks and size + len(chunk) > PAGE_BYTES:
                    yield self._response(after, chunks)
                    chunks, size, single = [], 0, False
                chunks.append(chunk)
                size += len(chunk)
            if piece.last:
                after = piece.revision
        last = self._response(batch.revision, chunks)
        if single:
            batch.encoded = last
        yield last

    def _response(self, revision: int, chunks: Sequence[bytes]) -> Encoded:
        head = kv.WatchResponse(header=self._api.header(revision=revision), revision=revision)
        return Encoded(kv.WatchResponse, b"".join((head.SerializeToString(), *chunks)))


def _page(header: kv.Header, entries: Sequence[KeyValue], *, shape: Shape, columns: bool) -> kv.ScanResponse:
    page = kv.ScanResponse(header=header)
    if columns:
        page.columns.CopyFrom(columns_of(entries, values=shape is Shape.ENTRIES))
        return page
    add = page.entries.add
    for entry in entries:
        add(
            key=entry.key,
            value=entry.value,
            create_revision=entry.create_revision,
            mod_revision=entry.mod_revision,
            version=entry.version,
        )
    return page


class _Room:
    """What a scan may still return, and how much of a page is full."""

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit = limit or INT64_MAX
        self._limit_bytes = limit_bytes or INT64_MAX
        self._size = 0
        self._sent = 0
        self.count = 0
        self.more = False

    def take(self, entries: Sequence[KeyValue], page_bytes: int) -> Iterator[tuple[Sequence[KeyValue], bool]]:
        """As many of these as there is room for, and whether a page ends there: up to its end each time."""
        size, limit_bytes = self._size, self._limit_bytes
        page_end = self._sent + page_bytes
        left = self._limit - self.count
        begin = 0
        for i, entry in enumerate(entries):
            larger = size + len(entry.key) + len(entry.value)
            if i == left or (larger > limit_bytes and size):
                self.more = True
                entries = entries[:i]
                break
            size = larger
            if size >= page_end:
                yield entries[begin : i + 1], True
                begin, page_end = i + 1, size + page_bytes
        self._size, self._sent = size, page_end - page_bytes
        self.count += len(entries)
        if begin < len(entries):
            yield entries[begin:], False
