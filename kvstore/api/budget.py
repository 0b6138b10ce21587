"""What a node holds for its clients: bytes of responses that are not taken yet, and streams that are open.

A reply's largest size is known from the limits. It is reserved before the call begins, corrected when the
reply is there, and released when the transport has taken it, or the call is over. A connection may hold as
much as is left of the node's budget: one alone half of it, the next a quarter, and so on. So connections that
never read hold much, but leave something for the next, and one that reads gets through. Calls that find no
room wait a while in their connection's order; connections take turns. A read on a connection that holds
nothing may begin without room, a few at a time: most replies are small, and a large one is refused then.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Final, NamedTuple

from kvstore.store.errors import Overloaded

COPIES: Final = 2
"""A reply is held as it was made, and once more while it is put together with what surrounds it."""

WAIT_S: Final = 5.0
"""How long a call waits for room, at most, before it is refused."""

SMALL: Final = 16 << 10
"""Bytes that a connection which holds nothing gets even if the budget is used up, from a reserve."""

RESERVE: Final = 8
"""The reserve is the budget divided by this."""


class _Waiter(NamedTuple):
    """A call that waits for room."""

    size: int
    may_refuse: bool
    future: asyncio.Future[Reservation]


class Reservation:
    """Bytes that are held for a connection, until they are released."""

    __slots__ = ("_budget", "_connection", "_provisional", "size")

    def __init__(self, budget: Budget, connection: str, size: int, *, provisional: bool = False) -> None:
        self._budget = budget
        self._connection = connection
        self._provisional = provisional
        self.size = size

    def settle(self, size: int) -> None:
        """The reply is there, and has this size. Raises `Overloaded` if it was admitted provisionally, and
        there is no room for it.
        """
        if self._provisional:
            self.release()
            if size > self._budget.left(self._connection):
                raise self._budget.error(self._connection, size)
        self._budget.change(self._connection, size - self.size)
        self.size = size

    def release(self) -> None:
        """Hold nothing any more."""
        size, self.size = self.size, 0
        if self._provisional:
            self._provisional = False
            self._budget.end_provisional(self._connection, size)
        elif size:
            self._budget.change(self._connection, -size)


class Budget:
    """A node's budget. It belongs to one event loop."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._held: dict[str, int] = {}
        self.provisional = 0
        """Bytes of reads that were admitted without room: counted apart, and bounded by the reserve."""
        self._provisional: set[str] = set()
        """The connections that these are of."""
        self._waiting: dict[str, deque[_Waiter]] = {}
        """By connection, in turns."""

    def held(self, connection: str) -> int:
        """Return the bytes that a connection holds."""
        return self._held.get(connection, 0)

    def left(self, connection: str) -> int:
        """Return how much more a connection may hold."""
        held = self._held.get(connection, 0)
        return max(self.total - self.used - held, 0 if held > SMALL else self._reserve_left(SMALL))

    def reserve_now(self, connection: str, size: int, *, may_refuse: bool = False) -> Reservation | None:
        """Reserve bytes, if there is room and no other call of the connection waits.

        A call that `may_refuse` its reply, a read, may begin without room if few such do.
        """
        if connection in self._waiting:
            return None
        return self._admit(connection, self._bounded(size), may_refuse=may_refuse)

    async def reserve(
        self, connection: str, size: int, timeout_s: float, *, may_refuse: bool = False
    ) -> Reservation:
        """Reserve bytes as soon as there is room. Raises `Overloaded` if there is none in time."""
        found = self.reserve_now(connection, size, may_refuse=may_refuse)
        if found is not None:
            return found
        future: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(self._bounded(size), may_refuse, future)
        self._waiting.setdefault(connection, deque()).append(waiter)
        try:
            async with asyncio.timeout(min(timeout_s, WAIT_S)):
                return await future
        except BaseException as error:
            self._forget(connection, waiter)
            if isinstance(error, TimeoutError):
                raise self.error(connection, size) from None
            raise

    def error(self, connection: str, size: int) -> Overloaded:
        """Return the error of a call that finds no room."""
        return Overloaded(
            f"no room for a reply of up to {size:,} bytes: {self.held(connection):,} bytes of replies to"
            f" this connection, and {self.used:,} bytes to all, are not read yet; the node's limit is"
            f" {self.total:,} bytes (response_budget_bytes); read them, or retry later"
        )

    def change(self, connection: str, size: int) -> None:
        """Count more or fewer bytes for a connection."""
        self.used += size
        held = self._held.get(connection, 0) + size
        if held:
            self._held[connection] = held
        else:
            self._held.pop(connection, None)
        if size < 0 and self._waiting:
            self._grant()

    def end_provisional(self, connection: str, size: int) -> None:
        """A read that was admitted without room is over, or known."""
        self.provisional -= size
        self._provisional.discard(connection)
        if self._waiting:
            self._grant()

    def _bounded(self, size: int) -> int:
        return min(size, self.total // 2)

    def _reserve_left(self, most: int) -> int:
        """Return how much there is in the reserve for a connection that holds next to nothing."""
        return min(most, max(self.total + self.total // RESERVE - self.used, 0))

    def _admit(self, connection: str, size: int, *, may_refuse: bool) -> Reservation | None:
        if size <= self.left(connection):
            self.change(connection, size)
            return Reservation(self, connection, size)
        few = self.held(connection) <= SMALL and connection not in self._provisional
        if may_refuse and few and self.provisional + size <= self.total // RESERVE:
            self.provisional += size
            self._provisional.add(connection)
            return Reservation(self, connection, size, provisional=True)
        return None

    def _grant(self) -> None:
        """Let calls begin that have room now: the first of each connection, in turns."""
        for connection in list(self._waiting):
            waiting = self._waiting.pop(connection)
            while waiting and waiting[0].future.done():
                waiting.popleft()  # it has given up
            if waiting:
                size, may_refuse, future = waiting[0]
                room = self._admit(connection, size, may_refuse=may_refuse)
                if room is not None:
                    waiting.popleft()
                    future.set_result(room)
            if waiting:
                self._waiting[connection] = waiting  # behind the others

    def _forget(self, connection: str, waiter: _Waiter) -> None:
        """The caller has given up, perhaps just when there was room."""
        if waiter.future.done() and not waiter.future.cancelled():
            waiter.future.result().release()
        waiting = self._waiting.get(connection)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
            if not waiting:
                del self._waiting[connection]
            else:
                self._grant()  # there may be room for the next one of the connection


class Quota:
    """How many streams of a kind may be open: at the node, and on one connection."""

    def __init__(self, name: str, total: int, each: int) -> None:
        self._name = name
        self._total = total
        self._each = each
        self.open = 0
        self._of: Counter[str] = Counter()

    def take(self, connection: str) -> None:
        """Open a stream. Raises `Overloaded` if there are too many."""
        if self._of[connection] >= self._each:
            raise Overloaded(
                f"{self._each} {self._name} are open on this connection, which is the limit "
                f"({self._name}_per_connection); close some, or open another connection"
            )
        if self.open >= self._total:
            raise Overloaded(
                f"{self._total} {self._name} are open at this node, which is the limit ({self._name}); "
                "retry later, or at another node"
            )
        self.open += 1
        self._of[connection] += 1

    def give_back(self, connection: str) -> None:
        """Close a stream."""
        self.open -= 1
        self._of[connection] -= 1
        if not self._of[connection]:
            del self._of[connection]
