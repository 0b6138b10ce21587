"""Reads, scans and watches over groups that are idle, behind or gone, without nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from kvstore.machine import Limits, Placement, Scheme
from kvstore.machine.commands import Command
from kvstore.machine.request import Get, Range
from kvstore.machine.results import Got
from kvstore.store import watches
from kvstore.store.errors import Compacted, Overloaded
from kvstore.store.gateway import Ordered
from kvstore.store.questions import Changes, CompactedReply, Event, Feed, NotYetReply, ReadAt, Values
from kvstore.store.service import Batch, Consistency, Service
from multicast.types import GroupId

A, B = GroupId(0), GroupId(1)
ALL = Range(b"", None)


class Groups:
    """Groups that only count: what they have executed moves by ticks. Replicas near us may be behind."""

    limits = Limits()
    placement = Placement(1, Scheme.ORDERED, (b"", b"m"), (A, B), (A, B))

    def __init__(self, **near: int) -> None:
        self.time = 10
        self.near = {A: near["a"], B: near["b"]}
        self.leader = dict(self.near)
        self.ticks = 0
        self.full = self.dead = self.stuck = False
        """Whether the gateway takes no more, the leaders order nothing, and near replicas learn nothing."""
        self.changes: dict[GroupId, tuple[tuple[int, tuple[Event, ...]], ...]] = {A: (), B: ()}
        self._feeds: list[tuple[GroupId, Feed, Callable[[Any], None]]] = []
        self.asked = self.cuts = self.most_at_once = 0
        """How many questions for changes there were, how many cuts, and how many questions at once."""
        self.floor = self._at_once = 0

    def knows(self, revision: int) -> bool:
        return True

    def newest(self) -> int:
        return self.time

    def forget(self, number: int) -> None:
        pass

    def command(
        self, group: GroupId, command: Command, done: Callable[[Any], None], *, at_least: int
    ) -> None:
        if self.full:
            raise Overloaded("full")
        self.ticks += 1
        if not self.dead:
            asyncio.get_running_loop().call_later(0.001, self._tick, group, done)

    def cut(self, ranges: tuple[Range, ...], done: Callable[[Any], None]) -> None:
        self.cuts += 1
        self.time += 1
        for group in (A, B):
            self.leader[group] = self.near[group] = self.time
        self._feed()
        asyncio.get_running_loop().call_later(0.001, done, Ordered(self.time))

    def _tick(self, group: GroupId, done: Callable[[Any], None]) -> None:
        self.move(group)
        done(Ordered(self.leader[group]))

    def move(self, group: GroupId, *events: Event) -> int:
        """The group's next transaction. Returns its revision."""
        self.time += 1
        self.leader[group] = self.time
        if not self.stuck:
            self.near[group] = self.time
        if events:
            self.changes[group] += ((self.time, events),)
        self._feed()
        return self.time

    def ask(self, group: GroupId, question: object, done: Callable[[Any], None], *, of_leader: bool) -> int:
        executed = (self.leader if of_leader else self.near)[group]
        if isinstance(question, Feed):
            self.asked += 1
            self._feeds.append((group, question, done))
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            asyncio.get_running_loop().call_soon(self._feed)
            return 0
        assert isinstance(question, ReadAt)
        answer: Values | NotYetReply = Values(
            question.revision or executed, tuple(Got(None) for _ in question.operations)
        )
        if question.revision > executed:
            answer = NotYetReply(executed)
        asyncio.get_running_loop().call_soon(done, answer)
        return 0

    def _feed(self) -> None:
        waiting = []
        for group, question, done in self._feeds:
            upto, after = self.near[group], question.after
            if upto > after or not question.wait_s:
                found = tuple(change for change in self.changes[group] if change[0] > after)
                answer: Changes | CompactedReply = Changes(max(upto, after), found, after=after)
                if after < self.floor:
                    answer = CompactedReply(self.floor)
                self._at_once -= 1
                asyncio.get_running_loop().call_soon(done, answer)
            else:
                waiting.append((group, question, done))
        self._feeds = waiting


