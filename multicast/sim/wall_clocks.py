"""Simulated wall clocks, which are set, jump and drift; and the check of what they do to timestamps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from multicast.messages import Delivery
from multicast.quorum_time import ANCHOR, PACE
from multicast.sim.checkers import Checker, Violation
from multicast.sim.faults import ClockJump, Fault
from multicast.sim.host import Host
from multicast.types import TICKS_PER_S, GroupId, ReplicaId, time_of

WALL_S: Final = 1000.0
"""The true time of day when a run begins, in seconds since the epoch of hybrid clocks."""


class SimWallClock:
    """One machine's wall clock: the true time, an error, and what faults make of it."""

    def __init__(self, now: Callable[[], float], error_s: float) -> None:
        """`error_s` is its error without faults."""
        self._now = now
        self.error_s = error_s
        self._wrong_s = 0.0
        self._drift = 0.0
        self._since = 0.0

    def __call__(self) -> float:
        """Return the time of day that it shows."""
        now = self._now()
        return WALL_S + now + self.error_s + self._wrong_s + self._drift * (now - self._since)

    def step(self, by_s: float) -> None:
        """Let it jump."""
        self._wrong_s += by_s

    def drift(self, rate: float) -> None:
        """Let it run faster by this rate, or slower if that is negative."""
        now = self._now()
        self._wrong_s += self._drift * (now - self._since)
        self._drift, self._since = rate, now

    def heal(self) -> None:
        """Set it right."""
        self._wrong_s = self._drift = 0.0


class TimeBounds(Checker):
    """No timestamp is further ahead of the true time than the clocks of a quorum.

    With a majority of wrong clocks the bound is the anchor's: what has passed since the first anchors, at
    their pace, and a step.
    """

    def __init__(
        self,
        now: Callable[[], float],
        wrong: Mapping[ReplicaId, object],
        quorum: int,
        *,
        error_s: float,
        step_s: float,
        fresh_s: float,
    ) -> None:
        """`wrong` are the replicas whose clocks were ever wrong, of quorums of this size."""
        self._now = now
        self._wrong = wrong
        self._quorum = quorum
        self._error_s = error_s + fresh_s / 2
        self._step_s = step_s
        self.anchored: set[GroupId] = set()
        """The groups that have an anchor."""
        self._counted = 0
        """Ticks that clocks may have gone beyond quorum time: they count on by one with each message."""
        self.highest = -TICKS_PER_S
        """By how many ticks a timestamp was ahead of the true time, at most."""

    def injected(self, fault: Fault) -> None:
        """A client has seen a later time."""
        if isinstance(fault, ClockJump):
            self._counted += fault.by

    def _has_wrong_quorum(self, group: GroupId) -> bool:
        return sum(replica.group == group for replica in self._wrong) >= self._quorum

    def latest(self, group: GroupId) -> float | None:
        """Return the latest quorum time that a group can have, in seconds; None if most of its clocks were
        ever wrong.
        """
        return None if self._has_wrong_quorum(group) else WALL_S + self._now() + self._error_s

    def client_sent(self, *_: object) -> None:
        """Some leaders count on by one."""
        self._counted += 1

    def restarted(self, host: Host) -> None:
        """Leaders propose anew what they have inherited."""
        self._counted += 1

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """Compare the timestamp with the true time."""
        self._counted += 1
        if delivery.mid.client == ANCHOR:
            self.anchored.add(host.me.group)
        now, time = self._now(), time_of(delivery.global_ts)
        most_s = WALL_S + now + self._error_s
        if any(self._has_wrong_quorum(replica.group) for replica in self._wrong):
            most_s += (PACE - 1) * now + self._step_s
        most = int(most_s * TICKS_PER_S) + self._counted
        self.highest = max(self.highest, time - int((WALL_S + now) * TICKS_PER_S))
        if time > most:
            raise Violation(
                "Time", f"{host.me} delivers at {time}, although {most} is the latest at {now:.3f} s"
            )
