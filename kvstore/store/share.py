"""The share of a node's time that long work takes: transactions and reads that are done in slices.

All partitions of a node share it, and take turns. After each slice there is a pause, twice as long as the
process has worked at it: so long work takes at most a third of the node's time, however many partitions have
some, and whatever a slice takes on this machine. If short work waits for the locks of long work, the pause is
half as long as the slice: others would only wait longer.

What arrives during a slice waits for its end. So a slice has as many rows as are looked at in `SLICE_S`, as
far as the slices before it tell. Results do not depend on how work is cut (`kvstore.machine.slices`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvstore.machine.slices import SLICE_ROWS
from multicast.types import GroupId

PAUSE_S: Final = 0.001
"""The shortest pause after a slice."""

SLICE_S: Final = 0.001
"""How long the process works at a slice, about."""

LEAST_ROWS: Final = 32
"""A slice has so many rows, however long they take. One with fewer does not tell how long rows take."""

PAUSES: Final = 2
"""How often a slice's time fits into the pause after it."""

PAUSES_WAITED_FOR: Final = 0.5
"""The same, if others wait for the end of the work."""

LOST_S: Final = 0.1
"""A partition that does not come for its slice for so long does not hold up the others."""


class Share:
    """When the next slice is due, and whose it is."""

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        work_clock: Callable[[], float] | None = None,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`clock` is that of turns, and `work_clock` measures how long the process works at a slice. Without
        them, slices take no time.
        """
        self._clock = clock
        self._work_clock = work_clock or clock
        self._pause_s = pause_s
        self._began = self._now = 0.0
        """When the last slice began, by the process's clock, and by that of turns."""
        self._waiting: dict[GroupId, float] = {}
        """Partitions with long work, the next one first, and when they last asked."""
        self.at = 0.0
        """When the next slice is due."""
        self.rows = SLICE_ROWS
        """How many rows the next slice may look at."""

    def take(self, group: GroupId, now: float) -> bool:
        """Return whether the partition may do a slice now. It calls `done` after it."""
        waiting = self._waiting
        waiting[group] = now
        if now < self.at:
            return False
        while (first := next(iter(waiting))) != group and waiting[first] < now - LOST_S:
            del waiting[first]
        if first != group:
            return False
        del waiting[group]
        self._now = now
        self._began = 0.0 if self._work_clock is None else self._work_clock()
        return True

    def done(self, group: GroupId, *, more: bool, waited_for: bool = False, rows: int = 0) -> None:
        """Note the end of a slice: whether the partition has more to do, whether others wait for that, and
        how many rows were looked at.
        """
        now = self._now if self._clock is None else self._clock()
        worked = 0.0 if self._work_clock is None else self._work_clock() - self._began
        if rows >= LEAST_ROWS and worked > 0.0:
            # Halfway: a slice that was interrupted, or collected garbage, says little of the next.
            wanted = (self.rows + rows * SLICE_S / worked) / 2
            self.rows = max(LEAST_ROWS, min(int(wanted), SLICE_ROWS))
        pauses = PAUSES_WAITED_FOR if waited_for else PAUSES
        self.at = now + max(self._pause_s, pauses * worked)
        if more:
            self._waiting[group] = now

    def leave(self, group: GroupId) -> None:
        """Note that the partition has no long work."""
        self._waiting.pop(group, None)
