"""One connection's state machine, without I/O: bytes go in, calls begin, frames come out.

The rules are those of RFC 9113, as far as a server of gRPC needs them: no pushes, no priorities, no
references in its own header blocks. `Connection.receive` takes whatever has arrived; what is to be sent is in
`Connection.output`.
"""

from __future__ import annotations

import struct
from asyncio import Future
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from kvstore.http2 import frames, grpc
from kvstore.http2.call import LARGE, Method
from kvstore.http2.errors import ConnectionFault, ErrorCode
from kvstore.http2.frames import FRAME_BYTES, HEADER, HEADER_BYTES, WINDOW, WINDOW_MAX
from kvstore.http2.headers import LIST_BYTES, HeaderReader
from kvstore.http2.output import Output
from kvstore.http2.patience import Patience
from kvstore.http2.status import Status
from kvstore.http2.stream import Stream

RECEIVE_WINDOW: Final = 1 << 20
"""Bytes that a client may send on all streams before we have said anything."""
BLOCK_BYTES: Final = LIST_BYTES
"""Of a header block, in all its frames."""
CONTINUATIONS: Final = 8
"""Frames that a header block may have behind its first."""
SETTINGS_COST: Final = 10
"""Of settings, in patience: they touch every stream."""

_ADVICE: Final = b"This port is for gRPC: it speaks HTTP/2 and nothing else.\n"
NOT_HTTP2: Final = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_ADVICE), _ADVICE)
)

_LONG: Final = struct.Struct(">L")
_SETTING: Final = struct.Struct(">HL")


class Limits(NamedTuple):
    """What one connection may do."""

    message_bytes: int
    """Of a request."""
    streams: int
    """Calls under way."""


