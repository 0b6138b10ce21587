"""The service `Session`: many calls on one stream, without a task for each.

A stream has two loops. One reads messages and begins their calls; each call's future then puts its reply, as
bytes, into a queue. The other sends what is in the queue: so all that became ready in one round of the event
loop leaves in one message. When too much is under way, the first loop waits, and so must the client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from functools import partial
from typing import Any, Final

from wbkv_proto.v1 import session_pb2 as session
from wbkv_proto.varint import varint

from kvstore.api.budget import COPIES, Reservation
from kvstore.api.calls import Calls, parse
from kvstore.api.errors import to_error
from kvstore.api.kv import Fill, Requests
from kvstore.api.methods import ApiContext
from kvstore.http2.call import Call, Method, Room
from kvstore.http2.status import Status
from kvstore.store.errors import InvalidRequest, LimitExceeded, Overloaded, Unavailable
from kvstore.store.service import Committed

SERVICE: Final = "wbkv.v1.Session"
MESSAGE_BYTES: Final = 1 << 20
"""Of replies in one message, unless a single one is larger."""
SLICE: Final = 64
"""Calls that are begun before others may use the event loop."""
_REPLIES: Final = bytes((session.SessionResponse.REPLIES_FIELD_NUMBER << 3 | 2,))
"""How a reply begins inside its message, before its length."""


class SessionService:
    """The servicer."""

    def __init__(self, api: ApiContext, calls: Calls) -> None:
        self._api = api
        self._calls = calls
        self._requests = Requests(api)

    def handlers(self) -> dict[str, Method]:
        """Return the methods for a port, by name."""
        return {"Open": Method(self._begin, self._calls.announce, streams_requests=True)}

    def _begin(self, call: Call, _: bytes) -> asyncio.Task[None]:
        return self._calls.task(call, self._open)

    async def _open(self, call: Call) -> None:
        self._calls.begin(call)
        with self._calls.stream("sessions", call.peer()):
            await _SessionStream(self._api, self._requests, call).run()
        call.finish(Status.OK)


class _SessionStream:
    """One client's stream."""

    def __init__(self, api: ApiContext, requests: Requests, stream: Call) -> None:
        self._api = api
        self._options = api.options
        self._requests = requests
        self._stream = stream
        self._connection = stream.peer()
        self._budget = api.budget
        self._rooms: set[Reservation] = set()
        """What is reserved for replies that were not sent."""
        self._under_way: dict[int, asyncio.Future[Committed]] = {}
        """Calls by number."""
        self._replies: deque[tuple[int, bytes, Reservation | None]] = deque()
        """What each counts for in `_size`, its bytes, and what is reserved for it."""
        self._count = 0
        """Calls whose replies have not been sent."""
        self._size = 0
        """Bytes of these calls, and of their replies."""
        self._to_send = asyncio.Event()
        self._room = asyncio.Event()
        self._closed = False

    async def run(self) -> None:
        """Serve until the client has closed its side, and has all replies."""
        await self._stream.write(session.SessionResponse(header=self._api.header()).SerializeToString())
        reading = asyncio.get_running_loop().create_task(self._read())
        reading.add_done_callback(lambda _: self._to_send.set())
        try:
            while self._count or not reading.done():
                await self._to_send.wait()
                self._to_send.clear()
                while self._replies:
                    await self._send()
                if reading.done():
                    reading.result()
        finally:
            self._closed = True
            reading.cancel()
            for future in list(self._under_way.values()):
                future.cancel()
            for room in self._rooms:
                room.release()

    async def _send(self) -> None:
        pieces: list[bytes] = []
        rooms: list[Reservation] = []
        count = size = 0
        room = MESSAGE_BYTES
        while self._replies and (not pieces or len(self._replies[0][1]) <= room):
            counted, reply, reserved = self._replies.popleft()
            if reserved is not None:
                rooms.append(reserved)
            pieces += (_REPLIES, varint(len(reply)), reply)
            room -= len(reply)
            count += 1
            size += counted
        message = b"".join(pieces)
        pieces.clear()
        await self._stream.write(message)
        for reserved in rooms:
            reserved.release()
            self._rooms.discard(reserved)
        self._count -= count
        self._size -= size
        self._room.set()

    def _full(self) -> bool:
        return self._count >= self._options.session_calls or self._size >= self._options.session_bytes

    async def _read(self) -> None:
        while True:
            while self._full():
                self._room.clear()
                await self._room.wait()
            arrived = await self._stream.read()
            if arrived is None:
                return
            await self._begin_all(*arrived)
            del arrived  # the next message may be long in coming

    async def _begin_all(self, raw: bytes, request: Room | None) -> None:
        """Begin the calls of a message. A large one counts until its calls are over."""
        begun: list[asyncio.Future[Committed]] = []
        try:
            calls = parse(session.SessionRequest, raw).calls
            if len(calls) > self._options.session_calls:
                limit = self._options.session_calls
                raise LimitExceeded(
                    f"{len(calls)} calls in a message exceed the limit of {limit} (session_calls)",
                    *("session_calls", limit),
                )
            size = len(raw) // len(calls) if calls else 0
            for i, call in enumerate(calls, start=1):
                kind = call.WhichOneof("call")
                message = None if kind is None else getattr(call, kind)
                bound = 0 if kind is None else COPIES * self._requests.bound(kind, message)
                timeout_s = call.timeout_ms / 1000 or self._options.default_timeout_s
                room = self._budget.reserve_now(self._connection, bound, may_refuse=kind == "get")
                if room is None:
                    room = await self._wait_for_room(call.number, kind, bound, timeout_s, size)
                if room is not None:
                    future = self._begin(call.number, kind, message, timeout_s, size, room)
                    if request is not None and future is not None:
                        begun.append(future)
                if i % SLICE == 0:
                    await asyncio.sleep(0)
        finally:
            if request is not None:
                release_after(begun, request)

    async def _wait_for_room(
        self, number: int, kind: str | None, bound: int, timeout_s: float, size: int
    ) -> Reservation | None:
        """Wait until there is room for the reply to a call; until then, no further calls are read. Returns
        None if there is none in time, which is the reply.
        """
        try:
            return await self._budget.reserve(self._connection, bound, timeout_s, may_refuse=kind == "get")
        except Overloaded as error:
            self._count += 1
            self._size += size
            self._reply(size, self._error(number, error), None)
            return None

    def _begin(
        self, number: int, kind: str | None, message: Any, timeout_s: float, size: int, room: Reservation
    ) -> asyncio.Future[Committed] | None:
        """Begin a call. Returns None if it is over already: it was invalid."""
        self._rooms.add(room)
        if number in self._under_way:
            raise InvalidRequest(f"two calls under way have the number {number}")
        self._count += 1
        self._size += size
        try:
            if kind is None:
                raise InvalidRequest("this server does not know the call, or it is missing")  # noqa: TRY301 - reported
            begun, fill = self._requests.begin(kind, message, timeout_s)
            future = begun if isinstance(begun, asyncio.Future) else asyncio.ensure_future(begun)
        except Exception as error:  # noqa: BLE001 - all are reported to the client
            self._reply(size, self._error(number, error), room)
            return None
        self._under_way[number] = future
        future.add_done_callback(partial(self._done, number, size, room, kind, fill))
        return future

    def _done(
        self,
        number: int,
        size: int,
        room: Reservation,
        kind: str,
        fill: Fill,
        future: asyncio.Future[Committed],
    ) -> None:
        del self._under_way[number]
        if self._closed:
            return
        try:
            if future.cancelled():
                raise Unavailable("this node is stopping")  # noqa: TRY301 - reported like all others
            reply = session.Reply(number=number)
            self._requests.answer(fill, getattr(reply, kind), future.result())
        except Exception as error:  # noqa: BLE001 - all are reported to the client
            reply = self._error(number, error)
        self._reply(size, reply, room)

    def _error(self, number: int, error: Exception) -> session.Reply:
        return session.Reply(number=number, error=to_error(error, self._api.facts.topology))

    def _reply(self, size: int, reply: session.Reply, room: Reservation | None) -> None:
        raw = reply.SerializeToString()
        if room is not None:
            try:
                room.settle(COPIES * len(raw))
            except Overloaded as error:
                raw = self._error(reply.number, error).SerializeToString()
        self._size += len(raw)
        self._replies.append((size + len(raw), raw, room))
        self._to_send.set()


def release_after(futures: Collection[asyncio.Future[Committed]], request: Room) -> None:
    """Release what a message is counted with when all its calls are over."""
    left = len(futures)
    if not left:
        request.release()

    def one_less(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            request.release()

    for future in futures:
        future.add_done_callback(one_less)
