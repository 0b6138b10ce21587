"""Free space of a disk: how much is left, and what a node may still do with it.

A node keeps a reserve. Below LOW_BYTES it takes no new writes of its clients, but goes on with everything
else: reading, ordering what other nodes take, compaction. Below FULL_BYTES, or when a commit found no space,
it does not even accept what others order: a promise that cannot be made durable is never made.
"""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

LOW_BYTES: Final = 128 << 20
FULL_BYTES: Final = 16 << 20
HYSTERESIS: Final = 1.25
"""A level is left when there is so many times more space than its bound."""

LOOK_S: Final = 1.0
"""How often the free space is looked at."""


class Level(enum.Enum):
    """How much space is left."""

    ENOUGH = "enough"
    LOW = "low"
    FULL = "full"


_BOUNDS: Final = {Level.FULL: FULL_BYTES, Level.LOW: LOW_BYTES}


def free_bytes(path: Path) -> int:
    """Return the bytes that a process without privileges may still write."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class Space:
    """The free space of the file system that has a node's disk."""

    def __init__(self, path: Path, measure: Callable[[Path], int] = free_bytes) -> None:
        self.path = path
        self.measure = measure
        self.level = Level.ENOUGH
        self.free = 0
        self._look_at = float("-inf")

    def look(self, now: float, *, stalled: bool = False) -> bool:
        """Look at the free space, at most every LOOK_S, and log an alarm. Return whether the level changed.

        `stalled` says that a commit found no space: then the disk is full, whatever the file system says.
        """
        if now < self._look_at and not (stalled and self.level is not Level.FULL):
            return False
        self._look_at = now + LOOK_S
        try:
            self.free = self.measure(self.path)
        except OSError as error:
            logger.warning("the free space of %s cannot be read: %s", self.path, error.strerror)
            return False
        before, self.level = self.level, Level.FULL if stalled else self._level()
        if self.level is before:
            return False
        if self.level is Level.ENOUGH:
            logger.warning("%s: space is back, %d bytes are free", self.path, self.free)
        else:
            logger.error("%s is %s on space: %s", self.path, self.level.value, self.consequence())
        return True

    def _level(self) -> Level:
        for level, bound in _BOUNDS.items():
            left = self.level is level or (level is Level.LOW and self.level is Level.FULL)
            if self.free < (bound * HYSTERESIS if left else bound):
                return level
        return Level.ENOUGH

    def consequence(self) -> str:
        """Return what the level means, for people."""
        if self.level is Level.FULL:
            return (
                f"{self.free} bytes are free, {FULL_BYTES} are needed; "
                "its replicas neither lead nor vote until there is space"
            )
        return f"{self.free} bytes are free, {LOW_BYTES} are needed for writes"

    def refusal(self) -> str | None:
        """Return why this node takes no writes, if it does not."""
        if self.level is Level.ENOUGH:
            return None
        left = f"{self.free} bytes are free, {LOW_BYTES} are needed"
        return (
            f"{self.path} is {self.level.value} on space: {left}; free some space, or retry at another node"
        )
