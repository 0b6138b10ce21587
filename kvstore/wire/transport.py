"""Connections between nodes, and from clients: FIFO while one lasts, and never more memory than was allowed.

Two nodes have two connections. Each node dials the other and only sends on that one, and only reads from the
one it accepted. So they never have to agree on who dials, and whoever accepts decides alone that a new
connection takes the place of the old. Clients dial too, and get their answers on the same connection.

Nothing is kept for a node that is not connected, and nothing is sent again: the protocol does without.
Whoever is too slow to read loses the connection, before we lose our memory. Bytes that no correct node sends
close the connection they came by, and are counted.

`Link` is the side that dials, for nodes and for clients. `_Door` is the side that accepts. `Transport` is
both, for a node. All calls belong into the loop that `start` was called in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

from google.protobuf.message import DecodeError
from wbkv_proto.link_pb2 import Answer, Hello, Reason, Refusal, Welcome

from kvstore.config.addresses import Address, join_address, read_place, split_address
from kvstore.node.ports import NodeId
from kvstore.wire.frames import Envelope, WireError, decode, encode
from multicast.errors import InvalidArgument
from multicast.messages import MembersWanted, Multicast
from multicast.types import ClientId, Process

logger = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 5
"""Of the hand-shake and of the frames: nodes of different versions refuse each other."""

HELLO_MAX: Final = 4096
"""Bytes of a Hello or of its answer: what a stranger can make us keep."""

SWEEPS: Final = 4
"""An idle time-out is so many looks at a connection, not a time: if this process was stopped meanwhile, what
has come for it counts as heard."""

_HEADER: Final = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What connections may cost, in bytes, connections and seconds."""

    frame: int = 16 << 20
    """The largest frame, in and out."""
    buffer: int = 32 << 20
    """Unsent on one connection; beyond it, the connection is reset."""
    clients: int = 256
    """Connections of clients."""
    peers: int = 256
    """Other nodes, those included that nobody told us of but themselves."""
    strangers: int = 64
    """Connections that have not said Hello yet."""
    handshake_s: float = 5.0
    idle_s: float = 10.0
    """How long a connection that was accepted may be silent. Whoever dialled breaks the silence in time."""
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:  # NaN is refused too
                raise InvalidArgument(f"{name} must be positive, not {getattr(self, name)}")
        if self.frame >= 1 << 8 * _HEADER:
            raise InvalidArgument(f"frame ({self.frame}) does not fit a length of {_HEADER} bytes")
        if self.buffer < self.frame + _HEADER:
            raise InvalidArgument(f"buffer ({self.buffer}) must have room for a frame ({self.frame})")


@dataclass(slots=True)
class Counts:
    """What happened on the connections with one node, with all clients, or with strangers."""

    connections: int = 0
    """That were welcomed, in either direction."""
    frames_in: int = 0
    bytes_in: int = 0
    frames_out: int = 0
    bytes_out: int = 0
    dropped: int = 0
    """Frames not sent, for want of a connection, of room or by a cut; or cut off when they came."""
    resets: int = 0
    """Connections dropped because the other side did not read fast enough, or a message fits no frame."""
    timeouts: int = 0
    """Connections dropped because the other side was silent."""
    bad_frames: int = 0
    """Bytes that no correct node or client sends."""
    refusals: int = 0
    """Hellos refused."""
    refused: int = 0
    """Our own Hellos that were refused."""


