"""The machines of 1-4 groups, two replicas each, against a store that executes everything serially.

Deliveries of different replicas interleave at random, votes arrive late, early, repeated and in any order,
replicas crash and go on from their last durable picture. Whatever the schedule: the same results, the same
values at every revision, the same rows, and nothing waits for ever.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.machine.machine import Executed, Machine, Picture, Store, Vote
from kvstore.machine.ordered import MemoryMap
from kvstore.machine.placement import Placement
from kvstore.machine.request import Range
from kvstore.machine.results import Refusal, Refused, Result
from kvstore.machine.versions import Compacted, NotYet
from multicast.types import GroupId
from tests.unit.machine.model import Model, ordered
from tests.unit.machine.workload import LIMITS, WINDOW, Workload, some_workload

ALL = Range(b"", None)


def copy_of(store: Store) -> Store:
    maps = (store.latest, store.history, store.lows, store.results)
    return Store(*(m.copy() for m in maps if isinstance(m, MemoryMap)))


def plain(result: Result | Refusal) -> Result | Refusal:
    return result.refusal if isinstance(result, Refused) else result


class Replica:
    """One machine, its disk, and the messages on their way to it."""

    def __init__(self, group: GroupId, placement: Placement, model: Model, workload: Workload) -> None:
        self.group = group
        self.model = model.groups[group]
        self.messages = [m for m in workload.messages if group in m.destinations]
        self.votes: list[Vote] = []
        self.answers: dict[int, Result | Refusal] = {}
        self.disk = (Store(), Picture(placement))
        self.restart()

    def restart(self) -> None:
        store, picture = self.disk
        self.store = copy_of(store)
        self.machine = Machine(self.group, self.store, picture, LIMITS, WINDOW)

    def save(self) -> None:
        self.disk = (copy_of(self.store), self.machine.picture())

    def next(self) -> int:
        return sum(m.gts <= self.machine.delivered for m in self.messages)

    def idle(self) -> bool:
        return self.next() == len(self.messages)

    def deliver(self) -> None:
        self.machine.deliver(self.messages[self.next()])

    def note(self, executed: Executed) -> None:
        gts, result = executed.delivered.gts, plain(executed.result)
        assert self.answers.setdefault(gts, result) == result, "another result after a crash"

    def check_watermark(self) -> None:
        """What is shown at the watermark is what it will always be."""
        watermark = self.machine.watermark
        if watermark >= self.machine.versions.floor:
            found = list(self.machine.versions.scan_at(ALL, watermark))
            assert found == list(ordered(self.model.at(watermark), ALL, reverse=False))
        with pytest.raises(NotYet):
            list(self.machine.versions.scan_at(ALL, max(watermark, self.machine.versions.floor) + 1))

    def check_end(self) -> None:
        machine, model = self.machine, self.model
        assert machine.watermark == machine.delivered == (self.messages[-1].gts if self.messages else 0)
        picture = machine.picture()
        assert not picture.waiting
        assert not picture.executed
        assert not picture.votes
        assert not len(machine._locks)
        assert picture.floor == model.floor
        assert dict(picture.pins) == model.pins
        for gts, expected in model.answers:
            if gts not in self.answers:
                repeated = next(m for m in self.messages if m.gts == gts)
                assert any(m.gts < gts and m.mid == repeated.mid for m in self.messages)
            else:
                assert self.answers[gts] == plain(expected), gts
        if not machine.watermark >= model.floor:
            return
        for reverse in (False, True):
            for revision in range(model.floor, machine.watermark + 1, 97):
                self.check_revision(revision, reverse=reverse)
            for revision, _ in model.states:
                if revision >= model.floor:
                    self.check_revision(revision, reverse=reverse)
        if model.floor:
            with pytest.raises(Compacted):
                machine.versions.get_at(b"a", model.floor - 1)
        self.check_feed()

    def check_revision(self, revision: int, *, reverse: bool) -> None:
        values = self.model.at(revision)
        found = list(self.machine.versions.scan_at(ALL, revision, reverse=reverse))
        assert found == list(ordered(values, ALL, reverse=reverse)), revision
        for key in (b"a", b"d", b"f{x}"):
            version = self.machine.versions.get_at(key, revision)
            assert (None if version is None else (key, *version)) == values.get(key)

    def check_feed(self) -> None:
        """Played on the state at the floor, the feed gives every later state."""
        values = dict(self.model.at(self.model.floor))
        later = [(r, s) for r, s in self.model.states if r > self.model.floor]
        feed = list(self.machine.versions.changes(self.model.floor))
        assert [r for r, _ in feed] == [r for r, _ in later]
        for (revision, row), (_, expected) in zip(feed, later, strict=True):
            for change in row:
                old = values.pop(change.key, None)
                assert old is None or change.previous == old.mod_revision
                if change.value is not None:
                    entry = (change.key, change.value, change.create_revision, revision, change.version)
                    values[change.key] = expected[change.key]
                    assert expected[change.key] == entry
            assert values == expected


class World:
    """All replicas, and the schedule."""

    def __init__(self, rng: random.Random, count: int) -> None:
        self.rng = rng
        self.workload = some_workload(rng, count)
        placement = self.workload.placement
        self.model = Model(placement, LIMITS, WINDOW)
        for message in self.workload.messages:
            self.model.execute(message)
        self.replicas = [
            Replica(g, placement, self.model, self.workload) for g in placement.groups for _ in range(2)
        ]

    def drain(self, replica: Replica) -> None:
        effects = replica.machine.drain()
        for executed in effects.results:
            replica.note(executed)
        for vote, groups in effects.votes:
            for other in self.replicas:
                if other.group in groups:
                    other.votes.append(vote)
        replica.check_watermark()

    def pull(self, replica: Replica) -> None:
        """Ask the other groups again, as one does that has waited too long."""
        for waiting in replica.machine.picture().waiting:
            for other in self.replicas:
                vote = other.machine.told(waiting.delivered.gts)
                if vote is not None and other.group != replica.group:
                    replica.votes.append(vote)

    def step(self) -> None:
        rng = self.rng
        replica = rng.choice(self.replicas)
        kind = rng.random()
        if kind < 0.55:
            if not replica.idle():
                replica.deliver()
        elif kind < 0.85:
            if replica.votes:
                at = rng.randrange(len(replica.votes))
                vote = replica.votes[at] if rng.random() < 0.1 else replica.votes.pop(at)
                replica.machine.vote(vote)
        elif kind < 0.95:
            replica.save()
        else:
            replica.restart()
        self.drain(replica)

    def finish(self) -> None:
        for _ in range(2 * len(self.workload.messages) + 2):
            for replica in self.replicas:
                while not replica.idle():
                    replica.deliver()
                self.pull(replica)
                while replica.votes:
                    replica.machine.vote(replica.votes.pop())
                self.drain(replica)
        for replica in self.replicas:
            replica.check_end()
        for one, other in zip(self.replicas[::2], self.replicas[1::2], strict=True):
            assert one.store == other.store


def run(rng: random.Random, count: int, steps: int) -> None:
    world = World(rng, count)
    for _ in range(steps):
        world.step()
    world.finish()


@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.randoms(use_true_random=False), st.integers(1, 8))
def test_small_worlds(rng: random.Random, count: int) -> None:
    run(rng, count, 10 * count)


@pytest.mark.parametrize("seed", range(60))
def test_worlds(seed: int) -> None:
    run(random.Random(seed), 40, 500)
