"""Bare multicast as an application: it answers clients with the positions of their messages.

Fault tests, benchmarks and comparisons of protocols run on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from kvstore.node.ports import Outgoing
from kvstore.storage.errors import DamagedRow
from kvstore.storage.ports import DeliveryDisk
from multicast.client import Reply
from multicast.durable import Checkpoint
from multicast.errors import PeerViolation
from multicast.messages import Delivery, Multicast
from multicast.protocol import Protocol
from multicast.quorum_time import OWN_CLIENTS
from multicast.types import NO_TIMESTAMP, ClientId, GroupId, MessageId, Process, ReplicaId, Timestamp


class BareMulticast:
    """Bare multicast: see `kvstore.node.ports.Application`."""

    messages: Collection[type] = ()
    unhurried: Collection[type] = ()
    processes: Sequence[ClientId] = ()
    wake_at = float("inf")

    def __init__(self, state: DeliveryDisk) -> None:
        self._state = state
        self._replicas: dict[GroupId, Protocol] = {}
        self._outgoing: list[Outgoing] = []
        self.damaged: dict[GroupId, DamagedRow] = {}
        self._positions: dict[GroupId, Timestamp] = {}
        """Of the last delivery in this life."""

    def load(self, group: GroupId) -> Checkpoint:
        """Return the position and delivered ids. Everything delivered counts as executed."""
        checkpoint = self._state.load(group)
        return dataclasses.replace(checkpoint, executed=checkpoint.position)

    def drop(self, group: GroupId, reason: str = "") -> None:
        """Forget the replica and its deliveries."""
        self._replicas.pop(group, None)
        self._positions.pop(group, None)
        self._state.drop(group)

    def under_way(self, now: float) -> int:
        """Return 0: there is no process that waits."""
        return 0

    def executed(self, group: GroupId) -> Timestamp:
        """Return the position: everything delivered is executed."""
        return self._positions.get(group, NO_TIMESTAMP)

    def host(self, replica: Protocol) -> None:
        """Note the replica, whose leadership decides whether this node answers."""
        self._replicas[replica.me.group] = replica

    def deliver(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Store the deliveries; the replica that delivers first answers."""
        self._state.apply(group, deliveries)
        self._positions[group] = deliveries[-1].global_ts
        if self._replicas[group].answers_clients:
            self._reply(group, [(d.mid, d.global_ts) for d in deliveries if d.mid.client not in OWN_CLIENTS])

    def repeat(self, group: GroupId, asked: Sequence[tuple[ClientId, Multicast]]) -> None:
        """Answer retries with the same positions."""
        self._reply(group, [(message.mid, self._state.position(group, message.mid)) for _, message in asked])

    def _reply(self, group: GroupId, positions: Iterable[tuple[MessageId, Timestamp]]) -> None:
        me = self._replicas[group].me
        for client, run in groupby(positions, lambda answer: answer[0][0]):
            mids, found = zip(*run, strict=True)
            self._outgoing.append((me, (client,), Reply(mids, group, found)))

    def receive(self, receiver: Process, sender: Process, messages: Sequence[Any]) -> bool:
        """Reject the messages: this application has none."""
        raise PeerViolation(f"{sender} sent {type(messages[0]).__name__} to {receiver}, which takes none")

    def turn(self, now: float) -> list[Outgoing]:
        """Return and remove the answers."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def work(self, now: float) -> bool:
        """Return False: there is no long work."""
        return False

    def unsaved(self, group: GroupId) -> bool:
        """Return False: all state comes from deliveries."""
        return False

    def commit(self, positions: Mapping[GroupId, Timestamp], after: int) -> None:
        """Commit the deliveries once batch `after` is durable."""
        self._state.commit(positions, after)

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: int) -> Sequence[Delivery]:
        """Return retained deliveries that follow the position."""
        return self._state.deliveries(group, after, count, size)

    def snapshot(self, group: GroupId) -> Iterator[bytes]:
        """Return all deliveries, in pieces."""
        return self._state.snapshot(group)

    def install(
        self, group: GroupId, pieces: Iterable[bytes], checkpoint: Checkpoint, source: ReplicaId
    ) -> None:
        """Replace all deliveries by those of a snapshot."""
        self._state.install(group, pieces, checkpoint)
        self._positions[group] = checkpoint.position

    def status(self, group: GroupId) -> Mapping[str, Any]:
        """Return the number of deliveries."""
        return {"deliveries": self._state.count(group)}
