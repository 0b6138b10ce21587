"""The machine's values as bytes: msgpack, whose types are checked as it is read."""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from kvstore.machine.commands import Command, Malformed, Request
from kvstore.machine.ordered import Table
from kvstore.machine.request import INT64_MAX
from kvstore.machine.results import Decision, Result
from kvstore.machine.sessions import Number, Session, SessionKey, Stored
from kvstore.machine.state import MachineState
from kvstore.machine.versions import Row, Version
from multicast.types import LARGE_BYTES, Destinations, GroupId

V = TypeVar("V")

_encode: Final = msgspec.msgpack.Encoder().encode
_request: Final = msgspec.msgpack.Decoder(Request)


_RECENT: Final = 1024
"""Contents of several groups that are kept decoded."""

_RECENT_BYTES: Final = 1024
"""The largest of them."""

_REASON: Final = 200
"""The most characters of a reason."""
_SMALL: Final = 64
"""Bytes of a result that is remembered by them."""
_SMALL_RESULTS: Final = 1024
"""How many such results are remembered."""


class Unreadable(ValueError):
    """Bytes that cannot be decoded as the expected value."""


def encode_request(request: Request) -> bytes:
    """Encode a request as the content of a message."""
    return _encode(request)


def decode_request(payload: bytes) -> Request:
    """Decode a message's content. Whatever its bytes are, it has a position in the order, and a result."""
    try:
        return _request.decode(payload)
    except (ValueError, RecursionError) as error:
        return Request(0, 0, 0, INT64_MAX, 0, Malformed(str(error)[:_REASON]))


class RequestDecoder:
    """Decodes messages' contents: those of several groups once for two groups of a node that they are
    delivered to, and a large one once for all.
    """

    def __init__(self) -> None:
        self._payload = b""
        self._request = Request(0, 0, 0, INT64_MAX, 0, Malformed(""))
        self._recent: dict[bytes, Request] = {}
        """Small contents that were decoded for one group, and may be delivered to another."""

    def __call__(self, payload: bytes, groups: int = 1) -> Request:
        """Return `decode_request` of the payload of a message to so many groups."""
        if len(payload) < LARGE_BYTES:
            if groups == 1 or len(payload) > _RECENT_BYTES:
                return decode_request(payload)
            request = self._recent.pop(payload, None)
            if request is None:
                request = decode_request(payload)
                if len(self._recent) >= _RECENT:
                    self._recent.clear()
                self._recent[payload] = request
            return request
        if payload is not self._payload:
            self._payload, self._request = payload, decode_request(payload)
        return self._request


def encode_command(command: Command) -> msgspec.Raw:
    """Encode a command, for `digest_of`, and for the request that has it."""
    return msgspec.Raw(_encode(command))


def digest_of(command: msgspec.Raw) -> int:
    """Return the digest of an encoded command, which a request's number is bound to."""
    if len(command) < LARGE_BYTES:
        digest = hashlib.blake2b(command, digest_size=8).digest()
    else:
        digest = hashlib.sha256(command).digest()[:8]
    return int.from_bytes(digest, "big") >> 1


def encode_result(result: Result) -> bytes:
    """Encode a result, for the gateway."""
    return _encode(result)


def encode_machine_state(state: MachineState) -> bytes:
    """Encode all of a machine that is not in its store."""
    return _encode(state)


def _decode(what: str, kind: Any) -> Callable[[bytes], Any]:
    decode = msgspec.msgpack.Decoder(kind).decode

    def checked(data: bytes) -> Any:
        try:
            return decode(data)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"{what}: {error}") from None

    return checked


_decode_result: Final[Callable[[bytes], Result]] = _decode("a result", Result)
_decode_small: Final = functools.lru_cache(_SMALL_RESULTS)(_decode_result)


def decode_result(data: bytes) -> Result:
    """Decode a group's result. Small ones are remembered: those of writes are nearly all alike."""
    return _decode_small(data) if len(data) <= _SMALL else _decode_result(data)


decode_machine_state: Final[Callable[[bytes], MachineState]] = _decode("a machine state", MachineState)


# Keys: big-endian, so that bytes are ordered as numbers are.

_NUMBER: Final = struct.Struct(">Q")
_GROUP: Final = struct.Struct(">H")
_END: Final = _GROUP.pack(0)
"""Ends a list of groups, which are written one higher: shorter lists come first."""


def _decode_bytes(data: bytes) -> bytes:
    return bytes(data)


def _decode_number(data: bytes) -> int:
    if len(data) != _NUMBER.size:
        raise Unreadable(f"a key of {len(data)} bytes")
    return _NUMBER.unpack(data)[0]  # type: ignore[no-any-return]  # struct knows no types


def _encode_session(key: SessionKey) -> bytes:
    client, destinations = key
    return _NUMBER.pack(client) + b"".join([_GROUP.pack(group + 1) for group in destinations]) + _END


def _decode_session(data: bytes) -> SessionKey:
    if len(data) < _NUMBER.size + _GROUP.size or len(data) % _GROUP.size or data[-_GROUP.size :] != _END:
        raise Unreadable(f"a session's key of {len(data)} bytes")
    groups = [group for (group,) in _GROUP.iter_unpack(data[_NUMBER.size : -_GROUP.size])]
    if 0 in groups:
        raise Unreadable("a session's key with an end inside")
    destinations: Destinations = tuple([GroupId(group - 1) for group in groups])
    return _NUMBER.unpack_from(data)[0], destinations


def _encode_result_key(key: Number) -> bytes:
    client, destinations, sequence = key
    return _encode_session((client, destinations)) + _NUMBER.pack(sequence)


def _decode_result_key(data: bytes) -> Number:
    client, destinations = _decode_session(data[: -_NUMBER.size])
    return client, destinations, _decode_number(data[-_NUMBER.size :])


LATEST: Final[Table[bytes, Version]] = Table(
    "latest", _decode_bytes, _decode_bytes, _encode, _decode("a version", Version)
)
HISTORY: Final[Table[int, Row]] = Table(
    "history", _NUMBER.pack, _decode_number, _encode, _decode("a row", Row)
)
SESSIONS: Final[Table[SessionKey, Session]] = Table(
    "sessions", _encode_session, _decode_session, _encode, _decode("a session", Session)
)
RESULTS: Final[Table[Number, Stored]] = Table(
    "results", _encode_result_key, _decode_result_key, _encode, _decode("a stored result", Stored)
)
OUTCOMES: Final[Table[int, Decision]] = Table(
    "outcomes", _NUMBER.pack, _decode_number, _encode, _decode("an outcome", Decision)
)
TABLES: Final[Mapping[str, Table[Any, Any]]] = MappingProxyType(
    {table.name: table for table in (LATEST, HISTORY, SESSIONS, RESULTS, OUTCOMES)}
)
"""How each of the store's maps is written, by its name."""
