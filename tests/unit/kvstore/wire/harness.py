"""Nodes that record what comes, and the other end of a connection by hand, on this machine's loopback.

No test waits for time to pass, except where passing time is tested; a test waits for what must happen.
The replica of node nX has number X.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from wbkv_proto.link_pb2 import Answer, Hello

from kvstore.config.addresses import Address, NodeId
from kvstore.config.secret import Secret
from kvstore.node.ports import Network
from kvstore.wire.connection import LinkLimits
from kvstore.wire.frames import ORDERING_CODEC, PROTOCOL_VERSION, Envelope
from kvstore.wire.handshake import AcceptingSide, DiallingSide
from kvstore.wire.transport import Transport
from multicast.client import Reply
from multicast.messages import CatchUp, Message, Multicast
from multicast.types import ClientId, GroupId, MessageId, Process, ReplicaId, Timestamp

encode = ORDERING_CODEC.encode
CLUSTER, HASH = "the cluster", b"the topology"
SECRET = Secret("5e" * 32)
N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
G0, G1 = GroupId(0), GroupId(1)
CLIENT = ClientId(2**64 - 7)
QUICK = LinkLimits(handshake_s=20.0, idle_s=60.0, backoff_min_s=0.002, backoff_max_s=0.02)
SMALL = LinkLimits(
    frame=64 << 10,
    message=512 << 10,
    buffer=1 << 20,
    handshake_s=20.0,
    idle_s=60.0,
    backoff_min_s=0.002,
    backoff_max_s=0.02,
)  # fmt: skip


async def until(condition: Callable[[], object]) -> None:
    """Wait for what must happen; the test's own time-out ends it if it does not."""
    while not condition():
        await asyncio.sleep(0.001)


def replica(node: NodeId, group: GroupId = G0) -> ReplicaId:
    return ReplicaId(group, int(node[1:]), 0)


def may_send(node: NodeId, process: Process) -> bool:
    return isinstance(process, ReplicaId) and process.number == int(node[1:])


class Node:
    """A transport, and all that it has handed over."""

    def __init__(
        self,
        me: NodeId,
        peers: dict[NodeId, Address],
        limits: LinkLimits = QUICK,
        *,
        cluster: str = CLUSTER,
        topology: bytes = HASH,
        port: int = 0,
        delays: dict[tuple[NodeId, NodeId], float] | None = None,
        incarnation: int = 0,
        secret: Secret = SECRET,
        admits: Callable[[NodeId, int], bool] = lambda *_: True,
    ) -> None:
        self.me = me
        self.peers = peers
        self.disks: list[tuple[NodeId, int]] = []
        self.frames: list[tuple[NodeId, list[Envelope]]] = []
        self.sizes: list[int] = []
        self.slices = 0
        self.requests: list[tuple[ClientId, list[Envelope]]] = []
        self.heard: Callable[[], None] = lambda: None
        self.transport = Transport(
            me, cluster, topology, peers,
            secret=secret, codec=ORDERING_CODEC, on_frame=self.on_frame, on_client=self.on_client,
            may_send=may_send, admits=admits,
            on_peer=lambda node, incarnation: self.disks.append((node, incarnation)),
            listen=("127.0.0.1", port), limits=limits, delays=delays, incarnation=incarnation,
        )  # fmt: skip
        network: Network = self.transport  # to the type checker
        self.network = network
        self.address: Address = ("", 0)

    def on_frame(self, node: NodeId, envelopes: list[Envelope], size: int) -> None:
        if not envelopes:
            self.slices += 1
            return
        self.frames.append((node, envelopes))
        self.sizes.append(size)
        self.heard()

    def on_client(self, client: ClientId, envelopes: list[Envelope], size: int) -> None:
        self.requests.append((client, envelopes))
        self.sizes.append(size)
        self.heard()

    async def start(self) -> None:
        self.address = self.peers[self.me] = await self.transport.start()

    def send(self, node: NodeId, *messages: Message) -> None:
        self.transport.send(node, [(replica(self.me), replica(node), messages)])

    def numbers(self, node: NodeId | None = None) -> list[int]:
        """What `CatchUp`s have come, from one node or all."""
        return [
            message.after
            for sender, envelopes in self.frames
            if node in (None, sender)
            for _, _, messages in envelopes
            for message in messages
            if isinstance(message, CatchUp)
        ]

    def count(self, name: str, node: NodeId | None = None) -> Any:
        statistics = self.transport.statistics()
        return statistics["peers"][node][name] if node is not None else statistics["strangers"][name]

    def clients(self, name: str) -> Any:
        return self.transport.statistics()["clients"][name]

    def linked(self) -> bool:
        return all(
            peer["sends"] and peer["receives"] for peer in self.transport.statistics()["peers"].values()
        )


