"""The deliveries a replica still has, as a chain, for replicas of its group that missed some.

It keeps a bounded number of the newest, which have a bounded size together. Every delivery is added, and
hardly any is ever looked for: adding is cheap, and looking for a position passes over all that is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import dropwhile

from multicast.messages import Delivery
from multicast.types import Timestamp


class DeliveryHistory:
    """The newest deliveries of a group, in order and without gaps."""

    __slots__ = ("_bytes", "_bytes_max", "_capacity", "_kept")

    def __init__(self, capacity: int, bytes_max: int) -> None:
        self._kept: deque[Delivery] = deque()
        self._capacity = capacity
        self._bytes_max = bytes_max
        self._bytes = 0
        """Of the payloads kept."""

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """The group's next deliveries."""
        kept = self._kept
        kept.extend(deliveries)
        self._bytes += sum([len(delivery[2]) for delivery in deliveries])
        while len(kept) > self._capacity or self._bytes > self._bytes_max:
            self._bytes -= len(kept.popleft().payload)

    def after(self, position: Timestamp, count: int, size: int) -> tuple[Delivery, ...]:
        """What follows the position: at most so many, and at most so many bytes (but at least one).

        Empty if nothing follows it here, because it is the newest or not retained.
        """
        found: list[Delivery] = []
        for delivery in dropwhile(lambda delivery: delivery.previous_ts != position, self._kept):
            size -= len(delivery.payload)
            if len(found) >= count or (found and size < 0):
                break
            found.append(delivery)
        return tuple(found)

    def __len__(self) -> int:
        return len(self._kept)
