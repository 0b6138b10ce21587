"""gRPC between simulated clients and nodes: calls on connections that are slow, break, or fall silent.

Both ends are production's: a client's link finds a channel (`SimChannel`) with the methods of `grpc.aio` that
it uses, and the methods of a node's API have calls (`_Served`) as those on a port. Between them there is no
gRPC. A connection is FIFO in both directions. It may

- *break*: both ends learn it, each after a delay, and what is in flight is lost;
- *fall silent*: neither end learns it before the keep-alive; what the client sends arrives much later, after
  the client has given up, or never;
- be *refused*, because the node is down, or be swallowed like all else by a machine that is off;
- be *unread*: its client reads nothing of it, and the node keeps what it has answered.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import grpc

from kvstore.http2.call import LARGE, Arrived, Metadata, Method, Room
from kvstore.http2.status import Status
from kvstore.simulation.event_loop import SimEventLoop
from multicast.sim.network import Delays, Loop

BREAKS: Final = 0.004
"""How often a message breaks its connection, while there are faults."""
SILENT: Final = 0.006
"""How often one makes it silent."""
SILENT_CRASH: Final = 0.3
"""How often a crash is noticed by keep-alives only."""
LATE_S: Final = (0.1, 2.5)
"""How late a silent connection delivers requests, if it does."""
KEEPALIVE_S: Final = (0.4, 1.5)
"""How long an end takes to notice that the other one is silent."""
WINDOW: Final = 8
"""Messages of a stream that a client has not read before the node's writes wait."""

_REFUSED: Final = "failed to connect to all addresses"


class _Status(NamedTuple):
    code: grpc.StatusCode
    details: str = ""
    trailing: tuple[tuple[str, Any], ...] = ()

    def error(self) -> grpc.aio.AioRpcError:
        """Return the exception that a client gets."""
        metadata = grpc.aio.Metadata()
        return grpc.aio.AioRpcError(
            self.code, metadata, grpc.aio.Metadata(*self.trailing), details=self.details
        )


_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_CANCELLED: Final = _Status(grpc.StatusCode.CANCELLED, "cancelled")


class SimServer:
    """A node's API in one life: its methods, and the connections to it."""

    def __init__(self, loop: SimEventLoop, methods: Mapping[str, Method]) -> None:
        self.loop = loop
        self.methods = methods
        self.connections: dict[_Connection, None] = {}

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the node keeps, since clients do not read their connections."""
        return sum(connection.unread_bytes for connection in self.connections)

    def kill(self) -> None:
        """The node dies. Clients learn it at once, or when they miss its keep-alives."""
        self.loop.kill()
        for connection in list(self.connections):
            connection.node_died()


class Wires(Protocol):
    """What connections need of the simulation."""

    loop: Loop

    @property
    def delays(self) -> Delays:
        """How long messages take."""

    @property
    def faulty(self) -> bool:
        """Whether connections break by themselves."""

    def server(self, node: int) -> SimServer | None:
        """Return a node's API, if the node is up."""


