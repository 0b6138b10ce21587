"""What a node holds of its clients' requests: bounded, and fair between connections.

A small request is always taken. A large one is announced when its first bytes have arrived. It counts from
then on, until its call is over, with the copies that are made of it, against a budget that connections share
as they share that of replies (`budget`): its client may send the rest when there is room for it. A few large
requests may wait for room; the others are rejected at once, so that nothing is held for them.
"""

from __future__ import annotations

from typing import Final

from kvstore.api.budget import Budget, Reservation
from kvstore.http2.call import LARGE
from kvstore.store.errors import Overloaded

SMALL: Final = LARGE
"""Bytes of a request that is not counted: the number of calls is limited."""

COPIES: Final = 4
"""Of a request: as it came, as a message, as the store's request, and as the payload that is ordered."""

WAITING: Final = 8
"""What may wait is the budget divided by this."""


class Intake:
    """The requests of a node's clients that are under way. It belongs to one event loop."""

    def __init__(self, total: int) -> None:
        self._budget = Budget(total)
        self.waiting = 0
        """Bytes of requests that wait for room."""

    @property
    def used(self) -> int:
        """Bytes that requests under way are counted with, their copies included."""
        return self._budget.used

    def admit_now(self, connection: str, size: int) -> Reservation | None:
        """Count a large request until its reservation is released, if there is room for it."""
        return self._budget.reserve_now(connection, COPIES * size)

    async def admit(self, connection: str, size: int, timeout_s: float) -> Reservation | None:
        """Count a request until its reservation is released; None if it is too small to count.

        Raises `Overloaded` if there is no room for it.
        """
        if size <= SMALL:
            return None
        room = self.admit_now(connection, size)
        if room is not None:
            return room
        if self.waiting + size > self._budget.total // WAITING:
            raise self._error(size)
        self.waiting += size
        try:
            return await self._budget.reserve(connection, COPIES * size, timeout_s)
        except Overloaded:
            raise self._error(size) from None
        finally:
            self.waiting -= size

    def _error(self, size: int) -> Overloaded:
        return Overloaded(
            f"no room for a request of {size:,} bytes: requests under way take {self.used:,} bytes, copies"
            f" included; the node's limit is {self._budget.total:,} bytes (request_budget_bytes); send fewer"
            " large requests at once, or retry later"
        )
