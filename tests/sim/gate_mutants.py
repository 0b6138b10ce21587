"""Sabotages of the reply gate, each in a line or two, and the two traps of its design."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from kvstore.machine.request import Footprint
from kvstore.store.gate import Announcement, Gate, Level, Turn
from multicast.types import NO_TIMESTAMP, GroupId, Timestamp, timestamp
from tests.sim.gate_model import Transaction

Model = Gate[Transaction]


class Serial(Model):
    """Trap: a message is closed when all destinations have delivered it and closed everything before it.

    Safe, but what one group has closed the other learns a delay later, message by message.
    """

    def _levels(self) -> list[Level]:
        value = self._deliveries
        for group, shared in self._shared.items():
            known = self._heard.get(group) or Announcement(group, NO_TIMESTAMP, ())
            delivered = known.levels[0].value if known.levels else known.closed
            first = bisect_right(shared, min(delivered, known.closed + 1))
            if first < len(shared):
                value = min(value, Timestamp(shared[first] - 1))
        return [Level(self._deliveries, 0), Level(value, 0)]


def with_levels(k: int) -> type[Model]:
    """Trap: the same K, however many groups there are."""

    class Levels(Model):
        def _levels(self) -> list[Level]:
            return super()._levels()[: k + 1]

    return Levels


class OneLevelTooFew(Model):
    """K is one less than it must be."""

    def _levels(self) -> list[Level]:
        levels = super()._levels()
        return levels[: max(1, len(levels) - 1)]


class ReachOfOneHop(Model):
    """A level's reach is only with whom this group shares messages, not where these lead."""

    def _reach(self, n: int, value: Timestamp) -> int:
        return super()._reach(0, value)


class SingleGroupPassesNothingOn(Model):
    """Conflicts through transactions of one group are ignored."""

    def _depend(self, answer: Transaction, footprint: Footprint, own: Timestamp) -> None:
        if own:
            super()._depend(answer, footprint, own)
        else:
            self._hold(answer, max(self._inherited, self._dependencies.of(footprint)))


class ReadsRaiseNothing(Model):
    """A strict read waits itself, but those that overwrite what it read do not wait with it."""

    def read(self, answer: Transaction, footprint: Footprint) -> None:
        self._hold(answer, max(self._inherited, self._dependencies.of(footprint)))


class ReadsDoNotConflict(Model):
    """Only the writers of a key are kept."""

    def _depend(self, answer: Transaction, footprint: Footprint, own: Timestamp) -> None:
        dependency = max(self._inherited, self._dependencies.of(footprint))
        self._hold(answer, dependency)
        if max(dependency, own) > self._closed:
            self._dependencies.add(msgspec.structs.replace(footprint, reads=()), max(dependency, own))


class NewLeaderForgets(Model):
    """A new leader takes what earlier ones delivered for independent of everything."""

    def new_ballot(self, taken_over: Timestamp) -> None:
        super().new_ballot(taken_over)
        self._inherited = NO_TIMESTAMP


class NewLeaderInheritsWhatItHasDelivered(Model):
    """A new leader does not mind that earlier ones may have delivered more than it has, and shown it."""

    def new_ballot(self, taken_over: Timestamp) -> None:
        super().new_ballot(NO_TIMESTAMP)


class AnnouncesAboveDelivered(Model):
    """L0 is announced ahead of what is delivered: what is proposed here may still come before."""

    def _announcement(self, group: GroupId, wanted: Timestamp = NO_TIMESTAMP) -> Announcement:
        announcement = super()._announcement(group, wanted)
        first, *others = announcement.levels
        ahead = Level(Timestamp(first.value + timestamp(3, GroupId(0))), first.reach)
        return announcement._replace(levels=(ahead, *others))


# Announcements are put off, and asked for


class NeverAsks(Model):
    """An answer that is held waits for announcements that are put off."""

    def _questions(self) -> dict[GroupId, Timestamp]:
        return {}


class ForgetsTheQuestion(Model):
    """A group that was asked says what it knows, and then nothing at once any more."""

    def turn(self, now: float) -> Turn[Transaction]:
        turn = super().turn(now)
        self._awaited.clear()
        return turn


class KeepsTheQuestionToItself(Model):
    """A group that was asked does not ask others for what it lacks itself."""

    def _questions(self) -> dict[GroupId, Timestamp]:
        awaited, self._awaited = self._awaited, {}
        found = super()._questions()
        self._awaited = awaited
        return found


class AsksOnce(Model):
    """What is lost is not asked for again."""

    def repeat(self) -> list[tuple[GroupId, Announcement]]:
        return []


class PutsOffForEver(Model):
    """What no group has asked for is never said."""

    def turn(self, now: float) -> Turn[Transaction]:
        turn = super().turn(now)
        self._say_at = self.wake_at = float("inf")
        return turn
