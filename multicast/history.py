"""The newest deliveries of a replica, as a chain, for replicas of its group that missed some.

Number and total size are bounded. Every delivery is added and hardly any is looked up, so adding is cheap and
a lookup scans all that are kept.
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
        """The size of the payloads kept."""

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Append the group's next deliveries; drop the oldest beyond the limits."""
        kept = self._kept
        kept.extend(deliveries)
        self._bytes += sum([len(delivery[2]) for delivery in deliveries])
        while len(kept) > self._capacity or self._bytes > self._bytes_max:
            self._bytes -= len(kept.popleft().payload)

    def after(self, position: Timestamp, count: int, size: int) -> tuple[Delivery, ...]:
        """Return what follows the position: at most `count` deliveries of `size` bytes, but at least one.

        Empty if nothing follows the position here, because it is the newest or not retained.
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
