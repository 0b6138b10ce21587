"""The API without a network: services are functions by method, and what they have in common.

gRPC puts them on a port (`calls`, `server`); a store inside a process calls them as they are (`embedded`).
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from google.protobuf.message import Message
from wbkv_proto.v1.kv_pb2 import Header

from kvstore.api.ports import Facts, Service

OVERHEAD: Final = 64
"""Bytes of an operation or a condition beside its keys and values, at most."""
MESSAGE_BYTES: Final = 64 << 10
"""Bytes of a message beside its operations and conditions, at most."""


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
    """Calls and streams that may be open at once; gRPC refuses more."""


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


class Unary(NamedTuple):
    """A method that answers one message with one, within some seconds."""

    kind: type[Message]
    call: Callable[[Any, float], Awaitable[Message]]


class Streaming(NamedTuple):
    """A method that answers one message with many. Its client may have set no time for all of them."""

    kind: type[Message]
    call: Callable[[Any, float | None], AsyncGenerator[Message, None] | AsyncGenerator[Encoded, None]]


Methods: TypeAlias = Mapping[str, Unary | Streaming]
"""By name, of one service."""
