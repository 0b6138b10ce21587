"""What time it is by a cluster's revisions: deadlines of request ids are revisions.

A client does not use its machine's time of day. Now is the highest revision that any node has told it, plus
the monotonic time since.
"""

from __future__ import annotations

import threading
from typing import Final

from wbkv.core.forks import at_fork
from wbkv.data import later

REPEAT_S: Final = 500.0
"""The longest time for which a write is retried."""

LIFE_S: Final = REPEAT_S + 100.0
"""How far ahead the deadline of a request id is."""

IDLE_S: Final = 3600.0
"""The most monotonic time that is added to a revision: a cluster's time may stand still."""


class RevisionTime:
    """What one client knows, from all its threads or tasks. Monotonic time is an argument, in seconds."""

    def __init__(self) -> None:
        self.highest = 0
        """The highest revision that any node has told."""
        self._told_at = 0.0
        self.forked()
        at_fork(self)

    def forked(self) -> None:
        """Replace the lock, which a thread of the parent may have held."""
        self._lock = threading.Lock()

    def tell(self, revision: int, now: float) -> None:
        """Take a revision that a node has told."""
        if revision > self.highest:
            with self._lock:
                if revision > self.highest:
                    self.highest, self._told_at = revision, now

    def deadline(self, now: float) -> int:
        """Return the deadline of a request that is sent now."""
        passed_s = min(max(now - self._told_at, 0.0), IDLE_S) if self.highest else 0.0
        return later(self.highest, passed_s + LIFE_S)
