"""A session with a node: many calls on one stream.

Calls that are made in one iteration of the event loop, or during a write, are sent in one message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message
from wbkv_proto.v1 import session_pb2
from wbkv_proto.v1.error_pb2 import Error as ApiError
from wbkv_proto.varint import varint

from wbkv.core.effects import Failure, failed
from wbkv.links.grpc_common import failure_of

PATH: Final = "/wbkv.v1.Session/Open"
UNDER_WAY: Final = 256
"""The maximum number of calls in progress at a node."""
MESSAGE_BYTES: Final = 256 << 10
"""About the maximum size of a message, unless a single call is larger."""
SWEEP_S: Final = 0.25
"""How often to look for calls that have timed out."""
CLOSE_S: Final = 0.5
"""How long to wait for a node to close its side."""
GRACE_S: Final = 0.5
"""How long after a call's time limit to wait for the node to report it."""

_FIELDS: Final = session_pb2.Call.DESCRIPTOR.fields_by_name
_CALLS: Final = bytes((session_pb2.SessionRequest.CALLS_FIELD_NUMBER << 3 | 2,))
_NUMBER: Final = bytes((_FIELDS["number"].number << 3,))
_TIMEOUT: Final = bytes((_FIELDS["timeout_ms"].number << 3,))
_KINDS: Final = {kind: bytes((_FIELDS[kind].number << 3 | 2,)) for kind in ("txn", "get", "put", "delete")}

Answer: TypeAlias = Message | Failure


class _PendingCall:
    """A call without a response."""

    __slots__ = ("future", "patience_s", "raw", "until")

    def __init__(self, future: asyncio.Future[Answer], raw: bytes, until: float, patience_s: float) -> None:
        self.future = future
        self.raw = raw
        self.until = until
        self.patience_s = patience_s


