"""The side that accepts: which nodes and clients may connect, and what they may send."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from wbkv_proto.link_pb2 import Answer, Hello, Reason, Refusal, Welcome

from kvstore.config.addresses import NodeId, parse_node_address
from kvstore.wire.connection import SWEEPS, Connection, LinkCounts, LinkLimits, WarnOnce
from kvstore.wire.frames import Envelope, FrameCodec, WireError
from multicast.messages import MembersWanted, Multicast
from multicast.types import ClientId, Process

logger = logging.getLogger(__name__)


# The side that accepts


@dataclass(frozen=True, slots=True)
class Handlers:
    """What a node does with frames, and what it knows. None of these may raise."""

    on_frame: Callable[[NodeId, list[Envelope], int], None]
    on_client: Callable[[ClientId, list[Envelope], int], None]
    lives_on: Callable[[NodeId, Process], bool]
    seen: Callable[[Hello], None]
    """A node has connected, so it can be dialled."""


class Acceptor:
    """Who may come in, and what they may say."""

    def __init__(self, hello: Hello, codec: FrameCodec, limits: LinkLimits, handlers: Handlers) -> None:
        self.hello = hello
        """What we say ourselves: others must agree."""
        self.counts: dict[NodeId, LinkCounts] = {}
        """Of the nodes that we know."""
        self.client_counts = LinkCounts()
        self.stranger_counts = LinkCounts()
        self.codec = codec
        self.limits = limits
        self.handlers = handlers
        self.once = WarnOnce()
        self.strangers: set[Inbound] = set()
        self.peers: dict[NodeId, Inbound] = {}
        self.guests: dict[Inbound, None] = {}
        """Connections of clients."""
        self.clients: dict[ClientId, Inbound] = {}
        """By which connection each client spoke last."""
        self.closed = False
        self.paused = False
        self.cut: set[NodeId] = set()

    def enter(self, visitor: Inbound) -> None:
        """Somebody has connected."""
        self.strangers.add(visitor)
        if self.closed:
            visitor.abort()
        elif len(self.strangers) > self.limits.strangers:
            self._refuse(visitor, Reason.TOO_MANY_CONNECTIONS, "too many connections are being made")

    def leave(self, visitor: Inbound) -> None:
        """A connection has ended."""
        self.strangers.discard(visitor)
        self.guests.pop(visitor, None)
        if visitor.node is not None and self.peers.get(visitor.node) is visitor:
            del self.peers[visitor.node]
        if visitor.client is not None and self.clients.get(visitor.client) is visitor:
            del self.clients[visitor.client]

    def introduce(self, visitor: Inbound, data: bytes) -> None:
        """Somebody says Hello."""
        try:
            hello = Hello.FromString(data)
        except DecodeError as error:
            visitor.bad(f"not a Hello: {error}")
            return
        node = NodeId(hello.node) if hello.HasField("node") else None
        if node is None and not hello.client:
            visitor.bad("a Hello of nobody")
            return
        if node is None:
            visitor.name, visitor.counts = "a client", self.client_counts
        elif node in self.counts:
            visitor.name, visitor.counts = f"node {node}", self.counts[node]
        objection = self._objection(hello, node)
        if objection is not None:
            self._refuse(visitor, *objection)
            return
        self.strangers.discard(visitor)
        if node is None:
            visitor.client = ClientId(hello.client)
            self.guests[visitor] = None
            self.clients[visitor.client] = visitor
        else:
            visitor.node = node
            superseded = self.peers.get(node)
            if superseded is not None:
                superseded.abort()
            self.peers[node] = visitor
            self.handlers.seen(hello)
            visitor.counts = self.counts[node]
        visitor.welcome(Welcome(connection=hello.connection))
        if self.paused:
            visitor.hold()

    def _objection(self, hello: Hello, node: NodeId | None) -> tuple[Reason, str] | None:
        ours = self.hello
        if hello.version != ours.version:
            return Reason.WRONG_VERSION, f"protocol version {hello.version}; here it is {ours.version}"
        if hello.cluster != ours.cluster:
            return Reason.WRONG_CLUSTER, f"cluster {hello.cluster!r:.80}; here it is {ours.cluster!r:.80}"
        if hello.topology_hash != ours.topology_hash:
            theirs, here = hello.topology_hash.hex(), ours.topology_hash.hex()
            return Reason.WRONG_TOPOLOGY, f"topology {theirs:.64}; here it is {here:.64}"
        if node is None:
            if len(self.guests) >= self.limits.clients:
                return Reason.TOO_MANY_CONNECTIONS, f"there are {len(self.guests)} clients"
        elif node == ours.node:
            return Reason.OWN_ID, f"you cannot be {ours.node!r:.80}: I am"
        elif node not in self.counts:
            if parse_node_address(f"{node}@{hello.address}") is None:
                return Reason.UNKNOWN_NODE, f"node {node!r:.80} does not say where it is"
            if len(self.counts) >= self.limits.peers:
                return Reason.TOO_MANY_CONNECTIONS, f"there are {len(self.counts)} nodes"
        if hello.to != ours.node:
            return Reason.WRONG_NODE, f"you mean {hello.to!r:.80}; I am {ours.node!r:.80}"
        return None

    def _refuse(self, visitor: Inbound, reason: Reason, text: str) -> None:
        visitor.counts.refusals += 1
        self.once.warn(visitor.name, Reason.Name(reason), f"refused: {text}")
        visitor.refuse(Refusal(reason=reason, text=text))

    def peer_frame(self, visitor: Inbound, node: NodeId, data: bytes) -> None:
        """Only processes that live on a node may speak by its connection."""
        if node in self.cut:
            visitor.counts.dropped += 1
            visitor.lossy = True
            return
        envelopes = self.codec.decode(data)
        for sender, _, _ in envelopes:
            if not self.handlers.lives_on(node, sender):
                raise WireError(f"{sender} does not live on {node}")
        self.handlers.on_frame(node, envelopes, len(data))

    def client_frame(self, visitor: Inbound, client: ClientId, data: bytes) -> None:
        """A client may only multicast, and only in its own name; and ask who is in a group."""
        envelopes = self.codec.decode(data)
        for sender, _, messages in envelopes:
            if sender != client:
                raise WireError(f"client {client} may not speak for {sender}")
            for message in messages:
                own = isinstance(message, Multicast) and message.mid.client == client
                if not (own or isinstance(message, MembersWanted)):
                    raise WireError(f"client {client} may not send this {type(message).__name__}")
        self.clients[client] = visitor
        self.handlers.on_client(client, envelopes, len(data))

    def welcomed(self) -> list[Inbound]:
        """The connections that frames come by."""
        return [*self.peers.values(), *self.guests]

    def hold(self) -> None:
        """Read nothing more of anybody."""
        self.paused = True
        for visitor in self.welcomed():
            visitor.hold()

    def release(self) -> None:
        """Read on, unless what was kept is enough already."""
        for visitor in self.welcomed():
            if self.paused:
                return
            if visitor.held:
                visitor.release()

    def heal(self) -> None:
        """End all cuts. What they dropped must not be missing within a connection, so that one ends."""
        self.cut.clear()
        for visitor in self.welcomed():
            if visitor.lossy:
                visitor.abort()

    def sweep(self) -> None:
        """Whoever has said nothing for long is gone without our knowing."""
        if self.paused:
            return
        for visitor in self.welcomed():
            visitor.silent += 1
            if visitor.silent > SWEEPS:
                visitor.counts.timeouts += 1
                logger.warning("%s: closed after %s s of silence", visitor.name, self.limits.idle_s)
                visitor.abort()


class Inbound(Connection):
    """A connection that was accepted."""

    def __init__(self, door: Acceptor) -> None:
        super().__init__("a stranger", door.codec, door.limits, door.stranger_counts, door.once)
        self.node: NodeId | None = None
        self.client: ClientId | None = None
        self.lossy = False
        """A cut has dropped something that came by this connection."""
        self._door = door
        self._timer = self._loop.call_later(door.limits.handshake_s, self._too_late)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: the connection is open."""
        super().connection_made(transport)
        self._door.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the connection is closed, by either side."""
        super().connection_lost(exc)
        self._timer.cancel()
        self._door.leave(self)

    def _too_late(self) -> None:
        self.counts.timeouts += 1
        self.abort()

    def frame(self, data: bytes) -> None:
        """Handle one whole frame."""
        if self.node is None and self.client is None:
            self._door.introduce(self, data)
            return
        if not data:
            return
        self.counts.frames_in += 1
        self.counts.bytes_in += len(data)
        try:
            if self.node is not None:
                self._door.peer_frame(self, self.node, data)
            elif self.client is not None:
                self._door.client_frame(self, self.client, data)
        except WireError as error:
            self.bad(str(error))

    def welcome(self, welcome: Welcome) -> None:
        """From now on, frames come."""
        self._timer.cancel()
        self.counts.connections += 1
        self.frame_max = self.limits.frame
        self.write(Answer(welcome=welcome).SerializeToString())

    def refuse(self, refusal: Refusal) -> None:
        """Say why, and hang up."""
        self.write(Answer(refusal=refusal).SerializeToString())
        self.finish()
