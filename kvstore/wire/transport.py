"""Connections between nodes, and from clients: FIFO while one lasts, and never more memory than was allowed.

Two nodes have two connections. Each node dials the other and only sends on that one, and only reads from the
one it accepted. So they never have to agree on who dials, and whoever accepts decides alone that a new
connection takes the place of the old. Clients dial too, and get their answers on the same connection.

Nothing is kept for a node that is not connected, and nothing is sent again: the protocol does without.
Whoever is too slow to read loses the connection, before we lose our memory. Bytes that no correct node sends
close the connection they came by, and are counted.

`Link` is the side that dials, for nodes and for clients. `Acceptor` is the side that accepts. `Transport` is
both, for a node. All calls belong into the loop that `start` was called in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from wbkv_proto.link_pb2 import Hello

from kvstore.config.addresses import Address, NodeId, join_address, split_address
from kvstore.wire.acceptor import Acceptor, Handlers, Inbound
from kvstore.wire.connection import SWEEPS, LinkLimits
from kvstore.wire.frames import PROTOCOL_VERSION, Envelope, FrameCodec
from kvstore.wire.link import Link
from multicast.errors import InvalidArgument
from multicast.types import ClientId, Process

logger = logging.getLogger(__name__)


class Transport:
    """A node's `Network`: links to its peers, and a door for them and for clients."""

    def __init__(
        self,
        me: NodeId,
        cluster_id: str,
        topology_hash: bytes,
        peers: Mapping[NodeId, Address],
        *,
        codec: FrameCodec,
        on_frame: Callable[[NodeId, list[Envelope], int], None],
        on_client: Callable[[ClientId, list[Envelope], int], None],
        lives_on: Callable[[NodeId, Process], bool],
        listen: Address = ("127.0.0.1", 0),
        limits: LinkLimits | None = None,
        delays: Mapping[tuple[NodeId, NodeId], float] | None = None,
        incarnation: int = 0,
        on_peer: Callable[[NodeId, int], None] | None = None,
    ) -> None:
        """`peers` may include this node, and is looked at for an address each time one is dialled. A node
        that is not among them becomes one, by `add_peer` or when it says where it is.

        `on_frame` gets what another node sent, `on_client` what a client did, and both the frame's length:
        a node that has been given too much calls `pause`. They are called by the loop, and may not raise.
        `lives_on(node, process)` says whose messages a node may send. `on_peer` hears on which disk a node is
        that has connected. `delays` are one way, in seconds, from the first node to the second: emulation of
        a wider network.
        """
        self.me = me
        self._codec = codec
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
        handlers = Handlers(on_frame, on_client, lives_on, self._seen)
        self._door = Acceptor(self._hello, codec, self.limits, handlers)
        for node in peers:
            if node != me:
                self._add_link(node, peers)

    def _add_link(self, node: NodeId, addresses: Mapping[NodeId, Address]) -> None:
        delay_s = self._delays.get((self.me, node), 0.0)
        self._links[node] = link = Link(
            node, addresses, self._hello, self._codec, self.limits, delay_s=delay_s
        )
        self._door.counts[node] = link.counts
        if self._dialling:
            link.start()

    def add_peer(self, node: NodeId, address: Address) -> None:
        """There is another node, if we do not know it yet."""
        if node != self.me and node not in self._links:
            logger.info("%s is at %s", node, join_address(*address))
            self._add_link(node, {node: address})

    def _seen(self, hello: Hello) -> None:
        """A node has connected to us: so it is there, and says on which disk."""
        node = NodeId(hello.node)
        address = split_address(hello.address)
        if address is not None:
            self.add_peer(node, address)
        if self._on_peer is not None:
            self._on_peer(node, hello.incarnation)
        self._links[node].wake()

    # Starting and stopping

    async def listen(self) -> Address:
        """Accept connections. Says where: port 0 means any that is free."""
        host, port = self._address
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Inbound(self._door), host, port, reuse_address=True
            )
        except OSError as error:
            why = error.strerror or str(error)
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {why}") from error
        self._sweep()
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    def dial(self) -> None:
        """Connect to all peers, again and again."""
        self._dialling = True
        for link in self._links.values():
            link.start()

    async def start(self) -> Address:
        """Listen and dial."""
        address = await self.listen()
        self.dial()
        return address

    async def close(self, flush_s: float = 1.0) -> None:
        """End all connections. What has been sent leaves first, if it can within this time."""
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        self._door.closed = True
        await asyncio.gather(*(link.close(flush_s) for link in self._links.values()))
        visitors = [*self._door.strangers, *self._door.welcomed()]
        for visitor in visitors:
            visitor.finish()
        if visitors:
            await asyncio.wait([visitor.lost for visitor in visitors], timeout=flush_s)
        for visitor in visitors:
            visitor.abort()
            await visitor.lost

    # `Network`

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """All of one turn's messages to one node, as one frame. A link too far behind is reset."""
        self._link(node).send(envelopes)

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        """Messages to clients, by the connections they last spoke on; a client that is gone gets none."""
        frames: dict[Inbound, list[Envelope]] = {}
        for envelope in envelopes:
            visitor = self._door.clients.get(cast(ClientId, envelope[1]))
            if visitor is None:
                self._door.client_counts.dropped += 1
            else:
                frames.setdefault(visitor, []).append(envelope)
        for visitor, its in frames.items():
            visitor.say(its)

    def _link(self, node: NodeId) -> Link:
        try:
            return self._links[node]
        except KeyError:
            raise InvalidArgument(f"{node!r} is no peer of {self.me!r}") from None

    # Back-pressure, faults, figures

    def pause(self, paused: bool) -> None:  # noqa: FBT001 - what else could it be
        """Hand over no more frames, and read none, until told otherwise; then go on in a later turn."""
        if paused:
            self._door.hold()
        elif self._door.paused:
            self._door.paused = False
            asyncio.get_running_loop().call_soon(self._door.release)

    def cut(self, node: NodeId, *, incoming: bool) -> None:
        """Drop all frames from a node, or all to it: for tests of faults."""
        link = self._link(node)
        if incoming:
            self._door.cut.add(node)
        else:
            link.cut = True

    def heal(self) -> None:
        """End all cuts."""
        self._door.heal()
        for link in self._links.values():
            link.heal()

    def statistics(self) -> dict[str, Any]:
        """For each peer, for all clients, and for who never said a proper Hello: see `LinkCounts`."""
        door = self._door
        peers = {
            node: {
                **asdict(link.counts),
                "sends": link.connected,
                "receives": node in door.peers,
                "problem": link.problem,
            }
            for node, link in self._links.items()
        }
        clients = {**asdict(door.client_counts), "connected": len(door.guests)}
        strangers = {**asdict(door.stranger_counts), "connected": len(door.strangers)}
        return {"peers": peers, "clients": clients, "strangers": strangers}

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.limits.idle_s / SWEEPS, self._sweep)
        self._door.sweep()
        for link in self._links.values():
            link.sweep()
