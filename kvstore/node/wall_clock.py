"""A node's time of day, in seconds since the epoch of revisions.

It is read anew each time, since it may be set while the node runs. Nothing relies on it being right: see
`multicast.quorum_time`. Tests of wrong clocks set the environment variable `WBKV_TEST_CLOCKS` to a folder. If
it has a file with the name of a node, that file's content, a number of seconds, is added to the node's time
of day.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from multicast.quorum_time import WallClock
from multicast.types import TICKS_PER_S, Timestamp, time_of

EPOCH_S: Final = 1_767_225_600
"""Epoch of revisions: the first of January 2026, UTC."""

TEST_CLOCKS: Final = "WBKV_TEST_CLOCKS"


def utc(revision: int) -> str:
    """Return the time of day of a revision, for people."""
    at = datetime.fromtimestamp(EPOCH_S + time_of(Timestamp(revision)) // TICKS_PER_S, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def wall_clock(node: str) -> WallClock:
    """Return the machine's clock, or for tests one that differs from it."""
    folder = os.environ.get(TEST_CLOCKS)
    return ShiftedClock(Path(folder, node)) if folder else lambda: time.time() - EPOCH_S


class ShiftedClock:
    """The machine's clock, plus the seconds that a file contains."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._modified_ns = -1
        self._by_s = 0.0

    def __call__(self) -> float:
        """Return the time of day, as the file shifts it."""
        try:
            modified_ns = self._path.stat().st_mtime_ns
            if modified_ns != self._modified_ns:
                self._by_s = float(self._path.read_text())
                self._modified_ns = modified_ns
        except (FileNotFoundError, ValueError):
            self._by_s = 0.0
        return time.time() - EPOCH_S + self._by_s