class SessionLink:
    """A stream to one node, from its first call until it breaks.

    Only `UNDER_WAY` calls are in progress at once: a slow node does not get more than it can do in time. A
    node that is silent for longer than the shortest `patience_s` of its calls counts as disconnected.
    """

    def __init__(self, channel: grpc.aio.Channel, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.broken = False
        self._address = address
        self._loop = loop
        self._waiting: deque[tuple[int, _PendingCall]] = deque()
        """Calls to be sent."""
        self._calls: dict[int, _PendingCall] = {}
        """Calls in progress, by number."""
        self._next = 1
        self._heard_at = 0.0
        """When the node last sent a message, or was last idle."""
        self._wake = asyncio.Event()
        open_: Any = channel.stream_stream(PATH)
        self._stream: Any = open_()
        self._tasks = [loop.create_task(self._write()), loop.create_task(self._read())]
        self._sweeping = loop.call_later(SWEEP_S, self._sweep)

    def call(
        self, kind: str, request: Message, timeout_s: float, patience_s: float
    ) -> asyncio.Future[Answer]:
        """Make a call. Return the future of its response."""
        number = self._next
        self._next = number + 1
        raw = request.SerializeToString()
        timeout_ms = max(int(timeout_s * 1000), 1)
        head = b"%b%b%b%b%b%b" % (
            _NUMBER, varint(number), _TIMEOUT, varint(timeout_ms), _KINDS[kind], varint(len(raw))
        )  # fmt: skip
        raw = b"%b%b%b%b" % (_CALLS, varint(len(head) + len(raw)), head, raw)
        future: asyncio.Future[Answer] = self._loop.create_future()
        until = self._loop.time() + timeout_s + GRACE_S
        self._waiting.append((number, _PendingCall(future, raw, until, patience_s)))
        self._wake.set()
        return future

    async def _write(self) -> None:
        waiting, calls, wake = self._waiting, self._calls, self._wake
        try:
            while True:
                while not waiting or len(calls) >= UNDER_WAY:
                    if self.broken:
                        await self._stream.done_writing()
                        return
                    wake.clear()
                    await wake.wait()
                if not calls:
                    self._heard_at = self._loop.time()
                pieces: list[bytes] = []
                size = 0
                while waiting and len(calls) < UNDER_WAY:
                    number, call = waiting[0]
                    size += len(call.raw)
                    if pieces and size > MESSAGE_BYTES:
                        break
                    waiting.popleft()
                    if call.future.done():
                        continue  # the caller was cancelled
                    pieces.append(call.raw)
                    calls[number] = call
                if pieces:
                    await self._stream.write(b"".join(pieces))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # `_read` gets the reason

    async def _read(self) -> None:
        failure = failed(ApiError.UNAVAILABLE, f"{self._address} ended the session")
        try:
            while (raw := await self._stream.read()) is not grpc.aio.EOF:
                self._take(raw)
            code, details = await self._stream.code(), await self._stream.details()
            if code is not grpc.StatusCode.OK:
                trailing = await self._stream.trailing_metadata()
                failure = failure_of(code, details, trailing, self._address)
        except grpc.aio.AioRpcError as error:
            failure = failure_of(error.code(), error.details(), error.trailing_metadata(), self._address)
        except DecodeError as error:
            self._stream.cancel()
            failure = failed(ApiError.UNAVAILABLE, f"{self._address} sent an invalid response: {error}")
        self._end(failure)

    def _take(self, raw: bytes) -> None:
        calls = self._calls
        self._heard_at = self._loop.time()
        for reply in session_pb2.SessionResponse.FromString(raw).replies:
            found = calls.pop(reply.number, None)
            if found is None or found.future.done():
                continue
            kind = reply.WhichOneof("reply")
            if kind == "error":
                found.future.set_result(Failure(reply.error))
            elif kind is None:
                unknown = ApiError(
                    kind=ApiError.INTERNAL, message=f"{self._address} gave an unknown kind of reply"
                )
                found.future.set_result(Failure(unknown))
            else:
                found.future.set_result(getattr(reply, kind))
        if self._waiting:
            self._wake.set()

    def _sweep(self) -> None:
        """Fail calls that have timed out, and end the session if the node is silent."""
        now = self._loop.time()
        late = failed(ApiError.DEADLINE_PASSED, f"{self._address} timed out")
        for number in [number for number, call in self._calls.items() if call.until < now]:
            _resolve(self._calls.pop(number), late)
        unsent = failed(
            ApiError.DEADLINE_PASSED,
            f"{self._address} is overloaded: the call was not sent in time",
            begun=False,
        )
        for _, call in self._waiting:
            if call.until < now:
                _resolve(call, unsent)
        silent_s = now - self._heard_at
        if any(call.patience_s < silent_s for call in self._calls.values()):
            self._stream.cancel()
            self._end(failed(ApiError.UNAVAILABLE, f"{self._address} has been silent for {silent_s:.1f} s"))
            return
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)

    def _end(self, failure: Failure) -> None:
        """End the session. A rejection of the stream itself is not a response to any of its calls."""
        if self.broken:
            return
        self.broken = True
        self._sweeping.cancel()
        for task in self._tasks:
            task.cancel()
        if not failure.error.retryable and failure.error.kind != ApiError.INVALID_REQUEST:
            failure = failed(ApiError.UNAVAILABLE, failure.error.message, begun=failure.begun)
        self._resolve_all(failure)

    def _resolve_all(self, failure: Failure) -> None:
        for call in self._calls.values():
            _resolve(call, failure)
        for _, call in self._waiting:
            _resolve(call, failure._replace(begun=False))

    async def close(self) -> None:
        """Close the session. Calls in progress fail.

        The node closes its side first: gRPC would otherwise report on the cancelled stream after the event
        loop is closed.
        """
        if self.broken:
            return
        self.broken = True
        self._sweeping.cancel()
        self._resolve_all(failed(ApiError.UNAVAILABLE, "the client was closed"))
        self._wake.set()
        _, late = await asyncio.wait(self._tasks, timeout=CLOSE_S)
        if late:
            self._stream.cancel()
            for task in late:
                task.cancel()
            await asyncio.wait(late)


def _resolve(call: _PendingCall, failure: Failure) -> None:
    if not call.future.done():
        call.future.set_result(failure)
