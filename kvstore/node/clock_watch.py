"""Log what is wrong with the clocks of a group: once when it begins, and once when it ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from multicast.types import ReplicaId

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""How often to look."""

HELD: Final = (
    "the clocks of a quorum of group %s are too far ahead of its last revision: revisions do not follow the "
    "time of day until an operator confirms it with `wbkv clock accept`"
)


class ClockWatch:
    """The leaders of one node, and what they know of their members' clocks."""

    def __init__(self) -> None:
        self._look_at = 0.0
        self._wrong: dict[ReplicaId, frozenset[str]] = {}
        self._held: set[ReplicaId] = set()

    def is_due(self, now: float) -> bool:
        """Return whether to look now."""
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        return True

    def look(self, leader: ReplicaId, found: Mapping[str, Any]) -> None:
        """Compare what a replica reports (`Protocol.time_of_day`) with its last report; log what is new."""
        wrong: Mapping[str, float] = found.get("wrong", {})
        known = self._wrong.get(leader, frozenset())
        for member in sorted(wrong.keys() - known):
            by_s = wrong[member]
            logger.warning(
                "the clock of %s is %.1f s %s the time of its group; it is not used",
                member, abs(by_s), "ahead of" if by_s > 0 else "behind",
            )  # fmt: skip
        if found:
            for member in sorted(known - wrong.keys()):
                logger.info("the clock of %s agrees with its group again, or is not heard of", member)
        self._wrong[leader] = frozenset(wrong)
        if found.get("held") and leader not in self._held:
            self._held.add(leader)
            logger.warning(HELD, leader.group)
        elif not found.get("held") and leader in self._held:
            self._held.discard(leader)
            logger.info("revisions of group %s follow the time of day again", leader.group)
