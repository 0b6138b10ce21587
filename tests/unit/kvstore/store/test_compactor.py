"""Compaction by itself: the floor that a leader proposes, what holds it back, and what it goes by."""

from __future__ import annotations

import itertools
import logging
import random
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.config.history import KeepHistory
from kvstore.machine import Limits, Machine
from kvstore.machine.codec import decode_request
from kvstore.machine.commands import Command, Compact, Delivered, Pin, Request, Tick, Unpin
from kvstore.machine.request import Put
from kvstore.machine.results import DONE, Refusal
from kvstore.machine.state import Effects
from kvstore.store.application import StoreApplication
from kvstore.store.compactor import LAST_S, PACE, SHARE, STEPS, Compactor
from kvstore.store.partition import Partition
from multicast.messages import Multicast
from multicast.topology import Topology
from multicast.types import TICKS_PER_S, GroupId, time_of, timestamp
from tests.sim import store_mutants as mutants
from tests.unit.kvstore.machine.test_machine import WAITS_FOR_B, Group, mid, then, ts
from tests.unit.kvstore.store.test_partition import GATEWAY, PLACEMENT, A, B, C, Leader, members

KEEP_S = 1600
STEP = KEEP_S // STEPS * TICKS_PER_S
NOW = 50 * STEP + 12_345


def leader(time: int = NOW, *, leads: bool = True) -> Any:
    return SimpleNamespace(me=members(A)[0], is_leader=leads, clock=time, quorum_time=lambda: time)


class OwnClients(Group):
    """A group whose messages are each of a client of its own: sequence numbers are no times."""

    def deliver(self, time: int, command: Command, destinations: str = "A") -> Effects:
        request = Request(time, 1, 0, ts(1 << 42), 7, command)
        groups = tuple(GroupId("ABC".index(name)) for name in destinations)
        self.machine.deliver(Delivered(ts(time), mid(time), groups, request))
        return self.drain()


LONG = itertools.count(1e6, 1e6)


def proposed(compactor: Compactor, found: Any, machine: Machine) -> int:
    """What a leader proposes that has led for long: it is held back by nothing but pins."""
    compactor.floor(found, machine, next(LONG))
    return compactor.floor(found, machine, next(LONG))


def group_with(*times: int) -> Group:
    """A group in which a key was written at these times."""
    group = OwnClients()
    for time in times:
        group.deliver(time, then(Put(b"a", b"%d" % time)))
    return group


OLD = (STEP, 2 * STEP, 33 * STEP, 34 * STEP)
"""Times of writes, before and after what is kept at NOW."""