def run(groups: Groups, test: Callable[[Service], Awaitable[None]]) -> None:
    async def main() -> None:
        gateway: Any = groups
        async with asyncio.timeout(20):
            await test(Service(gateway, lambda: None))

    asyncio.run(main())


def test_a_group_that_could_not_be_moved_is_moved_later() -> None:
    groups = Groups(a=5, b=5)

    async def test(store: Service) -> None:
        groups.full = True
        with pytest.raises(Overloaded):
            await store.read((Get(b"a"),), revision=8, timeout_s=5)
        groups.full = False
        found = await store.read((Get(b"a"),), revision=8, timeout_s=5)
        assert found.revision == 8

    run(groups, test)


def test_nothing_is_read_at_no_revision() -> None:
    # 0 means "as of now" to a replica: of two groups that would be two moments.
    groups = Groups(a=9, b=0)

    async def test(store: Service) -> None:
        found = await store.read((Get(b"a"), Get(b"n")), consistency=Consistency.SERIALIZABLE, timeout_s=5)
        assert found.revision == 9

    run(groups, test)


def test_who_is_behind_is_not_waited_for() -> None:
    groups = Groups(a=5, b=5)
    groups.stuck = True
    groups.leader = {A: 9, B: 9}

    async def test(store: Service) -> None:
        both = (Get(b"a"), Get(b"n"))
        for keys, revision, min_revision in (
            ((Get(b"a"),), 8, 0),
            (both, 8, 0),
            ((Get(b"a"),), 0, 8),
            (both, 0, 8),
        ):
            await store.read(
                keys,
                consistency=Consistency.SERIALIZABLE,
                revision=revision,
                min_revision=min_revision,
                timeout_s=5,
            )
        assert groups.ticks == 0

    run(groups, test)


@pytest.mark.parametrize(("revision", "min_revision"), [(11, 0), (0, 11)])
@pytest.mark.parametrize("stuck", [False, True])
def test_an_idle_group_is_read_as_soon_as_it_was_moved(
    monkeypatch: pytest.MonkeyPatch, revision: int, min_revision: int, *, stuck: bool
) -> None:
    groups = Groups(a=5, b=5)
    groups.stuck = stuck
    naps = naps_of(monkeypatch)

    async def test(store: Service) -> None:
        await store.read(
            (Get(b"a"),),
            consistency=Consistency.SERIALIZABLE,
            revision=revision,
            min_revision=min_revision,
            timeout_s=5,
        )

    run(groups, test)
    assert (groups.ticks, naps) == (1, [])


@pytest.mark.parametrize(("revision", "min_revision"), [(12, 0), (0, 12)])
def test_a_group_that_is_not_there_after_it_was_moved_gets_time(
    monkeypatch: pytest.MonkeyPatch, revision: int, min_revision: int
) -> None:
    groups = Groups(a=5, b=5)
    naps = naps_of(monkeypatch)

    async def test(store: Service) -> None:
        await store.read(
            (Get(b"a"),),
            consistency=Consistency.SERIALIZABLE,
            revision=revision,
            min_revision=min_revision,
            timeout_s=5,
        )

    run(groups, test)
    assert (groups.ticks, len(naps)) == (2, 1)


