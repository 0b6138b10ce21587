"""The side that dials: a connection to one node, kept open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import struct
from collections.abc import Callable, Mapping, Sequence

from wbkv_proto.link_pb2 import Hello, Reason

from kvstore.config.addresses import Address, NodeId
from kvstore.config.secret import Secret
from kvstore.wire.connection import WINDOW_BYTES, Connection, Delay, LinkCounts, LinkLimits, WarnOnce
from kvstore.wire.frames import Envelope, FrameCodec, WireError
from kvstore.wire.handshake import DiallingSide, Rejected
from kvstore.wire.outflow import Outflow

logger = logging.getLogger(__name__)


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
        codec: FrameCodec,
        limits: LinkLimits,
        secret: Secret,
        *,
        on_frame: Callable[[list[Envelope], int], None] | None = None,
        delay_s: float = 0.0,
    ) -> None:
        """`addresses` is read at each attempt. `on_frame` takes frames of the node and their lengths, and may
        raise `WireError`; without it, the node may send none. `delay_s` delays frames, each way, to emulate a
        distant node.
        """
        self.node = node
        self.hello = Hello()
        self.hello.CopyFrom(hello)
        self.hello.to = node
        self.codec = codec
        self.limits = limits
        self.secret = secret
        self.on_frame = on_frame
        self.delay_s = delay_s
        self.counts = LinkCounts()
        self.once = WarnOnce()
        self.problem = "not dialled yet"
        """Why there is no connection, or empty."""
        self.tried = asyncio.Event()
        """Set once the first attempt has succeeded or failed."""
        self.cut = False
        self._lossy = False
        """Whether a cut has dropped a frame of this connection."""
        self._addresses = addresses
        self._connection: Outbound | None = None
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""
        return self._connection is not None and not self._connection.over

    @property
    def backlog(self) -> int:
        """The unsent bytes of the connection."""
        return 0 if self._connection is None else self._connection.backlog

    def start(self) -> None:
        """Start to dial, and to dial again after each disconnect."""
        self._task = asyncio.get_running_loop().create_task(self._dial(), name=f"link to {self.node}")

    def send(self, envelopes: Sequence[Envelope]) -> None:
        """Send one frame, or count it as dropped without a connection."""
        if self._connection is None or self.cut:
            self.counts.dropped += 1
            self._lossy = True
        else:
            self._connection.send(envelopes)

    def heal(self) -> None:
        """End a cut. No frame may be missing within a connection, so a lossy one is replaced."""
        if self.cut and self._lossy and self._connection is not None:
            self._connection.abort()
        self.cut = False

    def wake(self) -> None:
        """Dial now: the node is reachable, so the back-off ends."""
        self._woken.set()

    def sweep(self) -> None:
        """Keep the connection alive; called `SWEEPS` times within the idle time-out."""
        if self._connection is not None:
            self._connection.ping()

    async def close(self, flush_s: float = 0.0) -> None:
        """Close, once everything is sent or the time is over."""
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
        attempts, logged = 0, ""
        while True:
            started = loop.time()
            self._woken.clear()
            await self._connect()
            self.tried.set()
            if self.problem != logged:
                logged = self.problem
                logger.info("no connection to %s: %s", self.node, logged)
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
        connection: Outbound | None = None
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
        except (OSError, ValueError, OverflowError) as error:  # an invalid address raises the last two
            self.problem = f"cannot connect to {host}:{port}: {error}"
        finally:
            self._connection = None
            if connection is not None:
                connection.abort()
                await connection.lost
            if sock is not None:
                # The loop has closed the socket. If the peer reset it quickly, uvloop has not marked it as
                # closed, and it would close the next socket with the same number.
                sock.detach()

    async def _adopt(self, sock: socket.socket) -> Outbound:
        """Hand the socket to the loop, which must not be cancelled: uvloop would never close it."""
        loop = asyncio.get_running_loop()
        adopting = loop.create_task(loop.create_connection(lambda: Outbound(self), sock=sock))
        try:
            _, connection = await asyncio.shield(adopting)
        except asyncio.CancelledError:
            _, connection = await adopting
            connection.abort()
            await connection.lost
            raise
        return connection


async def _reach(host: str, port: int) -> socket.socket:
    """Return a socket connected to the first of the host's addresses that accepts."""
    loop = asyncio.get_running_loop()
    problem = OSError(f"{host} has no address")
    for family, kind, proto, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, proto)
        try:
            sock.settimeout(0)
            await loop.sock_connect(sock, address)
            if sock.getsockname() != sock.getpeername():
                return sock
            # No process listens, and TCP has connected the port to itself. Free it at once for its owner.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            problem = ConnectionRefusedError(f"no process listens on {host}:{port}")
        except OSError as error:
            problem = error
        except BaseException:
            sock.close()
            raise
        sock.close()
    raise problem


