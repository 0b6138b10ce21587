"""A node's watches: one question at a time for each group's changes, however many watchers there are.

A group's *feed* asks a replica for all that follows; the replica answers as soon as execution has moved its
watermark. The feed gives the answer to the hubs of all watched sets of groups (`kvstore.store.hub`), and
watchers are woken, a few at a time: the more there are, the longer changes are gathered for all of them.
A watcher that is behind its hub, or finds too many hubs, reads history in turns with others of its kind.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Final, Protocol

from kvstore.machine.request import Range
from kvstore.store import errors
from kvstore.store.feeds import Batch, FeedPosition, FeedReader, MergedFeed
from kvstore.store.hub import Audience, Cursor, Hub
from kvstore.store.questions import Changes, Feed
from multicast.types import TICKS_PER_S, GroupId, Timestamp, time_of, timestamp

PAGE_BYTES: Final = 32 << 10
"""Bytes of changes that a replica is asked for at a time: about a millisecond of its loop."""

BUFFER_BYTES: Final = 16 << 20
"""Bytes of changes that a hub keeps."""

BATCH_BYTES: Final = 256 << 10
"""Bytes of changes that a watcher takes at a time."""

WAIT_S: Final = 1.0
"""How long a replica waits for changes before it answers that there are none."""

IDLE_S: Final = 0.2
"""How often a watch of history looks for changes, once it has read everything."""

AGAIN_S: Final = 0.02
"""How soon to ask again after an error, and how soon a watch of history looks again at first."""

LEADER_S: Final = 5.0
"""How long to ask the leader, after a near replica did not go on."""

RECENT_S: Final = 30.0
"""A feed that begins for a watcher behind the present by no more than this begins there."""

OTHERS_S: Final = 1.0
"""How far before that watcher the feed begins, for others that come after it."""

HUBS: Final = 64
"""Sets of groups whose changes are merged for all watchers. Watchers of further sets read history."""

READERS: Final = 8
"""Questions for history that are in flight at once."""

PAUSES: Final = 6
"""How often the time that merging a page of history takes fits into the pause after it, of all readers of
history. To encode and to send a page takes about twice as long as to merge it. So history takes a third of a
node's time, at most.
"""

WOKEN: Final = 16
"""Watchers that are woken before others may use the event loop."""

PACE_S: Final = 1e-3
"""How much longer changes are gathered for each watcher that was woken, and the time between two marks of
progress for each watcher: ten times what a message costs, so that a node with many watchers spends a tenth of
its time on them.
"""

PAUSE_S: Final = 1.0
"""How long changes are gathered, at most."""

EVERYTHING: Final = (Range(b"", None),)


class Groups(Protocol):
    """What watches need of the store."""

    def newest(self) -> int:
        """Return a time that no revision is far above."""

    async def cut(self) -> int:
        """Return a revision that what begins now is above, and what has completed is not."""

    async def position(self, group: GroupId) -> int:
        """Return the revision up to which a replica has executed everything."""

    async def changes(self, group: GroupId, question: Feed, *, of_leader: bool) -> Changes:
        """Ask a replica. Raises `Compacted`."""

    async def move(self, group: GroupId, revision: int) -> None:
        """Make a group pass a revision: an idle one does not by itself."""


class _GroupFeed:
    """Follows one group for all hubs."""

    __slots__ = ("hubs", "mover", "position", "task")

    def __init__(self) -> None:
        self.hubs: dict[tuple[GroupId, ...], _SharedHub] = {}
        self.position: FeedPosition | None = None
        self.task: asyncio.Task[None] | None = None
        self.mover: asyncio.Task[None] | None = None


class _SharedHub:
    """A hub, once all feeds have a position, and its watchers."""

    __slots__ = ("hub", "marked_at", "progress", "ready")

    def __init__(self) -> None:
        self.hub: Hub | None = None
        self.ready = asyncio.Event()
        self.progress: dict[object, float] = {}
        """How often each watcher wants a mark of progress."""
        self.marked_at = 0.0


class Watches:
    """See the module."""

    def __init__(
        self,
        groups: Groups,
        *,
        page_bytes: int = PAGE_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        work_clock: Callable[[], float] | None = None,
    ) -> None:
        """`page_bytes` is about what a replica answers at a time, and `buffer_bytes` what a hub keeps.
        `work_clock` measures how long the process works; without it, work takes no time.
        """
        self._groups = groups
        self._page_bytes = page_bytes
        self._buffer_bytes = buffer_bytes
        self._work_clock = work_clock or (lambda: 0.0)
        self._read_at = 0.0
        """When history may be read again."""
        self._feeds: dict[GroupId, _GroupFeed] = {}
        self._hubs: dict[tuple[GroupId, ...], _SharedHub] = {}
        self._watchers = 0
        """Of all hubs."""
        self._history = asyncio.Semaphore(READERS)
        self._cut_last: asyncio.Task[int] | None = None
        self._cut_next: asyncio.Task[int] | None = None
        """The last cut that was ordered, and the one that is next: whoever waits for it has come before."""
        self._dirty: dict[Audience, None] = {}
        self._waker: asyncio.Task[None] | None = None
        self._marker: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        """Bytes that are kept for watchers."""
        return sum(shared.hub.size for shared in self._hubs.values() if shared.hub is not None)

    async def watch(
        self,
        *,
        after: int,
        ranges: tuple[Range, ...],
        groups: tuple[GroupId, ...],
        until: int,
        progress_s: float,
    ) -> AsyncIterator[Batch]:
        """All transactions after a revision that change anything in these ranges, of these groups.

        With `after` 0 it begins now; the first batch, which is empty, tells where.
        """
        position = after
        async with contextlib.AsyncExitStack() as stack:
            shared = stack.enter_context(self._shared(groups, after, progress_s))
            audience = None
            if shared is not None:
                await shared.ready.wait()
                assert shared.hub is not None
                audience = shared.hub.join(ranges)
                stack.callback(shared.hub.leave, audience)
            if not after:
                # The cut is above all that the hub had passed on when we joined it: what follows is, or will
                # be, in the buffer, and no compaction can come before us.
                position = await self._cut()
                yield Batch(position, ())
            while True:
                cursor = audience.hub.cursor(audience, position) if audience is not None else None
                if cursor is not None:
                    batches = self._follow(cursor, until, progress_s)
                else:
                    batches = self._catch_up(position, audience, ranges, groups, until, progress_s)
                async with contextlib.aclosing(batches):  # type: ignore[type-var]  # a generator
                    async for batch in batches:
                        position = batch.revision
                        yield batch
                        if 0 < until <= position:
                            return

    async def _cut(self) -> int:
        """Return the revision of a cut that was ordered after this call: of one for all that wait for one."""
        if self._cut_next is None:
            self._cut_next = asyncio.create_task(self._cut_after(self._cut_last))
        return await asyncio.shield(self._cut_next)

    async def _cut_after(self, last: asyncio.Task[int] | None) -> int:
        if last is not None:
            await asyncio.wait((last,))
        self._cut_last, self._cut_next = self._cut_next, None
        return await self._groups.cut()

    # Watchers of a hub

    async def _follow(self, cursor: Cursor, until: int, progress_s: float) -> AsyncIterator[Batch]:
        """Take what the hub passes on, until the watcher is behind it."""
        loop = asyncio.get_running_loop()
        audience, told = cursor.audience, cursor.at
        mark_at = loop.time() + self._paced(progress_s)
        while not cursor.behind:
            rounds = audience.rounds
            batch = cursor.take(BATCH_BYTES)
            marks = cursor.at > told and (loop.time() >= mark_at or 0 < until <= cursor.at)
            if batch.transactions or marks:
                told, mark_at = cursor.at, loop.time() + self._paced(progress_s)
                yield _until(batch, until)
            elif loop.time() >= mark_at:
                mark_at = loop.time() + min(self._paced(progress_s), WAIT_S)  # there is nothing to tell, yet
            # What came while this watcher was busy waits for the next round, unless that was meanwhile.
            if audience.rounds == rounds and not (cursor.due and _size(batch) >= BATCH_BYTES):
                await self._wait(audience, mark_at)

    def _paced(self, progress_s: float) -> float:
        """Return how often a watcher gets marks of progress: seldom if there are many watchers."""
        return max(progress_s, PACE_S * self._watchers)

    async def _wait(self, audience: Audience, until: float) -> None:
        """Wait until the audience is woken, or for a time."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        timer = loop.call_at(until, _resolve, woken)
        audience.waiting[woken] = None
        try:
            await woken
        finally:
            timer.cancel()
            audience.waiting.pop(woken, None)

    def _wake(self, hub: Hub) -> None:
        if hub.dirty:
            self._dirty.update(hub.dirty)
            hub.dirty.clear()
            if self._waker is None:
                self._waker = asyncio.create_task(self._wake_all())

    async def _wake_all(self) -> None:
        """Wake the watchers that have something to take: few at a time, so that others go on meanwhile, and
        the less often the more there are.
        """
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            count = 0
            for audience in dirty:
                audience.rounds += 1
                for woken in list(audience.waiting):
                    _resolve(woken)
                    count += 1
                    if count % WOKEN == 0:
                        await asyncio.sleep(0)
            if count > WOKEN:
                await asyncio.sleep(min(count * PACE_S, PAUSE_S))
        self._waker = None

    # Hubs and feeds

    @contextlib.contextmanager
    def _shared(
        self, groups: tuple[GroupId, ...], after: int, progress_s: float
    ) -> Iterator[_SharedHub | None]:
        """Return the hub of these groups, for as long as the caller watches; None if there are too many."""
        shared = self._hubs.get(groups)
        if shared is None:
            if len(self._hubs) >= HUBS:
                yield None
                return
            shared = self._hubs[groups] = _SharedHub()
            for group in groups:
                feed = self._feeds.setdefault(group, _GroupFeed())
                feed.hubs[groups] = shared
                if feed.task is None:
                    feed.position = self._recent(after)
                    feed.task = asyncio.create_task(self._feed(group, feed))
            self._open(groups, shared)
        if self._marker is None:
            self._marker = asyncio.create_task(self._mark())
        watcher = object()
        shared.progress[watcher] = progress_s
        self._watchers += 1
        try:
            yield shared
        finally:
            self._watchers -= 1
            del shared.progress[watcher]
            if not shared.progress:
                self._close(groups)

    def _recent(self, after: int) -> FeedPosition | None:
        """Return where a feed begins for a watcher that resumes: a little before it, for others that do."""
        time = time_of(Timestamp(after)) - OTHERS_S * TICKS_PER_S
        if not after or time < self._groups.newest() - RECENT_S * TICKS_PER_S:
            return None  # at the present
        return FeedPosition(max(timestamp(int(time), GroupId(0)), 1))

    def _open(self, groups: tuple[GroupId, ...], shared: _SharedHub) -> None:
        """Make the hub, as soon as all its feeds have a position."""
        positions = {group: self._feeds[group].position for group in groups}
        known = {group: position for group, position in positions.items() if position is not None}
        if shared.hub is None and len(known) == len(groups):
            shared.hub = Hub(known, buffer_bytes=self._buffer_bytes)
            shared.marked_at = asyncio.get_running_loop().time()
            shared.ready.set()

    def _close(self, groups: tuple[GroupId, ...]) -> None:
        """Nobody watches these groups any more."""
        del self._hubs[groups]
        for group in groups:
            feed = self._feeds[group]
            del feed.hubs[groups]
            if not feed.hubs:
                del self._feeds[group]
                for task in (feed.task, feed.mover):
                    if task is not None:
                        task.cancel()
        if not self._hubs and self._marker is not None:
            self._marker.cancel()
            self._marker = None

    async def _feed(self, group: GroupId, feed: _GroupFeed) -> None:
        """Follow a group."""
        loop = asyncio.get_running_loop()
        leader_until = 0.0
        while True:
            of_leader = loop.time() < leader_until
            try:
                if feed.position is None:
                    self._begin(feed, await self._groups.position(group))
                assert feed.position is not None
                upto, skip = feed.position
                question = Feed(upto, EVERYTHING, self._page_bytes, WAIT_S, skip)
                changes = await self._groups.changes(group, question, of_leader=of_leader)
            except errors.Compacted:
                feed.position = None  # watchers that need what is gone are told when they read history
                continue
            except errors.StoreError:
                await asyncio.sleep(AGAIN_S)
                continue
            feed.position = FeedPosition(changes.upto, changes.skip)
            for shared in list(feed.hubs.values()):
                if shared.hub is not None:
                    shared.hub.take(group, changes)
                    self._wake(shared.hub)
                    self._move_behind(shared.hub, shared.hub.wanted)
            # A replica that does not go on, although its group was moved, is not the one to ask.
            behind = any(s.hub is not None and s.hub.wanted > changes.upto for s in feed.hubs.values())
            if behind and feed.position == (upto, skip):
                leader_until = 0.0 if of_leader else loop.time() + LEADER_S

    def _begin(self, feed: _GroupFeed, upto: int) -> None:
        """Begin to follow a group, or begin again: no hub has what is between."""
        feed.position = FeedPosition(upto)
        for groups, shared in feed.hubs.items():
            if shared.hub is None:
                self._open(groups, shared)
            else:
                hub, feeds = shared.hub, self._feeds
                known = {group: feeds[group].position or FeedPosition(hub.passed(group)) for group in groups}
                hub.start_over(known)
                self._wake(hub)

    def _move_behind(self, hub: Hub, wanted: int) -> None:
        """Make groups that are behind, or idle, pass a revision that others wait for."""
        for group in hub.groups:
            if hub.passed(group) < wanted:
                feed = self._feeds[group]
                if feed.mover is None or feed.mover.done():
                    feed.mover = asyncio.create_task(self._move(group, wanted))

    async def _move(self, group: GroupId, revision: int) -> None:
        with contextlib.suppress(errors.StoreError):
            await self._groups.move(group, revision)

    async def _mark(self) -> None:
        """Now and then, move groups to the present, for marks of progress. If each were moved past all others
        all the time, none would ever be idle.
        """
        loop = asyncio.get_running_loop()
        while True:
            interval = IDLE_S
            for shared in list(self._hubs.values()):
                hub = shared.hub
                if hub is None:
                    continue
                progress_s = self._paced(min(shared.progress.values()))
                interval = min(interval, progress_s / 4)
                wanted = hub.wanted
                if loop.time() >= shared.marked_at + progress_s * 3 / 4:
                    shared.marked_at = loop.time()
                    wanted = max(wanted, timestamp(self._groups.newest(), GroupId(0)))
                self._move_behind(hub, wanted)
            await asyncio.sleep(interval)

    # Watchers of history

    async def _catch_up(
        self,
        after: int,
        audience: Audience | None,
        ranges: tuple[Range, ...],
        groups: tuple[GroupId, ...],
        until: int,
        progress_s: float,
    ) -> AsyncIterator[Batch]:
        """Read history until the hub has all that follows, or for ever."""
        merged = MergedFeed(dict.fromkeys(groups, FeedPosition(after)))
        read = partial(self._read, ranges)
        feeds = [FeedReader(group, merged, read, self._move) for group in groups]
        loop = asyncio.get_running_loop()
        passed_on, passed_on_at = after, loop.time()
        idle_s = AGAIN_S
        try:
            while True:
                for feed in feeds:
                    feed.start()
                if reading := [feed.task for feed in feeds if feed.task is not None]:
                    await asyncio.wait(reading, timeout=IDLE_S, return_when=asyncio.FIRST_COMPLETED)
                before = merged.positions
                began = self._work_clock()
                for feed in feeds:
                    feed.take()
                upto = merged.complete
                found = merged.drain()
                self._read_at = max(self._read_at, loop.time()) + PAUSES * (self._work_clock() - began)
                overdue = loop.time() >= passed_on_at + self._paced(progress_s)
                if found or (upto > passed_on and (overdue or 0 < until <= upto)):
                    passed_on, passed_on_at = upto, loop.time()
                    yield _until(Batch(upto, found), until)
                if audience is not None and not merged.begun and upto >= audience.since:
                    if upto > passed_on:
                        yield Batch(upto, ())
                    return
                wanted = max(merged.wanted, until, audience.since if audience is not None else 0)
                if overdue:
                    wanted = max(wanted, timestamp(self._groups.newest(), GroupId(0)))
                for feed in feeds:
                    if feed.stalled and feed.upto < wanted:
                        feed.move(wanted)
                if merged.positions == before:
                    await asyncio.sleep(idle_s)
                    idle_s = min(2 * idle_s, IDLE_S, progress_s)
                else:
                    idle_s = AGAIN_S
        finally:
            for feed in feeds:
                feed.close()

    async def _read(self, ranges: tuple[Range, ...], group: GroupId, after: int, skip: int) -> Changes:
        """Ask for history, in turns with other watchers that do."""
        async with self._history:
            pause = self._read_at - asyncio.get_running_loop().time()
            if pause > 0.0:
                await asyncio.sleep(pause)
            question = Feed(after, ranges, self._page_bytes, 0.0, skip)
            return await self._groups.changes(group, question, of_leader=False)


def _until(batch: Batch, until: int) -> Batch:
    """Leave out what is above the revision at which the watch ends."""
    if not until:
        return batch
    found = tuple(piece for piece in batch.transactions if piece.revision <= until)
    return Batch(min(batch.revision, until), found)


def _size(batch: Batch) -> int:
    return sum(piece.size for piece in batch.transactions)


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
