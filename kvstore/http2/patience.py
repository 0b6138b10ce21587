"""How much a client may do that serves no call: pings, settings, resets, empty frames.

Each costs some of the connection's patience, which comes back with time, and with what the client is really
sent. A client that uses it up is disconnected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvstore.http2.errors import ConnectionFault, ErrorCode

BURST: Final = 5_000
"""What there is at the beginning, and at most: all calls of a connection may be cancelled at once, twice."""
PER_S: Final = 500
"""What comes back in a second."""
PER_WORK: Final = 4
"""What comes back with a reply, or with some kilobytes of one: clients extend windows and send pings then."""


class Patience:
    """The patience with one connection."""

    __slots__ = ("_at", "_clock", "_left", "_worked", "worked")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at = clock()
        self._left = BURST
        self._worked = 0
        self.worked = 0
        """Replies, and kilobytes in fours, that were sent."""

    def spend(self, cost: int = 1) -> None:
        """Spend some of it. Raises `ConnectionFault` if there is none."""
        self._left -= cost
        if self._left < 0:
            self._recover()

    def _recover(self) -> None:
        now, worked = self._clock(), self.worked
        self._left += int((now - self._at) * PER_S) + (worked - self._worked) * PER_WORK
        self._left = min(self._left, BURST)
        self._at, self._worked = now, worked
        if self._left < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that serve no call")
