"""Request ids: the store executes writes with the same id once."""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.core.environment import Environment
from wbkv.core.forks import at_fork

WINDOW: Final = 4096
"""How many numbers the store accepts of one client, from its oldest request without a result on."""


class Signed(NamedTuple):
    """A request that has an id."""

    number: int
    open: dict[int, None]
    """The numbers, in order, of the client's requests without a definite result."""


class Identity:
    """The request ids of one client. The child of a fork takes a new client id, as both processes would use
    the same numbers.

    So does this client when its oldest request without a result fills the window: the store would reject
    all others, which must not wait for that one.

    The numbering is that of `multicast.numbering`. The SDK knows the wire format only and may not import it,
    so `tests/unit/multicast/test_numbering.py` drives both by one model.
    """

    def __init__(self, environment: Environment) -> None:
        self._rng = environment.rng
        self.forked()
        at_fork(self)

    def forked(self) -> None:
        """Take a new client id and a new lock, which a thread of the parent may have held."""
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._client = self._rng.randrange(1, 2**63)
        self._next = 1
        self._open: dict[int, None] = {}

    def sign(self, message: kv.RequestId) -> Signed:
        """Give a request its id. `done` must follow, whatever the outcome."""
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
        """Record that the request will not be repeated."""
        with self._lock:
            del signed.open[signed.number]
