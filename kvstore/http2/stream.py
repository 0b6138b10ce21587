"""One call on a connection: a stream of HTTP/2, and the `Call` that its method has.

The short way is `receive` with all of a request, `Method.begin`, and `reply` with a response that fits into
the windows. `Incoming` and `_Outgoing` are made only for calls that need them.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kvstore.http2 import frames, grpc
from kvstore.http2.call import LARGE, Arrived, Metadata, Method, Room
from kvstore.http2.errors import ErrorCode
from kvstore.http2.incoming import BadMessage, Compressed, Incoming, TooLarge
from kvstore.http2.status import Status

if TYPE_CHECKING:
    from kvstore.http2.connection import Connection

REQUEST_S: Final = 30.0
"""How long the request of a unary call, or a large message, may take to arrive."""

_BEGIN: Final = frames.frame(frames.HEADERS, frames.END_HEADERS, 0, grpc.RESPONSE_BLOCK)[:5]
"""What the first frame of a response begins with, up to the number of its stream."""
_END: Final = frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 0, grpc.OK_BLOCK)[:5]
"""The same of its last frame, if all is well."""
_FIRST: Final = struct.Struct(f">5sL{len(grpc.RESPONSE_BLOCK)}sHBBBLBL")
"""A response's headers, the header of a frame of data, and a message's prefix."""
_NEXT: Final = struct.Struct(">HBBBLBL")
"""The same without the response's headers."""
_LAST: Final = struct.Struct(f">5sL{len(grpc.OK_BLOCK)}s")

_STATUS: Final[dict[type[BadMessage], Status]] = {
    Compressed: Status.UNIMPLEMENTED,
    TooLarge: Status.RESOURCE_EXHAUSTED,
}


class _Outgoing:
    """A message that waits for the client to take more."""

    __slots__ = ("at", "bytes", "end", "queued", "writer")

    def __init__(self, message: bytes, end: bytes) -> None:
        self.bytes = memoryview(grpc.PREFIX.pack(0, len(message)) + message)
        self.at = 0
        self.end = end
        """The headers that end the call behind it, or nothing."""
        self.writer: asyncio.Future[None] | None = None
        self.queued = False
        """Whether the stream is in the connection's queue."""


