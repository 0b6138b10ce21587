"""Begin and end every gRPC call: bytes in, bytes out, a deadline, errors that clients can read.

gRPC would log a stack trace for bytes that it cannot parse, so messages are parsed and written here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from kvstore.api.budget import COPIES, Quota
from kvstore.api.errors import METADATA, STATUS, ResponseTooLarge, to_error
from kvstore.api.intake import SMALL
from kvstore.api.methods import ApiContext, Encoded, Methods, Streaming, Unary
from kvstore.api.width import check_width
from kvstore.store.errors import DeadlinePassed, InvalidRequest, Unavailable

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
M = TypeVar("M", bound=Message)


class Calls:
    """Makes gRPC handlers of methods."""

    def __init__(self, api: ApiContext) -> None:
        self._facts = api.facts
        self._options = options = api.options
        self.budget = api.budget
        self.intake = api.intake
        self.quotas = {
            "watches": Quota("watches", options.watches, options.watches_per_connection),
            "scans": Quota("scans", options.scans, options.scans_per_connection),
            "sessions": Quota("sessions", options.sessions, options.sessions_per_connection),
            "streams": Quota("streams", options.streams, options.streams_per_connection),
        }
        self.stopping = False

    def handlers(self, methods: Methods) -> dict[str, Handler]:
        """Return the handlers of methods, by name."""
        return {
            name: self._unary(method) if isinstance(method, Unary) else self._streaming(method)
            for name, method in methods.items()
        }

    def _unary(self, method: Unary) -> Handler:
        kind, call, bound, reads = method

        async def handle(raw: bytes, context: Context) -> bytes:
            message: Any = None
            try:
                timeout_s = self.begin(context) or self._options.default_timeout_s
                if len(raw) > SMALL:
                    await self._admit(context, len(raw), timeout_s)
                message = parse(kind, raw)
                connection, size = context.peer(), COPIES * bound(message)
                room = self.budget.reserve_now(connection, size, may_refuse=reads)
                if room is None:
                    room = await self.budget.reserve(connection, size, timeout_s, may_refuse=reads)
                # The call is over when the transport has taken the reply.
                context.add_done_callback(room.call_done)  # type: ignore[arg-type]  # any function will do
                response = self._written(await call(message, timeout_s))
                room.settle(COPIES * len(response))
                return response  # noqa: TRY300 - it is what was tried
            except Exception as error:  # noqa: BLE001 - all are reported to the client
                raw, message = b"", None  # see `fail`
                await self.fail(context, error)

        return grpc.unary_unary_rpc_method_handler(handle)

    def _streaming(self, method: Streaming) -> Handler:
        kind, call, limit, bound = method

        async def handle(raw: bytes, context: Context) -> None:
            message: Any = None
            try:
                timeout_s = self.begin(context)
                if len(raw) > SMALL:
                    await self._admit(context, len(raw), timeout_s or self._options.default_timeout_s)
                message = parse(kind, raw)
                raw = b""
                with self.stream(limit, context.peer()):
                    await self._stream(call(message, timeout_s), context, COPIES * bound(message))
            except Exception as error:  # noqa: BLE001 - all are reported to the client
                raw, message = b"", None  # see `fail`
                await self.fail(context, error)

        return grpc.unary_stream_rpc_method_handler(handle)

    async def _admit(self, context: Context, size: int, timeout_s: float) -> None:
        """Count a large request until its call is over."""
        request = await self.intake.admit(context.peer(), size, timeout_s)
        if request is not None:
            context.add_done_callback(request.call_done)  # type: ignore[arg-type]  # any function will do

    @contextmanager
    def stream(self, limit: str, connection: str) -> Iterator[None]:
        """Count a stream of a kind while it is open."""
        quota = self.quotas[limit]
        quota.take(connection)
        try:
            yield
        finally:
            quota.give_back(connection)

    async def _stream(self, responses: Any, context: Context, size: int) -> None:
        """Send a stream's responses. Those larger than what is reserved for it wait for room."""
        connection = context.peer()
        room = await self.budget.reserve(connection, size, self._options.default_timeout_s)
        try:
            async with aclosing(responses):
                async for response in responses:
                    raw = self._written(response)
                    if len(raw) <= size:
                        await send(context, raw)
                        continue
                    more = await self.budget.reserve(connection, len(raw), self._options.default_timeout_s)
                    try:
                        await send(context, raw)
                    finally:
                        more.release()
        finally:
            room.release()

    def _written(self, response: Message | Encoded) -> bytes:
        """Serialize a response within the limit."""
        raw = response.SerializeToString()
        if len(raw) > self._options.response_bytes:
            raise ResponseTooLarge(self._options.response_bytes)
        return raw

    async def fail(self, context: Context, error: Exception) -> NoReturn:
        """End the call with an error, by another that gRPC knows.

        gRPC keeps that one in a cycle of references, and so all frames that it passed, with what they hold,
        until the next garbage collection. So the caller must let go of what is large first; the frames that
        the first error passed are let go of here.
        """
        forget_frames(error)
        report = to_error(error, self._facts.topology)
        trailing = ((METADATA, report.SerializeToString()),)
        try:
            await context.abort(STATUS[report.code], report.message, trailing)
        except grpc.aio.AbortError:
            raise  # this is how gRPC learns of it
        except Exception as gone:
            raise asyncio.CancelledError from gone

    def begin(self, context: Context) -> float | None:
        """Admit a call, a stream or a session. Returns the time left for it, if it has a deadline."""
        if self.stopping:
            raise Unavailable("this node is stopping")  # gRPC ends only what has begun before
        left = context.time_remaining()
        if left is not None and left <= 0:
            raise DeadlinePassed("the call's deadline had passed before it began")
        return left


def forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its causes: their frames hold the request."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


async def send(context: Context, raw: bytes) -> None:
    """Write to a stream. If that fails, the client has disconnected, so nothing can be reported to it."""
    try:
        await context.write(raw)
    except Exception as gone:
        raise asyncio.CancelledError from gone


async def receive(context: Context) -> bytes | None:
    """Read from a stream; None if the client has closed its side. If it has disconnected, see `send`."""
    try:
        raw = await context.read()
    except Exception as gone:
        raise asyncio.CancelledError from gone
    return None if raw is grpc.aio.EOF else raw


def parse(kind: type[M], raw: bytes) -> M:
    """Parse a client's message."""
    check_width(kind, raw)
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise InvalidRequest(f"malformed request: not a valid {kind.DESCRIPTOR.full_name}") from None
