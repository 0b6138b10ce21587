"""A node's service in memory: one group's machine, without ordering, disks and peers."""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from kvstore.api.ports import Facts, PartitionFacts, Topology
from kvstore.machine import (
    Delivered,
    Limits,
    Machine,
    MachineState,
    NotYet,
    Placement,
    Request,
    Store,
    merge,
    versions,
)
from kvstore.machine.commands import Command, Compact, Pin, Tick, Unpin
from kvstore.machine.operations import scan
from kvstore.machine.request import REVISION_MAX, Get, Range, ReadOperation, Scan, Transaction
from kvstore.machine.results import (
    Aborted,
    Got,
    KeyValue,
    OperationResult,
    Outcome,
    Refusal,
    Refused,
    Result,
)
from kvstore.store.errors import (
    Compacted,
    DeadlinePassed,
    FutureRevision,
    InvalidRequest,
    Pinned,
    RequestExpired,
    RequestForgotten,
    RequestMismatch,
    StoreError,
    TransactionAborted,
    Unavailable,
    WindowFull,
)
from kvstore.store.feeds import Piece
from kvstore.store.questions import Event
from kvstore.store.service import Batch, Committed, Consistency, Identity, Snapshot, SnapshotPart, Split
from kvstore.store.splits import LOOKED_AT, Spread, divide
from multicast.types import ClientId, GroupId, MessageId, timestamp

GROUP = GroupId(0)
NODE = "n1"
GATEWAY = 1
REFUSED: Mapping[Refusal, type[StoreError]] = {
    Refusal.MISMATCH: RequestMismatch,
    Refusal.EXPIRED: RequestExpired,
    Refusal.FORGOTTEN: RequestForgotten,
    Refusal.WINDOW_FULL: WindowFull,
    Refusal.PINNED: Pinned,
    Refusal.FUTURE_REVISION: FutureRevision,
}
T = TypeVar("T")


