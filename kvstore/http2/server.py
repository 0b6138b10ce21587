"""The port: connections are accepted, watched over, and ended.

One timer serves all of them: it ends calls whose deadline has passed, asks silent clients whether they are
there, and closes connections that never speak HTTP/2, do not answer, or do not take what ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import resource
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from kvstore.http2.call import Method
from kvstore.http2.connection import Connection, Limits
from kvstore.http2.errors import ConnectionFault, ErrorCode
from kvstore.http2.status import Status

logger = logging.getLogger(__name__)

SILENT_S: Final = 30.0
"""A client that has been silent for this long is pinged."""
ANSWER_S: Final = 10.0
"""How long it may take to answer."""
GREETING_S: Final = 10.0
"""How long a new client may take to speak HTTP/2."""
LINGER_S: Final = 2.0
"""How long a client may take to read why its connection ends."""
TICK_S: Final = 0.1
"""How often connections are looked at."""
STRANGERS: Final = 256
"""Connections that have not spoken HTTP/2 yet. When there are more, the oldest is closed."""
SPARE_FILES: Final = 256
"""Files that a process keeps for other things than clients."""
BACKLOG: Final = 512
WRITE_BUFFER: Final = 64 << 10
"""Bytes that a client's transport may hold before it is given no more data. They, and one write, are what is
held for a client that does not read, beside what is reserved for it.
"""


class Bounds(NamedTuple):
    """What the clients of a server may do together, and each of them."""

    message_bytes: int
    """Of a request."""
    connection_streams: int
    """Calls under way on a connection."""
    calls: int
    """Calls under way on all of them."""
    connections: int


class Server:
    """A gRPC server. It belongs to the event loop in which it is made."""

    def __init__(self, methods: Mapping[str, Method], bounds: Bounds) -> None:
        self.methods = methods
        self._bounds = bounds
        self.limits = Limits(bounds.message_bytes, bounds.connection_streams)
        self.calls = 0
        """Calls under way, or their work."""
        self.faults = 0
        """Connections that were closed since their clients broke the rules."""
        self.connections: dict[ClientConnection, None] = {}
        self._strangers: dict[ClientConnection, None] = {}
        """The connections that have not spoken HTTP/2 yet; the oldest is first."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = bounds.connections
        if files != resource.RLIM_INFINITY:
            self._most = max(min(self._most, files - SPARE_FILES), 1)
        self._numbers = itertools.count(1)
        self._listening: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        """Done when the last call is over, once the server stops."""

    async def start(self, listen: str, tls: ssl.SSLContext | None = None) -> int:
        """Listen on HOST:PORT. Returns the port. Raises `OSError` if the address cannot be bound."""
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        loop = asyncio.get_running_loop()
        host, _, number = listen.rpartition(":")
        port = int(number)
        handshake = {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": GREETING_S}
        try:
            found = await loop.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                sock = _bound(family, (address[0], port, *address[2:]))
                port = sock.getsockname()[1]
                make = lambda: ClientConnection(self)  # noqa: E731
                server = await loop.create_server(make, sock=sock, backlog=BACKLOG, **handshake)  # type: ignore[call-overload]
                self._listening.append(server)
        except (OSError, OverflowError) as error:
            self._close_port()
            raise OSError(f"cannot listen on {listen}: {error}") from error
        self._timer = loop.call_later(TICK_S, self._tick)
        return port

    async def stop(self, grace_s: float | None = None) -> None:
        """Take no new calls, and end those that are not done in time, or at once."""
        self._close_port()
        loop = asyncio.get_running_loop()
        for connection in self.connections:
            connection.http.go_away()
        if grace_s:
            await self._calls_done(grace_s)
        for connection in list(self.connections):
            for stream in list(connection.http.streams.values()):
                stream.end(Status.UNAVAILABLE, "this node is stopping")
        await self._calls_done(LINGER_S)
        for connection in list(self.connections):
            connection.close()
        until = loop.time() + LINGER_S
        while self.connections and loop.time() < until:
            await asyncio.sleep(0.001)
        for connection in list(self.connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _calls_done(self, within_s: float) -> None:
        if self.calls:
            self._idle = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._idle
            self._idle = None

    def _close_port(self) -> None:
        for server in self._listening:
            server.close()
        self._listening.clear()

    def statistics(self) -> dict[str, int]:
        """Return what `wbkv status` shows: what is open, and how many clients have broken the rules."""
        return {"connections": len(self.connections), "calls": self.calls, "faults": self.faults}

    # What connections need

    def admit(self) -> bool:
        """Whether one more call may be under way at the node; if so, it is, until `leave`."""
        if self.calls >= self._bounds.calls:
            return False
        self.calls += 1
        return True

    def leave(self) -> None:
        """A call is over, and its work is."""
        self.calls -= 1
        if not self.calls and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def add(self, connection: ClientConnection) -> bool:
        """Add a connection, unless there are too many."""
        if len(self.connections) >= self._most or not self._listening:
            return False
        self.connections[connection] = self._strangers[connection] = None
        if len(self._strangers) > STRANGERS:
            next(iter(self._strangers)).abort()
        return True

    def greeted(self, connection: ClientConnection) -> None:
        """A connection speaks HTTP/2."""
        self._strangers.pop(connection, None)

    def remove(self, connection: ClientConnection) -> None:
        """A connection is gone."""
        self._strangers.pop(connection, None)
        self.connections.pop(connection, None)
        self.faults += connection.http.fault is not None

    def name(self, address: Any) -> str:
        """Return what a connection is called: its client's address."""
        if not isinstance(address, tuple):
            return f"unknown:{next(self._numbers)}"
        host, port = address[:2]
        return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TICK_S, self._tick)
        now = loop.time()
        for connection in list(self.connections):
            connection.tick(now)


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
    """Return a socket that listens on an address. Another one cannot share it."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a restarted node would have to wait
        if family == socket.AF_INET6:
            every = address[0] == "::"  # which then includes IPv4
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not every)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


class ClientConnection(asyncio.Protocol):
    """A client's connection, on a transport."""

    http: Connection
    """Its state, once it is made."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._heard = self._since = loop.time()
        """When the client has sent something, and since when the connection is new, pinged, or ending."""
        self._strange = True
        """Whether the client has not spoken HTTP/2 yet."""
        self._pinged = False
        self._deaf = False
        """Whether nothing is read, since the client does not read either."""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the client, unless there are too many."""
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's are of no such class
        name = self._server.name(transport.get_extra_info("peername"))
        self.http = Connection(self._server, self._server.limits, name, self._loop.time, self._wake)
        secured = transport.get_extra_info("ssl_object")
        if not self._server.add(self) or (secured is not None and secured.selected_alpn_protocol() != "h2"):
            self.abort()
        else:
            transport.set_write_buffer_limits(high=WRITE_BUFFER)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._transport = None
        self._server.remove(self)
        self.http.lost()

    def data_received(self, data: bytes) -> None:
        """Handle what the client has sent, whatever it is."""
        http = self.http
        self._heard = self._loop.time()
        try:
            http.receive(data)
        except Exception:
            logger.exception("a client's connection failed")
            http.refuse(ConnectionFault(ErrorCode.INTERNAL_ERROR, "internal error"))
        if self._strange and http.greeted:
            self._strange = False
            self._server.greeted(self)
        if http.output.paused and self._transport is not None and not self._deaf:
            self._deaf = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """The client reads less than it is sent."""
        self.http.output.paused = True

    def resume_writing(self) -> None:
        """The client has read."""
        self.http.output.resume()
        if self._deaf and self._transport is not None:
            self._deaf = False
            self._transport.resume_reading()

    # Output

    def _wake(self) -> None:
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send all that has gathered in this round of the event loop."""
        http, transport = self.http, self._transport
        found = http.output.take()
        if transport is None or transport.is_closing():
            return
        if found:
            transport.write(found)
        if http.closing:
            self.close()

    # Time

    def tick(self, now: float) -> None:
        """Do what is due."""
        http = self.http
        if self._transport is None or self._strange or self._transport.is_closing():
            if now - self._since > (GREETING_S if self._strange else LINGER_S):
                self.abort()
            return
        http.expire(now - TICK_S)  # methods that keep deadlines report them first, and better
        if self._pinged and self._heard < self._since:
            if now - self._since > ANSWER_S:
                self.abort()
        elif now - self._heard > SILENT_S:
            self._pinged, self._since = True, now
            http.ping()

    def close(self) -> None:
        """Close the connection behind what was sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._since = self._loop.time()
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
