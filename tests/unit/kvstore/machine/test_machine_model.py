"""The machines of 1-4 groups, two replicas each, against a store that executes everything serially.

Deliveries of different replicas interleave at random, votes and outcomes arrive late, early, repeated, in any
order or not at all, compaction and transactions on ranges go on in slices, of another size in every replica,
replicas crash and go on from the bytes of their last
durable state and rows. Whatever the schedule: the same results, the same values at every revision, the same
rows, reads that see what was delivered and nothing else, and nothing waits for ever.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from kvstore.machine.codec import TABLES, decode_machine_state, encode_machine_state
from kvstore.machine.commands import Command
from kvstore.machine.machine import Machine
from kvstore.machine.placement import GroupShare, Placement, share_of
from kvstore.machine.request import Condition, Footprint, Operation, Range, Transaction
from kvstore.machine.results import (
    Aborted,
    Decision,
    Deleted,
    Failed,
    Fault,
    KeyValue,
    Outcome,
    Refusal,
    Refused,
    Result,
)
from kvstore.machine.state import Executed, MachineState, Store, Vote
from kvstore.machine.versions import Compacted, NotYet
from kvstore.simulation.model import Model, ordered
from multicast.errors import InvariantBroken, PeerViolation
from multicast.types import GroupId, Timestamp
from tests.sim import abort_mutants as aborts
from tests.sim import store_mutants as mutants
from tests.unit.kvstore.machine.workload import KEYS, LIMITS, WINDOW, Workload, some_range, some_workload

ALL = Range(b"", None)


def copy_of(store: Store) -> Store:
    """Through bytes, as a disk would have it."""
    copy = Store()
    for name, table in TABLES.items():
        rows: list[tuple[bytes, bytes]] = []
        for key, value in all_rows(store, name):
            rows.append((table.encode_key(key), table.encode(value)))
        assert rows == sorted(rows), "keys are not in order"
        for raw, row in rows:
            getattr(copy, name).put(table.decode_key(raw), table.decode(row))
    return copy


def all_rows(store: Store, name: str) -> list[tuple[Any, Any]]:
    lowest: dict[str, Any] = {"latest": b"", "sessions": (0, ()), "results": (0, (), 0)}
    return list(getattr(store, name).items(lowest.get(name, 0), None))


def plain(result: Result | Refusal) -> Result | Refusal:
    return result.refusal if isinstance(result, Refused) else result


class Replica:
    """One machine, its disk, and the messages on their way to it."""

    def __init__(
        self, group: GroupId, placement: Placement, model: Model, workload: Workload, slice_rows: int
    ) -> None:
        self.group = group
        self.model = model.groups[group]
        self.messages = [m for m in workload.messages if group in m.destinations]
        self.facts: list[Vote | tuple[Timestamp, Decision]] = []
        self.reads: dict[int, tuple[Timestamp, Footprint]] = {}
        self.answers: dict[int, Result | Refusal] = {}
        self.disk = (Store(), MachineState(placement))
        self.crashes = -1
        self.slice_rows = slice_rows
        self.limits = dataclasses.replace(LIMITS, value_bytes=20 + 10 * (slice_rows % 3))
        """What nodes are configured with may differ: it must not decide."""
        self.restart()

    def restart(self) -> None:
        self.crashes += 1
        store, state = self.disk
        self.store = copy_of(store)
        self.reads.clear()
        state = decode_machine_state(encode_machine_state(state))
        self.machine = Machine(self.group, self.store, state, self.limits, WINDOW, slice_rows=self.slice_rows)

    def save(self) -> None:
        self.disk = (copy_of(self.store), self.machine.state())

    def next(self) -> int:
        return sum(m.gts <= self.machine.delivered for m in self.messages)

    def idle(self) -> bool:
        return self.next() == len(self.messages)

    def deliver(self) -> None:
        self.machine.deliver(self.messages[self.next()])

    def hear(self, fact: Vote | tuple[Timestamp, Decision]) -> None:
        if isinstance(fact, Vote):
            self.machine.vote(fact)
        else:
            self.machine.outcome(fact[0], fact[1])

    def read(self, rng: random.Random) -> None:
        keys = tuple(rng.sample(KEYS, rng.choice([1, 2])))
        token = max(self.reads, default=0) + 1
        footprint = Footprint(keys, (), (some_range(rng),) if rng.random() < 0.3 else ())
        self.reads[token] = (self.machine.delivered, footprint)
        self.machine.read(token, footprint)

    def check_read(self, token: int) -> None:
        """A read sees its keys as of what was delivered when it came."""
        at, footprint = self.reads.pop(token)
        values = self.model.at(at)
        for key in footprint.reads:
            version = self.machine.versions.get(key)
            assert (None if version is None else KeyValue(key, *astuple(version)[:4])) == values.get(key)
        for asked in footprint.read_ranges:
            assert list(self.machine.versions.scan(asked)) == list(ordered(values, asked, reverse=False))

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
        state = machine.state()
        assert not state.waiting
        assert not state.executed
        assert not machine._locks._claims
        assert not machine._early
        assert not machine._sessions._open
        assert not machine.open_votes()
        assert state.floor == model.floor
        alive = {name: pin for name, pin in model.pins.items() if pin.until >= machine.delivered}
        assert {name: pin for name, pin in machine.pins.items() if pin.until >= machine.delivered} == alive
        for gts, expected in model.answers:
            if gts in self.answers:
                assert self.answers[gts] == plain(expected), gts
            else:
                self.check_unanswered(gts)
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

    def check_unanswered(self, gts: int) -> None:
        """A repetition that waited for the first when the replica crashed. Its client asks again."""
        repeated = next(m for m in self.messages if m.gts == gts)
        numbers = [
            (m.destinations, m.request.client, m.request.sequence) for m in self.messages if m.gts <= gts
        ]
        assert self.crashes
        assert numbers.count((repeated.destinations, repeated.request.client, repeated.request.sequence)) > 1

    def check_revision(self, revision: int, *, reverse: bool) -> None:
        values = self.model.at(revision)
        found = list(self.machine.versions.scan_at(ALL, revision, reverse=reverse))
        assert found == list(ordered(values, ALL, reverse=reverse)), revision
        for key in (b"a", b"d", b"f{x}"):
            version = self.machine.versions.get_at(key, revision)
            entry = None if version is None else KeyValue(key, *astuple(version)[:4])
            assert entry == values.get(key)

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
                    entry = KeyValue(
                        change.key, change.value, change.create_revision, revision, change.version
                    )
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
            Replica(g, placement, self.model, self.workload, rng.choice([1, 2, 5, 100]))
            for g in placement.groups
            for _ in range(2)
        ]

    def drain(self, replica: Replica) -> None:
        while True:
            effects = replica.machine.drain()
            for executed in effects.results:
                replica.note(executed)
            for vote, groups in effects.votes:
                for other in self.replicas:
                    if other.group in groups and self.rng.random() < 0.9:
                        other.facts.append(vote)
            for gts, _, decision in effects.outcomes:
                for other in self.replicas:
                    if other.group == replica.group and self.rng.random() < 0.5:
                        other.facts.append((gts, decision))
            for token in effects.reads:
                replica.check_read(token)
            if not effects.reads:
                break
        replica.check_watermark()

    def pull(self, replica: Replica) -> None:
        """Ask again, as one does that has waited too long."""
        for gts, groups in replica.machine.open_votes():
            for other in self.replicas:
                said = other.machine.known_of(gts)
                if isinstance(said, Vote) and other.group in groups:
                    replica.facts.append(said)
                elif isinstance(said, Decision):
                    replica.facts.append((gts, said))

    def step(self) -> None:
        rng = self.rng
        replica = rng.choice(self.replicas)
        kind = rng.random()
        if kind < 0.50:
            if not replica.idle():
                replica.deliver()
        elif kind < 0.75:
            if replica.facts:
                at = rng.randrange(len(replica.facts))
                replica.hear(replica.facts[at] if rng.random() < 0.1 else replica.facts.pop(at))
        elif kind < 0.80:
            replica.machine.work()
            replica.machine.run()
        elif kind < 0.88:
            replica.read(rng)
        elif kind < 0.95:
            self.drain(replica)
            replica.save()
        else:
            replica.restart()
        if rng.random() < 0.7:
            self.drain(replica)

    def finish(self) -> None:
        for _ in range(2 * len(self.workload.messages) + 2):
            for replica in self.replicas:
                while not replica.idle():
                    replica.deliver()
                self.pull(replica)
                while replica.facts:
                    replica.hear(replica.facts.pop())
                while replica.machine.running:
                    replica.machine.run()
                self.drain(replica)
                while replica.machine.work():
                    pass
        for replica in self.replicas:
            replica.check_end()
            assert not replica.reads, "reads that were never granted"
        for one, other in zip(self.replicas[::2], self.replicas[1::2], strict=True):
            assert one.store == other.store


def run(rng: random.Random, count: int, steps: int) -> None:
    world = World(rng, count)
    for _ in range(steps):
        world.step()
    world.finish()


@pytest.fixture(autouse=True, scope="module")
def small_slices() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvstore.machine.housekeeping._ROWS", 3)
        yield


@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.randoms(use_true_random=False), st.integers(1, 8))
def test_small_worlds(rng: random.Random, count: int) -> None:
    run(rng, count, 10 * count)


@pytest.mark.parametrize("seed", range(60))
def test_worlds(seed: int) -> None:
    run(random.Random(seed), 40, 500)


def test_random_workloads_have_every_kind_of_command() -> None:
    rng = random.Random(1)
    commands = [m.request.command for _ in range(20) for m in some_workload(rng, 100).messages]
    transactions = [each for each in commands if isinstance(each, Transaction)]
    assert {type(each) for each in commands} == set(get_args(Command))
    assert {type(each) for txn in transactions for each in txn.conditions} == set(get_args(Condition))
    assert {type(each) for txn in transactions for each in txn.then} == set(get_args(Operation))


def test_random_workloads_reach_the_limits_of_ranges() -> None:
    """Else a machine that judges them wrongly would not be noticed."""
    found: Counter[str] = Counter()
    for seed in range(20):
        workload = some_workload(random.Random(seed), 60)
        model = Model(workload.placement, LIMITS, WINDOW)
        for message in workload.messages:
            model.execute(message)
        for group in model.groups.values():
            for _, answer in group.answers:
                if isinstance(answer, Aborted):
                    found["aborted"] += any(each.fault is Fault.TOO_MANY_ROWS for each in answer.failures)
                if isinstance(answer, Outcome):
                    found["unmet"] += any(each.fault is Fault.TOO_MANY_ROWS for each in answer.unmet)
                    for _, result in answer.results:
                        found["failed"] += result == Failed(Fault.TOO_MANY_ROWS)
                        found["partly"] += isinstance(result, Deleted) and bool(result.resume)
    assert all(found[kind] >= 5 for kind in ("unmet", "aborted", "failed", "partly")), found


def judges_deletes_alone(patch: pytest.MonkeyPatch) -> None:
    """A group does not ask the others whether they can remove all keys of a range."""

    def share(command: Transaction, *arguments: Any) -> GroupShare | None:
        found = share_of(command, *arguments)
        return found if found is None or command.conditions else replace(found, voters=frozenset())

    patch.setattr("kvstore.machine.machine.share_of", share)


def mutated(mutant: type[Machine]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr("tests.unit.kvstore.machine.test_machine_model.Machine", mutant)


@pytest.mark.parametrize(
    "sabotage",
    [
        judges_deletes_alone,
        mutated(mutants.WatermarkPassesWhatRuns),
        mutated(mutants.WritesWithEverySlice),
        mutated(mutants.ReleasesLocksEarly),
        mutated(mutants.ReadsWhatHasPassedIt),
        aborts.ignores_votes_on_failures,
        aborts.executes_before_all_have_said,
        aborts.reads_the_previous_value_afterwards,
        mutated(aborts.TriesAtDelivery),
        mutated(aborts.TriesWithoutOverlay),
        mutated(aborts.OwnLimitDecides),
    ],
)
def test_sabotages_are_caught(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    for seed in range(60):
        try:
            run(random.Random(seed), 40, 500)
        except (AssertionError, InvariantBroken, PeerViolation):
            return
    pytest.fail("it came through all seeds")
