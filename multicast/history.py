"""The deliveries a replica still has, as a chain, for replicas of its group that missed some.

Each delivery names the one before it, so the chain is a dictionary from a position to what follows it. It
keeps a bounded number of the newest.
"""

from __future__ import annotations

from multicast.messages import Delivery
from multicast.types import Timestamp


class History:
    """The newest deliveries of a group, in order and without gaps."""

    __slots__ = ("_capacity", "_next", "_oldest")

    def __init__(self, start: Timestamp, capacity: int) -> None:
        self._capacity = capacity
        self._oldest = start
        self._next: dict[Timestamp, Delivery] = {}

    def append(self, delivery: Delivery) -> None:
        """The group's next delivery."""
        following = self._next
        following[delivery.previous_ts] = delivery
        if len(following) > self._capacity:
            self._oldest = following.pop(self._oldest).global_ts

    def after(self, position: Timestamp, count: int, size: int) -> tuple[Delivery, ...]:
        """What follows the position: at most so many, and at most so many bytes (but at least one).

        Empty if nothing follows it here, because it is the newest or not retained.
        """
        found: list[Delivery] = []
        delivery = self._next.get(position)
        while delivery is not None and len(found) < count:
            size -= len(delivery.payload)
            if found and size < 0:
                break
            found.append(delivery)
            delivery = self._next.get(delivery.global_ts)
        return tuple(found)

    def __len__(self) -> int:
        return len(self._next)
