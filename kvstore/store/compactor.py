"""Compaction by itself: which floor a leader proposes for its own group, and what holds it back.

The proposal is an ordered `Compact`, as a client's: all replicas of the group raise the same floor at the
same position, whatever made the leader propose it. So this module may go by what only the leader knows.

*By age.* The floor is the group's quorum time less the time that history is kept, rounded down to a step.
Steps are counted from the epoch of revisions, so that groups choose common floors without talking to each
other. That is of use to people who read the floors; no read depends on it, since each group's own floor
decides what is read there. Time may jump, or revisions may lag behind it; so a leader's floors rise at most
`PACE` times as fast as its monotonic time, from the last floor or from where the oldest row would need it.
Hence every row stays for a `PACE`-th of the time at least, whatever clocks show (docs/divergence.md, S10).

*By size.* If the node's state exceeds a limit, the oldest eighth of what the group has kept goes, again and
again, once the last has been dropped. The last minute stays.

What the leader has not executed yet stays, however old it is: replicas read at what they have executed, also
while a transaction waits for a partition that is down.

A pin holds the floor at its revision: a compaction above it would be rejected. The leader proposes the
highest floor that all pins permit, and says which of them is in the way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from kvstore.config.history import KeepHistory
from kvstore.machine import Machine
from kvstore.machine.commands import Pin
from kvstore.node.wall_clock import utc
from kvstore.store.replica_view import ReplicaView
from multicast.types import TICKS_PER_S, GroupId, Timestamp, time_of, timestamp

logger = logging.getLogger(__name__)

STEPS: Final = 16
STEP_MAX_S: Final = 3600.0
"""A step is this part of the time that history is kept, and an hour at most."""

PACE: Final = 4
"""By how many seconds of revisions a leader's floors rise in a second, at most."""

LOOK_S: Final = 10.0
"""How often a leader looks for history to drop, at most."""
LOOK_MIN_S: Final = 0.1

SHARE: Final = 8
LAST_S: Final = 60.0
"""By size, such a part of what is kept is dropped at a time, and nothing of the last minute."""


class Compactor:
    """What a node's leaders propose. It asks nobody, and orders nothing itself."""

    def __init__(self, keep: KeepHistory, used: Callable[[], int]) -> None:
        """`used` returns the size of the node's state in bytes."""
        self._keep = keep
        self._used = used
        step_s = STEP_MAX_S if keep.seconds is None else min(keep.seconds / STEPS, STEP_MAX_S)
        self._step = int(step_s * TICKS_PER_S)
        self.look_s = float("inf") if keep == KeepHistory() else max(min(step_s, LOOK_S), LOOK_MIN_S)
        """How often to look."""
        self._reached: dict[GroupId, tuple[int, float]] = {}
        """Of groups that this node leads, the last time before which history was to be dropped, and when."""
        self.asked: set[GroupId] = set()
        """Groups whose last proposal has no answer yet."""
        self.held: dict[GroupId, Pin] = {}
        """Of groups that this node leads, the pin that keeps history from being dropped."""

    def floor(self, replica: ReplicaView, machine: Machine, now: float) -> int:
        """Return the floor that this leader is to propose now, 0 if none."""
        group = replica.me.group
        time = replica.quorum_time() if replica.is_leader else 0
        if not time:
            self.held.pop(group, None)
            self._reached.pop(group, None)
            return 0
        wanted = max(self._by_age(group, time, machine, now), self._by_size(time, machine))
        return self._permitted(replica, machine, timestamp(wanted, GroupId(0)))

    def _permitted(self, replica: ReplicaView, machine: Machine, wanted: int) -> int:
        """Return the highest floor up to this one that pins permit; 0 if it would drop nothing, or if the
        last proposal has no answer yet.
        """
        group, versions = replica.me.group, machine.versions
        if not versions.has_changes(versions.floor, wanted):
            self.held.pop(group, None)
            return 0
        floor: int = wanted
        pin = _oldest_pin(replica, machine)
        if pin is not None and pin.revision < wanted:
            floor = pin.revision
            self._hold(group, pin, wanted)
        else:
            self.held.pop(group, None)
        may = group not in self.asked and versions.has_changes(versions.floor, floor)
        return floor if may else 0

    def _by_age(self, group: GroupId, time: int, machine: Machine, now: float) -> int:
        if self._keep.seconds is None:
            return 0
        keep, versions = self._keep.seconds * TICKS_PER_S, machine.versions
        wanted = min(time - keep, time_of(machine.watermark))
        reached, at = self._reached.get(group, (0, now))
        paced = reached + int(PACE * (now - at) * TICKS_PER_S)
        if wanted > paced:
            oldest = time_of(Timestamp(versions.first_change(versions.floor)))
            wanted = min(wanted, max(paced, time_of(Timestamp(versions.floor)), oldest - keep))
        self._reached[group] = wanted, now
        return max(wanted, 0) // self._step * self._step

    def _by_size(self, time: int, machine: Machine) -> int:
        limit = self._keep.bytes
        if limit is None or machine.has_chores or self._used() <= limit:
            return 0
        oldest = machine.versions.first_change(machine.versions.floor)
        latest = min(time - int(LAST_S * TICKS_PER_S), time_of(machine.watermark))
        span = latest - time_of(Timestamp(oldest)) if oldest else 0
        return time_of(Timestamp(oldest)) + span // SHARE + 1 if span > 0 else 0

    def _hold(self, group: GroupId, pin: Pin, wanted: int) -> None:
        before = self.held.get(group)
        self.held[group] = pin
        if before is None or before.name != pin.name:
            logger.info(
                "partition %d: snapshot %s holds history from revision %d (%s) on, until it ends; history up "
                "to %s was to be dropped", group, pin.name, pin.revision, utc(pin.revision), utc(wanted),
            )  # fmt: skip

    def status(self, replica: ReplicaView, machine: Machine) -> dict[str, Any]:
        """Return the state of a group's history, for people."""
        floor, held = machine.versions.floor, self.held.get(replica.me.group)
        pin = _oldest_pin(replica, machine)
        return {
            "keep": self._keep.shown,
            "keep_bytes": self._keep.bytes,
            "floor": floor,
            "floor_time": utc(floor) if floor else None,
            "oldest_pin": None if pin is None else _shown(pin),
            "held_by": None if held is None else held.name,
            "dropping": machine.has_chores,
        }


def _oldest_pin(replica: ReplicaView, machine: Machine) -> Pin | None:
    """Return the pin of the lowest revision that holds what is ordered now: that will be above the clock, and
    not below quorum time.
    """
    now = timestamp(max(replica.clock, replica.quorum_time()), GroupId(0))
    pins = [pin for pin in machine.pins.values() if pin.until >= now]
    return min(pins, key=lambda pin: (pin.revision, pin.name), default=None)


def _shown(pin: Pin) -> dict[str, Any]:
    return {"name": pin.name, "revision": pin.revision, "time": utc(pin.revision), "until": utc(pin.until)}
