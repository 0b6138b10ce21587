"""A call's messages as their bytes arrive.

Bytes stay as they came until a message is taken: many small ones take no more memory than on the wire. A
large message stays in the stream's usual window until it is accepted; then its sender may send all of it.
"""

from __future__ import annotations

import asyncio
import math

from kvstore.http2.call import LARGE, Room
from kvstore.http2.frames import WINDOW
from kvstore.http2.grpc import PREFIX


class BadMessage(Exception):
    """The bytes are not a message that we take."""


class Compressed(BadMessage):
    """A message is compressed."""


class TooLarge(BadMessage):
    """A message is larger than any that has a meaning."""


class Incoming:
    """The bytes of one call that no reader has taken."""

    __slots__ = ("_accepted", "_announced", "_buffer", "_largest", "held", "reader", "room", "until")

    def __init__(self, largest: int) -> None:
        self._buffer = bytearray()
        self._largest = largest
        self._announced = self._accepted = False
        self.room: Room | None = None
        """What is reserved for the first message."""
        self.until = math.inf
        """When all of the message must have arrived that was accepted."""
        self.held = 0
        """Bytes that count for the connection: those of messages that were not accepted."""
        self.reader: asyncio.Future[None] | None = None
        """Who waits for a message."""

    def add(self, data: bytes) -> None:
        """Take bytes that have arrived."""
        self._buffer += data

    def size(self) -> int | None:
        """Return the size of the first message, once it is known. Raises `BadMessage`."""
        if len(self._buffer) < PREFIX.size:
            return None
        compressed, size = PREFIX.unpack_from(self._buffer)
        if compressed:
            raise Compressed("compressed messages are not supported; send them with the encoding identity")
        if size > self._largest:
            raise TooLarge(f"a message of {size:,} bytes exceeds the limit of {self._largest:,} bytes")
        return int(size)

    def to_announce(self) -> int | None:
        """Return the size of the first message if it is a large one, once. Raises `BadMessage`."""
        if self._announced:
            return None
        size = self.size()
        if size is None or size <= LARGE:
            return None
        self._announced = True
        return size

    def accept(self, room: Room | None, until: float) -> None:
        """Let the message arrive that was announced, until then."""
        self._accepted = True
        self.room = room
        self.until = until

    def is_late(self, now: float) -> bool:
        """Whether a message that was accepted takes too long to arrive, with what is reserved for it."""
        return self.until <= now and not self.is_whole

    @property
    def is_empty(self) -> bool:
        """Whether there are no bytes of a further message."""
        return not self._buffer

    @property
    def is_whole(self) -> bool:
        """Whether all of the first message has arrived. Raises `BadMessage`."""
        size = self.size()
        return size is not None and len(self._buffer) >= PREFIX.size + size

    @property
    def may_take(self) -> bool:
        """Whether the first message can be taken. Raises `BadMessage`."""
        return self.is_whole and (self._accepted or (self.size() or 0) <= LARGE)

    def take(self) -> bytes | None:
        """Take the first message, if all of it is there. Raises `BadMessage`."""
        if not self.may_take:
            return None
        end = PREFIX.size + (self.size() or 0)
        message = bytes(memoryview(self._buffer)[PREFIX.size : end])
        if end == len(self._buffer):
            self._buffer = bytearray()
        else:
            del self._buffer[:end]
        self._announced = self._accepted = False
        self.until = math.inf
        return message

    def unaccepted(self) -> int:
        """Return how many of the bytes belong to no message that was accepted."""
        return max(len(self._buffer) - self._granted(), 0)

    def window(self) -> int:
        """Return how many further bytes the client may send."""
        return WINDOW + self._granted() - len(self._buffer)

    def _granted(self) -> int:
        return PREFIX.size + (self.size() or 0) if self._accepted else 0

    def clear(self) -> None:
        """Hold nothing any more: the call is over."""
        self._buffer = bytearray()
        self._announced = self._accepted = False
        room, self.room = self.room, None
        if room is not None:
            room.release()
        if self.reader is not None and not self.reader.done():
            self.reader.cancel()
