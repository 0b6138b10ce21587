"""A client that calls and never reads: HTTP/2 by hand, since every gRPC library reads."""

from __future__ import annotations

import asyncio
import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE: Final = 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    """A literal that is not indexed, and not compressed."""
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


class DeafClient:
    """A connection whose socket is never read; the node may send `window` bytes of each stream."""

    def __init__(self, address: str, window: int = 65_535) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._window = window
        self._next = 1
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self) -> None:
        # With a limit of one byte, the reader stops reading at once.
        _, self._writer = await asyncio.open_connection(self._host, self._port, limit=1)
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, self._window)
        self._writer.write(PREFACE + frame(SETTINGS, 0, 0, settings))

    def call(self, method: str, *messages: bytes, end: bool = True) -> int:
        """Call a method. Returns the number of its stream."""
        assert self._writer is not None
        stream, self._next = self._next, self._next + 2
        fields = (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", method.encode()),
            (b":authority", b"localhost"), (b"te", b"trailers"), (b"content-type", b"application/grpc"),
        )  # fmt: skip
        self._writer.write(
            frame(HEADERS, END_HEADERS, stream, b"".join(header(name, value) for name, value in fields))
        )
        for i, message in enumerate(messages, 1):
            self.send(stream, message, end=end and i == len(messages))
        return stream

    def send(self, stream: int, message: bytes, *, end: bool = False) -> None:
        """Send a message on a stream that is open."""
        assert self._writer is not None
        data = struct.pack(">BI", 0, len(message)) + message
        for i in range(0, len(data), 16_384):
            last = end and i + 16_384 >= len(data)
            self._writer.write(frame(DATA, END_STREAM if last else 0, stream, data[i : i + 16_384]))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
