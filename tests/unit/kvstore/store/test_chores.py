"""Partitions drop rows in turn, and for a part of the node's time."""

from __future__ import annotations

from typing import Any

from kvstore.machine import Machine, MachineState, Placement, Store
from kvstore.machine.commands import Command, Compact, Delivered, Request
from kvstore.machine.request import Put, Transaction
from kvstore.store.chores import PAUSE_S, PAUSES, Chores
from kvstore.store.partition import Partition
from multicast.types import ClientId, GroupId, MessageId, timestamp
from tests.unit.kvstore.store.test_partition import Leader

G = GroupId(0)


def full(versions: int = 2000) -> Machine:
    """A machine that has much to drop."""
    machine = Machine(G, Store(), MachineState(Placement.evenly((G,))))

    def deliver(time: int, command: Command) -> None:
        mid = MessageId(ClientId(1), time, 7)
        machine.deliver(Delivered(timestamp(time, G), mid, (G,), Request(time, 1, 0, 1 << 50, 7, command)))

    for time in range(1, versions):
        deliver(time, Transaction(then=(Put(b"k", b"%d" % time),)))
    deliver(versions, Compact(timestamp(versions, G)))
    machine.drain()
    return machine


def rows(machine: Machine) -> int:
    history: Any = machine.versions._history
    return len(history.rows())


def test_slices_take_a_third_of_the_time_of_all_partitions_together() -> None:
    clock = [0.0]

    def work_clock() -> float:
        clock[0] += 0.004  # each reading: so each slice takes 4 ms
        return clock[0]

    chores, machines = Chores(work_clock), (full(), full())
    now, slices = 0.0, 0
    while now < 0.12:
        for machine in machines:
            before = rows(machine)
            assert chores.work(machine, now)
            slices += rows(machine) < before
        now += 0.001
    assert slices == 0.12 / (0.004 * (1 + PAUSES))
    assert rows(machines[0]) < rows(machines[1]) == rows(full())


def test_a_partition_wakes_for_the_next_slice_until_all_is_dropped() -> None:
    replica: Any = Leader(G)
    machine = full(300)
    partition = Partition(replica, machine)
    now, turns = 0.0, 0
    while machine.has_chores:
        before = rows(machine)
        partition.turn(now)
        assert rows(machine) < before
        if machine.has_chores:
            assert partition.wake_at == now + PAUSE_S
            partition.turn(now)
            assert rows(machine) > 0, "the pause is not over"
        now = partition.wake_at
        turns += 1
    assert turns > 5
    assert partition.worked


def test_what_waits_for_slower_transactions_does_not_wake_it() -> None:
    chores, machine = Chores(), Machine(G, Store(), MachineState(Placement.evenly((G,))))
    assert not chores.work(machine, 0.0)
    machine._chores.append((timestamp(9, G), Compact(1)))
    assert not chores.work(machine, 0.0)
    assert chores.at == 0.0
