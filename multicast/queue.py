"""The delivery queue: which committed message may be delivered next.

A committed message m' may go when every uncommitted one has a local timestamp above m''s global timestamp
(Figure *protocol*, lines 22 and 67). So two ordered containers decide it, without looking at any message
twice: the uncommitted local timestamps, and the committed messages by global timestamp.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

from sortedcontainers import SortedList

from multicast.types import Timestamp

T = TypeVar("T")


class DeliveryQueue(Generic[T]):
    """Messages on their way to delivery at a leader."""

    __slots__ = ("_committed", "_items", "_uncommitted")

    def __init__(self) -> None:
        self._uncommitted: SortedList[Timestamp] = SortedList()
        self._items: dict[Timestamp, T] = {}
        self._committed: list[tuple[Timestamp, T]] = []

    def propose(self, local_ts: Timestamp, item: T) -> None:
        """An uncommitted message holds this local timestamp."""
        self._uncommitted.add(local_ts)
        self._items[local_ts] = item

    def commit(self, local_ts: Timestamp, global_ts: Timestamp) -> None:
        """The message that held the local timestamp now has a global one."""
        self._uncommitted.remove(local_ts)
        heapq.heappush(self._committed, (global_ts, self._items.pop(local_ts)))

    def add_committed(self, global_ts: Timestamp, item: T) -> None:
        """A message that was recovered with its global timestamp."""
        heapq.heappush(self._committed, (global_ts, item))

    def pop(self) -> T | None:
        """The next message to deliver, if there is one."""
        committed = self._committed
        if not committed:
            return None
        if self._uncommitted and self._uncommitted[0] <= committed[0][0]:
            return None
        return heapq.heappop(committed)[1]

    def uncommitted(self) -> Iterator[T]:
        """Uncommitted messages, lowest local timestamp first."""
        return (self._items[local_ts] for local_ts in self._uncommitted)

    def clear(self) -> None:
        """Forget everything: this process does not lead any more."""
        self._uncommitted.clear()
        self._items.clear()
        self._committed.clear()

    def __len__(self) -> int:
        return len(self._uncommitted) + len(self._committed)