def number(value: int) -> CatchUp:
    """A message that can be told from others."""
    return CatchUp(Timestamp(value))


def large(value: int, size: int, client: ClientId = CLIENT) -> Multicast:
    payload = random.Random(value).randbytes(size)
    return Multicast(MessageId(client, value, value), (G0,), payload, 1)


@asynccontextmanager
async def nodes(
    *names: NodeId, limits: LinkLimits = QUICK, absent: Sequence[NodeId] = (), **options: Any
) -> Any:
    """Nodes that are connected to each other; those that are absent are known, but nowhere."""
    peers: dict[NodeId, Address] = dict.fromkeys((*names, *absent), ("127.0.0.1", 9))
    made = [Node(name, peers, limits, **options) for name in names]
    try:
        for node in made:
            await node.start()
        if not absent:
            await until(lambda: all(node.linked() for node in made))
        yield made
    finally:
        for node in made:
            await node.transport.close()


def hello(node: NodeId | None = None, client: ClientId | None = None, **changes: Any) -> Hello:
    said: dict[str, Any] = {
        "version": PROTOCOL_VERSION,
        "cluster": CLUSTER,
        "topology_hash": HASH,
        "to": N1,
    }
    sender: dict[str, Any] = {"client": client} if node is None else {"node": node}
    return Hello(**(said | sender | changes))


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


class Wire:
    """One end of a connection, without any rules."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, address: Address, *greeting: Hello) -> Wire:
        """Connect, and expect to be welcomed."""
        wire = cls(*await asyncio.open_connection(*address))
        for each in greeting:
            answer = await wire.introduce(each)
            assert answer.HasField("welcome"), answer
        return wire

    async def introduce(self, said: Hello, secret: Secret = SECRET, then: bytes = b"") -> Answer:
        """Shake hands as the dialling side; return the last answer."""
        handshake = DiallingSide(secret, said)
        self.write(framed(handshake.opening()))
        challenge = await self.read()
        introduction = handshake.answered(challenge)
        assert introduction is not None
        self.write(framed(introduction) + then)
        return await self.answer()

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def say(self, sender: Process, receiver: Process, *messages: Message | Reply) -> None:
        self.write(framed(encode([(sender, receiver, messages)])))

    async def read(self) -> bytes:
        return await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))

    async def answer(self) -> Answer:
        return Answer.FromString(await self.read())

    async def ended(self) -> None:
        """The other side hangs up."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def listener(serve: Callable[[Wire], Awaitable[None]], port: int = 0) -> Any:
    """A listener that answers each connection with a coroutine of the test."""
    tasks: list[asyncio.Task[None]] = []
    wires: list[Wire] = []

    async def served(wire: Wire) -> None:
        try:
            await serve(wire)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            wire.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wires.append(Wire(reader, writer))
        tasks.append(asyncio.get_running_loop().create_task(served(wires[-1])))

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for wire in wires:
            wire.abort()


async def welcome(wire: Wire) -> None:
    handshake = AcceptingSide(SECRET, N2)
    wire.write(framed(handshake.opened(await wire.read())))
    handshake.introduced(await wire.read())
    wire.write(framed(handshake.welcome()))
