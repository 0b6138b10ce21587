"""One session with a node: many calls on one stream.

Calls that are made in one round of the event loop, or while a message is being written, leave in one message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import Message
from wbkv_proto.v1 import session_pb2
from wbkv_proto.v1.error_pb2 import Error as Told

from wbkv.core.effects import Failure, failed
from wbkv.errors import ClientClosed
from wbkv.links.grpc_common import failure_of

PATH: Final = "/wbkv.v1.Session/Open"
CALLS: Final = 256
"""Calls in a message, at most."""
MESSAGE_BYTES: Final = 256 << 10
"""Bytes of a message, about, unless a single call is larger."""
SWEEP_S: Final = 0.25
"""How often to look for calls whose time is over."""
GRACE_S: Final = 0.5
"""How much longer than its time a call may take to be answered: the node says so itself."""

_FIELDS: Final = session_pb2.Call.DESCRIPTOR.fields_by_name
_CALLS: Final = bytes((session_pb2.SessionRequest.CALLS_FIELD_NUMBER << 3 | 2,))
_NUMBER: Final = bytes((_FIELDS["number"].number << 3,))
_TIMEOUT: Final = bytes((_FIELDS["timeout_ms"].number << 3,))
_KINDS: Final = {kind: bytes((_FIELDS[kind].number << 3 | 2,)) for kind in ("txn", "get", "put", "delete")}

Answer: TypeAlias = Message | Failure


class Session:
    """A stream to one node, from its first call until it breaks."""

    def __init__(self, channel: grpc.aio.Channel, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.broken = False
        self._address = address
        self._loop = loop
        self._calls: dict[int, tuple[asyncio.Future[Answer], float]] = {}
        """Under way, by number: who waits, and until when."""
        self._next = 1
        self._to_send: deque[bytes] = deque()
        self._wake = asyncio.Event()
        open_: Any = channel.stream_stream(PATH)
        self._stream: Any = open_()
        self._tasks = [loop.create_task(self._write()), loop.create_task(self._read())]
        self._sweeping = loop.call_later(SWEEP_S, self._sweep)

    def call(self, kind: str, request: Message, timeout_s: float) -> asyncio.Future[Answer]:
        """Make a call."""
        number = self._next
        self._next = number + 1
        raw = request.SerializeToString()
        call = b"".join((
            _NUMBER, _varint(number), _TIMEOUT, _varint(max(int(timeout_s * 1000), 1)),
            _KINDS[kind], _varint(len(raw)), raw,
        ))  # fmt: skip
        self._to_send.append(b"".join((_CALLS, _varint(len(call)), call)))
        self._wake.set()
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._calls[number] = future, self._loop.time() + timeout_s + GRACE_S
        return future

    async def _write(self) -> None:
        to_send, wake = self._to_send, self._wake
        try:
            while True:
                if not to_send:
                    wake.clear()
                    await wake.wait()
                pieces = [to_send.popleft()]
                size = len(pieces[0])
                while to_send and len(pieces) < CALLS and size + len(to_send[0]) <= MESSAGE_BYTES:
                    pieces.append(to_send.popleft())
                    size += len(pieces[-1])
                await self._stream.write(b"".join(pieces))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # whoever reads learns why

    async def _read(self) -> None:
        failure = failed(Told.UNAVAILABLE, f"{self._address} ended the session")
        try:
            while (raw := await self._stream.read()) is not grpc.aio.EOF:
                self._take(raw)
            code, details = await self._stream.code(), await self._stream.details()
            if code is not grpc.StatusCode.OK:
                trailing = await self._stream.trailing_metadata()
                failure = failure_of(code, details, trailing, self._address)
        except grpc.aio.AioRpcError as error:
            failure = failure_of(error.code(), error.details(), error.trailing_metadata(), self._address)
        self._end(failure)

    def _take(self, raw: bytes) -> None:
        calls = self._calls
        for reply in session_pb2.SessionResponse.FromString(raw).replies:
            found = calls.pop(reply.number, None)
            if found is None or found[0].done():
                continue
            kind = reply.WhichOneof("reply")
            if kind == "error":
                found[0].set_result(Failure(reply.error))
            else:
                found[0].set_result(getattr(reply, kind))

    def _sweep(self) -> None:
        now = self._loop.time()
        late = [number for number, (_, until) in self._calls.items() if until < now]
        for number in late:
            future, _ = self._calls.pop(number)
            if not future.done():
                future.set_result(failed(Told.DEADLINE_PASSED, f"{self._address} did not answer in time"))
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)

    def _end(self, failure: Failure) -> None:
        """The stream is over. A refusal of the stream itself is no answer to any of its calls."""
        self.broken = True
        self._sweeping.cancel()
        for task in self._tasks:
            task.cancel()
        if not failure.error.retryable and failure.error.kind != Told.INVALID_REQUEST:
            failure = failed(Told.UNAVAILABLE, failure.error.message, begun=failure.begun)
        calls, self._calls = self._calls, {}
        for future, _ in calls.values():
            if not future.done():
                future.set_result(failure)

    def close(self) -> None:
        """End it. Calls under way fail."""
        self._stream.cancel()
        self.broken = True
        self._sweeping.cancel()
        for task in self._tasks:
            task.cancel()
        calls, self._calls = self._calls, {}
        for future, _ in calls.values():
            if not future.done():
                future.set_exception(ClientClosed("the client was closed"))


def _varint(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_SMALL: Final = tuple(bytes((number,)) for number in range(128))