class Stream:
    """A call on a port: see `call.Call`."""

    __slots__ = (
        *("_callbacks", "_connection", "_deadline", "_incoming", "_metadata", "_method", "_outgoing"),
        *(
            "_responding",
            "_work",
            "begun",
            "ended",
            "number",
            "over",
            "receive_window",
            "send_window",
            "until",
        ),
    )

    def __init__(self, connection: Connection, number: int, head: grpc.Head, method: Method) -> None:
        self._connection = connection
        self.number = number
        self._method = method
        self._metadata = head.metadata
        self.send_window = connection.initial_window
        """Bytes that the client takes. Its settings may make it negative."""
        self.receive_window = frames.WINDOW
        """Bytes that the client may send."""
        self._deadline = None if head.timeout_s is None else connection.clock() + head.timeout_s
        self.until = self._deadline
        """When the server ends the call."""
        self.begun = False
        """Whether the method has begun."""
        self.ended = False
        """Whether the client has sent everything."""
        self.over = False
        """Whether the call is over."""
        self._responding = False
        """Whether the response's headers were sent."""
        self._work: asyncio.Future[Any] | None = None
        self._callbacks: list[Callable[[], object]] | None = None
        self._incoming: Incoming | None = None
        self._outgoing: _Outgoing | None = None

    # What the client sends

    def open(self, *, ended: bool) -> None:
        """Begin, if the method reads its requests by itself. The client may have sent everything: nothing."""
        self.ended = ended
        if self._method.streams_requests:
            self._incoming = Incoming(self._connection.limits.message_bytes)
            self._begin(b"")
        elif ended:
            self.finish(Status.INTERNAL, "the call has no request")

    def receive(self, data: bytes, at: int, to: int, *, ended: bool) -> None:
        """Take a part of some data, which is within the window."""
        if ended:
            self.ended = True
        incoming = self._incoming
        if incoming is None:
            size = to - at - 5
            if 0 <= size <= LARGE and grpc.PREFIX.unpack_from(data, at) == (0, size) and not self.begun:
                self._begin(data[at + 5 : to])
                return
            incoming = self._incoming = Incoming(self._connection.limits.message_bytes)
        incoming.add(data[at:to])
        self._advance(incoming)

    def _begin(self, request: bytes) -> None:
        self.begun = True
        self.until = self._deadline
        self._work = self._method.begin(self, request)

    def _advance(self, incoming: Incoming) -> None:
        """Do what is possible with the bytes that have arrived."""
        try:
            size = incoming.to_announce()
            if size is not None:
                self._method.announce(self, size)  # if it is accepted at once, `accept` has been here
            elif self._method.streams_requests:
                reader = incoming.reader
                if reader is not None and not reader.done() and (self.ended or incoming.may_take):
                    reader.set_result(None)
            elif not self.begun:
                self._take_only(incoming)
            elif not incoming.is_empty:
                raise BadMessage("the call has more than one request")  # noqa: TRY301 - as others do
        except BadMessage as error:
            self._refuse(error)
        if not self.over:
            self._account(incoming)

    def _take_only(self, incoming: Incoming) -> None:
        """Begin with the only request, if it has arrived and is accepted."""
        request = incoming.take()
        if request is not None:
            if not incoming.is_empty:
                raise BadMessage("the call has more than one request")
            self._begin(request)
        elif self.ended and not incoming.is_whole:
            raise BadMessage("the request ends amid its message")

    def _account(self, incoming: Incoming) -> None:
        """Tell the connection what is held, and the client what more it may send."""
        held = incoming.unaccepted()
        if held != incoming.held:
            self._connection.hold(held - incoming.held)
            incoming.held = held
        if not self.ended:
            more = incoming.window() - self.receive_window
            if more >= frames.WINDOW // 2:
                self.receive_window += more
                self._connection.output.put(frames.window_update(self.number, more))

    def _refuse(self, error: BadMessage) -> None:
        """End the call: its request is none."""
        trailing = (("grpc-accept-encoding", b"identity"),) if isinstance(error, Compressed) else ()
        self.finish(_STATUS.get(type(error), Status.INTERNAL), str(error), trailing)
        self._cancel()

    # What the method sees

    def peer(self) -> str:
        """Return the client's address: one for each connection."""
        return self._connection.peer

    def metadata(self) -> Metadata:
        """Return what the client has sent beside its request."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """Return the seconds left, if the client has set a deadline."""
        return None if self._deadline is None else self._deadline - self._connection.clock()

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call a function when the call is over."""
        if self.over:
            callback()
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def accept(self, room: Room | None) -> None:
        """Receive the large message that was announced."""
        if self._incoming is None or self.over:
            if room is not None:
                room.release()
            return
        self._incoming.accept(room, self._connection.clock() + REQUEST_S)
        self._advance(self._incoming)

    async def read(self) -> Arrived | None:
        """Return the next message of a stream of requests; None after the last one."""
        incoming = self._incoming
        if incoming is None:
            raise TypeError("the method does not stream requests")
        while not self.over:
            try:
                message = incoming.take()
                if message is not None:
                    room, incoming.room = incoming.room, None
                    self._advance(incoming)  # the next one may have to be announced
                    return Arrived(message, room)
                if self.ended and incoming.is_empty:
                    return None
                if self.ended and not incoming.is_whole:
                    raise BadMessage("the requests end amid a message")  # noqa: TRY301 - as `take` does
            except BadMessage as error:
                self._refuse(error)
                break
            incoming.reader = asyncio.get_running_loop().create_future()
            try:
                await incoming.reader
            finally:
                incoming.reader = None
        raise asyncio.CancelledError

    async def write(self, message: bytes) -> None:
        """Send a message of a stream of responses; wait while the client takes no more."""
        if self.over:
            raise asyncio.CancelledError
        if self._outgoing is not None:
            raise TypeError("a message is written while another one waits")
        if not self._put(message, b""):
            outgoing = self._wait(message, b"")
            outgoing.writer = asyncio.get_running_loop().create_future()
            await outgoing.writer

    def reply(self, message: bytes) -> None:
        """Send the only response, and end the call well."""
        if self.over:
            return
        last = _LAST.pack(_END, self.number, grpc.OK_BLOCK)
        if self._put(message, last):
            self._leave()
        else:
            self._wait(message, last)

    def finish(self, status: Status, details: str = "", trailing: Metadata = ()) -> None:
        """End the call with a status."""
        if self.over:
            return
        if self._outgoing is not None and self._outgoing.at:
            self._connection.output.put(frames.rst_stream(self.number, ErrorCode.CANCEL))
            self.ended = True  # nothing further to tell
        else:
            block = grpc.end_block(status, details, trailing, begin=not self._responding)
            self._connection.output.put(frames.headers(self.number, block, end=True))
        self._leave()

    # What the client gets

    def _put(self, message: bytes, last: bytes) -> bool:
        """Put a message where it leaves with the next write, if the client takes it."""
        connection = self._connection
        size = len(message) + 5
        if size > self.send_window or size > connection.output.direct():
            return False
        self.send_window -= size
        number = self.number
        if self._responding:
            first = _NEXT.pack(size >> 8, size & 255, 0, 0, number, 0, size - 5)
        else:
            self._responding = True
            first = _FIRST.pack(
                _BEGIN, number, grpc.RESPONSE_BLOCK, size >> 8, size & 255, 0, 0, number, 0, size - 5
            )
        connection.output.put_data(first, message, last, size)
        return True

    def _wait(self, message: bytes, end: bytes) -> _Outgoing:
        """Let a message wait until the client takes it."""
        outgoing = self._outgoing = _Outgoing(message, end)
        self.may_send()
        return outgoing

    def may_send(self) -> None:
        """The client takes more of this stream than before."""
        outgoing = self._outgoing
        if outgoing is not None and not outgoing.queued and self.send_window > 0:
            outgoing.queued = True
            self._connection.output.queue(self)

    def send_chunk(self, most: int) -> None:
        """Send the next part of what waits, as many bytes at most."""
        outgoing = self._outgoing
        if outgoing is None:
            return
        outgoing.queued = False
        size = min(most, self.send_window, len(outgoing.bytes) - outgoing.at)
        if size <= 0:
            return
        connection = self._connection
        first = b""
        if not self._responding:
            self._responding = True
            first = frames.headers(self.number, grpc.RESPONSE_BLOCK, end=False)
        first += frames.HEADER.pack(size >> 8, size & 255, frames.DATA, 0, self.number)
        piece = outgoing.bytes[outgoing.at : outgoing.at + size]
        outgoing.at += size
        self.send_window -= size
        if outgoing.at < len(outgoing.bytes):
            connection.output.put_data(first, piece, b"", size)
            self.may_send()
            return
        self._outgoing = None
        connection.output.put_data(first, piece, outgoing.end, size)
        if outgoing.end:
            self._leave()
        elif outgoing.writer is not None and not outgoing.writer.done():
            outgoing.writer.set_result(None)

    # How it ends

    def expire(self, now: float) -> None:
        """End if the call's time has passed, or its client takes too long to send what it has begun."""
        if self.until is None and not self.begun:
            self.until = now + REQUEST_S
        if self.until is not None and self.until <= now:
            self.end(Status.DEADLINE_EXCEEDED, "the call's deadline has passed")
        elif self._incoming is not None and self._incoming.is_late(now):
            self.end(Status.DEADLINE_EXCEEDED, f"a message has not arrived within {REQUEST_S:g} s")

    def reset(self) -> None:
        """End: the client has cancelled the call, or is gone."""
        self.ended = True
        self._cancel()
        self._leave()

    def end(self, status: Status, details: str) -> None:
        """End the call from outside, and its work."""
        self.finish(status, details)
        self._cancel()

    def _cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()

    def _leave(self) -> None:
        """Leave the connection: the call is over, though its work may need a moment."""
        if self.over:
            return
        self.over = True
        connection, work = self._connection, self._work
        if not self.ended:
            connection.output.put(
                frames.rst_stream(self.number, ErrorCode.NO_ERROR)
            )  # it need not send the rest
        connection.leave(self, None if work is None or work.done() else work)
        if self._incoming is not None:
            connection.hold(-self._incoming.held)
            self._incoming.clear()
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None and outgoing.writer is not None:
            outgoing.writer.cancel()
        if self._callbacks is not None:
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                callback()
