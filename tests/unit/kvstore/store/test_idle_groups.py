"""Reads, scans and watches over groups that are idle, behind or gone, without nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvstore.machine import Limits, Placement, Scheme
from kvstore.machine.commands import Command
from kvstore.machine.request import Get, Range
from kvstore.machine.results import Got
from kvstore.store.errors import Overloaded
from kvstore.store.gateway import Ordered
from kvstore.store.questions import Changes, Event, Feed, NotYetReply, ReadAt, Values
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
            self._feeds.append((group, question, done))
            self._feed()
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
            if self.near[group] > question.after:
                found = tuple(change for change in self.changes[group] if change[0] > question.after)
                asyncio.get_running_loop().call_soon(done, Changes(self.near[group], found))
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
        assert [events for _, events in first.transactions] == [(event,)]
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
