"""How every call of the API begins and ends: bytes in, bytes out, a deadline, errors that clients can read.

gRPC would log a stack trace for bytes that it cannot parse, so messages are parsed and written here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, NamedTuple, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from wbkv_proto.v1.kv_pb2 import Header

from kvstore.api.errors import METADATA, STATUS, ResponseTooLarge, tell
from kvstore.api.ports import Facts, Service
from kvstore.store.errors import DeadlinePassed, InvalidRequest, Unavailable

OVERHEAD: Final = 64
"""Bytes of an operation or a condition beside its keys and values, at most."""
MESSAGE_BYTES: Final = 64 << 10
"""Bytes of a message beside its operations and conditions, at most."""

Context = grpc.aio.ServicerContext[Any, Any]
M = TypeVar("M", bound=Message)
Unary = Callable[[M, float], Awaitable[Message]]
Streaming = Callable[[M, float | None], AsyncIterator[Message]]


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


class Calls:
    """Makes gRPC's handlers of our functions."""

    def __init__(self, service: Service, facts: Facts, options: Options) -> None:
        self.service = service
        self.facts = facts
        self.options = options
        limits = service.limits
        self.message_bytes = limits.transaction_bytes + limits.operations * OVERHEAD + MESSAGE_BYTES
        """The largest message that a client may send: no transaction within the limits is larger."""
        self.stopping = False

    def header(self, **revisions: int) -> Header:
        """What a response says of where it was made."""
        return Header(cluster=self.options.cluster, node=self.options.node, **revisions)

    def unary(self, kind: type[M], call: Unary[M]) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler that answers one message with one."""

        async def handle(raw: bytes, context: Context) -> bytes:
            try:
                timeout_s = self.begin(context) or self.options.default_timeout_s
                return self.written(await call(parse(kind, raw), timeout_s))
            except Exception as error:
                await self.fail(context, error)
                raise

        return grpc.unary_unary_rpc_method_handler(handle)

    def streaming(self, kind: type[M], call: Streaming[M]) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler that answers one message with many."""

        async def handle(raw: bytes, context: Context) -> None:
            try:
                responses = call(parse(kind, raw), self.begin(context))
                async with aclosing(responses):  # type: ignore[type-var]  # all are generators
                    async for response in responses:
                        await send(context, self.written(response))
            except Exception as error:  # noqa: BLE001 - all of them are told
                await self.fail(context, error)

        return grpc.unary_stream_rpc_method_handler(handle)

    def written(self, response: Message) -> bytes:
        """A response's bytes."""
        raw = response.SerializeToString()
        if len(raw) > self.options.response_bytes:
            raise ResponseTooLarge(self.options.response_bytes)
        return raw

    async def fail(self, context: Context, error: Exception) -> None:
        """End the call with an error."""
        told = tell(error, self.facts.topology)
        trailing = ((METADATA, told.SerializeToString()),)
        try:
            await context.abort(STATUS[told.code], told.message, trailing)
        except grpc.aio.AbortError:
            raise  # this is how gRPC learns of it
        except Exception as gone:
            raise asyncio.CancelledError from gone

    def begin(self, context: Context) -> float | None:
        """A call may begin: the time left for it, if it brings a deadline."""
        if self.stopping:
            raise Unavailable("this node is stopping")  # gRPC ends only what has begun before
        left = context.time_remaining()
        if left is not None and left <= 0:
            raise DeadlinePassed("the call's deadline had passed before it began")
        return left


async def send(context: Context, raw: bytes) -> None:
    """Write to a stream. If that fails, the client has gone: nobody is left to be told, so it is no error."""
    try:
        await context.write(raw)
    except Exception as gone:
        raise asyncio.CancelledError from gone


async def receive(context: Context) -> bytes | None:
    """Read from a stream; None if the client has closed its side. If it has gone, see `send`."""
    try:
        raw = await context.read()
    except Exception as gone:
        raise asyncio.CancelledError from gone
    return None if raw is grpc.aio.EOF else raw


def parse(kind: type[M], raw: bytes) -> M:
    """A client's message."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise InvalidRequest(f"this is no {kind.DESCRIPTOR.full_name}") from None