def test_the_floor_is_a_common_step_before_the_time_that_is_kept() -> None:
    machine = group_with(*OLD, 40 * STEP).machine
    compactor = Compactor(KeepHistory(KEEP_S), int)
    assert proposed(compactor, leader(), machine) == timestamp(34 * STEP, A)
    # Another leader's group, whose time is a little later, chooses the same, in the low bits, too.
    assert proposed(compactor, leader(NOW + STEP // 3), machine) == timestamp(34 * STEP, A)
    assert proposed(compactor, leader(NOW + STEP), machine) == timestamp(35 * STEP, A)
    assert compactor.look_s == 10.0


def test_nothing_is_proposed_that_would_drop_nothing() -> None:
    group = group_with(*OLD)
    compactor = Compactor(KeepHistory(KEEP_S), int)
    floor = proposed(compactor, leader(), group.machine)
    group.deliver(NOW, Compact(floor))
    group.work()
    assert proposed(compactor, leader(NOW + 9 * STEP), group.machine) == 0
    group.deliver(NOW + STEP, then(Put(b"a", b"")))
    group.deliver(NOW + 8 * STEP, Tick())  # as the group's anchors
    assert proposed(compactor, leader(NOW + 9 * STEP), group.machine) == 0
    assert proposed(compactor, leader(NOW + 18 * STEP), group.machine) == timestamp(52 * STEP, A)


def test_what_is_not_executed_stays() -> None:
    """A transaction waits for another partition, which is down for longer than history is kept."""
    group = group_with(STEP, 2 * STEP, 3 * STEP + 1)
    group.deliver(4 * STEP, WAITS_FOR_B, "AB")
    group.deliver(5 * STEP, then(Put(b"b", b"")))
    for keep in (KeepHistory(KEEP_S), KeepHistory(None, 1 << 20)):
        floor = proposed(Compactor(keep, lambda: 2 << 20), leader(), group.machine)
        assert 0 < floor <= group.machine.watermark == ts(3 * STEP + 1)
    assert floor
    group.deliver(NOW, Compact(floor))
    assert group.machine.versions.get_at(b"a", group.machine.watermark) is not None


@pytest.mark.parametrize(
    ("keep", "found"),
    [(KeepHistory(), leader()), (KeepHistory(KEEP_S), leader(leads=False)), (KeepHistory(KEEP_S), leader(0))],
    ids=["forever", "a follower", "without quorum time"],
)
def test_without_a_time_nothing_is_proposed(keep: KeepHistory, found: Any) -> None:
    assert proposed(Compactor(keep, int), found, group_with(*OLD).machine) == 0


def test_a_pin_holds_the_floor_at_its_revision(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    group = group_with(*OLD[:2])
    group.deliver(3 * STEP, Pin("nightly", ts(STEP + 5), ts(NOW + 10 * STEP)))
    group.deliver(4 * STEP, Pin("newer", ts(3 * STEP), ts(NOW + STEP)))
    group.deliver(5 * STEP, Pin("over", ts(STEP), ts(6 * STEP)))
    compactor = Compactor(KeepHistory(KEEP_S), int)
    floor = proposed(compactor, leader(), group.machine)
    assert floor == ts(STEP + 5)
    group.deliver(NOW, Compact(floor))
    assert group.results[NOW] == DONE
    for _ in range(3):
        assert proposed(compactor, leader(), group.machine) == 0, "nothing is left to drop below the pin"
    assert len(caplog.records) == 1
    assert "snapshot nightly holds history from revision" in caplog.text
    status = compactor.status(leader(), group.machine)
    assert (status["held_by"], status["oldest_pin"]["name"]) == ("nightly", "nightly")
    assert status["floor_time"] == "2026-01-01T00:01:40Z"
    group.deliver(NOW + 1, Unpin(("nightly",)))
    assert proposed(compactor, leader(), group.machine) == ts(3 * STEP)
    assert proposed(compactor, leader(NOW + 2 * STEP), group.machine) == timestamp(36 * STEP, A), (
        "it has ended"
    )
    assert compactor.status(leader(), group.machine)["held_by"] is None
    assert len(caplog.records) == 2


def what_is_proposed_passes_the_pins_that_the_machine_minds(kind: type[Compactor]) -> None:
    """Whatever pins there are, the machine accepts what the leader proposes."""
    rng = random.Random(7)
    count = 0
    for _ in range(60):
        group = group_with(*sorted(rng.sample(range(STEP, 40 * STEP), 12)))
        compactor = kind(KeepHistory(KEEP_S), int)
        time = 41 * STEP
        for number in range(5):
            revision = ts(rng.randrange(STEP, 41 * STEP))
            group.deliver(time, Pin(f"p{number}", revision, ts(time + rng.randrange(20 * STEP))))
            time += 1
        for _ in range(8):
            time += rng.randrange(1, 4 * STEP)
            floor = proposed(compactor, leader(time), group.machine)
            if floor:
                count += 1
                group.deliver(time, Compact(floor))
                assert group.results[time] == DONE
                assert time - time_of(floor) >= KEEP_S * TICKS_PER_S  # type: ignore[arg-type]  # a timestamp
                group.work()
    assert count > 100


def every_row_stays_for_a_part_of_the_time_whatever_clocks_show(kind: type[Compactor], seed: int) -> None:
    """Quorum time jumps, stands still, goes back and runs wild; leaders change; revisions never fall."""
    rng = random.Random(seed)
    group, now, clock = OwnClients(), 0.0, 1000 * TICKS_PER_S
    compactor = kind(KeepHistory(KEEP_S), int)
    wall, rate = clock, 1.0
    written: dict[int, float] = {}
    dropped = 0
    while now < 12 * KEEP_S:
        passed_s = rng.uniform(1.0, 30.0)
        now += passed_s
        wall = max(wall + int(rate * passed_s * TICKS_PER_S), 1)
        if rng.random() < 0.01:
            wall += int(rng.choice([-1, 1, 1]) * rng.expovariate(1 / KEEP_S) * TICKS_PER_S)
            rate = rng.choice([1.0, 1.0, 0.0, 3.0])
        if rng.random() < 0.01:
            compactor = kind(KeepHistory(KEEP_S), int)
        leads = rng.random() < 0.95
        if wall > 0 and rng.random() < 0.5:
            clock = max(clock + 1, wall)
            written[ts(clock)] = now
            group.deliver(clock, then(Put(b"a", b"")))
        floor = compactor.floor(leader(max(wall, 1), leads=leads), group.machine, now)
        if floor:
            clock = max(clock + 1, wall)
            group.deliver(clock, Compact(floor))
            group.work()
            for revision in [each for each in written if each <= floor]:
                dropped += 1
                assert now - written.pop(revision) >= KEEP_S / PACE - 30.0
    assert dropped > 100


def test_what_is_proposed_passes_the_pins_that_the_machine_minds() -> None:
    what_is_proposed_passes_the_pins_that_the_machine_minds(Compactor)
    with pytest.raises(AssertionError):
        what_is_proposed_passes_the_pins_that_the_machine_minds(mutants.ProposesAbovePins)


@pytest.mark.parametrize("seed", range(40))
def test_every_row_stays_for_a_part_of_the_time_whatever_clocks_show(seed: int) -> None:
    every_row_stays_for_a_part_of_the_time_whatever_clocks_show(Compactor, seed)


def test_without_a_pace_rows_go_too_early() -> None:
    with pytest.raises(AssertionError):
        every_row_stays_for_a_part_of_the_time_whatever_clocks_show(mutants.CompactsWithoutAPace, 1)


def test_history_from_before_the_setting_goes_at_a_pace() -> None:
    group = group_with(*range(20 * STEP, 200 * STEP, STEP))
    compactor = Compactor(KeepHistory(KEEP_S), int)
    found = leader(200 * STEP)
    assert compactor.floor(found, group.machine, 0.0) == 0
    assert compactor.floor(found, group.machine, KEEP_S / 2) == timestamp(36 * STEP, A)
    assert compactor.floor(found, group.machine, 1e6) == timestamp(184 * STEP, A)


def test_beyond_a_size_the_oldest_goes_earlier_but_not_the_last_minute() -> None:
    minute = int(LAST_S * TICKS_PER_S)
    group = group_with(*range(minute, 40 * minute, minute))
    used = [2 << 20]
    compactor = Compactor(KeepHistory(None, 1 << 20), lambda: used[0])
    now = 40 * minute
    floors = []
    while floor := proposed(compactor, leader(now), group.machine):
        floors.append(floor)
        group.deliver(now, Compact(floor))
        assert proposed(compactor, leader(now), group.machine) == 0, "the last is not dropped yet"
        group.work()
        now += 1
    assert floors[0] == timestamp(minute + 38 * minute // SHARE + 1, A)
    assert timestamp(38 * minute, A) <= floors[-1] <= timestamp(now - minute, A)
    group.deliver(now, then(Put(b"a", b"")))
    used[0] = 1 << 20
    assert proposed(compactor, leader(now + 9 * minute), group.machine) == 0, "it fits again"


def test_a_leader_orders_it_once_and_again_when_it_has_an_answer() -> None:
    time = [0.0]
    disk: Any = None
    topology = Topology({group: members(group) for group in (A, B, C)})
    application = StoreApplication(
        disk, topology, PLACEMENT, me=GATEWAY, limits=Limits(), now=lambda: time[0], rng=random.Random(1),
        keep=KeepHistory(KEEP_S),
    )  # fmt: skip
    application.gateway.clocks.inform(NOW, 0.0)
    replica: Any = Leader(A)
    replica.clock, replica.quorum_time = NOW, lambda: NOW
    partition = Partition(replica, group_with(*OLD).machine)
    application._replicas[A], application._partitions[A] = replica, partition

    def ordered() -> list[Any]:
        time[0] += 10.0
        sent = [message for _, _, message in application.turn(time[0]) if isinstance(message, Multicast)]
        application.gateway._sender.drain()
        return [decode_request(message.payload).command for message in sent]

    ordered()
    time[0] = 1e5
    found = ordered()
    assert found[:1] == [Compact(timestamp(34 * STEP, A))]
    (call,) = application.gateway._calls.values()
    assert len(application.gateway._calls) == 1
    ordered()
    assert len(application.gateway._calls) == 1, "it has no answer yet"
    call.tell(Refusal.PINNED)
    ordered()
    assert len(application.gateway._calls) == 2
