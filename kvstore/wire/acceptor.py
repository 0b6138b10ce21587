"""The side that accepts: which nodes and clients may connect, and what they may send.

A peer proves that it knows the cluster's secret before anything else (`handshake`). A node that neither the
configuration nor a membership names is a *newcomer*: it is not dialled, since its address is only its own
word; what is for it leaves on the connection that it dialled, until a membership names it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wbkv_proto.link_pb2 import Hello, Reason

from kvstore.config.addresses import NodeId, parse_node_address
from kvstore.config.secret import Secret
from kvstore.wire.connection import SWEEPS, Connection, LinkCounts, LinkLimits, WarnOnce
from kvstore.wire.frames import Envelope, FrameCodec, WireError
from kvstore.wire.handshake import AcceptingSide, Rejected, refusal
from kvstore.wire.inflow import Inflow
from multicast.messages import MembersWanted, Multicast
from multicast.types import ClientId, Process

logger = logging.getLogger(__name__)

PARTIAL_BYTES: Final = 64 << 10
"""The part of a frame that is worth counting."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """The node's callbacks for frames, and its knowledge. Only the first two may raise, `WireError`."""

    on_frame: Callable[[NodeId, list[Envelope], int], None]
    """Also called without messages, for slices of large ones: they show that the link works."""
    on_client: Callable[[ClientId, list[Envelope], int], None]
    may_send: Callable[[NodeId, Process], bool]
    """Whether a node may send for a process."""
    admits: Callable[[NodeId, int], bool]
    """Whether a node may have the disk of this incarnation."""
    seen: Callable[[Hello], None]
    """Called when a node has connected, and so can be dialled."""


