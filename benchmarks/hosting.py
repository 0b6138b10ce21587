"""Nodes inside this process and thread: their disks and the wire format are real, sockets there are none.

So what is measured does not depend on what else the machine does. Whoever uses it says what time it is, what
the application is, and where answers to clients go.
"""

from __future__ import annotations

import abc
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from kvstore import storage
from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.local.disk import create_disk
from kvstore.node.directory import Directory
from kvstore.node.loop import Node
from kvstore.node.ports import Application
from kvstore.store.messages import STORE_MESSAGES
from kvstore.wire.frames import Envelope, FrameCodec
from multicast.types import ReplicaId

CODEC = FrameCodec(STORE_MESSAGES)


class Host(abc.ABC):
    """A node and its disk, and in the place of a network the others' inboxes."""

    node: Node

    def __init__(
        self,
        config: Config,
        me: NodeId,
        others: Mapping[NodeId, Host],
        *,
        tables: Any = None,
        wall_s: float | None = None,
    ) -> None:
        self.me = me
        self.others = others
        self.happened: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        self.inbox: deque[tuple[NodeId | None, bytes]] = deque()
        self.frames = self.bytes = 0
        create_disk(config, me)
        more: Any = {} if tables is None else {"tables": tables}
        self.disk: storage.Disk[Any] = storage.open(
            config.data(me), config.id, me,
            on_durable=lambda number: self.happened.put((self.durable, number)),
            on_committed=lambda executed: self.happened.put((self.committed, executed)),
            on_failure=lambda error: self.happened.put((self.failed, error)), **more,
        )  # fmt: skip
        incarnation = self.disk.identity.incarnation
        replicas = [
            ReplicaId(group, nodes.index(me), incarnation)
            for group, nodes in config.groups.items()
            if me in nodes
        ]
        self.node = Node(
            me, config.topology, replicas, config.protocol_type,
            node_of=Directory(config.incarnations).node_of, clock=self, network=self, log=self.disk.log,
            application=self.application(config), wall_s=wall_s, rng=random.Random(me), timing=config.timing,
        )  # fmt: skip

    @abc.abstractmethod
    def application(self, config: Config) -> Application:
        """What delivered messages mean; the disk is open."""

    @abc.abstractmethod
    def now(self) -> float:
        """`ports.Clock`."""

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """`ports.Network`."""
        data = CODEC.encode(envelopes)
        self.frames += 1
        self.bytes += len(data)
        self.others[node].inbox.append((self.me, data))

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        """`ports.Network`."""
        raise TypeError("nobody here is a client")

    def durable(self, number: int) -> None:
        """The log's batches up to this one are."""
        self.node.durable(number)
        self.disk.state.log_durable(number)

    def committed(self, executed: Any) -> None:
        """The state is."""
        self.node.committed(executed)

    def failed(self, error: Exception) -> None:
        """The disk has."""
        raise error

    def ready(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.inbox) or not self.happened.empty() or self.now() >= self.node.wake_at

    def turn(self) -> None:
        """What a server does in one round of its loop."""
        while not self.happened.empty():
            call, argument = self.happened.get()
            call(argument)
        while self.inbox:
            node, data = self.inbox.popleft()
            self.node.receive(CODEC.decode(data), node)
        if self.now() >= self.node.wake_at:
            self.node.tick()
        self.node.turn()
        while self.disk.log.pump(may_wait=True):
            self.durable(self.disk.log.durable)
            self.node.turn()
        while self.disk.state.pump():
            pass
