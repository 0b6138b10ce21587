"""When a node's partitions drop what compaction and expiry have given up: in slices, for a part of its time.

No client waits for the rows to go, but a call passes through several turns of several nodes, each of which a
slice makes longer. So slices are short, one partition does one at a time, and pauses follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvstore.machine import Machine

PAUSES: Final = 2.0
"""How much longer a pause is than the slice before it: a third of the node's time is for slices."""

PAUSE_S: Final = 1e-3
"""The shortest pause."""


class Chores:
    """Of all partitions of a node."""

    def __init__(self, work_clock: Callable[[], float] | None = None) -> None:
        """`work_clock` measures how long the process works at a slice."""
        self._work_clock = work_clock or (lambda: 0.0)
        self.at = 0.0
        """When the next slice is due."""

    def work(self, machine: Machine, now: float) -> bool:
        """Do a slice, if one is due. Return whether there may be more to do, at `at`."""
        if now < self.at and machine.has_chores:
            return True
        began = self._work_clock()
        more = machine.work()
        if more:
            worked_s = self._work_clock() - began
            self.at = now + worked_s + max(PAUSE_S, PAUSES * worked_s)
        return more