class SimChannel:
    """A client's channel to one node: a connection that is made anew when it is broken."""

    def __init__(self, wires: Wires, loop: SimEventLoop, rng: random.Random, node: int) -> None:
        self._wires = wires
        self._loop = loop
        self._rng = rng
        self._node = node
        self._connection: _Connection | None = None

    def _call(self, path: str, *, write: bytes | None, timeout_s: float | None) -> _Call:
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._connection = _Connection(self._wires, self._loop, self._rng, self._node)
        return _Call(connection, path, write, timeout_s)

    def unary_unary(
        self, path: str, request_serializer: Callable[[Any], bytes], response_deserializer: Callable[..., Any]
    ) -> Callable[..., Awaitable[Any]]:
        """Return a function that makes a call."""

        async def make(request: Any, timeout: float | None = None) -> Any:
            call = self._call(path, write=request_serializer(request), timeout_s=timeout)
            try:
                raw = await call.read()
            except asyncio.CancelledError:
                call.cancel()
                raise
            return response_deserializer(raw)

        return make

    def unary_stream(
        self, path: str, request_serializer: Callable[[Any], bytes], response_deserializer: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a function that opens a stream of responses."""

        def make(request: Any) -> _Call:
            call = self._call(path, write=request_serializer(request), timeout_s=None)
            call.decode = response_deserializer
            return call

        return make

    def stream_stream(self, path: str) -> Callable[[], Any]:
        """Return a function that opens a stream both ways."""
        return lambda: self._call(path, write=None, timeout_s=None)

    def stop_reading(self) -> None:
        """Read nothing of the connection, which is a new one, until it is closed."""
        self._connection = _Connection(self._wires, self._loop, self._rng, self._node)
        self._connection.reads = False

    def client_died(self) -> None:
        """The client has died. Its node learns it after a while."""
        if self._connection is not None:
            self._connection.client_died()

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.end("the channel is closed")


class _Connection:
    """A connection of one life of a client to one life of a node."""

    def __init__(self, wires: Wires, client: SimEventLoop, rng: random.Random, node: int) -> None:
        self.wires = wires
        self.client = client
        self.name = f"sim:{client.name}:{node}:{wires.loop.now!r}"
        self.closed = False
        """Whether the client knows that it is over."""
        self.server: SimServer | None = None
        self._node = node
        self._rng = rng
        self._reached = False
        """Whether the first message has arrived, so that it is known whether the node is up."""
        self._silent = self._lost = False
        self._up_at = self._down_at = 0.0
        self.reads = True
        """Whether the client reads anything of it."""
        self.unread_bytes = 0
        """Bytes of replies that it does not read, but for streams of responses to one request."""
        self.calls: dict[_Call, None] = {}

    # Time

    def _arrival(self, after: float) -> float:
        return max(after, self.wires.loop.now + self.wires.delays.sample(self._rng))

    def to_node(self, call: Callable[..., None], *arguments: object) -> None:
        """Something travels to the node."""
        if self.client.dead or self.closed:
            return
        self._suffer()
        if not self._lost:
            self._up_at = self._arrival(self._up_at)
            self.wires.loop.at(self._up_at, self._at_node, call, *arguments)

    def _at_node(self, call: Callable[..., None], *arguments: object) -> None:
        if not self._reached:
            self._reached = True
            self.server = self.wires.server(self._node)
            if self.server is not None:
                self.server.connections[self] = None
            elif self.wires.faulty and self._rng.random() < SILENT_CRASH:
                self._fall_silent(lost=True)
            else:
                self._later(self.end, _REFUSED)
        if self.server is not None and not self.server.loop.dead:
            call(*arguments)

    def to_client(self, call: Callable[..., None], *arguments: object) -> None:
        """Something travels to the client."""
        self._suffer()
        if self.reads and not self._silent:
            self._down_at = self._arrival(self._down_at)
            self.wires.loop.at(self._down_at, self._at_client, call, *arguments)

    def _at_client(self, call: Callable[..., None], *arguments: object) -> None:
        if not (self.client.dead or self.closed):
            call(*arguments)

    @property
    def streams(self) -> int:
        """Streams of responses to one request that the node serves."""
        return sum(call.serves_stream for call in self.calls)

    # Faults

    def _suffer(self) -> None:
        if self.wires.faulty and not self._silent:
            fate = self._rng.random()
            if fate < BREAKS:
                self._break()
            elif fate < BREAKS + SILENT:
                self._fall_silent(lost=self._rng.random() < 0.5)

    def _later(self, call: Callable[..., None], *arguments: object) -> None:
        self.wires.loop.at(self._arrival(0.0), call, *arguments)

    def _break(self) -> None:
        """Both ends learn that the connection is over. Nothing more passes."""
        self._silent = self._lost = True
        self._later(self.end, "the connection was reset")
        self._later(self._node_learns)

    def _fall_silent(self, *, lost: bool) -> None:
        self._silent, self._lost = True, lost
        now = self.wires.loop.now
        if not lost:
            self._up_at = max(self._up_at, now) + self._rng.uniform(*LATE_S)
        self.wires.loop.at(now + self._rng.uniform(*KEEPALIVE_S), self.end, "keep-alive timed out")
        at = max(self._up_at, now + self._rng.uniform(*KEEPALIVE_S))
        self.wires.loop.at(at, self._node_learns)

    def node_died(self) -> None:
        """The node has died."""
        if self.wires.faulty and self._rng.random() < SILENT_CRASH:
            self._fall_silent(lost=True)
        else:
            self._later(self.end, "the connection was reset by its peer")

    def client_died(self) -> None:
        """The client has died."""
        self._later(self._node_learns)

    def end(self, why: str) -> None:
        """The client learns that the connection is over, or ends it."""
        if not self.closed:
            self.closed = True
            self.wires.loop.at(self._arrival(self._up_at), self._node_learns)
            for call in list(self.calls):
                call.fail(_Status(grpc.StatusCode.UNAVAILABLE, why))

    def _node_learns(self) -> None:
        """The node learns that the client is gone, and cancels what it does for it."""
        server, self.server = self.server, None
        if server is not None and not server.loop.dead:
            server.connections.pop(self, None)
            for call in list(self.calls):
                call.cancelled_by_client()


class _Call:
    """A call, as both ends have it. They meet in `to_node` and `to_client` only."""

    def __init__(
        self, connection: _Connection, path: str, write: bytes | None, timeout_s: float | None
    ) -> None:
        self._connection = connection
        self._path = path
        self._timeout_s = timeout_s
        self.decode: Callable[[bytes], Any] | None = None
        # The client's end
        self._came: deque[bytes] = deque()
        self._status: _Status | None = None
        self._waiting: asyncio.Future[None] | None = None
        connection.calls[self] = None
        if timeout_s is not None:
            timer = connection.client.call_later(timeout_s, self._time_out)
            self._timer: asyncio.TimerHandle | None = timer
        else:
            self._timer = None
        # The node's end
        self.unread = 0
        """Messages that the client has not read. It is known without delay, and wakes a writer with one."""
        self.served: _Served | None = None
        connection.to_node(self._begin, write)

    # The client's end

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def fail(self, status: _Status) -> None:
        """The call is over."""
        if self._status is None:
            self._status = status
            if self._timer is not None:
                self._timer.cancel()
            self._wake()

    def _time_out(self) -> None:
        if self._status is None:
            self._connection.to_node(self.cancelled_by_client)
            self.fail(_Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _take(self, raw: bytes) -> None:
        if self._status is None:
            self._came.append(raw)
            self._wake()

    async def read(self) -> Any:
        """Return the next message, or EOF."""
        while not self._came:
            if self._status is not None:
                if self._status.code is grpc.StatusCode.OK:
                    return grpc.aio.EOF
                if self._status is _CANCELLED:
                    raise asyncio.CancelledError
                raise self._status.error()
            self._waiting = self._connection.client.create_future()
            await self._waiting
        self.unread -= 1
        if self.unread == WINDOW - 1 and self._status is None:
            self._connection.to_node(self.may_write)
        raw = self._came.popleft()
        return raw if self.decode is None else self.decode(raw)

    async def write(self, raw: bytes) -> None:
        """Send a message."""
        if self._status is not None:
            raise asyncio.InvalidStateError("the call is over")
        self._connection.to_node(self._hear, raw)

    async def done_writing(self) -> None:
        """Send no more."""
        self._connection.to_node(self._hear, None)

    async def code(self) -> grpc.StatusCode:
        """Return the status of a call that has ended."""
        assert self._status is not None
        return self._status.code

    async def details(self) -> str:
        """Return what the status says."""
        assert self._status is not None
        return self._status.details

    async def trailing_metadata(self) -> tuple[tuple[str, Any], ...]:
        """Return what came with the status."""
        assert self._status is not None
        return self._status.trailing

    def cancel(self) -> None:
        """End the call."""
        if self._status is None:
            self._connection.to_node(self.cancelled_by_client)
            self.fail(_CANCELLED)

    # The node's end

    @property
    def serves_stream(self) -> bool:
        """Whether the node sends responses to one request."""
        return self.decode is not None and self.served is not None and not self.served.over

    def _begin(self, raw: bytes | None) -> None:
        server = self._connection.server
        assert server is not None
        self.served = _Served(self._connection, self, server, server.methods[self._path], self._timeout_s)
        with server.loop.running():
            self.served.begin(raw)

    def ended(self, status: _Status) -> None:
        """The node ends the call."""
        self._connection.to_client(self._over, status)

    def _over(self, status: _Status) -> None:
        self.fail(status)
        self._connection.calls.pop(self, None)

    def responded(self, raw: bytes) -> None:
        """The node sends a message."""
        self.unread += 1
        if not self._connection.reads and self.decode is None:
            self._connection.unread_bytes += len(raw)
        self._connection.to_client(self._take, raw)

    def _hear(self, raw: bytes | None) -> None:
        if self.served is not None:
            self.served.hear(raw)

    def may_write(self) -> None:
        """The client has read something."""
        if self.served is not None:
            self.served.may_write()

    def cancelled_by_client(self) -> None:
        """The client has ended the call, or is gone."""
        if self.served is not None:
            self.served.cancel()


class _Served:
    """A call, as the API's methods see it: a `kvstore.http2.call.Call`."""

    def __init__(
        self,
        connection: _Connection,
        call: _Call,
        server: SimServer,
        method: Method,
        timeout_s: float | None,
    ) -> None:
        self._connection = connection
        self._call = call
        self._loop = loop = server.loop
        self._method = method
        self._until = None if timeout_s is None else loop.time() + timeout_s
        self._work: asyncio.Future[Any] | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._came: deque[bytes | None] = deque()
        """What the client has sent; None is the end of it. A large message waits in front, to be accepted."""
        self._announced = self._accepted = False
        self._room: Room | None = None
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self.over = False

    # What the client does

    def begin(self, raw: bytes | None) -> None:
        """The call has arrived, with its request unless that is a stream."""
        if self._method.streams_requests:
            self._work = self._method.begin(self, b"")
        else:
            self._came.append(raw)
            self._advance()

    def hear(self, raw: bytes | None) -> None:
        """A message of the stream of requests has arrived, or its end."""
        if not self.over:
            self._came.append(raw)
            with self._loop.running():
                self._advance()

    def _advance(self) -> None:
        first = self._came[0] if self._came else None
        if first is not None and len(first) > LARGE and not self._accepted:
            if not self._announced:
                self._announced = True
                self._method.announce(self, len(first))
        elif not self._method.streams_requests:
            if first is not None:
                self._came.clear()
                self._work = self._method.begin(self, first)
        elif self._came and self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def may_write(self) -> None:
        """The client has read something."""
        if self._writing is not None and not self._writing.done():
            self._writing.set_result(None)

    def cancel(self) -> None:
        """The client has ended the call, or is gone."""
        if not self.over:
            with self._loop.running():
                self._leave()
                if self._work is not None:
                    self._work.cancel()

    def _leave(self) -> None:
        self.over = True
        if self._room is not None:
            self._room.release()
        if self._reading is not None:
            self._reading.cancel()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    # What the method does

    def peer(self) -> str:
        """Return the client's address: one for each connection."""
        return self._connection.name

    def metadata(self) -> Metadata:
        """Return what the client has sent beside its request."""
        return ()

    def time_remaining(self) -> float | None:
        """Return the seconds left, if the client has set a deadline."""
        return None if self._until is None else self._until - self._loop.time()

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call a function when the call is over."""
        if self.over:
            callback()
        else:
            self._callbacks.append(callback)

    def accept(self, room: Room | None) -> None:
        """Receive the large message that was announced."""
        if self.over:
            if room is not None:
                room.release()
            return
        self._accepted, self._room = True, room
        self._advance()

    async def read(self) -> Arrived | None:
        """Return the client's next message; None after the last one."""
        while not self.over:
            first = self._came[0] if self._came else b""
            if self._came and (first is None or len(first) <= LARGE or self._accepted):
                if first is None:
                    return None
                self._came.popleft()
                room, self._room = self._room, None
                self._announced = self._accepted = False
                self._advance()
                return Arrived(first, room)
            self._reading = self._loop.create_future()
            await self._reading
        raise asyncio.CancelledError

    async def write(self, message: bytes) -> None:
        """Send a message; wait while the client does not read."""
        if self.over:
            raise asyncio.CancelledError
        self._call.responded(message)
        while self._call.unread >= WINDOW:
            self._writing = self._loop.create_future()
            await self._writing

    def reply(self, message: bytes) -> None:
        """Send the only response. The call is over when the transport has taken it: never, if the client
        reads nothing.
        """
        if not self.over:
            self._call.responded(message)
            if self._connection.reads:
                self.finish(Status.OK)

    def finish(self, status: Status, details: str = "", trailing: Metadata = ()) -> None:
        """End the call with a status."""
        if not self.over:
            self._call.ended(_Status(_CODES[status], details, tuple(trailing)))
            self._leave()
