"""Frames of HTTP/2: their numbers, and how those that a server sends are built."""

from __future__ import annotations

import struct
from typing import Final

from kvstore.http2.errors import ErrorCode

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first."""
HEADER: Final = struct.Struct(">HBBBL")
"""Of a frame: its length in two parts, kind, flags, stream."""
HEADER_BYTES: Final = 9
FRAME_BYTES: Final = 16_384
"""The largest payload that we take, and the smallest that every client takes."""
WINDOW: Final = 65_535
"""Bytes that may be sent before the receiver has said anything."""
WINDOW_MAX: Final = 2**31 - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 1
END_STREAM: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
PRIORITIZED: Final = 32

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    size = len(payload)
    return HEADER.pack(size >> 8, size & 255, kind, flags, stream) + payload


def headers(stream: int, block: bytes, *, end: bool) -> bytes:
    """Return a header block in as many frames as it takes."""
    last = END_STREAM if end else 0
    if len(block) <= FRAME_BYTES:
        return frame(HEADERS, last | END_HEADERS, stream, block)
    pieces = [block[i : i + FRAME_BYTES] for i in range(0, len(block), FRAME_BYTES)]
    found = [frame(HEADERS, last, stream, pieces[0])]
    found += [frame(CONTINUATION, 0, stream, piece) for piece in pieces[1:-1]]
    return b"".join((*found, frame(CONTINUATION, END_HEADERS, stream, pieces[-1])))


def settings(values: dict[int, int]) -> bytes:
    """Return our settings."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", *item) for item in values.items()))


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    """Return the end of a stream."""
    return frame(RST_STREAM, 0, stream, struct.pack(">L", code))


def window_update(stream: int, increment: int) -> bytes:
    """Return leave for more bytes: on a stream, or on the connection, which is stream 0."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">L", increment))


def goaway(last: int, code: ErrorCode, reason: str = "") -> bytes:
    """Return the end of a connection: no stream after the last one is served."""
    return frame(GOAWAY, 0, 0, struct.pack(">LL", last, code) + reason.encode()[:200])


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)
