"""The delivery queue: which committed message may be delivered next.

A committed message m' may be delivered when every uncommitted one has a local timestamp above the global
timestamp of m' (Figure *protocol*, lines 22 and 67). Two heaps decide that in O(log n) per message: the
uncommitted local timestamps, and the committed messages by global timestamp. The local timestamp of a
committed message stays in the first heap until it comes to the top.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

from multicast.types import Timestamp

T = TypeVar("T")


class DeliveryQueue(Generic[T]):
    """Proposed and committed messages that a leader has yet to deliver."""

    __slots__ = ("_committed", "_lowest", "_numbers", "_uncommitted", "latest")

    def __init__(self) -> None:
        self._lowest: list[Timestamp] = []
        self._uncommitted: dict[Timestamp, T] = {}
        self._committed: list[tuple[Timestamp, int, T]] = []
        self._numbers = itertools.count()
        """Global timestamps are unique, unless another group's leader lies: then the first goes first."""
        self.latest: T | None = None
        """The message committed last, until the caller takes it from here."""

    def propose(self, local_ts: Timestamp, item: T) -> None:
        """Add an uncommitted message with its local timestamp."""
        heapq.heappush(self._lowest, local_ts)
        self._uncommitted[local_ts] = item

    def commit(self, local_ts: Timestamp, global_ts: Timestamp) -> None:
        """Give the message with this local timestamp its global one."""
        self.latest = item = self._uncommitted.pop(local_ts)
        heapq.heappush(self._committed, (global_ts, next(self._numbers), item))

    def add_committed(self, global_ts: Timestamp, item: T) -> None:
        """Add a message that was recovered with its global timestamp."""
        heapq.heappush(self._committed, (global_ts, next(self._numbers), item))

    def pop(self) -> T | None:
        """Remove and return the next message to deliver, or None."""
        committed, lowest = self._committed, self._lowest
        if not committed:
            return None
        while lowest and lowest[0] <= committed[0][0]:
            if lowest[0] in self._uncommitted:
                return None
            heapq.heappop(lowest)
        return heapq.heappop(committed)[2]

    def holder(self, local_ts: Timestamp) -> T | None:
        """Return the uncommitted message with this local timestamp, or None."""
        return self._uncommitted.get(local_ts)

    def __iter__(self) -> Iterator[T]:
        yield from self._uncommitted.values()
        for _, _, item in self._committed:
            yield item

    def uncommitted(self) -> Iterator[T]:
        """Iterate over uncommitted messages, lowest local timestamp first."""
        return (self._uncommitted[local_ts] for local_ts in sorted(self._uncommitted))

    def clear(self) -> None:
        """Remove everything: this process does not lead any more."""
        self._lowest.clear()
        self._uncommitted.clear()
        self._committed.clear()
        self.latest = None

    def __len__(self) -> int:
        return len(self._uncommitted) + len(self._committed)