class _Once:
    """Says everything once: whoever keeps coming back with the same mistake does not fill the log."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def warn(self, who: str, what: str, text: str) -> None:
        if (who, what) not in self._said:
            self._said.add((who, what))
            logger.warning("%s: %s (said once)", who, text)


class _Delay:
    """Hands on what it is given after a while, in order: the emulated way of a frame."""

    def __init__(self, delay_s: float, hand_on: Callable[[bytes], None]) -> None:
        self.delay_s = delay_s
        self.bytes = 0
        """On their way."""
        self._hand_on = hand_on
        self._loop = asyncio.get_running_loop()
        self._frames: deque[tuple[float, bytes]] = deque()

    def put(self, data: bytes) -> None:
        self._frames.append((self._loop.time() + self.delay_s, data))
        self.bytes += len(data)
        if len(self._frames) == 1:
            self._loop.call_later(self.delay_s, self._arrive)

    def _arrive(self) -> None:
        """All have the same delay, so the first is always the first that is due."""
        now = self._loop.time()
        while self._frames:
            due, data = self._frames[0]
            if due > now:
                self._loop.call_at(due, self._arrive)
                return
            self._frames.popleft()
            self.bytes -= len(data)
            self._hand_on(data)

    def clear(self) -> None:
        """What is under way is lost."""
        self._frames.clear()
        self.bytes = 0


class _Connection(asyncio.Protocol):
    """One TCP connection, cut into frames. Subclasses say what to do with one."""

    transport: asyncio.Transport

    def __init__(self, name: str, limits: Limits, counts: Counts, once: _Once, delay_s: float = 0.0) -> None:
        self.name = name
        """Of the other side."""
        self.limits = limits
        self.counts = counts
        self.once = once
        self.frame_max = HELLO_MAX
        self.over = False
        """Nothing that still comes is looked at."""
        self.held = False
        """What comes is kept: the node has enough to do."""
        self.silent = 0
        """Sweeps since anything came."""
        self.spoken = False
        """Something was sent since the last sweep."""
        self._loop = asyncio.get_running_loop()
        self.lost = self._loop.create_future()
        self._rest = bytearray()
        """What has come of the next frame; or, while held, of any number of frames."""
        self._wanted = 0
        """Length of the rest from which on it is worth a look."""
        self._delayed = _Delay(delay_s, self._write)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        _tune(self.transport, self.limits.idle_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        self._delayed.clear()
        if not self.lost.done():
            self.lost.set_result(None)

    # What comes

    def data_received(self, data: bytes) -> None:
        self.silent = 0
        if self._rest:
            self._rest += data  # grows with what has come, whatever length was announced
            if self.held or len(self._rest) < self._wanted:
                return
            data = bytes(self._rest)
            self._rest.clear()
        self._cut(data)

    def _cut(self, data: bytes) -> None:
        start = 0
        self._wanted = 0
        while not (self.over or self.held):
            body = start + _HEADER
            if len(data) < body:
                break
            size = int.from_bytes(data[start:body], "big")
            if size > self.frame_max:
                self.bad(f"a frame of {size} bytes was announced; {self.frame_max} are allowed")
                return
            if len(data) < body + size:
                self._wanted = _HEADER + size
                break
            start = body + size
            self.frame(data[body:start])
        if not self.over:
            self._rest += data[start:]

    def eof_received(self) -> None:
        if self._rest and not self.over:
            self.bad("the connection ended within a frame")

    def frame(self, data: bytes) -> None:
        """A whole frame has come."""
        raise NotImplementedError

    def bad(self, why: str) -> None:
        """No correct node sends this: the connection is not worth keeping."""
        self.counts.bad_frames += 1
        self.once.warn(self.name, "bad frame", f"connection closed: {why:.200}")
        self.abort()

    def hold(self) -> None:
        """Read no more for now."""
        self.held = True
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def release(self) -> None:
        """Go on with what has been kept, then read on."""
        self.held = False
        self.silent = 0
        data = bytes(self._rest)
        self._rest.clear()
        self._cut(data)
        if not (self.held or self.over or self.transport.is_closing()):
            self.transport.resume_reading()

    # What goes

    def say(self, envelopes: Sequence[Envelope]) -> None:
        """All of this, as one frame if it fits into one."""
        data = encode(envelopes)
        if len(data) <= self.limits.frame:
            self.put(data)
        elif halves := _halves(envelopes):
            for half in halves:
                self.say(half)
        else:  # It is lost, so the connection ends: nothing may be missing within one.
            self.counts.dropped += 1
            self.counts.resets += 1
            self.once.warn(self.name, "too large", f"reset: a message of {len(data)} bytes fits no frame")
            self.abort()

    def put(self, data: bytes) -> None:
        """Send a frame, unless the other side is too far behind: that ends the connection."""
        if self.over or self.transport.is_closing():
            self.counts.dropped += 1
            return
        unsent = self.transport.get_write_buffer_size() + self._delayed.bytes
        if unsent + _HEADER + len(data) > self.limits.buffer:
            self.counts.dropped += 1
            self.counts.resets += 1
            logger.warning("%s: connection reset, %d bytes are unsent", self.name, unsent)
            self.abort()
        elif self._delayed.delay_s:
            self._delayed.put(data)
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        if self.over or self.transport.is_closing():
            return
        self.spoken = True
        self.counts.frames_out += 1
        self.counts.bytes_out += len(data)
        self.write(data)

    def write(self, data: bytes) -> None:
        """The bytes of a frame."""
        self.transport.write(len(data).to_bytes(_HEADER, "big") + data)

    def ping(self) -> None:
        """Break the silence, if there was any."""
        if not (self.spoken or self.over or self.transport.is_closing()):
            self.transport.write(bytes(_HEADER))
        self.spoken = False

    def finish(self) -> None:
        """End it when everything is sent."""
        self.over = True
        self.transport.close()

    def abort(self) -> None:
        """End it now."""
        self.over = True
        self._delayed.clear()
        self._rest.clear()
        self.transport.abort()


def _tune(transport: asyncio.Transport, idle_s: float) -> None:
    """Send at once; and notice a machine that is gone, or that leaves what we send unread."""
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, round(idle_s / 2))
    options = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": seconds,
        "TCP_KEEPINTVL": max(1, seconds // 3),
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": round(idle_s * 1000),
    }
    for name, value in options.items():
        option = getattr(socket, name, None)  # some are Linux's only
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _halves(envelopes: Sequence[Envelope]) -> list[Sequence[Envelope]]:
    """Two parts of what is too much for one frame, in order; none, if it is a single message."""
    if len(envelopes) > 1:
        middle = len(envelopes) // 2
        return [envelopes[:middle], envelopes[middle:]]
    [(sender, receiver, messages)] = envelopes
    middle = len(messages) // 2
    if not middle:
        return []
    return [[(sender, receiver, messages[:middle])], [(sender, receiver, messages[middle:])]]


# The side that dials


class Link:
    """Keeps a connection to one node open, and sends on it.

    A new connection is made only when the old one is given up. Frames follow the answer to Hello, so none is
    on its way by an old connection once the other side has seen a new one.
    """

    def __init__(
        self,
        node: NodeId,
        addresses: Mapping[NodeId, Address],
        hello: Hello,
        limits: Limits,
        *,
        on_frame: Callable[[list[Envelope]], None] | None = None,
        delay_s: float = 0.0,
    ) -> None:
        """`addresses` is looked at each time. `on_frame` takes what comes back, and may raise `WireError`;
        without it, nothing may. `delay_s` is how long frames take, there and back: to emulate a long way.
        """
        self.node = node
        self.hello = Hello()
        self.hello.CopyFrom(hello)
        self.hello.to = node
        self.limits = limits
        self.on_frame = on_frame
        self.delay_s = delay_s
        self.counts = Counts()
        self.once = _Once()
        self.problem = "not dialled yet"
        """Why there is no connection, if there is none."""
        self.tried = asyncio.Event()
        """The first attempt has succeeded or failed."""
        self.cut = False
        self._lossy = False
        """A cut has dropped something of what the connection should have carried."""
        self._addresses = addresses
        self._connection: _Outbound | None = None
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether what is sent now has a chance."""
        return self._connection is not None and not self._connection.over

    def start(self) -> None:
        """Dial, again and again."""
        self._task = asyncio.get_running_loop().create_task(self._dial(), name=f"link to {self.node}")

    def send(self, envelopes: Sequence[Envelope]) -> None:
        """One frame, if there is a connection."""
        if self._connection is None or self.cut:
            self.counts.dropped += 1
            self._lossy = True
        else:
            self._connection.say(envelopes)

    def heal(self) -> None:
        """End a cut. What it dropped must not be missing within a connection, so a new one is made."""
        if self.cut and self._lossy and self._connection is not None:
            self._connection.abort()
        self.cut = False

    def wake(self) -> None:
        """The node is there: do not wait until the end of the back-off."""
        self._woken.set()

    def sweep(self) -> None:
        """Called several times in an idle time-out."""
        if self._connection is not None:
            self._connection.ping()

    async def close(self, flush_s: float = 0.0) -> None:
        """Hang up, when everything is sent or the time is over."""
        if self._task is None:
            return
        if self._connection is not None:
            self._connection.finish()
            await asyncio.wait([self._connection.lost], timeout=flush_s)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        low, high = self.limits.backoff_min_s, self.limits.backoff_max_s
        attempts, said = 0, ""
        while True:
            started = loop.time()
            self._woken.clear()
            await self._connect()
            self.tried.set()
            if self.problem != said:
                said = self.problem
                logger.info("no connection to %s: %s", self.node, said)
            attempts = 0 if loop.time() - started > high else attempts + 1
            pause = min(high, low * 2 ** min(attempts, 30)) * random.uniform(0.5, 1)
            await asyncio.sleep(min(pause, low))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause - low):
                    await self._woken.wait()

    async def _connect(self) -> None:
        """One connection, from beginning to end."""
        host, port = self._addresses[self.node]
        sock: socket.socket | None = None
        connection: _Outbound | None = None
        try:
            async with asyncio.timeout(self.limits.handshake_s):
                sock = await _reach(host, port)
                connection = await self._adopt(sock)
                self.problem = await connection.answered
            if not self.problem:
                self._connection = connection
                self._lossy = False
                self.counts.connections += 1
                self.tried.set()
                logger.info("connected to %s at %s:%s", self.node, host, port)
                await connection.lost
                self.problem = "the connection was lost"
        except TimeoutError:
            self.problem = f"no answer from {host}:{port} within {self.limits.handshake_s} s"
        except (OSError, ValueError, OverflowError) as error:  # no address at all gives the last two
            self.problem = f"cannot connect to {host}:{port}: {error}"
        finally:
            self._connection = None
            if connection is not None:
                connection.abort()
                await connection.lost
            if sock is not None:
                # The loop has closed it. If the other side was quick to reset it, uvloop has not told it so,
                # and it would close whatever gets its number next.
                sock.detach()

    async def _adopt(self, sock: socket.socket) -> _Outbound:
        """The loop takes the socket over, and is not disturbed: uvloop would neither use nor close it."""
        loop = asyncio.get_running_loop()
        adopting = loop.create_task(loop.create_connection(lambda: _Outbound(self), sock=sock))
        try:
            _, connection = await asyncio.shield(adopting)
        except asyncio.CancelledError:
            _, connection = await adopting
            connection.abort()
            await connection.lost
            raise
        return connection


