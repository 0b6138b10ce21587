"""The scrubber: reads all rows of a node's state in the background, and so finds damage before a client does.

A pass reads every row of every group once, in steps of a few hundred rows, and takes about `pass_s` seconds:
the pause after a step is the step's share of the pass. A step never reads more, however large the state is,
and two steps are at least `GAP_S` apart. What a step finds is as if a read had found it: the group's replica
steps aside, and is restored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, Final

from kvstore.storage.errors import DamagedRow
from kvstore.storage.ports import StoreDisk
from multicast.types import GroupId

logger = logging.getLogger(__name__)

GAP_S: Final = 0.02
"""The shortest pause between two steps, also of a pass that an operator has asked for."""

SMALL: Final = 25_600
"""A state with fewer rows is paced as one with so many: it is read soon, and a pause follows."""

FOUND_MAX: Final = 10
"""Findings that the status names; more are counted."""


class Scrubber:
    """The scrubber of one node. `pass_s` of 0 turns it off, except for passes that an operator asks for."""

    def __init__(self, disk: StoreDisk, pass_s: float, now: float) -> None:
        self._disk = disk
        self._pass_s = pass_s
        self._hurried = False
        self._groups: deque[GroupId] = deque()
        """The groups that this pass has not begun."""
        self._steps: Iterator[int] | None = None
        """Of the group that is being read."""
        self._group = GroupId(0)
        self._total = 1
        """About how many rows the state has."""
        self._rows = 0
        """Rows read in this pass."""
        self._began_at = now
        self._ended_at = now
        self._last_rows = 0
        self._last_s = 0.0
        self.passes = 0
        """The number of passes that have ended."""
        self.found = 0
        self._findings: deque[str] = deque(maxlen=FOUND_MAX)
        self.wake_at = now if pass_s else float("inf")
        """When the next step is due."""

    def hurry(self, now: float) -> int:
        """Begin a pass now, without pauses but the shortest. Return the number of `passes` when it ends."""
        self._hurried = True
        self._steps = None
        self._groups.clear()
        self.wake_at = now
        return self.passes + 1

    def step(self, groups: Collection[GroupId], now: float) -> tuple[GroupId, DamagedRow] | None:
        """Read a few rows; return what is damaged."""
        if self._steps is None and not self._begin(groups, now):
            return None
        assert self._steps is not None
        checked, damage = 0, None
        try:
            checked = next(self._steps, -1)
        except DamagedRow as error:
            damage = self._group, error
            self.found += 1
            self._findings.append(str(error))
            logger.critical("the scrubber found damage in group %d: %s", self._group, error)
        if checked < 0 or damage is not None:
            self._next_group(groups, now)
        self._rows += max(0, checked)
        self._pause(max(0, checked), now)
        return damage

    def _begin(self, groups: Collection[GroupId], now: float) -> bool:
        """Begin a pass, unless there is no group yet."""
        self._groups.extend(sorted(groups))
        self._rows, self._began_at = 0, now
        if not self._groups:
            self.wake_at = now + 1.0
            return False
        self._total = max(1, self._disk.rows())
        self._group = self._groups.popleft()
        self._steps = self._disk.check_rows(self._group)
        return True

    def _next_group(self, groups: Collection[GroupId], now: float) -> None:
        while self._groups:
            self._group = self._groups.popleft()
            if self._group in groups:
                self._steps = self._disk.check_rows(self._group)
                return
        self._steps = None
        self.passes += 1
        self._ended_at, self._last_s = now, now - self._began_at
        self._last_rows = self._rows
        if self._hurried:
            self._hurried = False
            logger.info("the scrubber has read %d rows", self._rows)

    def _pause(self, rows: int, now: float) -> None:
        if self._steps is None and not self._pass_s:
            self.wake_at = float("inf")
        elif self._hurried:
            self.wake_at = now + GAP_S
        elif self._steps is None:  # of a small state: the next pass is not due yet
            self.wake_at = max(now + GAP_S, self._began_at + self._pass_s)
        else:
            self.wake_at = now + max(GAP_S, self._pass_s * rows / max(SMALL, self._total))

    def status(self, now: float) -> dict[str, Any]:
        """Return what `wbkv status` shows."""
        return {
            "passes": self.passes,
            "running": self._steps is not None,
            "rows": self._rows,
            "total": self._total,
            "last_rows": self._last_rows if self.passes else None,
            "last_s": self._last_s if self.passes else None,
            "ended_s_ago": now - self._ended_at if self.passes else None,
            "found": self.found,
            "findings": list(self._findings),
        }
