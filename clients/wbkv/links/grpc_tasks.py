"""A gRPC link for an event loop: a session to each node carries all calls that are made together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from wbkv_proto.v1.error_pb2 import Error as ApiError

from wbkv.core.effects import Ask, Failure, Method, Open, ReplyStream, failed
from wbkv.core.forks import at_fork
from wbkv.errors import ClientClosed, Forked
from wbkv.links.grpc_common import AT_FORK, CLOSED, OPTIONS, failure_of, serialize
from wbkv.links.session import SessionLink

AHEAD: Final = 4
"""How many messages of a stream are read ahead."""


class AsyncGrpcLink:
    """Channels to the nodes, opened on first use. They belong to one event loop and one process."""

    def __init__(self, credentials: grpc.ChannelCredentials | None = None) -> None:
        AT_FORK.check()
        self._credentials = credentials
        self._loop = asyncio.get_running_loop()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._sessions: dict[str, SessionLink] = {}
        self._closed = False
        self._of_parent: dict[str, SessionLink] | None = None
        """In the child of a fork: the parent's sessions, which must not be used."""
        at_fork(self)

    def forked(self) -> None:
        """Leave the event loop and its sessions to the parent."""
        self._of_parent, self._sessions = self._sessions, {}

    def ask(self, ask: Ask) -> Awaitable[Message | Failure]:
        """Send a request, and wait for its response."""
        address, method, request, timeout_s, patience_s = ask
        if method.in_session:
            session = self._sessions.get(address)
            if session is None or session.broken or asyncio.get_running_loop() is not self._loop:
                session = self._sessions[address] = SessionLink(self._channel(address), address, self._loop)
            return session.call(method.in_session, request, timeout_s, patience_s)
        return self._unary(address, method, request, min(timeout_s, patience_s))

    async def _unary(self, address: str, method: Method, request: Message, timeout_s: float) -> Any:
        call = self._channel(address).unary_unary(
            method.path,
            request_serializer=serialize,
            response_deserializer=method.response.FromString,
        )
        try:
            return await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return failure_of(error.code(), error.details(), error.trailing_metadata(), address)

    def open(self, open_: Open) -> ReplyStream:
        """Open a stream."""
        call = self._channel(open_.address).unary_stream(
            open_.method.path,
            request_serializer=serialize,
            response_deserializer=open_.method.response.FromString,
        )
        return _GrpcTaskStream(call(open_.request), open_.address)

    async def next(self, stream: Any) -> Message | Failure | None:
        """Return the next message; None at the end."""
        found: Message | Failure | None = await stream.next()
        return found

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._closed:
            raise ClientClosed(CLOSED)
        if self._of_parent is not None:
            raise Forked("an asyncio client of the parent process cannot be used in its fork: connect again")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the client belongs to another event loop: connect again in this one")
        channel = self._channels.get(address)
        if channel is None:
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(address, OPTIONS)
            else:
                channel = grpc.aio.secure_channel(address, self._credentials, OPTIONS)
            self._channels[address] = channel
        return channel

    async def close(self) -> None:
        """Close all connections. Calls in progress fail."""
        self._closed = True
        if self._of_parent is not None:
            return
        await asyncio.gather(*(session.close() for session in self._sessions.values()))
        for channel in self._channels.values():
            await channel.close()


class _GrpcTaskStream:
    """A stream of responses. A task reads a few ahead, so that a task that waits may be cancelled."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address
        self._came: asyncio.Queue[Message | Failure | None] = asyncio.Queue(AHEAD)
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        last: Failure | None = None
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                await self._came.put(message)
        except grpc.aio.AioRpcError as error:
            last = failure_of(error.code(), error.details(), error.trailing_metadata(), self._address)
        except asyncio.CancelledError:
            self._wake()  # by `cancel`, or since the channel was closed
            raise
        await self._came.put(last)

    async def next(self) -> Message | Failure | None:
        if self._reading.cancelled() and self._came.empty():
            self._wake()
        return await self._came.get()

    def _wake(self) -> None:
        if self._came.empty():
            self._came.put_nowait(failed(ApiError.UNAVAILABLE, "the stream was cancelled"))

    def cancel(self) -> None:
        self._call.cancel()
        self._reading.cancel()
        self._wake()