async def _reach(host: str, port: int) -> socket.socket:
    """A socket that is connected to the first of the host's addresses where somebody listens."""
    loop = asyncio.get_running_loop()
    problem = OSError(f"{host} has no address")
    for family, kind, proto, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, proto)
        try:
            sock.settimeout(0)
            await loop.sock_connect(sock, address)
            if sock.getsockname() != sock.getpeername():
                return sock
            # Nobody listens, and TCP has connected the port to itself. Its owner will want it back: at once.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            problem = ConnectionRefusedError(f"nobody listens on {host}:{port}")
        except OSError as error:
            problem = error
        except BaseException:
            sock.close()
            raise
        sock.close()
    raise problem


class _Outbound(_Connection):
    """A connection that was dialled."""

    def __init__(self, link: Link) -> None:
        super().__init__(f"node {link.node}", link.limits, link.counts, link.once, link.delay_s)
        self.answered: asyncio.Future[str] = self._loop.create_future()
        """What is wrong; empty if we are welcome."""
        self._link = link
        self._coming = _Delay(link.delay_s, self._take)
        self._number = secrets.randbits(64)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        hello = Hello()
        hello.CopyFrom(self._link.hello)
        hello.connection = self._number
        self.write(hello.SerializeToString())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._coming.clear()
        if not self.answered.done():
            self.answered.set_result("it hung up on our Hello")

    def frame(self, data: bytes) -> None:
        if not self.answered.done():
            self._answer(data)
        elif data and self._link.on_frame is not None:
            self.counts.frames_in += 1
            self.counts.bytes_in += len(data)
            if self._coming.delay_s:
                self._coming.put(data)
            else:
                self._take(data)

    def _take(self, data: bytes) -> None:
        if self.over or self._link.on_frame is None:
            return
        try:
            self._link.on_frame(decode(data))
        except WireError as error:
            self.bad(str(error))

    def _answer(self, data: bytes) -> None:
        """Welcome, or the reason why not."""
        try:
            answer = Answer.FromString(data)
        except DecodeError as error:
            self.bad(f"not an answer: {error}")
            return
        refusal = answer.refusal
        if answer.HasField("refusal"):
            reason = Reason.Name(refusal.reason) if refusal.reason in Reason.values() else "refused"
            problem = f"we are refused: {refusal.text!r:.300}"
            self.counts.refused += 1
            self.once.warn(self.name, reason, problem)
            self.answered.set_result(problem)
            self.abort()
        elif answer.welcome.connection != self._number:
            self.bad("this does not answer our Hello")
        else:
            self.frame_max = 0 if self._link.on_frame is None else self.limits.frame
            self.answered.set_result("")


