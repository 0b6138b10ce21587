"""Reads that are too long for one step of a replica: the service goes on page by page, at real partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvstore.machine import Limits, Machine, MachineState, Placement, Scheme, Store
from kvstore.machine.commands import Compact, Tick
from kvstore.machine.request import Get, Put, Range, ReadOperation, Scan, Shape, Transaction
from kvstore.machine.results import Got, KeyValue, OperationResult, Scanned
from kvstore.machine.slices import SLICE_ROWS
from kvstore.store import partition as partitions
from kvstore.store import share
from kvstore.store.gateway import Ordered
from kvstore.store.messages import Answer, Query
from kvstore.store.partition import Partition
from kvstore.store.questions import Question, StrictRead
from kvstore.store.service import Consistency, Service
from multicast.types import GroupId, timestamp
from tests.unit.kvstore.store.test_partition import GATEWAY, Leader, delivery

A, B = GroupId(0), GroupId(1)
KEYS = 60
SLICE = 7
"""Rows of a step in these tests."""
ALL = Range(b"", None)


class Groups:
    """Two partitions and a gateway that passes messages on."""

    limits = Limits()
    placement = Placement(1, Scheme.ORDERED, (b"", b"k3"), (A, B), (A, B))
    groups = (A, B)

    def __init__(self) -> None:
        self.partitions = {group: self._partition(group) for group in self.groups}
        self.time = 1
        self.asked: list[tuple[GroupId, Question]] = []
        self.forgotten: list[int] = []
        self.before = self.order({A: (Put(b"a", b"old"),), B: (Put(b"z", b"old"),)})
        for number in range(KEYS):
            key = b"k%d" % number
            self.order({self.placement.group_of(key): (Put(key, b"v"),)})
        self.loaded = timestamp(self.time, A)

    def _partition(self, group: GroupId) -> Partition:
        replica: Any = Leader(group)
        replica.readers, replica.others = (replica.me,), ()
        replica.readers = ((replica.me,), 1)
        return Partition(replica, Machine(group, Store(), MachineState(self.placement)))

    def order(self, writes: dict[GroupId, tuple[Any, ...]], command: Any = None) -> int:
        """The next position of all groups: writes, or nothing."""
        self.time += 1
        for group, partition in self.partitions.items():
            what = command or (Transaction(then=writes[group]) if group in writes else Tick())
            partition.deliver([delivery(self.time, what, (group,))])
            partition.turn(0.0)
        return timestamp(self.time, A)

    def knows(self, revision: int) -> bool:
        return revision <= timestamp(self.time, A)

    def cut(self, ranges: tuple[Range, ...], done: Callable[[Any], None]) -> None:
        revision = self.order({}, Tick(ranges))
        asyncio.get_running_loop().call_soon(done, Ordered(revision))

    def ask(self, group: GroupId, question: Question, done: Callable[[Any], None], *, of_leader: bool) -> int:
        assert of_leader is isinstance(question, StrictRead)
        self.asked.append((group, question))
        partition = self.partitions[group]
        partition.receive(GATEWAY, Query(len(self.asked), question), 0.0)
        for _ in range(10):
            partition.work(0.0)
            for _, _, message in partition.turn(0.0):
                if isinstance(message, Answer) and message.number == len(self.asked):
                    asyncio.get_running_loop().call_soon(done, message.response)
                    return len(self.asked)
        raise AssertionError(f"there is no answer to {question}")

    def forget(self, number: int) -> None:
        self.forgotten.append(number)


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SLICE_ROWS > SLICE
    monkeypatch.setattr(share, "SLICE_ROWS", SLICE)
    monkeypatch.setattr(partitions, "SHORT_ROWS", SLICE)


def run(test: Callable[[Groups, Service], Awaitable[None]]) -> Groups:
    groups = Groups()

    async def main() -> None:
        gateway: Any = groups
        async with asyncio.timeout(60):
            await test(groups, Service(gateway, lambda: None, page_bytes=50))

    asyncio.run(main())
    return groups


def keys_between(start: bytes, end: bytes | None) -> list[bytes]:
    keys = sorted([b"a", b"z", *(b"k%d" % number for number in range(KEYS))])
    return [key for key in keys if start <= key and (end is None or key < end)]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_of_the_past_goes_on_past_pages_without_entries(reverse: bool) -> None:  # noqa: FBT001
    async def test(groups: Groups, service: Service) -> None:
        found: list[KeyValue] = []
        parts = empty = 0
        async for part in service.scan(ALL, revision=groups.before, reverse=reverse, timeout_s=5.0):
            found += part.entries
            parts += 1
            empty += part.resume is not None and not part.entries
        assert [entry.key for entry in found] == [b"z", b"a"][:: 1 if reverse else -1]
        assert [entry.value for entry in found] == [b"old", b"old"]
        assert empty >= KEYS // SLICE // 2, "a caller hears how far the scan is"

    run(test)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [0, 1, SLICE, 40])
def test_a_scan_of_the_present(reverse: bool, limit: int) -> None:  # noqa: FBT001
    async def test(groups: Groups, service: Service) -> None:
        found = []
        async for part in service.scan(ALL, limit=limit, reverse=reverse, timeout_s=5.0):
            found += [entry.key for entry in part.entries]
            if part.resume is not None:
                known = [key for key in keys_between(b"", None) if (key < part.resume) is not reverse]
                assert found[: limit or None] == (known[::-1] if reverse else known)[: limit or None]
        expected = keys_between(b"", None)[:: -1 if reverse else 1]
        assert found == expected[: limit or None]

    run(test)


COUNT = Scan(ALL, shape=Shape.COUNT)
HERE = Range(b"", b"k3")


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ((COUNT,), [KEYS + 2]),
        ((Scan(HERE, shape=Shape.COUNT), Get(b"a"), Scan(HERE)), None),
        ((Scan(HERE, limit=3), Scan(HERE, limit=3, reverse=True), Get(b"k1")), None),
        ((Scan(HERE, limit_bytes=40), Scan(HERE, shape=Shape.KEYS, reverse=True), Get(b"gone")), None),
        ((Get(b"a"), Scan(HERE), Get(b"k10"), Scan(HERE)), None),
    ],
)
@pytest.mark.parametrize("consistency", [Consistency.STRICT, Consistency.SERIALIZABLE])
def test_reads_are_the_same_whether_they_take_one_step_or_many(
    operations: tuple[ReadOperation, ...],
    expected: list[int] | None,
    consistency: Consistency,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[OperationResult, ...]] = []

    async def test(groups: Groups, service: Service) -> None:
        committed = await service.read(operations, consistency=consistency, timeout_s=5.0)
        found.append(committed.results)
        if expected is not None:
            assert [each.count for each in committed.results if isinstance(each, Scanned)] == expected

    many = len(run(test).asked)
    monkeypatch.setattr(share, "SLICE_ROWS", SLICE_ROWS)
    monkeypatch.setattr(partitions, "SHORT_ROWS", SLICE_ROWS)
    assert len(run(test).asked) <= min(many, 4)
    assert many > 4 or operations[0] == Scan(HERE, limit=3)
    assert found[0] == found[1]


def test_an_old_version_far_down_the_chain() -> None:
    async def test(groups: Groups, service: Service) -> None:
        for _ in range(5 * SLICE):
            groups.order({A: (Put(b"a", b"new"), Put(b"b", b"new"))})
        for operation in (Get(b"a"), Scan(Range(b"", b"c")), Scan(Range(b"", b"c"), reverse=True)):
            committed = await service.read((operation,), revision=groups.before, timeout_s=5.0)
            (result,) = committed.results
            entries = [result.entry] if isinstance(result, Got) else getattr(result, "entries", ())
            assert [entry.value for entry in entries if entry is not None] == [b"old"]

    run(test)


def test_a_strict_read_that_a_compaction_overtakes_begins_anew() -> None:
    async def test(groups: Groups, service: Service) -> None:
        cut = groups.cut
        cuts = 0

        def and_compact(ranges: tuple[Range, ...], done: Callable[[Any], None]) -> None:
            nonlocal cuts
            cuts += 1
            cut(ranges, done)
            if cuts == 1:
                groups.order({}, Compact(timestamp(groups.time + 1, A)))

        groups.cut = and_compact  # type: ignore[method-assign]
        for operations in ((Scan(HERE, shape=Shape.COUNT),), (COUNT,)):
            cuts = 0
            committed = await service.read(operations, timeout_s=5.0)
            assert cuts == 2
            assert committed.results[0] == Scanned((), len(keys_between(*operations[0].range)), more=False)

    run(test)


def test_nothing_is_read_for_a_caller_that_has_gone() -> None:
    async def test(groups: Groups, service: Service) -> None:
        parts = service.scan(ALL, revision=groups.loaded, timeout_s=5.0)
        async for part in parts:
            if part.entries:
                break
        await parts.aclose()  # type: ignore[attr-defined]  # a generator
        asked = len(groups.asked)
        reading = asyncio.ensure_future(service.read((COUNT,), revision=groups.loaded, timeout_s=5.0))
        while len(groups.asked) < asked + 2:
            await asyncio.sleep(0)
        reading.cancel()
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(groups.asked) <= asked + 3

    run(test)
