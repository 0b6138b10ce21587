"""Housekeeping: compaction, pins, expiry of sessions, and the map of keys to groups.

A command of housekeeping is judged at its position in the order. What it removes from the maps goes later, in
slices, by `work`: no read and no result depends on whether the rows are still there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final, assert_never

from kvstore.machine.commands import (
    OF_ONE_GROUP,
    ChangePlacement,
    Compact,
    Delivered,
    Deviates,
    Expire,
    Housekeeping,
    Pin,
    Tick,
    Unpin,
)
from kvstore.machine.placement import Placement
from kvstore.machine.results import DONE, Refusal, Refused, Result
from kvstore.machine.sessions import Sessions
from kvstore.machine.state import MachineState, Store
from kvstore.machine.versions import Versions
from multicast.types import Timestamp

_ROWS: Final = 64
"""How many rows a slice costs, about: a millisecond."""


class Housekeeper:
    """The part of a machine that carries out housekeeping."""

    __slots__ = ("_chore", "_chores", "_pins", "_placement", "_sessions", "_watermark", "verdict", "versions")

    def __init__(self, store: Store, state: MachineState, window: int) -> None:
        self._placement = state.placement
        self._watermark = state.watermark
        self._pins = {pin.name: pin for pin in state.pins}
        self._chores = deque(state.chores)
        self._chore: Iterator[int] | None = None
        """The first of them, if it has begun."""
        self._sessions = Sessions(store.sessions, store.results, window)
        self.versions = Versions(store.latest, store.history)
        self.versions.floor = state.floor
        self.versions.watermark = state.watermark
        self.verdict: Deviates | None = None
        """The last one, until the host takes it."""

    @property
    def placement(self) -> Placement:
        """The map as of the last delivery."""
        return self._placement

    @property
    def has_chores(self) -> bool:
        """Whether rows are still to be dropped that compaction or expiry have given up."""
        return bool(self._chores)

    @property
    def pins(self) -> Mapping[str, Pin]:
        """What holds compaction, by name. Some may have ended."""
        return MappingProxyType(self._pins)

    def _housekeep(self, delivered: Delivered, command: Housekeeping) -> Result:
        if isinstance(command, OF_ONE_GROUP) and len(delivered.destinations) > 1:
            return Refused(
                Refusal.NOT_ALONE, f"it is about one group, and was sent to {delivered.destinations}"
            )
        if isinstance(command, Compact):
            return self._compact(delivered.gts, command)
        if isinstance(command, Pin):
            return self._pin(delivered.gts, command)
        if isinstance(command, Unpin):
            for name in command.names:
                self._pins.pop(name, None)
        elif isinstance(command, Expire):
            if command.before > delivered.gts:
                return _future(command.before, delivered.gts)
            self._chores.append((delivered.gts, command))
        elif isinstance(command, ChangePlacement):
            return self._change_placement(delivered, command.placement)
        elif isinstance(command, Deviates):
            self.verdict = command
        elif not isinstance(command, Tick):
            assert_never(command)
        return DONE

    def _compact(self, gts: Timestamp, command: Compact) -> Result:
        """The floor rises here. Rows go later, by `work`."""
        floor = command.floor
        refused = self._check_revision(gts, floor)
        if refused is not None:
            return refused
        for name, pin in sorted(self._pins.items()):
            if pin.until < gts:
                del self._pins[name]
            elif pin.revision < floor:
                return Refused(Refusal.PINNED, f"{name} holds revision {pin.revision}, below {floor}")
        self.versions.floor = floor
        self._chores.append((gts, command))
        return DONE

    def _pin(self, gts: Timestamp, pin: Pin) -> Result:
        refused = self._check_revision(gts, pin.revision)
        if refused is None and pin.until < gts:
            refused = Refused(Refusal.EXPIRED, f"{pin.name} was to end at {pin.until}, before {gts}")
        if refused is not None:
            return refused
        for name in [each.name for each in self._pins.values() if each.until < gts]:
            del self._pins[name]
        self._pins[pin.name] = pin
        return DONE

    def _check_revision(self, gts: Timestamp, revision: int) -> Refused | None:
        if revision < self.versions.floor:
            return Refused(
                Refusal.COMPACTED, f"revision {revision} is below the floor of {self.versions.floor}"
            )
        return _future(revision, gts) if revision > gts else None

    def _change_placement(self, delivered: Delivered, placement: Placement) -> Result:
        groups = {*self._placement.groups, *placement.groups}
        if set(delivered.destinations) != groups:
            return Refused(
                Refusal.NOT_TO_ALL,
                f"it was sent to {delivered.destinations}, not to all of {tuple(sorted(groups))}",
            )
        if not placement.follows(self._placement):
            return Refused(
                Refusal.STALE_PLACEMENT,
                f"version {placement.version} ({placement.scheme.value}) does not follow "
                f"{self._placement.version} ({self._placement.scheme.value})",
            )
        moved = placement.moved_from(self._placement)
        if moved is not None:
            return Refused(Refusal.MOVES_DATA, f"keys from token {moved!r} on would go to another group")
        self._placement = placement
        return DONE

    def _work(self) -> bool:
        """Do a slice of what compaction and expiry have left to do. True if there is more."""
        chores = self._chores
        if self._chore is None:
            if not chores or chores[0][0] > self._watermark:
                return False  # slower, earlier transactions may need the rows
            command = chores[0][1]
            if any(
                type(later) is type(command) and gts <= self._watermark
                for gts, later in islice(chores, 1, None)
            ):
                chores.popleft()  # the later one does the same and more
                return True
            if isinstance(command, Compact):
                self._chore = self.versions.compaction(command.floor)
            elif isinstance(command, Expire):
                self._chore = self._sessions.sweep(command.before)
            else:
                assert_never(command)
        left = _ROWS
        for cost in self._chore:
            left -= cost
            if left <= 0:
                break
        else:
            self._chore = None
            chores.popleft()
        return bool(chores) and chores[0][0] <= self._watermark


def _future(revision: int, gts: Timestamp) -> Refused:
    return Refused(Refusal.FUTURE_REVISION, f"revision {revision} is above {gts}")
