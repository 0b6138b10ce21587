"""What a client sends, by hand, and what a connection answers, taken apart."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, NamedTuple

import hpack

from kvstore.http2 import frames
from kvstore.http2.call import Call, Method
from kvstore.http2.connection import Connection, Limits
from kvstore.http2.errors import ErrorCode
from kvstore.http2.frames import HEADER, PREFACE, frame
from kvstore.http2.headers import literal
from kvstore.http2.status import Status

HELLO = PREFACE + frame(frames.SETTINGS, 0, 0)
FIELDS = {
    ":method": b"POST",
    ":scheme": b"http",
    ":path": b"/s/Echo",
    "te": b"trailers",
    "content-type": b"application/grpc",
}
LIMITS = Limits(message_bytes=100_000, streams=4)


def block(**changes: Any) -> bytes:
    """The headers of a call, some of them changed; `_` stands for what Python does not allow in a name."""
    fields: dict[str, bytes | None] = dict(FIELDS)
    for name, value in changes.items():
        name = name.replace("__", ":").replace("_", "-")
        fields[name] = value
    return b"".join(literal(name, value) for name, value in fields.items() if value is not None)


def message(payload: bytes = b"", *, compressed: int = 0) -> bytes:
    return struct.pack(">BL", compressed, len(payload)) + payload


def head(stream: int = 1, *, end: bool = False, **changes: Any) -> bytes:
    flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
    return frame(frames.HEADERS, flags, stream, block(**changes))


def data(payload: bytes, stream: int = 1, *, end: bool = True) -> bytes:
    """As many frames as it takes."""
    found = []
    for i in range(0, len(payload) or 1, frames.FRAME_BYTES):
        last = end and i + frames.FRAME_BYTES >= len(payload)
        piece = payload[i : i + frames.FRAME_BYTES]
        found.append(frame(frames.DATA, frames.END_STREAM if last else 0, stream, piece))
    return b"".join(found)


def call(stream: int = 1, payload: bytes = b"hello", **changes: Any) -> bytes:
    return head(stream, **changes) + data(message(payload), stream)


def setting(name: int, value: int) -> bytes:
    return frame(frames.SETTINGS, 0, 0, struct.pack(">HL", name, value))


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def parsed(raw: bytes) -> list[Frame]:
    found = []
    while raw:
        high, low, kind, flags, stream = HEADER.unpack_from(raw)
        end = 9 + (high << 8 | low)
        found.append(Frame(kind, flags, stream, raw[9:end]))
        raw = raw[end:]
    return found


def read(block: bytes) -> dict[str, str]:
    """The headers of a block."""
    found: Any = hpack.Decoder(max_header_list_size=1 << 24).decode(block)
    return dict(found)


class Answer(NamedTuple):
    """What came on a stream."""

    status: Status | None
    messages: bytes
    details: str
    headers: dict[str, str]
    reset: ErrorCode | None


class Peer:
    """A connection, its clock, and methods: `Echo`, `Late` (until `release`), `Stream` and `Chat`."""

    def __init__(self, limits: Limits = LIMITS, calls: int = 1000) -> None:
        self.methods = {
            "/s/Echo": Method(self._echo, self._announce),
            "/s/Late": Method(self._late, self._announce),
            "/s/Chat": Method(self._chat, self._announce, streams_requests=True),
        }
        self.now = 0.0
        self.calls = 0
        self._most = calls
        self.wakes = 0
        self.served: list[Call] = []
        self.requests: list[bytes] = []
        self.announced: list[tuple[Call, int]] = []
        self.works: list[asyncio.Future[None]] = []
        self.done = 0
        """Calls that are over, as they were told."""
        self.accepts = True
        self.connection = Connection(self, limits, "peer", lambda: self.now, self._wake)
        self.came: list[Frame] = []

    # Host

    def admit(self) -> bool:
        if self.calls >= self._most:
            return False
        self.calls += 1
        return True

    def leave(self) -> None:
        self.calls -= 1

    def _wake(self) -> None:
        self.wakes += 1

    # Methods

    def _serve(self, call: Call, request: bytes) -> None:
        self.served.append(call)
        self.requests.append(request)
        call.on_done(self._over)

    def _over(self) -> None:
        self.done += 1

    def _announce(self, call: Call, size: int) -> None:
        self.announced.append((call, size))
        if self.accepts:
            call.accept(None)

    def _echo(self, call: Call, request: bytes) -> None:
        self._serve(call, request)
        call.reply(request)

    def _late(self, call: Call, request: bytes) -> asyncio.Future[None]:
        self._serve(call, request)
        self.works.append(asyncio.get_running_loop().create_future())
        return self.works[-1]

    def _chat(self, call: Call, request: bytes) -> asyncio.Task[None]:
        self._serve(call, request)
        return asyncio.get_running_loop().create_task(self._talk(call))

    async def _talk(self, call: Call) -> None:
        while (arrived := await call.read()) is not None:
            self.requests.append(arrived.message)
            await call.write(arrived.message)
        call.finish(Status.OK)

    # Client

    def send(self, *pieces: bytes) -> list[Frame]:
        """Send, and return what is answered at once."""
        self.connection.receive(b"".join(pieces))
        return self.take()

    def take(self) -> list[Frame]:
        """What the connection has to say."""
        found: list[Frame] = []
        while raw := self.connection.output.take():
            found += parsed(raw)
        self.came += found
        return found

    async def settle(self) -> list[Frame]:
        """Let tasks run, and take what the connection has to say by then."""
        found: list[Frame] = []
        for _ in range(20):
            await asyncio.sleep(0)
            found += self.take()
        return found

    def answer(self, stream: int = 1) -> Answer:
        """What has come on a stream so far. Its headers must be those of gRPC, in order."""
        headers: dict[str, str] = {}
        messages, reset, ended = b"", None, False
        for each in self.came:
            if each.stream != stream:
                continue
            if each.kind == frames.RST_STREAM:
                reset = ErrorCode(struct.unpack(">L", each.payload)[0])
                continue
            if each.kind == frames.WINDOW_UPDATE:
                continue
            assert not ended
            ended = bool(each.flags & frames.END_STREAM)
            if each.kind == frames.HEADERS:
                fields = read(each.payload)
                assert (":status" in fields) == (not headers)
                headers.update(fields)
            else:
                assert each.kind == frames.DATA
                messages += each.payload
        status = Status(int(headers["grpc-status"])) if "grpc-status" in headers else None
        return Answer(status, messages, headers.get("grpc-message", ""), headers, reset)

    def goodbye(self) -> tuple[ErrorCode, int, str] | None:
        """The code, the last stream and the reason of the end of the connection."""
        found = [each.payload for each in self.came if each.kind == frames.GOAWAY]
        if not found:
            return None
        last, code = struct.unpack_from(">LL", found[-1])
        return ErrorCode(code), last, found[-1][8:].decode()


def greeted(limits: Limits = LIMITS, calls: int = 1000) -> Peer:
    """A connection behind the greeting."""
    peer = Peer(limits, calls)
    peer.send(HELLO)
    return peer
