"""What a call is to the code that serves it: the same on a port (`stream`) and in the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from kvstore.http2.status import Status

LARGE: Final = 8 << 10
"""Bytes of a message above which it is announced before it is received."""

Metadata: TypeAlias = Sequence[tuple[str, bytes]]


class Room(Protocol):
    """What is reserved for a large message."""

    def release(self) -> None:
        """Hold nothing any more. Further calls do nothing."""


class Arrived(NamedTuple):
    """A message of a stream of requests."""

    message: bytes
    room: Room | None
    """What was reserved for it, if it is a large one: the reader releases it."""


class Call(Protocol):
    """A call, as its method sees it. It belongs to the event loop of its server."""

    def peer(self) -> str:
        """Return the client's address: one for each connection."""

    def metadata(self) -> Metadata:
        """Return what the client has sent beside its request."""

    def time_remaining(self) -> float | None:
        """Return the seconds left, if the client has set a deadline."""

    def accept(self, room: Room | None) -> None:
        """Receive the large message that was announced. If it is the only one of the call, `room` is released
        when the call is over; otherwise it comes with the message.
        """

    async def read(self) -> Arrived | None:
        """Return the next message of a stream of requests; None after the last one.

        Raises `asyncio.CancelledError` if the call is over: the client has disconnected.
        """

    async def write(self, message: bytes) -> None:
        """Send a message of a stream of responses; wait while the client takes no more.

        Raises `asyncio.CancelledError` if the call is over: the client has disconnected.
        """

    def reply(self, message: bytes) -> None:
        """Send the only response, and end the call well. Nothing happens if it is over."""

    def finish(self, status: Status, details: str = "", trailing: Metadata = ()) -> None:
        """End the call with a status. Nothing happens if it is over."""

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call a function when the call is over: its reply has been sent, or its client is gone."""


class Method(NamedTuple):
    """A method on a port."""

    begin: Callable[[Call, bytes], asyncio.Future[Any] | None]
    """Begin a call, with its request unless that is a stream; neither waits nor raises. Returns the work
    under way, which is cancelled if the call ends before it: the client has gone, or its time has passed.
    """
    announce: Callable[[Call, int], None]
    """A large message of this size wants to be received: `Call.accept` or `Call.finish` is called, now or
    later.
    """
    streams_requests: bool = False
    """Whether the requests are read by `Call.read`, so that the call begins before they have arrived."""