class Outbound(Connection):
    """A connection that this node dialled."""

    def __init__(self, link: Link) -> None:
        super().__init__(f"node {link.node}", link.codec, link.limits, link.counts, link.once, link.delay_s)
        self.answered: asyncio.Future[str] = self._loop.create_future()
        """Why the peer rejects this node; empty if it does not."""
        self._link = link
        self._coming = Delay(link.delay_s, self._take)
        self._handshake = DiallingSide(link.secret, link.hello)
        self._flow = Outflow(link.codec, link.limits.flow)
        self._writable = True
        self._delayed = Delay(link.delay_s, self._write, self._departed)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: the connection is open."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(WINDOW_BYTES)
        self.write(self._handshake.opening())

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the connection is closed, by either side."""
        super().connection_lost(exc)
        self._coming.clear()
        if not self.answered.done():
            self.answered.set_result("the peer closed the connection at our Hello")

    @property
    def backlog(self) -> int:
        """Bytes that are not sent yet."""
        return super().backlog + self._flow.queued

    def send(self, envelopes: Sequence[Envelope]) -> None:
        """Send one turn's messages. Queue what the peer does not read yet, up to a bound."""
        flow = self._flow
        if self.over or self.transport.is_closing():
            self.counts.dropped += 1
            return
        flow.send(envelopes)
        self._pump()
        if flow.behind or flow.queued - flow.free + self._delayed.bytes > self.limits.buffer:
            self._fall_behind()

    def _pump(self) -> None:
        """Write what is queued, while the socket takes it, or what is under way with a delay is not much."""
        flow = self._flow
        most = self.limits.buffer // 2
        while self._writable and self._delayed.bytes < most and (data := flow.next()) is not None:
            if self._delayed.delay_s:
                self._delayed.put(data)
            else:
                self._write(data)
        if flow.behind and self._writable:
            self._fall_behind()

    def _departed(self) -> None:
        if not self.over:
            self._pump()

    def _fall_behind(self) -> None:
        """Drop the queue of a peer that does not read; begin a new epoch once it does."""
        flow = self._flow
        if not flow.behind:
            logger.warning("%s: reads too slowly; %d queued bytes are dropped", self.name, flow.queued)
            flow.fall_behind()
        if flow.too_large:
            text = f"a message exceeds the limit of {self.limits.message} bytes; the queue is dropped"
            self.once.warn(self.name, "too large", text)
        self._delayed.clear()
        self._count()
        self._resume()

    def _count(self) -> None:
        """Add up what the flow has counted."""
        flow, counts = self._flow, self.counts
        counts.dropped += flow.dropped
        counts.merged += flow.merged
        flow.dropped = flow.merged = 0

    def _resume(self) -> None:
        if self._writable and self._flow.behind:
            self.counts.epochs += 1
            self._flow.resume()
            self._pump()

    def pause_writing(self) -> None:
        """Keep what follows in the queue: the socket has enough."""
        self._writable = False

    def resume_writing(self) -> None:
        """Write on: the peer has read."""
        self._writable = True
        self._resume()
        self._pump()

    def ping(self) -> None:
        """Send an empty frame, if nothing was sent since the last sweep, and forget idle payloads."""
        self._flow.sweep()
        self._count()
        self._pump()
        super().ping()

    def finish(self) -> None:
        """Close once everything is sent."""
        self._writable = True
        self._pump()
        super().finish()

    def frame(self, data: bytes) -> None:
        """Handle one whole frame."""
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
            self._link.on_frame(self.codec.decode(data), len(data))
        except WireError as error:
            self.bad(str(error))

    def _answer(self, data: bytes) -> None:
        """Handle an answer of the handshake."""
        try:
            following = self._handshake.answered(data)
        except WireError as error:
            self.bad(str(error))
        except Rejected as error:
            reason = Reason.Name(error.reason) if error.reason in Reason.values() else "refused"
            self.counts.refused += 1
            self.once.warn(self.name, reason, error.text)
            self.answered.set_result(error.text)
            self.abort()
        else:
            if following is not None:
                self.write(following)
            if self._handshake.is_done:
                self.frame_max = 0 if self._link.on_frame is None else self.limits.frame
                self.answered.set_result("")
