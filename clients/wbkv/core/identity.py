"""Request ids: what makes a repeated write the same write."""

from __future__ import annotations

import secrets
import threading
from typing import Final, NamedTuple

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.core.forks import at_fork

WINDOW: Final = 4096
"""Numbers that the store accepts of one client, from the oldest without a result on."""


class Signed(NamedTuple):
    """A request that has an id."""

    number: int
    open: dict[int, None]
    """The numbers, in their order, of its client's requests without a definite result."""


class Identity:
    """One client's numbers. The child of a fork is another client: both would use the same numbers else.

    And so is this one, when its oldest request without a result would have the store refuse all others:
    they must not wait for that.
    """

    def __init__(self) -> None:
        self.forked()
        at_fork(self)

    def forked(self) -> None:
        """Begin anew, also if somebody held the lock."""
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._client = 1 + secrets.randbelow(2**63 - 1)
        self._next = 1
        self._open: dict[int, None] = {}

    def sign(self, message: kv.RequestId) -> Signed:
        """Give a request its id. `done` must follow, whatever becomes of it."""
        with self._lock:
            number = self._next
            oldest = next(iter(self._open), number)
            if number >= oldest + WINDOW:
                self._begin()
                number = oldest = self._next
            self._next = number + 1
            self._open[number] = None
            message.client = self._client
            message.sequence = number
            message.ack_below = oldest
            return Signed(number, self._open)

    def done(self, signed: Signed) -> None:
        """The request will not be repeated any more."""
        with self._lock:
            del signed.open[signed.number]
