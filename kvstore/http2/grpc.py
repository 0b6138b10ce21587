"""What gRPC says in headers: requests as clients send them, and how calls end."""

from __future__ import annotations

import binascii
import re
import struct
from base64 import b64decode, b64encode
from typing import Final, NamedTuple

from kvstore.http2.call import Metadata
from kvstore.http2.headers import Fields, literal
from kvstore.http2.status import Status

PREFIX: Final = struct.Struct(">BL")
"""Of a message: whether it is compressed, and its length."""

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_PSEUDO: Final = (b":method", b":scheme", b":path", b":authority")
_FORBIDDEN: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
"""What must not be in HTTP/2, where the connection is not the headers' business."""

_STATUS_200: Final = b"\x88"
"""An index of HPACK's own table, as are the names in the next ones."""
CONTENT_TYPE: Final = b"\x0f\x10\x10application/grpc"
RESPONSE_BLOCK: Final = _STATUS_200 + CONTENT_TYPE
OK_BLOCK: Final = literal("grpc-status", b"0")
IDENTITY: Final = literal("grpc-accept-encoding", b"identity")
"""Compression that we read: none."""


class Head(NamedTuple):
    """What the headers of a request mean."""

    path: str
    timeout_s: float | None = None
    metadata: Metadata = ()
    malformed: bool = False
    """Whether HTTP/2 does not allow them."""
    refusal: bytes = b""
    """A header block that answers the call, if it is not one of gRPC."""
    pseudo: bool = True
    """Whether they can begin a request, and not end one."""


def head_of(fields: Fields) -> Head:
    """Return what the headers of a request mean."""
    pseudo: dict[bytes, bytes] = {}
    others: dict[bytes, bytes] = {}
    metadata: list[tuple[str, bytes]] = []
    malformed = False
    for name, value in fields:
        if name.startswith(b":"):
            malformed = malformed or name in pseudo or name not in _PSEUDO or bool(others)
            pseudo[name] = value
            continue
        malformed = malformed or name in _FORBIDDEN or not name or name != name.lower()
        others[name] = value
        if not name.startswith(b"grpc-") and name not in (b"te", b"content-type", b"user-agent"):
            metadata += _metadata(name, value)
    path = pseudo.get(b":path", b"").decode("latin-1")
    if not pseudo:
        return Head("", malformed=malformed, pseudo=False)
    if malformed or b":method" not in pseudo or b":path" not in pseudo or b":scheme" not in pseudo:
        return Head(path, malformed=True)
    if pseudo[b":method"] != b"POST":
        return Head(path, refusal=_http_refusal(b"405"))
    if not others.get(b"content-type", b"").startswith(b"application/grpc"):
        return Head(path, refusal=_http_refusal(b"415"))
    timeout_s = None
    if b"grpc-timeout" in others:
        found = _TIMEOUT.fullmatch(others[b"grpc-timeout"])
        if found is None:
            return Head(path, refusal=end_block(Status.INTERNAL, "malformed grpc-timeout", begin=True))
        timeout_s = int(found[1]) * _UNITS[found[2]]
    return Head(path, timeout_s, tuple(metadata))


def _metadata(name: bytes, value: bytes) -> Metadata:
    """Return a pair of metadata, decoded; nothing if it cannot be."""
    if name.endswith(b"-bin"):
        try:
            value = b64decode(value + b"=" * (-len(value) % 4), validate=True)
        except (binascii.Error, ValueError):
            return ()
    return ((name.decode("latin-1"), value),)


def _http_refusal(status: bytes) -> bytes:
    """Return the answer to what is not a call."""
    return literal(":status", status) + literal("content-type", b"text/plain")


def end_block(status: Status, details: str = "", trailing: Metadata = (), *, begin: bool) -> bytes:
    """Return the headers that end a call; with those that begin a response, if there was none."""
    block = [RESPONSE_BLOCK if begin else b"", literal("grpc-status", b"%d" % status)]
    if details:
        block.append(literal("grpc-message", percent_encoded(details)))
    for name, value in trailing:
        block.append(literal(name, b64encode(value).rstrip(b"=") if name.endswith("-bin") else value))
    return b"".join(block)


def percent_encoded(text: str) -> bytes:
    """Return text as gRPC has it in a status."""
    return b"".join(
        b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in text.encode()
    )
