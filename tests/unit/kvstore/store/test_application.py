"""The store as an application, wired by hand: what keeps a node going."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvstore.machine import Limits
from kvstore.machine.codec import decode_request, encode_request
from kvstore.machine.commands import Expire, Request
from kvstore.machine.request import Put, Transaction
from kvstore.storage.errors import DamagedRow
from kvstore.store import gateway
from kvstore.store.application import StoreApplication
from kvstore.store.partition import Partition
from kvstore.store.retention import EXPIRE_S
from multicast.messages import Delivery, Multicast
from multicast.topology import Topology
from multicast.types import NO_TIMESTAMP, GroupId, MessageId, timestamp
from tests.unit.kvstore.store.test_partition import GATEWAY, PLACEMENT, A, B, C, members, partition_of


def test_a_busy_gateway_forgets_sessions_later(monkeypatch: pytest.MonkeyPatch) -> None:
    disk: Any = None
    topology = Topology({group: members(group) for group in (A, B, C)})
    application = StoreApplication(
        disk, topology, PLACEMENT, me=GATEWAY, limits=Limits(),
        now=lambda: 0.0, rng=random.Random(1),
    )  # fmt: skip
    application.gateway.clocks.inform(1, 0.0)
    partition = partition_of(A)
    application._replicas[A], application._partitions[A] = partition.replica, partition
    request = Request(7, 1, 0, timestamp(20, A), 7, Transaction(then=(Put(b"a", b""),)))
    place = timestamp(10, A)
    mid = MessageId(GATEWAY, 1, 7)
    partition.deliver(
        [Delivery(mid, (A,), encode_request(request), 0, place, place, NO_TIMESTAMP, mismatch=False)]
    )
    with monkeypatch.context() as full:
        full.setattr(gateway, "IN_FLIGHT", 0)
        application.turn(EXPIRE_S)
    said = [message for _, _, message in application.turn(2 * EXPIRE_S) if isinstance(message, Multicast)]
    assert isinstance(decode_request(said[0].payload).command, Expire)


def test_a_group_whose_partition_cannot_be_opened_does_not_stop_others() -> None:
    class Disk:
        def open(self, group: GroupId) -> None:
            raise DamagedRow(f"the checkpoint of {group} is bad")

    disk: Any = Disk()
    topology = Topology({group: members(group) for group in (A, B, C)})
    application = StoreApplication(
        disk, topology, PLACEMENT, me=GATEWAY, limits=Limits(),
        now=lambda: 0.0, rng=random.Random(1),
    )  # fmt: skip
    partition = partition_of(B)
    application._replicas.update({A: partition_of(A).replica, B: partition.replica})
    application._partitions[B] = partition
    application.turn(1.0)
    assert set(application.damaged) == {A}
    assert application._followed.keys() <= {B}


def test_only_partitions_with_input_or_a_due_time_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    disk: Any = None
    topology = Topology({group: members(group) for group in (A, B, C)})
    application = StoreApplication(
        disk, topology, PLACEMENT, me=GATEWAY, limits=Limits(),
        now=lambda: 0.0, rng=random.Random(1),
    )  # fmt: skip
    turned: list[GroupId] = []
    turn = Partition.turn

    def counted(partition: Partition, now: float) -> Any:
        turned.append(partition.group)
        return turn(partition, now)

    def taken(now: float) -> list[GroupId]:
        turned.clear()
        application.turn(now)
        return turned

    for group in (A, B):
        partition = partition_of(group)
        application._replicas[group], application._partitions[group] = partition.replica, partition
    monkeypatch.setattr(Partition, "turn", counted)
    assert taken(0.0) == [A, B], "they are new"
    assert taken(0.001) == []
    application._woken.add(B)
    assert taken(0.001) == [B]
    due = application._partitions_at
    assert application.wake_at <= due == min(each.wake_at for each in application._partitions.values())
    assert taken(due) == [A, B]
    application._woken.update((B, A))
    assert taken(due) == [A, B], "in the order of groups"
    replica: Any = application._replicas[A]
    replica.is_leader = False
    assert taken(due) == [A], "it has stopped leading"
    assert taken(due) == []
    replica.cballot = replica.cballot._replace(number=7)
    replica.is_leader = True
    assert taken(due) == [A], "it leads again"
