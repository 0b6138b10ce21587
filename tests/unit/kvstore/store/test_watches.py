"""Marks of progress: as often as a watcher asks for, unless there are many watchers."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from kvstore.machine.request import Range
from kvstore.simulation.event_loop import SimEventLoop
from kvstore.store.feeds import MergedFeed
from kvstore.store.questions import Changes, Feed
from kvstore.store.watches import PACE_S, PAUSES, Watches
from multicast.sim.network import Loop
from multicast.types import TICKS_PER_S, GroupId, timestamp

GROUP = GroupId(0)
SECONDS = 10.0


class IdleGroup:
    """A group without changes, which passes any revision that it is asked to."""

    def __init__(self) -> None:
        self._upto = self._now()

    def _now(self) -> int:
        return timestamp(self.newest(), GROUP)

    def newest(self) -> int:
        return int((100.0 + asyncio.get_running_loop().time()) * TICKS_PER_S)

    async def cut(self) -> int:
        return self._now()

    async def position(self, _: GroupId) -> int:
        return self._upto

    async def changes(self, _: GroupId, question: Feed, *, of_leader: bool) -> Changes:
        await asyncio.sleep(0.001 if self._upto > question.after else 0.01)
        return Changes(max(self._upto, question.after), (), after=question.after)

    async def move(self, _: GroupId, revision: int) -> None:
        self._upto = max(self._upto, revision)


def marks(count: int, progress_s: float) -> Counter[int]:
    """How many marks each of so many watchers gets in ten seconds, in virtual time."""
    found: Counter[int] = Counter()

    async def one(watches: Watches, number: int) -> None:
        after = timestamp(watches._groups.newest(), GROUP)
        ranges, groups = (Range(b"", None),), (GROUP,)
        batches = watches.watch(after=after, ranges=ranges, groups=groups, until=0, progress_s=progress_s)
        async for _ in batches:
            found[number] += 1

    async def main() -> None:
        watches = Watches(IdleGroup())
        tasks = [asyncio.create_task(one(watches, number)) for number in range(count)]
        await asyncio.sleep(SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    loop = Loop()
    SimEventLoop(loop, "a node").create_task(main())  # type: ignore[abstract]  # see the module
    while loop.step():
        pass
    return found


def test_a_lone_watcher_gets_marks_as_often_as_it_asks_for() -> None:
    (count,) = marks(1, 0.1).values()
    assert 0.5 * SECONDS / 0.1 <= count <= SECONDS / 0.1


def test_many_watchers_share_a_bounded_number_of_marks() -> None:
    found = marks(400, 0.05)
    assert len(found) == 400, "each gets some"
    assert 0.4 * SECONDS / PACE_S <= found.total() <= SECONDS / PACE_S + 400


class LongHistory(IdleGroup):
    """A group with changes for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def changes(self, _: GroupId, question: Feed, *, of_leader: bool) -> Changes:
        await asyncio.sleep(0.0001)
        self.asked += not question.wait_s
        return Changes(question.after + 1, (), after=question.after)


def test_readers_of_history_share_a_third_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """To merge a page is a third of what it costs: it is encoded and sent, too."""
    merge_s, worked = 0.001, Counter[str]()
    groups: list[LongHistory] = []
    take = MergedFeed.take

    def slow_take(merged: MergedFeed, group: GroupId, changes: Changes) -> None:
        worked["pages"] += 1
        take(merged, group, changes)

    monkeypatch.setattr(MergedFeed, "take", slow_take)

    async def one(watches: Watches) -> None:
        ranges = (Range(b"", None),)
        async for _ in watches.watch(after=1, ranges=ranges, groups=(GROUP,), until=0, progress_s=0.1):
            pass

    async def main() -> None:
        groups.append(LongHistory())
        watches = Watches(groups[0], work_clock=lambda: worked["pages"] * merge_s)
        tasks = [asyncio.create_task(one(watches)) for _ in range(100)]
        await asyncio.sleep(SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    loop = Loop()
    SimEventLoop(loop, "a node").create_task(main())  # type: ignore[abstract]  # see the module
    while loop.step():
        pass
    assert 0.8 <= groups[0].asked * merge_s * PAUSES / SECONDS <= 1.2
