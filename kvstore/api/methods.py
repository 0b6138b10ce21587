"""The API without a network: services are functions by method, and what they have in common.

`calls` and `server` put them on a port; a store inside a process calls them as they are (`embedded`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from google.protobuf.message import Message
from wbkv_proto.v1.kv_pb2 import Header

from kvstore.api.budget import Budget
from kvstore.api.intake import Intake
from kvstore.api.ports import Facts, Service

OVERHEAD: Final = 64
"""Bytes of an operation or a condition beside its keys and values, at most."""
MESSAGE_BYTES: Final = 64 << 10
"""Bytes of a message beside its operations and conditions, at most."""


STREAM_BYTES: Final = 16 << 10
"""What a stream holds whose messages are small, or shared with others."""
USUAL_BYTES: Final = 64 << 10
"""The size of a response that has no keys and values, at most."""


class Options(NamedTuple):
    """What an operator may decide."""

    cluster: str
    node: str
    default_timeout_s: float = 10.0
    """Of a call that brings none."""
    response_bytes: int = 64 << 20
    session_calls: int = 1024
    """Calls that may be under way on one stream before no more are read."""
    session_bytes: int = 16 << 20
    """Of these calls, and of replies that the client does not take."""
    calls: int = 8192
    """Calls and streams that may be open at once; further ones are refused. All streams together are fewer,
    so that some of these are left for unary calls.
    """
    connections: int = 4096
    """Clients' connections: further ones are closed at once."""
    response_budget_bytes: int = 256 << 20
    """Bytes of replies that clients have not taken yet, copies included."""
    request_budget_bytes: int = 256 << 20
    """Bytes of clients' requests under way, copies included."""
    watches: int = 4096
    watches_per_connection: int = 1024
    scans: int = 512
    scans_per_connection: int = 128
    sessions: int = 1024
    sessions_per_connection: int = 64
    streams: int = 256
    """Of other kinds: health and reflection."""
    streams_per_connection: int = 16
    connection_streams: int = 2048
    """Calls and streams that one connection may have open: HTTP/2 makes its client wait with further ones."""


class ApiContext:
    """What all services share. Every operation on data, whichever way it came, goes through `service`."""

    def __init__(
        self, service: Service, facts: Facts, options: Options, rng: random.Random | None = None
    ) -> None:
        """`rng` draws the names of snapshots: the system's randomness, unless a simulation passes its own."""
        self._rng = random.SystemRandom() if rng is None else rng
        self.service = service
        self.facts = facts
        self.options = options
        self.budget = Budget(options.response_budget_bytes)
        self.intake = Intake(options.request_budget_bytes)
        limits = service.limits
        self.message_bytes = limits.transaction_bytes + limits.operations * OVERHEAD + MESSAGE_BYTES
        """The largest message that a client may send: no transaction within the limits is larger."""

    def new_name(self) -> str:
        """Return a name that no snapshot has."""
        return self._rng.randbytes(16).hex()

    def header(self, **revisions: int) -> Header:
        """What a response says of where it was made."""
        return Header(cluster=self.options.cluster, node=self.options.node, **revisions)


class Encoded(NamedTuple):
    """A response that is encoded already, since several clients get parts of it."""

    kind: type[Message]
    raw: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - as messages have it
        """Return the message's bytes."""
        return self.raw

    def message(self) -> Message:
        """Return the message."""
        return self.kind.FromString(self.raw)


def _usual_bound(_: object) -> int:
    return USUAL_BYTES


def _stream_bound(_: object) -> int:
    return STREAM_BYTES


Begin: TypeAlias = Callable[[Any, float], "tuple[asyncio.Future[Any], Callable[[Any], Message]]"]
"""Begins the work of a message, within some seconds. Returns it, and what makes a response of its outcome."""


class Unary(NamedTuple):
    """A method that answers one message with one, within some seconds."""

    kind: type[Message]
    call: Callable[[Any, float], Coroutine[Any, Any, Message]]
    bound: Callable[[Any], int] = _usual_bound
    """The largest size of the response to a message."""
    reads: bool = True
    """Whether nothing is changed, so that a response may be refused when it is there."""
    begin: Begin | None = None
    """The same as `call`, but without a task for each call."""


class Streaming(NamedTuple):
    """A method that answers one message with many. Its client may have set no time for all of them."""

    kind: type[Message]
    call: Callable[[Any, float | None], AsyncGenerator[Message, None] | AsyncGenerator[Encoded, None]]
    limit: str = "streams"
    """Which limit there is on open streams of its kind: `watches`, `scans` or `streams`."""
    bound: Callable[[Any], int] = _stream_bound
    """What the stream holds while its client does not read."""


Methods: TypeAlias = Mapping[str, Unary | Streaming]
"""By name, of one service."""
