"""Begin and end every call on the port: bytes in, bytes out, a deadline, errors that clients can read.

A unary call whose method can begin without a task has none: it begins when its request has arrived, and the
callback of a future sends its response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from google.protobuf.message import DecodeError, Message

from kvstore.api.budget import COPIES, Quota, Reservation
from kvstore.api.errors import METADATA, ResponseTooLarge, to_error
from kvstore.api.methods import ApiContext, Begin, Encoded, Methods, Streaming, Unary
from kvstore.api.width import check_width
from kvstore.http2.call import Call, Method
from kvstore.http2.status import Status
from kvstore.store.errors import DeadlinePassed, InvalidRequest, Unavailable

M = TypeVar("M", bound=Message)
P = ParamSpec("P")


class Calls:
    """Puts the API's methods on a port."""

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

    def handlers(self, methods: Methods) -> dict[str, Method]:
        """Return methods for a port, by name."""
        return {
            name: self._unary(method) if isinstance(method, Unary) else self._streaming(method)
            for name, method in methods.items()
        }

    # Unary calls

    def _unary(self, method: Unary) -> Method:
        kind, bound, reads = method.kind, method.bound, method.reads
        start = method.begin or _in_task(method)
        reserve_now, default_s = self.budget.reserve_now, self._options.default_timeout_s

        def begin(call: Call, raw: bytes) -> asyncio.Future[Any] | None:
            try:
                timeout_s = self.begin(call) or default_s
                message = parse(kind, raw)
                size = COPIES * bound(message)
                room = reserve_now(call.peer(), size, may_refuse=reads)
                if room is not None:
                    return self._start(call, start, message, timeout_s, room)
                reserve = partial(self.budget.reserve, call.peer(), size, timeout_s, may_refuse=reads)
                return self.task(call, self._start_later, reserve, start, message, timeout_s)
            except Exception as error:  # noqa: BLE001 - all are reported to the client
                self.fail(call, error)
                return None

        return Method(begin, self.announce)

    def _start(
        self, call: Call, start: Begin, message: Message, timeout_s: float, room: Reservation
    ) -> asyncio.Future[Any]:
        """Begin the work of a call. When it is done, answer."""
        call.on_done(room.release)  # when the transport has taken the reply
        work, response = start(message, timeout_s)
        work.add_done_callback(partial(self._answer, call, room, response))
        return work

    async def _start_later(
        self,
        call: Call,
        reserve: Callable[[], Awaitable[Reservation]],
        start: Begin,
        message: Message,
        timeout_s: float,
    ) -> None:
        """Begin the work of a call as soon as there is room for its reply."""
        room = await reserve()
        with suppress(Exception):  # it is in the answer
            await self._start(call, start, message, timeout_s, room)

    def _answer(
        self,
        call: Call,
        room: Reservation,
        response: Callable[[Any], Message],
        work: asyncio.Future[Any],
    ) -> None:
        try:
            if work.cancelled():
                raise Unavailable("this node is stopping")  # noqa: TRY301 - unless the call is over
            raw = self._written(response(work.result()))
            room.settle(COPIES * len(raw))
            call.reply(raw)
        except Exception as error:  # noqa: BLE001 - all are reported to the client
            self.fail(call, error)

    # Streams

    def _streaming(self, method: Streaming) -> Method:
        async def serve(call: Call, raw: bytes) -> None:
            timeout_s = self.begin(call)
            message: Any = parse(method.kind, raw)
            del raw
            with self.stream(method.limit, call.peer()):
                responses = method.call(message, timeout_s)
                await self._stream(responses, call, COPIES * method.bound(message))

        return Method(lambda call, raw: self.task(call, serve, raw), self.announce)

    def task(
        self,
        call: Call,
        serve: Callable[Concatenate[Call, P], Awaitable[None]],
        *args: P.args,
        **more: P.kwargs,
    ) -> asyncio.Task[None]:
        """Serve a call by a task. If that fails, the client is told why."""
        return asyncio.get_running_loop().create_task(self._reported(call, serve, *args, **more))

    async def _reported(
        self,
        call: Call,
        serve: Callable[Concatenate[Call, P], Awaitable[None]],
        *args: P.args,
        **more: P.kwargs,
    ) -> None:
        try:
            await serve(call, *args, **more)
        except Exception as error:  # noqa: BLE001 - all are reported to the client
            self.fail(call, error)

    @contextmanager
    def stream(self, limit: str, connection: str) -> Iterator[None]:
        """Count a stream of a kind while it is open."""
        quota = self.quotas[limit]
        quota.take(connection)
        try:
            yield
        finally:
            quota.give_back(connection)

    async def _stream(self, responses: Any, call: Call, size: int) -> None:
        """Send a stream's responses. Those larger than what is reserved for it wait for room."""
        connection = call.peer()
        room = await self.budget.reserve(connection, size, self._options.default_timeout_s)
        try:
            async with aclosing(responses):
                async for response in responses:
                    raw = self._written(response)
                    if len(raw) <= size:
                        await call.write(raw)
                        continue
                    more = await self.budget.reserve(connection, len(raw), self._options.default_timeout_s)
                    try:
                        await call.write(raw)
                    finally:
                        more.release()
        finally:
            room.release()
        call.finish(Status.OK)

    # All calls

    def announce(self, call: Call, size: int) -> None:
        """Let a large request arrive as soon as there is room for it."""
        room = self.intake.admit_now(call.peer(), size)
        if room is not None:
            call.accept(room)
        else:
            call.on_done(self.task(call, self._accept_later, size).cancel)

    async def _accept_later(self, call: Call, size: int) -> None:
        left = call.time_remaining()
        timeout_s = self._options.default_timeout_s if left is None else left
        call.accept(await self.intake.admit(call.peer(), size, timeout_s))

    def _written(self, response: Message | Encoded) -> bytes:
        """Serialize a response within the limit."""
        raw = response.SerializeToString()
        if len(raw) > self._options.response_bytes:
            raise ResponseTooLarge(self._options.response_bytes)
        return raw

    def fail(self, call: Call, error: Exception) -> None:
        """End the call with an error."""
        report = to_error(error, self._facts.topology)
        forget_frames(error)
        call.finish(Status(report.code), report.message, ((METADATA, report.SerializeToString()),))

    def begin(self, call: Call) -> float | None:
        """Admit a call, a stream or a session. Returns the time left for it, if it has a deadline."""
        if self.stopping:
            raise Unavailable("this node is stopping")
        left = call.time_remaining()
        if left is not None and left <= 0:
            raise DeadlinePassed("the call's deadline had passed before it began")
        return left


def forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its causes. A frame that has the failed task, or future, is in a
    cycle with it, and holds the request until the next garbage collection.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _in_task(method: Unary) -> Begin:
    """Return a method's beginning that makes a task."""

    def begin(message: Any, timeout_s: float) -> tuple[asyncio.Future[Message], Callable[[Any], Message]]:
        return asyncio.get_running_loop().create_task(method.call(message, timeout_s)), _itself

    return begin


def _itself(response: Message) -> Message:
    return response


def parse(kind: type[M], raw: bytes) -> M:
    """Parse a client's message."""
    check_width(kind, raw)
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise InvalidRequest(f"malformed request: not a valid {kind.DESCRIPTOR.full_name}") from None