class MemoryService:
    """`kvstore.api.ports.Service`. With `held`, requests wait until they are let go."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.reserved: dict[int, tuple[tuple[bytes, ...], tuple[Range, ...], float]] = {}
        self.limits = limits or Limits()
        self.placement = Placement.evenly([GROUP])
        self.machine = Machine(GROUP, Store(), MachineState(placement=self.placement), self.limits)
        self.held = False
        self.under_way: dict[asyncio.Future[Any], Callable[[], Any]] = {}
        self.open = 0
        """Scans and watches."""
        self.facts = PartitionFacts(NODE, (NODE,), here=True, leads=True)
        self.timeouts: list[float] = []
        self.failure: Exception | None = None
        """What happens to requests instead."""
        self._changed = asyncio.Event()
        self._clock = itertools.count(100)
        self._sequence = itertools.count(1)

    # How requests wait

    def _begin(self, execute: Callable[[], T], timeout_s: float) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.timeouts.append(timeout_s)
        self.under_way[future] = execute
        timer = loop.call_later(timeout_s, self._expire, future)

        def end(_: object) -> None:
            timer.cancel()
            self.under_way.pop(future, None)

        future.add_done_callback(end)
        if not self.held:
            loop.call_soon(self._execute, future)
        return future

    def _expire(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            future.set_exception(DeadlinePassed("not executed in time"))

    def _execute(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            try:
                if self.failure is not None:
                    raise self.failure  # noqa: TRY301 - passed on too
                future.set_result(self.under_way[future]())
            except Exception as error:  # noqa: BLE001 - passed on
                future.set_exception(error)

    def let_go(self) -> None:
        """Execute everything that is held."""
        for future in list(self.under_way):
            self._execute(future)

    # Transactions and reads

    @property
    def revision(self) -> int:
        """Everything up to it is executed."""
        return self.machine.watermark

    def _order(self, command: Command, identity: Identity | None = None) -> tuple[int, Result]:
        gts = timestamp(next(self._clock), GROUP)
        number = next(self._sequence)
        client, sequence, ack_below, deadline = identity or Identity(GATEWAY, number, 0, 0)
        digest = zlib.crc32(repr(command).encode())
        request = Request(client, sequence, ack_below, deadline or REVISION_MAX, digest, command)
        mid = MessageId(ClientId(GATEWAY), number, digest)
        self.machine.deliver(Delivered(gts, mid, (GROUP,), request))
        while self.machine.running:
            self.machine.run()
        (executed,) = self.machine.drain().results
        while self.machine.work():
            pass
        self._changed.set()
        result = executed.result
        if isinstance(result, Refused):
            if result.refusal is Refusal.COMPACTED:
                raise Compacted(result.message)
            raise REFUSED[result.refusal](result.message)
        return gts, result

    def transact(
        self,
        transaction: Transaction,
        *,
        identity: Identity | None = None,
        min_revision: int = 0,
        reservation: int = 0,
        timeout_s: float,
    ) -> asyncio.Future[Committed]:
        def execute() -> Committed:
            gts, outcome = self._order(transaction, identity)
            if isinstance(outcome, Aborted):
                raise TransactionAborted(outcome.failures, in_then=outcome.in_then, revision=gts)
            assert isinstance(outcome, Outcome)
            merged = merge(transaction, self.placement, {GROUP: outcome})
            return Committed(gts, self.revision, merged.succeeded, merged.unmet, merged.results)

        return self._begin(execute, timeout_s)

    def reserve(self, name: int, keys: Sequence[bytes], ranges: Sequence[Range], ttl_s: float) -> None:
        self.reserved[name] = (tuple(keys), tuple(ranges), ttl_s)

    def read(
        self,
        operations: tuple[ReadOperation, ...],
        *,
        consistency: Consistency = Consistency.STRICT,
        revision: int = 0,
        min_revision: int = 0,
        timeout_s: float,
    ) -> asyncio.Future[Committed]:
        def execute() -> Committed:
            if min_revision > self.revision:
                raise Unavailable(f"this node has only come to {self.revision}")
            at = revision or self.revision
            results = tuple(self._read(operation, at) for operation in operations)
            return Committed(0, at, succeeded=True, unmet=(), results=results)

        return self._begin(execute, timeout_s)

    def _check(self, revision: int) -> None:
        try:
            self.machine.versions.get_at(b"any", revision)
        except versions.Compacted as error:
            raise Compacted(str(error), error.floor) from None
        except NotYet as error:
            raise FutureRevision(str(error)) from None

    def _read(self, operation: Get | Scan, at: int) -> OperationResult:
        self._check(at)
        if isinstance(operation, Scan):
            return scan(
                operation, self.machine.versions.scan_at(operation.range, at, reverse=operation.reverse)
            )
        found = self.machine.versions.get_at(operation.key, at)
        if found is None or found.value is None:
            return Got(None)
        return Got(
            KeyValue(operation.key, found.value, found.create_revision, found.mod_revision, found.version)
        )

    async def scan(
        self,
        asked: Range,
        *,
        revision: int = 0,
        consistency: Consistency = Consistency.STRICT,
        min_revision: int = 0,
        limit: int = 0,
        reverse: bool = False,
        keys_only: bool = False,
        partitions: Sequence[int] = (),
        timeout_s: float,
    ) -> AsyncGenerator[SnapshotPart, None]:
        if not {GROUP}.issuperset(partitions):
            raise InvalidRequest(f"there is no partition among {partitions}")
        at = revision or self.revision
        self._check(at)
        self.open += 1
        try:
            page: list[KeyValue] = []
            size = 0
            entries = self.machine.versions.scan_at(asked, at, reverse=reverse)
            for entry in itertools.islice(entries, limit or None):
                value = b"" if keys_only else entry.value
                page.append(
                    KeyValue(entry.key, value, entry.create_revision, entry.mod_revision, entry.version)
                )
                size += len(entry.key) + len(value)
                if size >= 500:
                    yield SnapshotPart(at, tuple(page))
                    page, size = [], 0
                    await asyncio.sleep(0)
            yield SnapshotPart(at, tuple(page))
        finally:
            self.open -= 1

    async def splits(
        self, asked: Range, pieces: int, *, partitions: Sequence[int] = (), timeout_s: float
    ) -> Sequence[Split]:
        spread = Spread(asked)
        while spread.left is not None:
            spread.add(*self.machine.versions.marks(spread.left, spread.every, LOOKED_AT))
        return divide({GROUP: spread}, pieces)

    async def snapshot(self, *, name: str, ttl_s: float, revision: int = 0, timeout_s: float) -> Snapshot:
        if not revision:
            revision, _ = await self._begin(lambda: self._order(Tick()), timeout_s)
        self._check(revision)
        await self._begin(lambda: self._order(Pin(name, revision, REVISION_MAX)), timeout_s)
        return Snapshot(name, revision, ttl_s)

    async def release(self, name: str, *, timeout_s: float) -> None:
        await self._begin(lambda: self._order(Unpin((name,))), timeout_s)

    async def compact(self, revision: int, *, timeout_s: float) -> None:
        await self._begin(lambda: self._order(Compact(revision)), timeout_s)

    async def watch(
        self,
        *,
        after: int,
        ranges: tuple[Range, ...],
        partitions: Sequence[int] = (),
        until: int = 0,
        progress_s: float,
    ) -> AsyncGenerator[Batch, None]:
        self._check(after)
        self.open += 1
        try:
            if not after:
                await self._begin(lambda: self._order(Tick()), 10.0)
                after = self.revision
                yield Batch(after, ())
            while True:
                self._changed.clear()
                upto = self.revision
                found: list[Piece] = []
                for revision, row in self.machine.versions.changes(after):
                    events = tuple(
                        Event(change.key, change.value, change.create_revision, change.version)
                        for change in row
                        if any(asked.covers(change.key) for asked in ranges)
                    )
                    if events and revision <= (until or revision):
                        found.append(Piece(revision, events))
                after = upto
                if 0 < until <= upto:
                    yield Batch(until, tuple(found))
                    return
                yield Batch(upto, tuple(found))
                try:
                    await asyncio.wait_for(self._changed.wait(), progress_s)
                except TimeoutError:
                    continue
        finally:
            self.open -= 1

    def topology(self) -> Topology:
        return Topology({NODE: "127.0.0.1:1"}, {GROUP: self.facts}, self.placement)

    @property
    def facts_of_node(self) -> Facts:
        return Facts(self.topology, lambda: {"id": NODE})