# The side that accepts


@dataclass(frozen=True, slots=True)
class _Handlers:
    """What a node does with frames, and what it knows. None of these may raise."""

    on_frame: Callable[[NodeId, list[Envelope], int], None]
    on_client: Callable[[ClientId, list[Envelope], int], None]
    lives_on: Callable[[NodeId, Process], bool]
    seen: Callable[[Hello], None]
    """A node has connected, so it can be dialled."""


class _Door:
    """Who may come in, and what they may say."""

    def __init__(self, hello: Hello, limits: Limits, handlers: _Handlers) -> None:
        self.hello = hello
        """What we say ourselves: others must agree."""
        self.counts: dict[NodeId, Counts] = {}
        """Of the nodes that we know."""
        self.client_counts = Counts()
        self.stranger_counts = Counts()
        self.limits = limits
        self.handlers = handlers
        self.once = _Once()
        self.strangers: set[_Inbound] = set()
        self.peers: dict[NodeId, _Inbound] = {}
        self.guests: dict[_Inbound, None] = {}
        """Connections of clients."""
        self.clients: dict[ClientId, _Inbound] = {}
        """By which connection each client spoke last."""
        self.closed = False
        self.paused = False
        self.cut: set[NodeId] = set()

    def enter(self, visitor: _Inbound) -> None:
        """Somebody has connected."""
        self.strangers.add(visitor)
        if self.closed:
            visitor.abort()
        elif len(self.strangers) > self.limits.strangers:
            self._refuse(visitor, Reason.TOO_MANY_CONNECTIONS, "too many connections are being made")

    def leave(self, visitor: _Inbound) -> None:
        """A connection has ended."""
        self.strangers.discard(visitor)
        self.guests.pop(visitor, None)
        if visitor.node is not None and self.peers.get(visitor.node) is visitor:
            del self.peers[visitor.node]
        if visitor.client is not None and self.clients.get(visitor.client) is visitor:
            del self.clients[visitor.client]

    def introduce(self, visitor: _Inbound, data: bytes) -> None:
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
            if read_place(f"{node}@{hello.address}") is None:
                return Reason.UNKNOWN_NODE, f"node {node!r:.80} does not say where it is"
            if len(self.counts) >= self.limits.peers:
                return Reason.TOO_MANY_CONNECTIONS, f"there are {len(self.counts)} nodes"
        if hello.to != ours.node:
            return Reason.WRONG_NODE, f"you mean {hello.to!r:.80}; I am {ours.node!r:.80}"
        return None

    def _refuse(self, visitor: _Inbound, reason: Reason, text: str) -> None:
        visitor.counts.refusals += 1
        self.once.warn(visitor.name, Reason.Name(reason), f"refused: {text}")
        visitor.refuse(Refusal(reason=reason, text=text))

    def peer_frame(self, visitor: _Inbound, node: NodeId, data: bytes) -> None:
        """Only processes that live on a node may speak by its connection."""
        if node in self.cut:
            visitor.counts.dropped += 1
            visitor.lossy = True
            return
        envelopes = decode(data)
        for sender, _, _ in envelopes:
            if not self.handlers.lives_on(node, sender):
                raise WireError(f"{sender} does not live on {node}")
        self.handlers.on_frame(node, envelopes, len(data))

    def client_frame(self, visitor: _Inbound, client: ClientId, data: bytes) -> None:
        """A client may only multicast, and only in its own name; and ask who is in a group."""
        envelopes = decode(data)
        for sender, _, messages in envelopes:
            if sender != client:
                raise WireError(f"client {client} may not speak for {sender}")
            for message in messages:
                own = isinstance(message, Multicast) and message.mid.client == client
                if not (own or isinstance(message, MembersWanted)):
                    raise WireError(f"client {client} may not send this {type(message).__name__}")
        self.clients[client] = visitor
        self.handlers.on_client(client, envelopes, len(data))

    def welcomed(self) -> list[_Inbound]:
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


