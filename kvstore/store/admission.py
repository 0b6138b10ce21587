"""Admission: which large messages a gateway may have in flight, and which wait.

A message costs every destination its whole length: on disk, and on the links between replicas. So what counts
is its *weight*, bytes times destinations. Small messages are not delayed. Large ones share a budget; those
beyond it wait in one queue for each client, and the clients take turns. A message that exceeds the whole
budget is admitted when no other large one is in flight. So nothing within the limits is rejected for its size
alone.

The same goes for the rows that transactions on ranges look at: what is ordered is executed, also when its
client has gone, so a gateway does not order more than can be worked off soon. Their weight is an estimate
(`estimates`).

A wait is short: a message that is not admitted within `WAIT_S` is rejected, and its client retries later. It
has not been multicast, so nothing has happened.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

SMALL_BYTES: Final = 256 << 10
"""The largest weight that is admitted at once."""

BUDGET_BYTES: Final = 64 << 20
"""The weight of all large messages in flight."""

WAITING_BYTES: Final = 64 << 20
"""Bytes of all large messages that wait."""

SMALL_ROWS: Final = 64
"""The most rows that are admitted at once."""

BUDGET_ROWS: Final = 60_000
"""The rows of all transactions on larger ranges in flight: some tenths of a second of every node's share."""

WAITING_LONG: Final = 1000
"""Transactions on larger ranges that wait."""

WAIT_S: Final = 1.0
"""How long a large message waits. Clients give up on a node that has been silent for two seconds."""

T = TypeVar("T")


@dataclass(slots=True)
class _Waiting(Generic[T]):
    item: T
    size: int
    weight: int
    deadline: float


class Admission(Generic[T]):
    """The large messages of one gateway. The caller calls `finished` for each one that was admitted."""

    small_bytes = SMALL_BYTES

    def __init__(self, budget: int = BUDGET_BYTES, waiting: int = WAITING_BYTES) -> None:
        """`budget` is the weight of what is in flight, and `waiting` the size of what waits."""
        self.budget = budget
        self._most = waiting
        self.in_flight = 0
        """Large messages in flight."""
        self.weight = 0
        """Their weight."""
        self.waiting_bytes = 0
        self._queues: OrderedDict[int, deque[_Waiting[T]]] = OrderedDict()
        """What waits, by client, the client whose turn is next first."""

    @property
    def waiting(self) -> int:
        """The number of messages that wait."""
        return sum(map(len, self._queues.values()))

    def admit(self, weight: int) -> bool:
        """Admit a large message now, if nothing waits and the budget allows it."""
        if self._queues or not self._fits(weight):
            return False
        self._begin(weight)
        return True

    def _fits(self, weight: int) -> bool:
        return not self.in_flight or self.weight + weight <= self.budget

    def _begin(self, weight: int) -> None:
        self.in_flight += 1
        self.weight += weight

    def wait(self, client: int, item: T, size: int, weight: int, now: float) -> bool:
        """Let a message wait for its turn. Return False if too much waits already."""
        if self._queues and self.waiting_bytes + size > self._most:
            return False
        self._queues.setdefault(client, deque()).append(_Waiting(item, size, weight, now + WAIT_S))
        self.waiting_bytes += size
        return True

    def finished(self, weight: int) -> None:
        """Note that an admitted message is not in flight any more."""
        self.in_flight -= 1
        self.weight -= weight

    def next(self) -> T | None:
        """Admit the next waiting message, and return it; None if there is none, or no room for it."""
        if not self._queues:
            return None
        client, queue = next(iter(self._queues.items()))
        if not self._fits(queue[0].weight):
            return None  # none may pass it, or it would starve
        admitted = self._take(client, queue)
        if client in self._queues:
            self._queues.move_to_end(client)
        self._begin(admitted.weight)
        return admitted.item

    def expired(self, now: float) -> list[T]:
        """Return and remove the messages that have waited for too long."""
        found = []
        for client, queue in list(self._queues.items()):
            while queue and queue[0].deadline <= now:
                found.append(self._take(client, queue).item)
        return found

    def _take(self, client: int, queue: deque[_Waiting[T]]) -> _Waiting[T]:
        taken = queue.popleft()
        self.waiting_bytes -= taken.size
        if not queue:
            del self._queues[client]
        return taken