class Host(Protocol):
    """What a connection needs of its server."""

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by path."""

    def admit(self) -> bool:
        """Whether one more call may be under way at the node; if so, it is, until `leave`."""

    def leave(self) -> None:
        """A call is over, and its work is."""


class Connection:
    """A client's connection."""

    def __init__(
        self, host: Host, limits: Limits, peer: str, clock: Callable[[], float], wake: Callable[[], None]
    ) -> None:
        """`wake` is called when there is output."""
        self._host = host
        self._methods = host.methods
        self.limits = limits
        self.peer = peer
        self.clock = clock
        self.streams: dict[int, Stream] = {}
        self._working = 0
        """Calls that are not over, or whose work is not."""
        self.greeted = False
        """Whether the client has sent its settings: it speaks HTTP/2."""
        self.closing = False
        """Whether the connection ends with its output."""
        self.fault: ConnectionFault | None = None
        """Why, if the client is to blame."""
        self._preface = False
        self._leaving = False
        """Whether no further calls are served."""
        self._rest = b""
        """The beginning of a frame."""
        self._last = 0
        """The client's newest stream."""
        self._headers = HeaderReader(grpc.head_of)
        self._block: tuple[int, bool, bytearray] | None = None
        """A header block that goes on: its stream, whether that ends with it, what has arrived."""
        self._continuations = 0
        self._patience = Patience(clock)
        self.output = Output(wake, self._patience)
        self.initial_window = WINDOW
        """Bytes that the client takes on a new stream."""
        # What the client may send
        self._receive_window = WINDOW
        self._held = 0
        self._may_hold = limits.streams * (LARGE + grpc.PREFIX.size)
        self.output.put(
            frames.settings(
                {frames.MAX_CONCURRENT_STREAMS: limits.streams, frames.MAX_HEADER_LIST_SIZE: LIST_BYTES}
            )
        )
        self._extend()

    # Ends

    def refuse(self, fault: ConnectionFault) -> None:
        """End the connection, and all its calls."""
        if not self.closing:
            self.fault = fault
            self.closing = True
            self.output.put(frames.goaway(self._last, fault.code, str(fault)))
            self.lost()

    def lost(self) -> None:
        """The client is gone, and so are its calls."""
        self.closing = True
        for stream in list(self.streams.values()):
            stream.reset()
        self.output.clear()

    def go_away(self) -> None:
        """Serve no further calls."""
        if not self._leaving:
            self._leaving = True
            self.output.put(frames.goaway(self._last, ErrorCode.NO_ERROR))

    def ping(self) -> None:
        """Ask the client whether it is there: whatever it sends is an answer."""
        self.output.put(frames.frame(frames.PING, 0, 0, b"wbkvping"))

    def expire(self, now: float) -> None:
        """End the calls whose time has passed."""
        for stream in list(self.streams.values()):
            stream.expire(now)

    def leave(self, stream: Stream, work: Future[Any] | None) -> None:
        """A call is over. Its work counts until it is, too."""
        del self.streams[stream.number]
        if work is None:
            self._left(None)
        else:
            work.add_done_callback(self._left)

    def _left(self, _: object) -> None:
        self._working -= 1
        self._host.leave()

    # Input

    def receive(self, data: bytes) -> None:
        """Take what has arrived. A client's fault ends the connection, and is not raised."""
        if self.closing:
            return
        if self._rest:
            data = self._rest + data
        try:
            at = self._parse(data)
        except ConnectionFault as fault:
            self._rest = b""
            self.refuse(fault)
        else:
            self._rest = data[at:]

    def _parse(self, data: bytes) -> int:
        """Handle all frames that are whole. Returns where the next one begins."""
        at, end = 0, len(data)
        if not self._preface:
            if not frames.PREFACE.startswith(data[: len(frames.PREFACE)]):
                self.closing = True
                self.output.put(NOT_HTTP2)
                return end
            if end < len(frames.PREFACE):
                return 0
            self._preface = True
            at = len(frames.PREFACE)
        while end - at >= HEADER_BYTES and not self.closing:
            high, low, kind, flags, number = HEADER.unpack_from(data, at)
            size = high << 8 | low
            if size > FRAME_BYTES:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            start = at + HEADER_BYTES
            stop = start + size
            if stop > end:
                break
            at = stop
            number &= WINDOW_MAX
            if self._block is not None or not self.greeted:
                self._check_order(kind, flags, number)
            if kind == frames.DATA:
                self._data(flags, number, data, start, stop)
            elif kind == frames.HEADERS:
                self._begin_block(flags, number, data[start:stop])
            elif kind in self._OTHERS:
                self._OTHERS[kind](self, flags, number, data[start:stop])
            else:
                self._patience.spend()  # unknown frames are to be ignored
        return at

    def _check_order(self, kind: int, flags: int, number: int) -> None:
        if not self.greeted:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not the settings")
            self.greeted = True
        elif self._block is not None and (kind != frames.CONTINUATION or number != self._block[0]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")

    def _data(self, flags: int, number: int, data: bytes, at: int, to: int) -> None:
        size = to - at
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "data beyond the connection's window")
        ended = flags & frames.END_STREAM
        if flags & frames.PADDED:
            to = at + _unpadded(data[at:to])
            at += 1
        if at == to and not ended:
            self._patience.spend()
        stream = self.streams.get(number)
        if stream is None:
            self._check_closed(number)
        elif stream.ended:
            self.output.put(frames.rst_stream(number, ErrorCode.STREAM_CLOSED))
            stream.reset()
        elif size > stream.receive_window:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "data beyond the stream's window")
        else:
            stream.receive_window -= size
            stream.receive(data, at, to, ended=bool(ended))
        if self._receive_window < RECEIVE_WINDOW // 2:
            self._extend()

    def hold(self, change: int) -> None:
        """Count bytes that have arrived and wait, or do not wait any more."""
        self._held += change
        if change < 0 and self._receive_window < RECEIVE_WINDOW // 2:
            self._extend()

    def _extend(self) -> None:
        """Let the client send more, unless too much of it waits."""
        more = RECEIVE_WINDOW - max(self._held - self._may_hold, 0) - self._receive_window
        if more > 0 and not self.closing:
            self._receive_window += more
            self.output.put(frames.window_update(0, more))

    def _check_closed(self, number: int) -> None:
        """A frame is of no open stream: of one that has been, it is late; of others, wrong."""
        if number > self._last or not number & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a frame on the idle stream {number}")
        self._patience.spend()

    def _begin_block(self, flags: int, number: int, payload: bytes) -> None:
        if not number & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a call on stream {number}")
        if flags & frames.PADDED:
            payload = payload[1 : _unpadded(payload)]
        if flags & frames.PRIORITIZED:
            if len(payload) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a priority of fewer than 5 bytes")
            payload = payload[5:]
        ended = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._open(number, payload, ended=ended)
        else:
            self._block = (number, ended, bytearray(payload))
            self._continuations = 0

    def _continue_block(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block goes on that has not begun")
        _, ended, block = self._block
        block += payload
        self._continuations += 1
        if len(block) > BLOCK_BYTES or self._continuations > CONTINUATIONS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block that is too long")
        if flags & frames.END_HEADERS:
            self._block = None
            self._open(number, bytes(block), ended=ended)

    def _open(self, number: int, block: bytes, *, ended: bool) -> None:
        """A call begins, or a request ends with headers."""
        head = self._headers.read(block)
        if number <= self._last:
            self._trailers(number, head, ended=ended)
            return
        self._last = number
        if self._leaving:
            return
        if head.malformed or not head.pseudo:
            self._patience.spend()
            self.output.put(frames.rst_stream(number, ErrorCode.PROTOCOL_ERROR))
            return
        if self._working >= self.limits.streams:
            self._patience.spend()
            self.output.put(frames.rst_stream(number, ErrorCode.REFUSED_STREAM))
            return
        method = self._methods.get(head.path)
        if head.refusal or method is None or not self._host.admit():
            self._answer(number, head, known=method is not None, ended=ended)
            return
        self._working += 1
        stream = self.streams[number] = Stream(self, number, head, method)
        if ended or method.streams_requests:
            stream.open(ended=ended)

    def _answer(self, number: int, head: grpc.Head, *, known: bool, ended: bool) -> None:
        """Answer a call that does not begin."""
        self._patience.spend()
        if head.refusal:
            block = head.refusal
        elif known:
            details = "too many calls are under way at this node; retry later, or at another node"
            block = grpc.end_block(Status.RESOURCE_EXHAUSTED, details, begin=True)
        else:
            block = grpc.end_block(Status.UNIMPLEMENTED, f"unknown method {head.path:.200}", begin=True)
        self.output.put(frames.headers(number, block, end=True))
        if not ended:
            self.output.put(frames.rst_stream(number, ErrorCode.NO_ERROR))

    def _trailers(self, number: int, head: grpc.Head, *, ended: bool) -> None:
        if head.pseudo:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"the number {number} of a stream is not new")
        self._patience.spend()
        stream = self.streams.get(number)
        if stream is None:
            return
        if stream.ended or not ended or head.malformed:
            self.output.put(frames.rst_stream(number, ErrorCode.PROTOCOL_ERROR))
            stream.reset()
        else:
            stream.receive(b"", 0, 0, ended=True)

    def _priority(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 5 or not number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "malformed priority")
        self._patience.spend()

    def _reset(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a reset of other than 4 bytes")
        stream = self.streams.get(number)
        if stream is None:
            self._check_closed(number)
        else:
            self._patience.spend()
            stream.reset()

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "malformed settings")
        if flags & frames.ACK:
            self._patience.spend()
            return
        self._patience.spend(SETTINGS_COST)
        window = self.initial_window
        for name, value in _SETTING.iter_unpack(payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                if value > WINDOW_MAX:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31 - 1")
                window = value
            elif name == frames.MAX_FRAME_SIZE:
                self.output.set_frame_size(value)
            elif name == frames.ENABLE_PUSH and value > 1:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "malformed settings")
        self.output.put(frames.SETTINGS_ACK)
        change, self.initial_window = window - self.initial_window, window
        if change:
            for stream in self.streams.values():
                self._widen(stream, change)

    def _widen(self, stream: Stream, change: int) -> None:
        stream.send_window += change
        if stream.send_window > WINDOW_MAX:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31 - 1")
        if change > 0:
            stream.may_send()

    def _pinged(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a ping of other than 8 bytes")
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a ping of a stream")
        self._patience.spend()
        if not flags & frames.ACK:
            self.output.put(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _goaway(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) < 8:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "malformed farewell")
        self._patience.spend()  # the client opens no further streams, and closes the connection

    def _window_update(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a window of other than 4 bytes")
        self._patience.spend()
        more = _LONG.unpack(payload)[0] & WINDOW_MAX
        if not more:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a window that does not grow")
        if not number:
            self.output.widen(more)
            return
        stream = self.streams.get(number)
        if stream is None:
            self._check_closed(number)
        else:
            self._widen(stream, more)

    def _push(self, flags: int, number: int, payload: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client does not push")

    _OTHERS: ClassVar[Mapping[int, Callable[[Connection, int, int, bytes], None]]] = {
        frames.PRIORITY: _priority,
        frames.RST_STREAM: _reset,
        frames.SETTINGS: _settings,
        frames.PUSH_PROMISE: _push,
        frames.PING: _pinged,
        frames.GOAWAY: _goaway,
        frames.WINDOW_UPDATE: _window_update,
        frames.CONTINUATION: _continue_block,
    }
    """What handles frames, but for the two that every call has."""


def _unpadded(payload: bytes) -> int:
    """Return where the padding of a payload begins."""
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "malformed padding")
    return len(payload) - payload[0]
