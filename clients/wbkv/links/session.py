"""One session with a node: many calls on one stream.

Calls that are made in one round of the event loop, or while a message is being written, leave in one message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message
from wbkv_proto.v1 import session_pb2
from wbkv_proto.v1.error_pb2 import Error as Told
from wbkv_proto.varint import varint

from wbkv.core.effects import Failure, failed
from wbkv.links.grpc_common import failure_of

PATH: Final = "/wbkv.v1.Session/Open"
UNDER_WAY: Final = 256
"""Calls that a node is given at once, at most."""
MESSAGE_BYTES: Final = 256 << 10
"""Bytes of a message, about, unless a single call is larger."""
SWEEP_S: Final = 0.25
"""How often to look for calls whose time is over."""
CLOSE_S: Final = 0.5
"""How long to wait for a node to end its side."""
GRACE_S: Final = 0.5
"""How much longer than its time a call may take to be answered: the node says so itself."""

_FIELDS: Final = session_pb2.Call.DESCRIPTOR.fields_by_name
_CALLS: Final = bytes((session_pb2.SessionRequest.CALLS_FIELD_NUMBER << 3 | 2,))
_NUMBER: Final = bytes((_FIELDS["number"].number << 3,))
_TIMEOUT: Final = bytes((_FIELDS["timeout_ms"].number << 3,))
_KINDS: Final = {kind: bytes((_FIELDS[kind].number << 3 | 2,)) for kind in ("txn", "get", "put", "delete")}

Answer: TypeAlias = Message | Failure


class _Call:
    """A call that waits to be sent, or to be answered."""

    __slots__ = ("future", "patience_s", "raw", "until")

    def __init__(self, future: asyncio.Future[Answer], raw: bytes, until: float, patience_s: float) -> None:
        self.future = future
        self.raw = raw
        self.until = until
        self.patience_s = patience_s


class Session:
    """A stream to one node, from its first call until it breaks.

    Only so many calls are under way at once: a node that is slow is not given more than it can do in time.
    One that says nothing at all, for as long as the least patient of its callers waits, is taken for dead.
    """

    def __init__(self, channel: grpc.aio.Channel, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.broken = False
        self._address = address
        self._loop = loop
        self._waiting: deque[tuple[int, _Call]] = deque()
        """To be sent."""
        self._calls: dict[int, _Call] = {}
        """Sent, by number."""
        self._next = 1
        self._heard_at = 0.0
        """When the node last said something, or was last idle."""
        self._wake = asyncio.Event()
        open_: Any = channel.stream_stream(PATH)
        self._stream: Any = open_()
        self._tasks = [loop.create_task(self._write()), loop.create_task(self._read())]
        self._sweeping = loop.call_later(SWEEP_S, self._sweep)

    def call(
        self, kind: str, request: Message, timeout_s: float, patience_s: float
    ) -> asyncio.Future[Answer]:
        """Make a call."""
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
        self._waiting.append((number, _Call(future, raw, until, patience_s)))
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
                        continue  # whoever asked has gone
                    pieces.append(call.raw)
                    calls[number] = call
                if pieces:
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
        except DecodeError as error:
            self._stream.cancel()
            failure = failed(Told.UNAVAILABLE, f"{self._address} sent what is no reply: {error}")
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
                unknown = Told(kind=Told.INTERNAL, message=f"{self._address} gave an unknown kind of reply")
                found.future.set_result(Failure(unknown))
            else:
                found.future.set_result(getattr(reply, kind))
        if self._waiting:
            self._wake.set()

    def _sweep(self) -> None:
        """Look for calls whose time is over, and whether the node is still there."""
        now = self._loop.time()
        late = failed(Told.DEADLINE_PASSED, f"{self._address} did not answer in time")
        for number in [number for number, call in self._calls.items() if call.until < now]:
            _settle(self._calls.pop(number), late)
        unsent = failed(Told.DEADLINE_PASSED, f"{self._address} is too slow", begun=False)
        for _, call in self._waiting:
            if call.until < now:
                _settle(call, unsent)
        silent_s = now - self._heard_at
        if any(call.patience_s < silent_s for call in self._calls.values()):
            self._stream.cancel()
            self._end(failed(Told.UNAVAILABLE, f"{self._address} has said nothing for {silent_s:.1f} s"))
            return
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)

    def _end(self, failure: Failure) -> None:
        """The stream is over. A refusal of the stream itself is no answer to any of its calls."""
        if self.broken:
            return
        self.broken = True
        self._sweeping.cancel()
        for task in self._tasks:
            task.cancel()
        if not failure.error.retryable and failure.error.kind != Told.INVALID_REQUEST:
            failure = failed(Told.UNAVAILABLE, failure.error.message, begun=failure.begun)
        self._settle_all(failure)

    def _settle_all(self, failure: Failure) -> None:
        for call in self._calls.values():
            _settle(call, failure)
        for _, call in self._waiting:
            _settle(call, failure._replace(begun=False))

    async def close(self) -> None:
        """End it. Calls under way fail.

        The node is told, and ends its side: what gRPC still had to tell of a stream that was just cancelled
        would come when the event loop is closed.
        """
        if self.broken:
            return
        self.broken = True
        self._sweeping.cancel()
        self._settle_all(failed(Told.UNAVAILABLE, "the client was closed"))
        self._wake.set()
        _, late = await asyncio.wait(self._tasks, timeout=CLOSE_S)
        if late:
            self._stream.cancel()
            for task in late:
                task.cancel()
            await asyncio.wait(late)


def _settle(call: _Call, failure: Failure) -> None:
    if not call.future.done():
        call.future.set_result(failure)
