"""The store as the API calls it: coroutines over the gateway, deadlines, long scans, and watches."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from kvstore.machine.commands import Command, Compact, Pin, Tick, Unpin
from kvstore.machine.merge import merge
from kvstore.machine.operations import Room
from kvstore.machine.placement import Placement, groups_of, share_of
from kvstore.machine.request import (
    RANGE_OPERATIONS,
    Limits,
    Operation,
    Range,
    ReadOperation,
    Scan,
    Shape,
    Transaction,
)
from kvstore.machine.results import KeyValue, Outcome
from kvstore.store import errors, watches
from kvstore.store.deadlines import Deadlines, Waiter
from kvstore.store.feeds import Batch, Piece
from kvstore.store.gateway import Committed, Gateway, Identity, Ordered
from kvstore.store.group_clocks import Verdict
from kvstore.store.pages import PAGE_BYTES, PageStream, merge_step, read_in_pages
from kvstore.store.questions import (
    Changes,
    CompactedReply,
    Entries,
    Event,
    Feed,
    NotYetReply,
    Page,
    Question,
    ReadAt,
    Sample,
    Sampled,
    StrictRead,
    Values,
)
from kvstore.store.reservations import ALWAYS_FIRST, RESERVE_S, Reservations
from kvstore.store.splits import LOOKED_AT, Split, Spread, divide
from multicast.types import TICKS_PER_S, GroupId, timestamp

__all__ = [
    "Batch",
    "Committed",
    "Consistency",
    "Event",
    "Identity",
    "KeyValue",
    "Piece",
    "Service",
    "Snapshot",
    "SnapshotPart",
    "Split",
]

BUFFER_PAGES: Final = 128
"""Pages of changes that are kept for watchers."""

AGAIN_S: Final = 0.02
"""How soon to ask a replica again that is behind the revision."""

CUT_S: Final = 10.0
"""How long a watch waits for the revision at which it begins."""

EVERYTHING: Final = Range(b"", None)

T = TypeVar("T")


class Consistency(enum.Enum):
    """What a read promises: see docs/consistency.md. `kvstore.api.convert` maps the API's levels to these."""

    STRICT = "strict"
    SERIALIZABLE = "serializable"


class SnapshotPart(NamedTuple):
    """Some of a scan's entries, in order, as of a revision; perhaps none."""

    revision: int
    entries: tuple[KeyValue, ...]
    resume: bytes | None = None
    """Where the rest of the range begins; in reverse, where it ends. None if that is not known."""


class Snapshot(NamedTuple):
    """A revision that is kept until it expires or its name is released."""

    name: str
    revision: int
    expires_s: float


@dataclass(slots=True)
class _Asked:
    """Which replica to ask next: the leader or a near one; and whether the group was moved since."""

    leader: bool = False
    moved: bool = False


