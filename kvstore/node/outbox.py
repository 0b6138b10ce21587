"""The messages that leave a node at the end of its turn, and those between its own replicas.

No process waits for DELIVER: the leader has delivered, and answers. Followers need it soon, for reads and
watches there. Some of the application's messages are like that, too. So a frame that has nothing else stays
here until the next message to its node, or for `LINGER_S`. All messages to a node leave together, in order.
To the protocol this is a slower link: docs/divergence.md, 21, has the argument.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Final, TypeAlias

from kvstore.config.addresses import NodeId
from kvstore.node.ports import Application, Observer
from kvstore.node.relay import Relays
from kvstore.node.staging import Staging
from kvstore.wire.frames import Envelope
from multicast.messages import Deliver, Message
from multicast.types import ClientId, Process, ReplicaId

CLIENTS_MAX: Final = 1 << 16
"""Clients of other nodes whose nodes are known; beyond it, the first is forgotten until it sends again."""

LINGER_S: Final = 0.003
"""How long messages that no process waits for stay here, at most, to leave with others."""

UNHURRIED: Final = frozenset((Deliver,))
"""Classes of the protocol's messages that no process waits for. The application may have more."""

Queues: TypeAlias = dict[tuple[Process, Process], list[Any]]
"""Messages, by sender and receiver, in the order in which they were sent."""


class Outbox:
    """Queues of outgoing messages, one for each sender and receiver."""

    def __init__(
        self,
        me: NodeId,
        hosted: Container[Process],
        application: Application,
        node_of: Callable[[ReplicaId], NodeId | None],
        observer: Observer | None,
    ) -> None:
        """`hosted` are the replicas of this node."""
        self._me = me
        self._hosted = hosted
        self._application = application
        self._node_of = node_of
        self._observer = observer
        self._unhurried = UNHURRIED.union(application.unhurried)
        self.local: Queues = {}
        """Between processes of this node, and from a replica to itself."""
        self._links: dict[NodeId, Queues] = defaultdict(dict)
        """To other nodes."""
        self._lingering: dict[NodeId, float] = {}
        """Nodes to which there are only messages that may wait, and when these leave at the latest."""
        self._answers: Queues = {}
        """To clients that are connected to this node."""
        self._strays: list[Message] = []
        """To replicas whose node is unknown."""
        self._routes: dict[Process, dict[Sequence[Process], list[list[Any]]]] = defaultdict(dict)
        """The queues of a message, by sender and receivers: few, for many messages."""
        self.clients: dict[ClientId, NodeId] = {}
        """Clients of other nodes, and the node from which each last sent a message."""

    def route(self, client: ClientId, node: NodeId) -> None:
        """Note that a client of another node sends from there."""
        if client not in self.clients and len(self.clients) >= CLIENTS_MAX:
            del self.clients[next(iter(self.clients))]
        self.clients[client] = node

    def forget_routes(self) -> None:
        """Look up receivers anew: a membership has changed."""
        self._routes.clear()

    def add(self, me: Process, sends: Iterable[tuple[Sequence[Process], Any]]) -> None:
        """Queue a process's messages, each for its receivers."""
        routes = self._routes[me]
        for receivers, message in sends:
            if self._observer is not None and isinstance(me, ReplicaId):
                self._observer.sent(me, receivers, message)
            route = routes.get(receivers)
            if route is None:
                route = routes[receivers] = [self._queue(me, receiver) for receiver in receivers]
            for queue in route:
                queue.append(message)

    def answer(self, me: ReplicaId, client: ClientId, message: Any) -> None:
        """Queue a message for a client on the connection on which it asked."""
        if self._observer is not None:
            self._observer.sent(me, (client,), message)
        self._answers.setdefault((me, client), []).append(message)

    def _queue(self, me: Process, receiver: Process) -> list[Any]:
        if isinstance(receiver, ReplicaId):
            if receiver in self._hosted:
                queues = self.local
            elif (node := self._node_of(receiver)) is None or node == self._me:
                return self._strays
            else:
                queues = self._links[node]
        elif receiver in self._application.processes:
            queues = self.local
        else:
            home = self.clients.get(receiver)
            queues = self._answers if home is None else self._links[home]
        pair = me, receiver
        queue = queues.get(pair)
        if queue is None:
            queue = queues[pair] = []
        return queue

    def take_local(self) -> Queues:
        """Return and remove the messages between processes of this node."""
        local, self.local = self.local, {}
        self._routes.clear()
        return local

    @property
    def wake_at(self) -> float:
        """When to call `flush`, at the latest."""
        return min(self._lingering.values()) if self._lingering else math.inf

    def flush(
        self,
        network: Relays,
        pieces: Iterable[tuple[ReplicaId, ReplicaId, Any]],
        now: float,
        staging: Staging | None = None,
    ) -> int:
        """Send one frame to each node, pieces of snapshots last; return the number of stray messages.

        A frame that no process waits for may stay. With `staging`, some payloads are sent as their names.
        """
        self._routes.clear()
        frames: dict[NodeId, list[Envelope]] = {}
        if self._links:
            for node, queues in self._links.items():
                if not self._may_stay(node, queues, now):
                    frames[node] = _envelopes(queues)
        for me, target, piece in pieces:
            home = self._node_of(target)
            if home is not None and home != self._me:
                if home not in frames:
                    frames[home] = _envelopes(self._links.get(home, {}))
                frames[home].append((me, target, [piece]))
        for node, frame in frames.items():
            self._links.pop(node, None)
            self._lingering.pop(node, None)
            network.send(node, frame if staging is None else staging.by_name(node, frame))
        if self._answers:
            answers, self._answers = self._answers, {}
            network.answer(_envelopes(answers))
        strays = len(self._strays)
        self._strays.clear()
        return strays

    def _may_stay(self, node: NodeId, queues: Queues, now: float) -> bool:
        """Return whether all messages to a node may wait for others, and for how long is noted."""
        for messages in queues.values():
            for message in messages:
                if type(message) not in self._unhurried:
                    return False
        return now < self._lingering.setdefault(node, now + LINGER_S)


def _envelopes(queues: Queues) -> list[Envelope]:
    return [(sender, receiver, messages) for (sender, receiver), messages in queues.items()]