class _Inbound(_Connection):
    """A connection that was accepted."""

    def __init__(self, door: _Door) -> None:
        super().__init__("a stranger", door.limits, door.stranger_counts, door.once)
        self.node: NodeId | None = None
        self.client: ClientId | None = None
        self.lossy = False
        """A cut has dropped something that came by this connection."""
        self._door = door
        self._timer = self._loop.call_later(door.limits.handshake_s, self._too_late)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._door.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._timer.cancel()
        self._door.leave(self)

    def _too_late(self) -> None:
        self.counts.timeouts += 1
        self.abort()

    def frame(self, data: bytes) -> None:
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


class Transport:
    """A node's `Network`: links to its peers, and a door for them and for clients."""

    def __init__(
        self,
        me: NodeId,
        cluster_id: str,
        topology_hash: bytes,
        peers: Mapping[NodeId, Address],
        *,
        on_frame: Callable[[NodeId, list[Envelope], int], None],
        on_client: Callable[[ClientId, list[Envelope], int], None],
        lives_on: Callable[[NodeId, Process], bool],
        listen: Address = ("127.0.0.1", 0),
        limits: Limits | None = None,
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
        self.limits = limits or Limits()
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
        handlers = _Handlers(on_frame, on_client, lives_on, self._seen)
        self._door = _Door(self._hello, self.limits, handlers)
        for node in peers:
            if node != me:
                self._add_link(node, peers)

    def _add_link(self, node: NodeId, addresses: Mapping[NodeId, Address]) -> None:
        delay_s = self._delays.get((self.me, node), 0.0)
        self._links[node] = link = Link(node, addresses, self._hello, self.limits, delay_s=delay_s)
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
                lambda: _Inbound(self._door), host, port, reuse_address=True
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
        frames: dict[_Inbound, list[Envelope]] = {}
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
        """For each peer, for all clients, and for who never said a proper Hello: see `Counts`."""
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