def naps_of(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was slept, from now on."""
    naps: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay_s: float) -> None:
        naps.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    return naps


def test_a_watch_leaves_idle_groups_alone() -> None:
    groups = Groups(a=5, b=5)
    event = Event(b"a", b"1", 1, 1)

    async def test(store: Service) -> None:
        watch = store.watch(after=5, ranges=(ALL,), progress_s=0.5)
        later = asyncio.get_running_loop().call_later(0.05, groups.move, A, event)
        first = await anext(watch)
        assert [piece.events for piece in first.transactions] == [(event,)]
        assert groups.ticks <= 2  # B had to pass it
        marks = [await anext(watch) for _ in range(2)]
        assert all(isinstance(mark, Batch) and not mark.transactions for mark in marks)
        assert groups.ticks <= 10
        later.cancel()

    run(groups, test)


def test_a_watch_of_groups_that_are_gone_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups(a=5, b=5)
    groups.dead = True
    waits = 0
    wait = asyncio.wait

    async def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal waits
        waits += 1
        return await wait(*arguments, **more)

    monkeypatch.setattr(asyncio, "wait", counted)

    async def test(store: Service) -> None:
        watch = store.watch(after=5, ranges=(ALL,), progress_s=0.05)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await anext(watch)

    run(groups, test)
    assert waits < 30


# Many watchers


async def _events(
    store: Service, after: int, count: int, begun: asyncio.Semaphore | None = None
) -> list[bytes]:
    """The keys of so many events. `begun` is told when a watch from now on has begun."""
    found: list[bytes] = []
    watch = store.watch(after=after, ranges=(ALL,), progress_s=5.0)
    async with aclosing(watch):  # type: ignore[type-var]  # a generator
        if begun is not None:
            await anext(watch)
            begun.release()
        async for batch in watch:
            found += [event.key for piece in batch.transactions for event in piece.events]
            if len(found) >= count:
                break
    return found


@pytest.mark.parametrize("after", [5, 0])
def test_many_watchers_ask_as_little_as_one(after: int) -> None:
    questions = []
    for watchers in (1, 200):
        groups = Groups(a=5, b=5)

        async def test(store: Service, groups: Groups = groups, watchers: int = watchers) -> None:
            begun = asyncio.Semaphore(0)
            told = None if after else begun
            tasks = [asyncio.create_task(_events(store, after, 50, told)) for _ in range(watchers)]
            for _ in range(0 if after else watchers):
                await begun.acquire()
            for number in range(50):
                groups.move(A, Event(b"a%02d" % number, b"1", 1, 1))
                await asyncio.sleep(0)
            for found in await asyncio.gather(*tasks):
                assert found == [b"a%02d" % number for number in range(50)]

        run(groups, test)
        questions.append((groups.asked, groups.cuts))
    (one, cuts), (many, more_cuts) = questions
    assert many <= 2 * one + 20
    assert more_cuts <= 2 * max(cuts, 1)


def test_watchers_behind_the_hub_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "READERS", 2)
    groups = Groups(a=5, b=5)
    for number in range(20):
        groups.move(A, Event(b"a%02d" % number, b"1", 1, 1))
        groups.move(B)

    async def test(store: Service) -> None:
        found = await asyncio.gather(*(_events(store, 5, 20) for _ in range(50)))
        assert all(each == [b"a%02d" % number for number in range(20)] for each in found)
        assert groups.most_at_once <= 2 + 2  # and the feeds

    run(groups, test)


def test_watchers_of_too_many_sets_of_groups_are_served_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "HUBS", 0)
    groups = Groups(a=5, b=5)

    async def test(store: Service) -> None:
        begun = asyncio.Semaphore(0)
        watching = asyncio.create_task(_events(store, 0, 2, begun))
        await begun.acquire()
        for number in range(2):
            groups.move(A, Event(b"a%02d" % number, b"1", 1, 1))
        assert await watching == [b"a00", b"a01"]

    run(groups, test)


def test_a_feed_that_finds_its_position_compacted_begins_again() -> None:
    groups = Groups(a=5, b=5)

    async def test(store: Service) -> None:
        watching = asyncio.create_task(_events(store, 5, 2))
        await asyncio.sleep(0.05)
        groups.floor = 8
        groups.move(A, Event(b"a0", b"1", 1, 1))
        groups.move(A, Event(b"a1", b"1", 1, 1))
        with pytest.raises(Compacted):
            await watching
        late = asyncio.create_task(_events(store, groups.time, 1))
        await asyncio.sleep(0.05)
        groups.move(A, Event(b"a2", b"1", 1, 1))
        assert await late == [b"a2"]

    run(groups, test)


def test_nothing_is_left_when_the_last_watcher_has_gone() -> None:
    groups = Groups(a=5, b=5)

    async def test(store: Service) -> None:
        for after in (5, 0):
            watching = [asyncio.create_task(_events(store, after, 1)) for _ in range(3)]
            await asyncio.sleep(0.02)
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        await asyncio.sleep(0.02)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left
        assert not store._watches._hubs
        assert not store._watches._feeds

    run(groups, test)
