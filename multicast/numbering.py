"""The numbering of one client's requests: sequence numbers, and `ack_below`.

A group keeps the result of a request so that a repeated request is not executed again. `ack_below` tells the
group which results it may forget: the client holds a definite result, from every destination, of each of its
requests numbered below `ack_below`. A request whose outcome is unknown therefore holds `ack_below` back.
"""

from __future__ import annotations

from multicast.errors import InvalidArgument
from multicast.messages import Multicast
from multicast.types import ClientId, Destinations, MessageId, digest_of


class Numbering:
    """One client's sequence numbers, starting at 1, and the lowest of them without a definite result."""

    __slots__ = ("_done", "ack_below", "client", "next_sequence")

    def __init__(self, client: ClientId) -> None:
        self.client = client
        self.next_sequence = 1
        self.ack_below = 1
        """Every request numbered below this is done."""
        self._done: set[int] = set()

    def take(self) -> int:
        """Return the next number; `done` must follow once the request has a definite result."""
        self.next_sequence += 1
        return self.next_sequence - 1

    def done(self, sequence: int) -> None:
        """Record that the request has a definite result from every destination."""
        self._done.add(sequence)
        while self.ack_below in self._done:
            self._done.remove(self.ack_below)
            self.ack_below += 1

    def is_full(self, window: int) -> bool:
        """Return whether the next number is `window` or more above the oldest request that is not done."""
        return self.next_sequence >= self.ack_below + window

    def next(self, dest: Destinations, payload: bytes, digest: int | None = None) -> Multicast:
        """Return a new message to these groups, under the next number. `digest` is theirs, if known."""
        if not isinstance(payload, bytes):
            raise InvalidArgument(f"payload must be bytes, not {type(payload).__name__}")
        if digest is None:
            digest = digest_of(dest, payload)
        return Multicast(MessageId(self.client, self.take(), digest), dest, payload, self.ack_below)