class Service:
    """One node's store. All calls are made in its loop, with requests that `validate` has accepted."""

    def __init__(
        self,
        gateway: Gateway,
        turn_soon: Callable[[], None],
        *,
        page_bytes: int = PAGE_BYTES,
        work_clock: Callable[[], float] | None = None,
    ) -> None:
        """`work_clock` measures how long the process works; without it, work takes no time."""
        self._gateway = gateway
        self._page_bytes = page_bytes
        self._turn_soon = turn_soon
        self._reservations = Reservations(lambda: asyncio.get_running_loop().time())
        self._deadlines = Deadlines()
        self._moving: dict[GroupId, asyncio.Future[Any]] = {}
        """Groups that are being moved on, for all callers that wait for it."""
        self._watches = watches.Watches(
            self,
            page_bytes=min(page_bytes, watches.PAGE_BYTES),
            buffer_bytes=BUFFER_PAGES * page_bytes,
            work_clock=work_clock,
        )

    def newest(self) -> int:
        """Return a time that no revision of a correct client is far above."""
        return self._gateway.newest()

    @property
    def limits(self) -> Limits:
        """The limits of requests."""
        return self._gateway.limits

    @property
    def placement(self) -> Placement:
        """Which group has which key."""
        return self._gateway.placement

    @property
    def in_flight(self) -> int:
        """Messages and questions in flight at the gateway."""
        return self._gateway.in_flight

    # Transactions and reads

    def transact(
        self,
        transaction: Transaction,
        *,
        identity: Identity | None = None,
        min_revision: int = 0,
        reservation: int = 0,
        timeout_s: float,
    ) -> asyncio.Future[Committed]:
        """Execute a transaction. Many can be under way without a task for each."""
        if self._reservations and (name := self._reservations.in_the_way(transaction, reservation)):
            return self._transact_later(name, transaction, identity, min_revision, timeout_s)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Committed] = loop.create_future()
        error = errors.OutcomeUnknown if transaction.writes else errors.DeadlinePassed
        done = Waiter(future, timeout_s, error)
        self._gateway.transact(transaction, done, identity=identity, min_revision=min_revision)
        self._turn_soon()
        self._deadlines.add(done, loop)
        return future

    def _transact_later(
        self,
        name: int,
        transaction: Transaction,
        identity: Identity | None,
        min_revision: int,
        timeout_s: float,
    ) -> asyncio.Future[Committed]:
        """Execute a transaction when a reservation has ended: see `reservations`."""
        loop = asyncio.get_running_loop()
        later: asyncio.Future[Committed] = loop.create_future()
        deadline = loop.time() + timeout_s

        def go_on() -> None:
            left_s = deadline - loop.time()
            if later.done():
                return
            if left_s <= 0:
                later.set_exception(errors.DeadlinePassed(f"no answer within {timeout_s:g} s"))
                return
            try:
                begun = self.transact(
                    transaction,
                    identity=identity,
                    min_revision=min_revision,
                    reservation=ALWAYS_FIRST,
                    timeout_s=left_s,
                )
            except (errors.StoreError, errors.InvalidRequest) as error:
                later.set_exception(error)
                return
            begun.add_done_callback(partial(_pass_on, later))
            later.add_done_callback(lambda _: begun.cancel())

        end = self._reservations.delay(name, go_on)
        timer = loop.call_later(min(RESERVE_S, timeout_s), end)
        later.add_done_callback(lambda _: timer.cancel())
        later.add_done_callback(lambda _: end())
        return later

    def reserve(self, name: int, keys: Sequence[bytes], ranges: Sequence[Range], ttl_s: float) -> None:
        """Delay writes of these keys by others, for a while; without a time, end that."""
        loop = asyncio.get_running_loop()
        if not ttl_s:
            self._reservations.release(name)
            return
        until = loop.time() + ttl_s
        self._reservations.reserve(name, keys, ranges, until)
        loop.call_at(until, lambda: self._reservations.expire(loop.time()))

    def read(
        self,
        operations: tuple[ReadOperation, ...],
        *,
        consistency: Consistency = Consistency.STRICT,
        revision: int = 0,
        min_revision: int = 0,
        timeout_s: float,
    ) -> Awaitable[Committed]:
        """Read keys and ranges: as of now, as of some recent point of the order, or as of a revision."""
        transaction = Transaction(then=operations)
        groups = groups_of(transaction, self.placement)
        if revision or consistency is not Consistency.STRICT:
            return self._read_old(transaction, groups, revision, min_revision, timeout_s)
        if len(groups) > 1:
            if any(isinstance(each, Scan) and each.shape is Shape.COUNT for each in operations):
                return self._count_now(transaction, groups, timeout_s)
            return self.transact(transaction, min_revision=min_revision, timeout_s=timeout_s)
        return self._read_now(groups[0], operations, timeout_s)

    def _read_now(
        self, group: GroupId, operations: tuple[ReadOperation, ...], timeout_s: float
    ) -> asyncio.Future[Committed]:
        """Read strictly of one group's leader. Like transactions, these reads need no task, unless they are
        too long for one step of the leader.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Committed] = loop.create_future()
        resolve = Waiter(future, timeout_s, errors.DeadlinePassed)

        def done(values: Values | Exception) -> None:
            if not isinstance(values, Values):
                resolve(values)
            elif len(values.results) < len(operations) and not future.done():
                task = loop.create_task(self._read_long(group, operations, resolve))
                future.add_done_callback(lambda _: task.cancel())
            else:
                resolve(_committed(values))

        number = self._gateway.ask(group, StrictRead(operations), done, of_leader=True)
        self._turn_soon()
        self._deadlines.add(resolve, loop)
        future.add_done_callback(lambda _: self._gateway.forget(number))
        return future

    async def _count_now(
        self, transaction: Transaction, groups: Sequence[GroupId], timeout_s: float
    ) -> Committed:
        """Read strictly of several groups at a revision: counts need not be executed in the order."""
        async with self._deadline(timeout_s):
            while True:
                with contextlib.suppress(errors.Compacted):  # then a compaction was faster
                    revision = await self._cut(_ranges_of(transaction.then))
                    return await self._read_at(transaction, groups, revision)

    async def _read_long(
        self, group: GroupId, operations: tuple[ReadOperation, ...], resolve: Waiter
    ) -> None:
        """Read strictly at a revision, page by page: what is too long to be read at once."""
        try:
            while True:
                with contextlib.suppress(errors.Compacted):  # then a compaction was faster
                    revision = await self._cut(_ranges_of(operations))
                    found = await self._rest(group, operations, Values(revision, ()))
                    return resolve(_committed(found))
        except errors.StoreError as error:
            return resolve(error)

    async def _rest(self, group: GroupId, operations: tuple[ReadOperation, ...], begun: Values) -> Values:
        """Perform the operations that a replica has left over, since they were too much for one step."""
        revision, room = begun.revision, Room()
        results = [room.admit(result) for result in begun.results]
        ask = partial(self._ask, group, wanted=Entries, revision=revision)
        while len(results) < len(operations):
            first, *others = operations[len(results) :]
            results.append(room.admit(await read_in_pages(ask, first, revision)))
            if others:
                more = await self._ask(group, ReadAt(tuple(others), revision), Values, revision)
                results += map(room.admit, more.results)
        return Values(revision, tuple(results))

    async def _read_old(
        self,
        transaction: Transaction,
        groups: Sequence[GroupId],
        revision: int,
        min_revision: int,
        timeout_s: float,
    ) -> Committed:
        async with self._deadline(timeout_s):
            await self._confirm(revision or min_revision)
            if len(groups) == 1:
                operations = tuple(each for each in transaction.then if isinstance(each, ReadOperation))
                at_least = 0 if revision else min_revision
                return _committed(await self._values(groups[0], operations, revision, at_least))
            if not revision:
                revision = await self._complete(groups, min_revision)
            return await self._read_at(transaction, groups, revision)

    async def _read_at(self, transaction: Transaction, groups: Sequence[GroupId], revision: int) -> Committed:
        """Read of several groups at a revision: each reads its share, and the results are merged."""
        outcomes = {}
        for group in groups:
            part = share_of(transaction, self.placement, group, tuple(groups))
            mine = () if part is None else part.then
            operations = tuple(operation for _, operation in mine if isinstance(operation, ReadOperation))
            values = await self._values(group, operations, revision, 0)
            results = tuple(zip((i for i, _ in mine), values.results, strict=True))
            outcomes[group] = Outcome(succeeded=True, unmet=(), results=results)
        merged = merge(transaction, self.placement, outcomes)
        return Committed(revision, revision, merged.succeeded, merged.unmet, merged.results)

    async def _confirm(self, revision: int) -> None:
        """Raise `FutureRevision` if no client can have seen the revision yet: no partition has reached it.

        If some partitions do not answer, the call goes on: it waits until its partitions reach the revision.
        """
        if not revision or self._gateway.knows(revision):
            return
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._gateway.confirm(revision, partial(_resolve, future))
        self._turn_soon()
        if await future is Verdict.REFUTED:
            raise errors.FutureRevision(
                f"revision {revision} is in the future: no partition has reached it; the newest revision is "
                f"{timestamp(self._gateway.newest(), GroupId(0))}"
            )

    async def _values(
        self, group: GroupId, operations: tuple[ReadOperation, ...], revision: int, min_revision: int
    ) -> Values:
        question, asked = ReadAt(operations, revision), _Asked()
        while True:
            values = await self._ask(group, question, Values, revision or min_revision, asked=asked)
            if values.revision >= min_revision:
                short = len(values.results) < len(operations)
                return await self._rest(group, operations, values) if short else values
            await self._not_yet(group, min_revision, asked)

    async def _complete(self, groups: Sequence[GroupId], at_least: int) -> int:
        """Return a revision that all these groups have executed. An unused group has executed 0, which is not
        a revision to read at.
        """
        found = [await self._values(group, (), 0, max(at_least, 1)) for group in groups]
        return min(values.revision for values in found)

    async def _ask(
        self,
        group: GroupId,
        question: Question,
        wanted: type[T],
        revision: int,
        *,
        asked: _Asked | None = None,
    ) -> T:
        """Ask a near replica, or the leader if that one is behind, until there is an answer."""
        asked = asked or _Asked()
        while True:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            number = self._gateway.ask(group, question, partial(_resolve, future), of_leader=asked.leader)
            self._turn_soon()
            try:
                response = await future
            finally:
                self._gateway.forget(number)
            if isinstance(response, wanted):
                return response
            if isinstance(response, CompactedReply):
                floor = response.floor
                raise errors.Compacted(f"revision {revision} is compacted; the oldest one is {floor}", floor)
            if isinstance(response, NotYetReply):
                await self._not_yet(group, revision, asked)

    async def _not_yet(self, group: GroupId, revision: int, asked: _Asked) -> None:
        """Choose the replica to ask next, after one was behind, and wait until asking makes sense.

        An idle group passes the revision as soon as it is moved. If it does not, it waits for something.
        """
        if not asked.leader:
            asked.leader = True
        elif not asked.moved:
            await self.move(group, revision)
            asked.moved = True
        else:
            await asyncio.sleep(AGAIN_S)
            asked.leader = asked.moved = False

    async def move(self, group: GroupId, revision: int) -> None:
        """Make a group pass a revision: an idle one does not by itself."""
        known = self._moving.get(group)
        if known is None or known.done():
            known = asyncio.get_running_loop().create_future()
            known.add_done_callback(_retrieve)  # its waiters may be gone
            self._gateway.command(group, Tick(), partial(_resolve, known), at_least=revision)
            self._moving[group] = known
            self._turn_soon()
        with contextlib.suppress(errors.StoreError):
            await asyncio.shield(known)

    @contextlib.asynccontextmanager
    async def _deadline(self, timeout_s: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise errors.DeadlinePassed(f"no answer within {timeout_s:g} s") from None

    # Long scans

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
    ) -> AsyncIterator[SnapshotPart]:
        """Scan a range at one revision, in the order of keys, of all or some partitions. Parts are fetched as
        the caller takes them. The time-out is for each part.
        """
        shape = Shape.KEYS if keys_only else Shape.ENTRIES
        whole = Scan(asked, limit, self._page_bytes, reverse, shape)
        groups = self._groups((asked,), partitions)
        async with self._deadline(timeout_s):
            await self._confirm(max(revision, min_revision))
            if not revision and consistency is Consistency.STRICT:
                revision = await self._cut((asked,))
            elif not revision:
                revision = await self._complete(groups or self._gateway.groups, min_revision)
        yield SnapshotPart(revision, ())
        first = Page(whole, revision)
        streams = [PageStream(partial(self._page, group, timeout_s), first) for group in groups]
        left = limit or float("inf")
        try:
            while left > 0:
                entries, resume = await merge_step(streams, reverse=reverse)
                part = entries if len(entries) <= left else entries[: int(left)]
                left -= len(part)
                yield SnapshotPart(revision, tuple(part), resume)
                if resume is None:
                    return
        finally:
            for stream in streams:
                stream.close()

    def _groups(self, ranges: tuple[Range, ...], partitions: Sequence[int]) -> list[GroupId]:
        """Return the groups that have keys of the ranges, among these partitions if any are given."""
        found = {group for asked in ranges for group in self.placement.groups_of_range(asked)}
        if partitions:
            for partition in partitions:
                if partition not in self._gateway.groups:
                    raise errors.InvalidRequest(f"there is no partition {partition}; see Topology")
            found.intersection_update(map(GroupId, partitions))
        return sorted(found)

    async def splits(
        self, asked: Range, pieces: int, *, partitions: Sequence[int] = (), timeout_s: float
    ) -> list[Split]:
        """Pieces of a range, each of one partition, of about equally many keys."""
        spreads = {group: Spread(asked) for group in self._groups((asked,), partitions)}
        async with self._deadline(timeout_s):
            for group, spread in spreads.items():
                while spread.left is not None:
                    question = Sample(spread.left, spread.every, LOOKED_AT)
                    found = await self._ask(group, question, Sampled, 0)
                    spread.add(found.keys, found.rest, found.last)
        return divide(spreads, pieces)

    async def _page(self, group: GroupId, timeout_s: float, page: Page) -> Entries:
        """Return one group's next page of a scan."""
        async with self._deadline(timeout_s):
            return await self._ask(group, page, Entries, page.revision)

    # Snapshots and compaction

    async def _cut(self, ranges: tuple[Range, ...]) -> int:
        future: asyncio.Future[Ordered] = asyncio.get_running_loop().create_future()
        self._gateway.cut(ranges, partial(_resolve, future))
        self._turn_soon()
        return (await future).revision

    async def snapshot(self, *, name: str, ttl_s: float, revision: int = 0, timeout_s: float) -> Snapshot:
        """Pin a given revision, or one with everything completed so far. The same name moves the pin."""
        async with self._deadline(timeout_s):
            await self._confirm(revision)
            while True:
                kept = revision or await self._cut((EVERYTHING,))
                until = timestamp(self._gateway.newest() + int(ttl_s * TICKS_PER_S), GroupId(0))
                try:
                    await self._everywhere(Pin(name, kept, until), kept)
                except errors.Compacted:
                    if revision:
                        raise
                    continue  # a compaction was faster
                except errors.RequestExpired:
                    continue  # it was to end before it began: now this node knows better what time it is
                return Snapshot(name, kept, ttl_s)

    async def release(self, name: str, *, timeout_s: float) -> None:
        """Release a snapshot."""
        async with self._deadline(timeout_s):
            await self._everywhere(Unpin((name,)), 0)

    async def compact(self, revision: int, *, timeout_s: float) -> None:
        """Compact: forget what no read at this revision or above needs."""
        if revision < 1:
            raise errors.InvalidRequest(f"cannot compact to revision {revision}; it must be positive")
        async with self._deadline(timeout_s):
            await self._confirm(revision)
            await self._everywhere(Compact(revision), revision)

    async def _everywhere(self, command: Command, at_least: int) -> None:
        futures: list[asyncio.Future[Ordered]] = []
        for group in self._gateway.groups:
            futures.append(asyncio.get_running_loop().create_future())
            self._gateway.command(group, command, partial(_resolve, futures[-1]), at_least=at_least)
        self._turn_soon()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # Watches

    async def watch(
        self,
        *,
        after: int,
        ranges: tuple[Range, ...],
        partitions: Sequence[int] = (),
        until: int = 0,
        progress_s: float = 1.0,
    ) -> AsyncIterator[Batch]:
        """All transactions after a revision that change anything in these ranges, in the order of revisions.
        With `after` 0 the watch begins now; the first batch, which is empty, tells where.

        A batch has everything up to its revision, of all groups; one without any transaction is a mark of
        progress. A transaction too large for one piece is in several, which follow one another. The watch
        goes on for ever, or up to a revision, or until what follows was compacted.
        """
        await self._confirm(max(after, until))
        groups = self._groups(ranges, partitions)
        if not groups:
            groups = list(map(GroupId, partitions))  # no keys of the ranges: only marks of progress
        watch = self._watches.watch(
            after=after, ranges=ranges, groups=tuple(groups), until=until, progress_s=progress_s
        )
        async with contextlib.aclosing(watch):  # type: ignore[type-var]  # a generator
            async for batch in watch:
                yield batch

    async def cut(self) -> int:
        """Return a revision that what begins now is above, and what has completed is not."""
        async with self._deadline(CUT_S):
            return await self._cut((EVERYTHING,))

    async def position(self, group: GroupId) -> int:
        """Return the revision up to which a near replica of the group has executed everything."""
        return (await self._ask(group, ReadAt((), 0), Values, 0)).revision

    async def changes(self, group: GroupId, question: Feed, *, of_leader: bool) -> Changes:
        """Return what a replica of the group answers to a question for changes."""
        return await self._ask(group, question, Changes, question.after, asked=_Asked(leader=of_leader))


def _ranges_of(operations: Iterable[Operation]) -> tuple[Range, ...]:
    """The ranges and keys of operations, as ranges."""
    return tuple(
        each.range if isinstance(each, RANGE_OPERATIONS) else Range(each.key, each.key + b"\0")
        for each in operations
    )


def _committed(values: Values) -> Committed:
    return Committed(values.revision, values.revision, succeeded=True, unmet=(), results=values.results)


def _pass_on(later: asyncio.Future[Any], begun: asyncio.Future[Any]) -> None:
    """Resolve a future as another one."""
    if begun.cancelled():
        later.cancel()
    elif (error := begun.exception()) is not None:
        _resolve(later, error)
    else:
        _resolve(later, begun.result())


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Take note of a future's exception, though no caller may wait for it any more."""
    if not future.cancelled():
        future.exception()


def _resolve(future: asyncio.Future[Any], outcome: object) -> None:
    if not future.done():
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