class Acceptor:
    """Decides which nodes and clients may connect, and what they may send."""

    def __init__(
        self, hello: Hello, secret: Secret, codec: FrameCodec, limits: LinkLimits, handlers: Handlers
    ) -> None:
        self.hello = hello
        """This node's own Hello, with which others must agree."""
        self.secret = secret
        self.counts: dict[NodeId, LinkCounts] = {}
        """Of the nodes that the configuration or a membership names."""
        self.newcomer_counts = LinkCounts()
        self.client_counts = LinkCounts()
        self.stranger_counts = LinkCounts()
        self.codec = codec
        self.limits = limits
        self.handlers = handlers
        self.once = WarnOnce()
        self.strangers: dict[Inbound, None] = {}
        self.peers: dict[NodeId, Inbound] = {}
        """The connection of each node, newcomers included."""
        self.client_connections: dict[Inbound, None] = {}
        self.clients: dict[ClientId, Inbound] = {}
        """The connection that each client used last."""
        self.closed = False
        self.paused = False
        self.cut: set[NodeId] = set()

    def enter(self, inbound: Inbound) -> None:
        """Register a new connection. Its peer is not known yet."""
        self.strangers[inbound] = None
        if self.closed:
            inbound.abort()
        elif len(self.strangers) > self.limits.strangers:
            # A peer that knows the secret needs two round trips: the oldest is the least likely to be one.
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            self._refuse(oldest, Reason.TOO_MANY_CONNECTIONS, "too many connections are being made")

    def leave(self, inbound: Inbound) -> None:
        """Forget a connection that has ended."""
        self.strangers.pop(inbound, None)
        self.client_connections.pop(inbound, None)
        if inbound.node is not None and self.peers.get(inbound.node) is inbound:
            del self.peers[inbound.node]
        if inbound.client is not None and self.clients.get(inbound.client) is inbound:
            del self.clients[inbound.client]

    def introduce(self, inbound: Inbound, data: bytes) -> None:
        """Handle a message of a connection's handshake: answer it, welcome the peer, or reject it."""
        handshake = inbound.handshake
        try:
            if not handshake.is_open:
                inbound.write(handshake.opened(data))
                return
            hello = handshake.introduced(data)
        except Rejected as error:
            inbound.counts.unproven += error.reason == Reason.WRONG_SECRET
            self._refuse(inbound, error.reason, error.text)
            return
        except WireError as error:
            inbound.bad(str(error))
            return
        node = NodeId(hello.node) if hello.HasField("node") else None
        if node is None and not hello.client:
            inbound.bad("the Hello names neither a node nor a client")
            return
        if node is None:
            inbound.name, inbound.counts = "a client", self.client_counts
        elif node in self.counts:
            inbound.name, inbound.counts = f"node {node}", self.counts[node]
        objection = self._objection(hello, node)
        if objection is not None:
            self._refuse(inbound, *objection)
            return
        self.strangers.pop(inbound, None)
        if node is None:
            inbound.client = ClientId(hello.client)
            self.client_connections[inbound] = None
            self.clients[inbound.client] = inbound
        else:
            inbound.node = node
            superseded = self.peers.get(node)
            if superseded is not None:
                superseded.abort()
            self.peers[node] = inbound
            inbound.name = f"node {node}"
            inbound.counts = self.counts.get(node, self.newcomer_counts)
            self.handlers.seen(hello)
        inbound.welcome(handshake.welcome())
        if self.paused:
            inbound.hold()

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
            if len(self.client_connections) >= self.limits.clients:
                return Reason.TOO_MANY_CONNECTIONS, f"limit of {self.limits.clients} clients reached"
        elif node == ours.node:
            return Reason.OWN_ID, f"node {ours.node!r:.80} is this node itself"
        elif not self.handlers.admits(node, hello.incarnation):
            return Reason.WRONG_INCARNATION, f"{hello.incarnation:016x} is not a disk of node {node!r:.80}"
        elif node not in self.counts:
            if parse_node_address(f"{node}@{hello.address}") is None:
                return Reason.UNKNOWN_NODE, f"node {node!r:.80} does not give a valid address"
            if len(self.counts) + len(self.newcomers()) >= self.limits.peers and node not in self.peers:
                return Reason.TOO_MANY_CONNECTIONS, f"limit of {self.limits.peers} nodes reached"
        if hello.to != ours.node:
            return Reason.WRONG_NODE, f"the Hello is for {hello.to!r:.80}; this is {ours.node!r:.80}"
        return None

    def _refuse(self, inbound: Inbound, reason: Reason, text: str) -> None:
        inbound.counts.refusals += 1
        self.once.warn(inbound.name, Reason.Name(reason), f"rejected: {text}")
        inbound.refuse(refusal(reason, text))

    def named(self, node: NodeId, counts: LinkCounts) -> None:
        """Note that the configuration or a membership names a node, which may have connected before."""
        self.counts[node] = counts
        if node in self.peers:
            self.peers[node].counts = counts

    def newcomers(self) -> list[NodeId]:
        """Return the connected nodes that neither the configuration nor a membership names."""
        return [node for node in self.peers if node not in self.counts]

    def peer_frame(self, inbound: Inbound, node: NodeId, data: bytes) -> None:
        """Handle a frame of a node, which may send only for the processes that live on it."""
        if node in self.cut:
            inbound.counts.dropped += 1
            inbound.lossy = True
            return
        epoch = inbound.flow.epoch
        envelopes = inbound.flow.receive(data)
        inbound.counts.behind += inbound.flow.epoch != epoch
        for sender, _, _ in envelopes:
            if not self.handlers.may_send(node, sender):
                raise WireError(f"{node} may not send for {sender}")
        self.handlers.on_frame(node, envelopes, inbound.flow.size)

    def client_frame(self, inbound: Inbound, client: ClientId, data: bytes) -> None:
        """Handle a frame of a client, which may multicast under its own id, and ask for a group's members."""
        envelopes = inbound.flow.receive(data)
        if not envelopes:
            return
        for sender, _, messages in envelopes:
            if sender != client:
                raise WireError(f"client {client} may not send for {sender}")
            for message in messages:
                own = isinstance(message, Multicast) and message.mid.client == client
                if not (own or isinstance(message, MembersWanted)):
                    raise WireError(f"client {client} may not send this {type(message).__name__}")
        self.clients[client] = inbound
        self.handlers.on_client(client, envelopes, inbound.flow.size)

    def welcomed(self) -> list[Inbound]:
        """Return the connections that carry frames."""
        return [*self.peers.values(), *self.client_connections]

    def bound_partial(self) -> None:
        """Close the connection that keeps most of an unfinished frame, if all keep too much together."""
        connections = self.welcomed()
        if sum(each.partial for each in connections) > self.limits.partial:
            most = max(connections, key=lambda each: each.partial)
            most.bad(f"{most.partial} bytes of an unfinished frame, while all connections keep too much")

    def hold(self) -> None:
        """Stop reading from all connections."""
        self.paused = True
        for inbound in self.welcomed():
            inbound.hold()

    def release(self) -> None:
        """Resume reading, unless the frames kept back pause the node again."""
        for inbound in self.welcomed():
            if self.paused:
                return
            if inbound.held:
                inbound.release()

    def heal(self) -> None:
        """End all cuts. No frame may be missing within a connection, so lossy ones are closed."""
        self.cut.clear()
        for inbound in self.welcomed():
            if inbound.lossy:
                inbound.abort()

    def sweep(self) -> None:
        """Close connections that were silent for `idle_s`: their peers count as disconnected."""
        if self.paused:
            return
        for inbound in self.welcomed():
            inbound.silent += 1
            if inbound.silent > SWEEPS:
                inbound.counts.timeouts += 1
                logger.warning("%s: closed after %s s of silence", inbound.name, self.limits.idle_s)
                inbound.abort()


