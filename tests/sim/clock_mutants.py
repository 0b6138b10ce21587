"""Sabotages of quorum time, of anchors, and of confirmed revisions."""

from __future__ import annotations

import math
from typing import Any

from kvstore.store.gateway import Gateway
from multicast.process import Replica
from multicast.protocol import Start
from multicast.quorum_time import Anchor, QuorumTime
from multicast.types import TICKS_PER_S, TIME_MAX, ReplicaId
from multicast.whitebox import WhiteBox


class _OwnTime(QuorumTime):
    """Quorum time that falls back to the own clock."""

    def own_ticks(self) -> int | None:
        found = self.own() * TICKS_PER_S
        return int(found) if 0 <= found <= TIME_MAX else None


class _Own(_OwnTime):
    def now(self, now: float) -> int | None:
        return self.own_ticks()


class _OwnUntilCompared(_OwnTime):
    def now(self, now: float) -> int | None:
        return super().now(now) if len(self._reports) >= self._quorum - 1 else self.own_ticks()


class _Highest(QuorumTime):
    def _recount(self, now: float) -> None:
        super()._recount(now)
        offsets = [self._reports[member][0] for member in self._fresh(now)]
        self._upper, self._lower = math.inf, max(offsets, default=-math.inf)


class _Stale(QuorumTime):
    def _fresh(self, now: float) -> list[ReplicaId]:
        return list(self._reports)


class _Unlimited(Anchor):
    def holds(self, time: int, now: float) -> bool:
        return False


class _Jumping(Anchor):
    def next(self, time: int, now: float) -> int:
        return time


def _quorum(mutant: Replica[Any], kind: type[QuorumTime], start: Start) -> None:
    if start.wall is not None:
        mutant.quorum = kind(start.me, start.wall, start.timing.election_s)


class UsesItsOwnClock(WhiteBox):
    """A leader does not compare its clock."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        _quorum(self, _Own, start)


class UsesItsOwnClockUntilCompared(WhiteBox):
    """A leader uses its clock before it has compared it, and compares it by heartbeats only."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        _quorum(self, _OwnUntilCompared, start)

    def _lead(self) -> None:
        if self.quorum is not None:
            self.quorum.lead(self.configuration)
        super()._lead()


class FollowsTheHighestClock(WhiteBox):
    """One clock suffices."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        _quorum(self, _Highest, start)


class CountsStaleReports(WhiteBox):
    """What a member reported once counts for ever."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        _quorum(self, _Stale, start)


class HasNoAnchor(WhiteBox):
    """A majority of clocks may go anywhere."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.anchor = _Unlimited(self.anchor.ticks, start.now, start.timing.clock_step_s)


class LetsTheAnchorJump(WhiteBox):
    """Every anchor is at quorum time, however little time has passed."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.anchor = _Jumping(self.anchor.ticks, start.now, start.timing.clock_step_s)


class ForgetsItsAnchor(WhiteBox):
    """A replica that restarts takes any time for its first."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.anchor = Anchor(0, start.now, start.timing.clock_step_s)


class RaisesWhatIsUnconfirmed(Gateway):
    """Groups are raised to any revision that a client carries."""

    def knows(self, revision: int) -> bool:
        return True
