"""Connections between nodes, and from clients: FIFO while a connection lasts, with bounded memory.

Two nodes have two connections. Each node dials the other, sends only on the connection that it dialled, and
reads only from the one that it accepted. So nodes need not agree on a dialling side, and the accepting node
alone decides that a new connection replaces the old one. Clients dial too, and get their answers on the same
connection.

Nothing is kept for a node that is not connected, and nothing is sent again: the protocol does not need it. A
node that reads too slowly loses its queue, and a client its connection, before this node runs out of memory
(`flow`). Bytes that no correct node sends close the connection they came by, and are counted.

`Link` is the dialling side, for nodes and for clients. `Acceptor` is the accepting side. `Transport` is both,
for a node. All calls belong in the loop that `start` was called in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, cast

from wbkv_proto.link_pb2 import Hello

from kvstore.config.addresses import Address, NodeId, join_address
from kvstore.config.secret import Secret
from kvstore.wire.acceptor import Acceptor, Handlers, Inbound
from kvstore.wire.connection import SWEEPS, LinkLimits
from kvstore.wire.frames import PROTOCOL_VERSION, Envelope, FrameCodec, WireError
from kvstore.wire.link import Link
from multicast.errors import InvalidArgument
from multicast.messages import TO_NEWCOMERS
from multicast.types import ClientId, Process, ReplicaId

logger = logging.getLogger(__name__)


class Transport:
    """A node's `Network`: links to its peers, and an acceptor for peers and clients."""

    def __init__(
        self,
        me: NodeId,
        cluster_id: str,
        topology_hash: bytes,
        peers: Mapping[NodeId, Address],
        *,
        secret: Secret,
        codec: FrameCodec,
        on_frame: Callable[[NodeId, list[Envelope], int], None],
        on_client: Callable[[ClientId, list[Envelope], int], None],
        may_send: Callable[[NodeId, Process], bool],
        listen: Address = ("127.0.0.1", 0),
        limits: LinkLimits | None = None,
        delays: Mapping[tuple[NodeId, NodeId], float] | None = None,
        incarnation: int = 0,
        on_peer: Callable[[NodeId, int], None] = lambda *_: None,
        admits: Callable[[NodeId, int], bool] = lambda *_: True,
    ) -> None:
        """`peers` may include this node, and is read each time one is dialled. Other nodes become peers by
        `add_peer`, once a membership names them; until then they are newcomers, and are not dialled.

        `on_frame` gets frames of nodes, `on_client` frames of clients, and both the frame's length: a node
        with too much to do calls `pause`. They are called by the loop, and may raise `WireError`, which
        closes the connection. `may_send(node, process)` tells whether a node may send for a process.
        `on_peer` gets the incarnation of a node that has connected, if `admits` says that it may be the
        node's. `delays` are one way, in seconds, from the first node to the second, to emulate a wide area.
        """
        self.me = me
        self._codec = codec
        self._secret = secret
        self.limits = limits or LinkLimits()
        self._address = listen
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._delays = delays or {}
        self._hello = Hello(
            version=PROTOCOL_VERSION, cluster=cluster_id, topology_hash=topology_hash, node=me,
            incarnation=incarnation, address=join_address(*peers.get(me, listen)),
        )  # fmt: skip
        self._on_peer = on_peer
        self._dialling = False
        self._links: dict[NodeId, Link] = {}
        handlers = self._handlers = Handlers(on_frame, on_client, may_send, admits, self._seen)
        self._acceptor = Acceptor(self._hello, secret, codec, self.limits, handlers)
        for node in peers:
            if node != me:
                self._add_link(node, peers)

    def _add_link(self, node: NodeId, addresses: Mapping[NodeId, Address]) -> None:
        delay_s = self._delays.get((self.me, node), 0.0)
        self._links[node] = link = Link(
            node, addresses, self._hello, self._codec, self.limits, self._secret,
            on_frame=partial(self._answered, node), delay_s=delay_s,
        )  # fmt: skip
        self._acceptor.named(node, link.counts)
        if self._dialling:
            link.start()

    def add_peer(self, node: NodeId, address: Address) -> None:
        """Add a link to a node that a membership names, unless there is one."""
        if node != self.me and node not in self._links:
            logger.info("%s is at %s", node, join_address(*address))
            self._add_link(node, {node: address})

    def _seen(self, hello: Hello) -> None:
        """Handle the Hello of a node that has connected, and so can be dialled, unless it is a newcomer."""
        node = NodeId(hello.node)
        self._on_peer(node, hello.incarnation)
        if node in self._links:
            self._links[node].wake()

    def _answered(self, node: NodeId, envelopes: list[Envelope], size: int) -> None:
        """Handle a frame of a node that this node has dialled, and to which this node is a newcomer.

        Once that node has dialled too, only its own connection counts, or its frames could change order.
        """
        for sender, receiver, messages in envelopes:
            if not self._handlers.may_send(node, sender):
                raise WireError(f"{node} may not send for {sender}")
            replicas = isinstance(sender, ReplicaId) and isinstance(receiver, ReplicaId)
            if replicas and not all(isinstance(message, TO_NEWCOMERS) for message in messages):
                raise WireError(f"{node} sent messages of {sender} to {receiver} on the wrong connection")
        if node in self._acceptor.peers or node in self._acceptor.cut:
            self._links[node].counts.dropped += 1
            return
        self._handlers.on_frame(node, envelopes, size)

    # Starting and stopping

    async def listen(self) -> Address:
        """Accept connections. Returns the address: port 0 means any free port."""
        host, port = self._address
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Inbound(self._acceptor), host, port, reuse_address=True
            )
        except OSError as error:
            why = error.strerror or str(error)
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {why}") from error
        self._sweep()
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    def dial(self) -> None:
        """Connect to all peers, and reconnect after each disconnect."""
        self._dialling = True
        for link in self._links.values():
            link.start()

    async def start(self) -> Address:
        """Listen and dial."""
        address = await self.listen()
        self.dial()
        return address

    async def close(self, flush_s: float = 1.0) -> None:
        """Close all connections, once everything is sent or the time is over."""
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        self._acceptor.closed = True
        await asyncio.gather(*(link.close(flush_s) for link in self._links.values()))
        connections = [*self._acceptor.strangers, *self._acceptor.welcomed()]
        for inbound in connections:
            inbound.finish()
        if connections:
            await asyncio.wait([inbound.lost for inbound in connections], timeout=flush_s)
        for inbound in connections:
            inbound.abort()
            await inbound.lost

    # `Network`

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """Send all of one turn's messages to one node, in order. A queue that grows too long is dropped.

        A newcomer gets its messages on the connection that it dialled.
        """
        link = self._links.get(node)
        if link is not None:
            link.send(envelopes)
        elif node in self._acceptor.peers:
            self._acceptor.peers[node].send(envelopes)
        else:
            self._acceptor.newcomer_counts.dropped += 1

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        """Send messages to clients, on the connections that they used last; disconnected clients get none."""
        frames: dict[Inbound, list[Envelope]] = {}
        for envelope in envelopes:
            inbound = self._acceptor.clients.get(cast(ClientId, envelope[1]))
            if inbound is None:
                self._acceptor.client_counts.dropped += 1
            else:
                frames.setdefault(inbound, []).append(envelope)
        for inbound, its in frames.items():
            inbound.send(its)

    @property
    def peers(self) -> Collection[NodeId]:
        """The nodes to which there are links, connected or not."""
        return self._links.keys()

    def backlog(self, node: NodeId) -> int:
        """Return the unsent bytes of the link to a node."""
        return self._link(node).backlog

    def behind(self, node: NodeId) -> int:
        """Return how often a node has dropped its queue to this one."""
        return self._link(node).counts.behind

    def _link(self, node: NodeId) -> Link:
        try:
            return self._links[node]
        except KeyError:
            raise InvalidArgument(f"{node!r} is not a peer of {self.me!r}") from None

    # Back-pressure, faults, figures

    def pause(self, paused: bool) -> None:  # noqa: FBT001 - the name says what it is
        """Stop handing over and reading frames; or resume, in a later turn of the loop."""
        if paused:
            self._acceptor.hold()
        elif self._acceptor.paused:
            self._acceptor.paused = False
            asyncio.get_running_loop().call_soon(self._acceptor.release)

    def cut(self, node: NodeId, *, incoming: bool) -> None:
        """Drop all frames from a node, or to it: for fault tests."""
        link = self._link(node)
        if incoming:
            self._acceptor.cut.add(node)
        else:
            link.cut = True

    def heal(self) -> None:
        """End all cuts."""
        self._acceptor.heal()
        for link in self._links.values():
            link.heal()

    def statistics(self) -> dict[str, Any]:
        """Return `LinkCounts` of each peer, of newcomers, of clients, and of connections that have not been
        authenticated.
        """
        acceptor = self._acceptor
        peers = {
            node: {
                **asdict(link.counts),
                "sends": link.connected,
                "receives": node in acceptor.peers,
                "problem": link.problem,
            }
            for node, link in self._links.items()
        }
        clients = {**asdict(acceptor.client_counts), "connected": len(acceptor.client_connections)}
        strangers = {**asdict(acceptor.stranger_counts), "connected": len(acceptor.strangers)}
        newcomers = {**asdict(acceptor.newcomer_counts), "connected": len(acceptor.newcomers())}
        return {"peers": peers, "newcomers": newcomers, "clients": clients, "strangers": strangers}

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.limits.idle_s / SWEEPS, self._sweep)
        self._acceptor.sweep()
        for link in self._links.values():
            link.sweep()