class Inbound(Connection):
    """A connection that this node accepted."""

    def __init__(self, acceptor: Acceptor) -> None:
        super().__init__(
            "a stranger", acceptor.codec, acceptor.limits, acceptor.stranger_counts, acceptor.once
        )
        self.handshake = AcceptingSide(acceptor.secret, NodeId(acceptor.hello.node))
        self.node: NodeId | None = None
        self.client: ClientId | None = None
        self.lossy = False
        """Whether a cut has dropped a frame of this connection."""
        self.flow = Inflow(acceptor.codec, acceptor.limits.flow)
        self._acceptor = acceptor
        self._timer = self._loop.call_later(acceptor.limits.handshake_s, self._too_late)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: the connection is open."""
        super().connection_made(transport)
        self._acceptor.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the connection is closed, by either side."""
        super().connection_lost(exc)
        self._timer.cancel()
        self._acceptor.leave(self)

    def kept(self, size: int) -> None:
        """Notice that part of a frame is kept. Small ones do not matter: there are few connections."""
        if size >= PARTIAL_BYTES:
            self._acceptor.bound_partial()

    def _too_late(self) -> None:
        self.counts.timeouts += 1
        self.abort()

    def frame(self, data: bytes) -> None:
        """Handle one whole frame."""
        if self.node is None and self.client is None:
            self._acceptor.introduce(self, data)
            return
        if not data:
            return
        self.counts.frames_in += 1
        self.counts.bytes_in += len(data)
        try:
            if self.node is not None:
                self._acceptor.peer_frame(self, self.node, data)
            elif self.client is not None:
                self._acceptor.client_frame(self, self.client, data)
        except WireError as error:
            self.bad(str(error))

    def welcome(self, answer: bytes) -> None:
        """End the handshake: from now on, frames arrive."""
        self._timer.cancel()
        self.counts.connections += 1
        self.frame_max = self.limits.frame
        self.write(answer)

    def refuse(self, answer: bytes) -> None:
        """Send the reason, and close."""
        self.write(answer)
        self.finish()
