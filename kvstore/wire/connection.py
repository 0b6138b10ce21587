"""One TCP connection, cut into frames: what both sides share."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from kvstore.config.checks import MESSAGE_BYTES_MAX
from kvstore.wire.flow import FlowLimits
from kvstore.wire.frames import Envelope, FrameCodec
from kvstore.wire.payloads import split_in_two
from multicast.errors import InvalidArgument

logger = logging.getLogger(__name__)

HELLO_MAX: Final = 4096
"""Limit of a message of the handshake, in bytes: all that is kept for a peer before it is authenticated."""

SWEEPS: Final = 4
"""Sweeps in an idle time-out. Sweeps are counted, not time: if this process was stopped meanwhile, data that
arrived for it still counts."""

HEADER_BYTES: Final = 4

SLICE_OVERHEAD: Final = 1024
"""More than the header of a slice, or the references of a message, take in a frame."""

UNSENT_BYTES: Final = 128 << 10
"""What a socket takes beyond what is on its way to the peer."""
RELAYING_BYTES: Final = 64 << 10
"""More than a relayed message takes besides its payload: its frame, and the header of that."""
WINDOW_BYTES: Final = 128 << 10
"""What is handed to a socket beyond what it has sent: what follows is still in our queue, where a small frame
can pass a large message."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Limits of connections, in bytes, connections and seconds."""

    frame: int = 16 << 20
    """The largest frame, in and out."""
    message: int = MESSAGE_BYTES_MAX + RELAYING_BYTES
    """The largest message between nodes, also in a relayed frame; large ones travel in slices."""
    buffer: int = 64 << 20
    """Unsent bytes of one connection, but for states. Beyond it, a node's queue is dropped; a client is
    disconnected."""
    partial: int = 256 << 20
    """Bytes of frames that have arrived in part, of all connections together; beyond it, the connection that
    keeps most is closed."""
    clients: int = 256
    """Connections of clients."""
    peers: int = 256
    """Other nodes above which no node is admitted that neither the configuration nor a membership names."""
    strangers: int = 64
    """Connections within their handshake; beyond it, the oldest is closed."""
    handshake_s: float = 5.0
    idle_s: float = 10.0
    """How long an accepted connection may be silent. The dialling side sends pings in time."""
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:  # NaN is refused too
                raise InvalidArgument(f"{name} must be positive, not {getattr(self, name)}")
        if self.frame >= 1 << 8 * HEADER_BYTES:
            raise InvalidArgument(f"frame ({self.frame}) does not fit a length of {HEADER_BYTES} bytes")
        for name in ("frame", "message"):
            largest = getattr(self, name)
            if self.buffer < largest + HEADER_BYTES:
                raise InvalidArgument(f"buffer ({self.buffer}) must have room for a {name} ({largest})")
        if self.partial < self.frame + HEADER_BYTES:
            raise InvalidArgument(f"partial ({self.partial}) must have room for a frame ({self.frame})")

    @property
    def flow(self) -> FlowLimits:
        """The limits of the messages between two nodes."""
        usual = FlowLimits(message=self.message, queue=self.buffer)
        room = max(1, self.frame - SLICE_OVERHEAD)
        return replace(usual, whole=min(usual.whole, room), slice=min(usual.slice, room))


@dataclass(slots=True)
class LinkCounts:
    """Counters of the connections with one node, with all clients, or with unknown peers."""

    connections: int = 0
    """Connections established, in either direction."""
    frames_in: int = 0
    bytes_in: int = 0
    frames_out: int = 0
    bytes_out: int = 0
    dropped: int = 0
    """Frames not sent, for lack of a connection or of room, or dropped by a cut in either direction."""
    resets: int = 0
    """Connections of clients dropped because the client did not read fast enough, or an answer exceeded a
    frame."""
    epochs: int = 0
    """Queues dropped because the node did not read fast enough, or a message exceeded the limit."""
    behind: int = 0
    """Queues that the node has dropped because this node did not read fast enough."""
    merged: int = 0
    """Retransmissions that were not queued since the same message already was."""
    timeouts: int = 0
    """Connections dropped because the peer was silent."""
    bad_frames: int = 0
    """Frames that no correct node or client sends."""
    refusals: int = 0
    """Handshakes that this node rejected."""
    unproven: int = 0
    """Of these, those of peers that did not prove that they know the cluster's secret."""
    refused: int = 0
    """Handshakes of this node that failed: the peer rejected it, or did not prove itself."""


