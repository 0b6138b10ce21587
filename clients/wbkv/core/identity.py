"""Request ids: what makes a repeated write the same write."""

from __future__ import annotations

import secrets
import threading

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.core.forks import at_fork


class Identity:
    """One client's numbers. The child of a fork is another client: both would use the same numbers else."""

    def __init__(self) -> None:
        self.forked()
        at_fork(self)

    def forked(self) -> None:
        """Begin anew."""
        self._lock = threading.Lock()
        self._client = 1 + secrets.randbelow(2**63 - 1)
        self._next = 1
        self._open: dict[int, None] = {}
        """Numbers of requests without a definite result, in their order."""

    def sign(self, message: kv.RequestId) -> int:
        """Give a request its id. `done` must follow with the number, whatever becomes of it."""
        with self._lock:
            number = self._next
            self._next = number + 1
            self._open[number] = None
            message.client = self._client
            message.sequence = number
            message.ack_below = next(iter(self._open))
        return number

    def done(self, number: int) -> None:
        """The request will not be repeated any more."""
        with self._lock:
            self._open.pop(number, None)