class WarnOnce:
    """Logs each warning once per peer, so that a peer that repeats a mistake does not fill the log."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def warn(self, peer: str, what: str, text: str) -> None:
        """Log a warning, unless this peer got the same one before."""
        if (peer, what) not in self._logged:
            self._logged.add((peer, what))
            logger.warning("%s: %s (logged once)", peer, text)


class Delay:
    """Passes data on after a delay, in order: emulates a distant peer."""

    def __init__(
        self, delay_s: float, hand_on: Callable[[bytes], None], then: Callable[[], None] = lambda: None
    ) -> None:
        """`then` is called when there is room again."""
        self.delay_s = delay_s
        self.bytes = 0
        """Bytes under way."""
        self._hand_on = hand_on
        self._then = then
        self._loop = asyncio.get_running_loop()
        self._frames: deque[tuple[float, bytes]] = deque()

    def put(self, data: bytes) -> None:
        """Pass the bytes on once the delay is over."""
        self._frames.append((self._loop.time() + self.delay_s, data))
        self.bytes += len(data)
        if len(self._frames) == 1:
            self._loop.call_later(self.delay_s, self._arrive)

    def _arrive(self) -> None:
        """Pass on what is due. All data have the same delay, so the first is due first."""
        now = self._loop.time()
        while self._frames:
            due, data = self._frames[0]
            if due > now:
                self._loop.call_at(due, self._arrive)
                break
            self._frames.popleft()
            self.bytes -= len(data)
            self._hand_on(data)
        self._then()

    def clear(self) -> None:
        """Drop the data under way."""
        self._frames.clear()
        self.bytes = 0


class Connection(asyncio.Protocol):
    """One TCP connection, cut into frames, which subclasses handle."""

    transport: asyncio.Transport

    def __init__(
        self,
        name: str,
        codec: FrameCodec,
        limits: LinkLimits,
        counts: LinkCounts,
        once: WarnOnce,
        delay_s: float = 0.0,
    ) -> None:
        self.name = name
        """Of the peer."""
        self.codec = codec
        self.limits = limits
        self.counts = counts
        self.once = once
        self.frame_max = HELLO_MAX
        self.over = False
        """Whether data that still arrive are ignored."""
        self.held = False
        """Whether arriving data are kept back: the node has enough to do."""
        self.silent = 0
        """Sweeps since data last arrived."""
        self.spoken = False
        """Whether data were sent since the last sweep."""
        self._loop = asyncio.get_running_loop()
        self.lost = self._loop.create_future()
        self._rest = bytearray()
        """The part of the next frame that has arrived; or, while held, of any number of frames."""
        self._wanted = 0
        """Length of `_rest` that completes a frame."""
        self._delayed = Delay(delay_s, self._write)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: the connection is open."""
        self.transport = cast(asyncio.Transport, transport)
        tune(self.transport, self.limits.idle_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the connection is closed, by either side."""
        self.over = True
        self._delayed.clear()
        if not self.lost.done():
            self.lost.set_result(None)

    # Receiving

    def data_received(self, data: bytes) -> None:
        """Cut what arrives into frames."""
        self.silent = 0
        if self._rest:
            self._rest += data  # grows with what has arrived, whatever length was announced
            if self.held or len(self._rest) < self._wanted:
                self.kept(len(self._rest))
                return
            data = bytes(self._rest)
            self._rest.clear()
        self._cut(data)

    def _cut(self, data: bytes) -> None:
        start = 0
        self._wanted = 0
        while not (self.over or self.held):
            body = start + HEADER_BYTES
            if len(data) < body:
                break
            size = int.from_bytes(data[start:body], "big")
            if size > self.frame_max:
                self.bad(f"a frame of {size} bytes was announced; {self.frame_max} are allowed")
                return
            if len(data) < body + size:
                self._wanted = HEADER_BYTES + size
                break
            start = body + size
            self.frame(data[body:start])
        if not self.over:
            self._rest += data[start:]

    def eof_received(self) -> None:
        """Close: the peer sends nothing more."""
        if self._rest and not self.over:
            self.bad("the connection ended within a frame")

    @property
    def partial(self) -> int:
        """Bytes of the frame that has arrived in part."""
        return len(self._rest)

    def kept(self, size: int) -> None:
        """Notice that part of a frame is kept until the rest arrives."""

    def frame(self, data: bytes) -> None:
        """Handle one whole frame."""
        raise NotImplementedError

    def bad(self, why: str) -> None:
        """Close the connection: no correct peer sends this."""
        self.counts.bad_frames += 1
        self.once.warn(self.name, "bad frame", f"connection closed: {why:.200}")
        self.abort()

    def hold(self) -> None:
        """Stop reading for now."""
        self.held = True
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def release(self) -> None:
        """Handle the data kept back, then resume reading."""
        self.held = False
        self.silent = 0
        data = bytes(self._rest)
        self._rest.clear()
        self._cut(data)
        if not (self.held or self.over or self.transport.is_closing()):
            self.transport.resume_reading()

    # Sending

    def send(self, envelopes: Sequence[Envelope]) -> None:
        """Send all of this to a client, as one frame if it fits into one."""
        data = self.codec.encode(envelopes)
        if len(data) <= self.limits.frame:
            self.put(data)
        elif halves := split_in_two(envelopes):
            for half in halves:
                self.send(half)
        else:  # The message is lost, so the connection ends: none may be missing within one.
            self.counts.dropped += 1
            self.counts.resets += 1
            text = f"reset: a message of {len(data)} bytes exceeds the frame limit of {self.limits.frame}"
            self.once.warn(self.name, "too large", text)
            self.abort()

    @property
    def backlog(self) -> int:
        """Bytes that are not sent yet."""
        return self.transport.get_write_buffer_size() + self._delayed.bytes

    def put(self, data: bytes) -> None:
        """Send a frame. A client that has fallen too far behind is disconnected instead."""
        if self.over or self.transport.is_closing():
            self.counts.dropped += 1
            return
        unsent = self.backlog
        if unsent + HEADER_BYTES + len(data) > self.limits.buffer:
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
        """Write the bytes of one frame."""
        self.transport.write(len(data).to_bytes(HEADER_BYTES, "big") + data)

    def ping(self) -> None:
        """Send an empty frame, if nothing was sent since the last sweep."""
        if not (self.spoken or self.over or self.transport.is_closing()):
            self.transport.write(bytes(HEADER_BYTES))
        self.spoken = False

    def finish(self) -> None:
        """Close once everything is sent."""
        self.over = True
        self.transport.close()

    def abort(self) -> None:
        """Close now."""
        self.over = True
        self._delayed.clear()
        self._rest.clear()
        self.transport.abort()


def tune(transport: asyncio.Transport, idle_s: float) -> None:
    """Disable Nagle's algorithm, and detect peers that are gone or do not read."""
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, round(idle_s / 2))
    options = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": seconds,
        "TCP_KEEPINTVL": max(1, seconds // 3),
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": round(idle_s * 1000),
        "TCP_NOTSENT_LOWAT": UNSENT_BYTES,
    }
    for name, value in options.items():
        option = getattr(socket, name, None)  # some exist only on Linux
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
