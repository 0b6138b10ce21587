"""The reply gate: when an answer may leave, so that real time is respected.

Delivery in the order of global timestamps makes transactions serializable. It does not make them strictly so:
messages with disjoint destinations may be delivered against real time, and others may tie them together. So a
group answers T only when nothing that starts from now on can come before T by a path of conflicts.

- Ln(g) is the largest s that g has delivered, such that every multi-group Z delivered at g with gts(Z) <= s
  has been announced L(n-1)(h) >= gts(Z) by each other destination h; L0(g) is what g has delivered.
- With each level goes its *reach*: the groups to which n + 1 hops of unclosed messages lead from there. If
  these are at most n + 1 groups, no path leaves them, and none is longer than n hops: then closed(g) = Ln(g).
- T depends on the multi-group transactions before it in its group to which conflicts lead from it. g answers
  T when T is executed and what it depends on is closed.

Announcements are facts: true for ever, under any leader. They may be lost, repeated and reordered. Every
replica has a gate, and gives it every delivery; only a leader's holds answers. docs/gate.md has the argument.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable
from itertools import zip_longest
from typing import Generic, NamedTuple, TypeVar

from kvstore.machine.request import NOTHING, Footprint
from kvstore.store.dependencies import Dependencies
from multicast.errors import InvariantBroken
from multicast.types import NO_TIMESTAMP, Destinations, GroupId, Timestamp

Answer = TypeVar("Answer", bound=Hashable)


class Level(NamedTuple):
    """Ln of a group, and the groups to which its unclosed messages lead in n + 1 hops, as bits."""

    value: Timestamp
    reach: int


NO_LEVEL = Level(NO_TIMESTAMP, 0)


class Announcement(NamedTuple):
    """What a group says to another: its levels from 0 on, and what is closed. It may ask for the same."""

    group: GroupId
    closed: Timestamp
    levels: tuple[Level, ...]
    wanted: bool = False


class Turn(NamedTuple, Generic[Answer]):
    """What a turn of the gate has led to: answers that may leave, and what to tell leaders of groups."""

    answers: list[Answer]
    announcements: list[tuple[GroupId, Announcement]]


class Gate(Generic[Answer]):
    """One group's gate, at one of its replicas."""

    __slots__ = (
        "_announced",
        "_answers",
        "_changed",
        "_closed",
        "_deliveries",
        "_dependencies",
        "_depends",
        "_executed",
        "_group",
        "_heard",
        "_held",
        "_inherited",
        "_open",
        "_owed",
        "_shared",
        "_shared_last",
        "_taken_over",
    )

    def __init__(self, group: GroupId) -> None:
        self._group = group
        self._deliveries = NO_TIMESTAMP  # L0
        self._closed = NO_TIMESTAMP
        self._open: deque[Timestamp] = deque()  # multi-group, delivered, not closed
        self._shared: dict[GroupId, list[Timestamp]] = {}  # the same, by other destination
        self._shared_last: dict[GroupId, Timestamp] = {}
        self._heard: dict[GroupId, Announcement] = {}
        self._announced: dict[GroupId, list[Timestamp]] = {}
        self._owed: set[GroupId] = set()
        self._changed = False
        self._dependencies = Dependencies()
        self._inherited = NO_TIMESTAMP  # what everything depends on, since we do not know better
        self._taken_over = NO_TIMESTAMP  # an earlier leader may have delivered up to this, and answered reads
        self._depends: dict[Answer, Timestamp] = {}
        self._held: dict[Timestamp, list[Answer]] = {}  # the same, by dependency
        self._executed: set[Answer] = set()
        self._answers: list[Answer] = []

    @property
    def closed(self) -> Timestamp:
        """No transaction that starts from now on can come before what was delivered here up to this."""
        return self._closed

    @property
    def position(self) -> Timestamp:
        """The last delivery."""
        return self._deliveries

    def __len__(self) -> int:
        """How many multi-group messages are not closed: what the gate's memory is proportional to."""
        return len(self._open)

    def delivered(
        self,
        gts: Timestamp,
        destinations: Destinations,
        answer: Answer | None = None,
        footprint: Footprint = NOTHING,
    ) -> None:
        """Take a delivery. A replica that does not lead need not give the answer and the footprint."""
        if gts <= self._deliveries:
            raise InvariantBroken(f"delivery {gts} after {self._deliveries}")
        self._deliveries = gts
        self._changed = True
        if len(destinations) == 1:
            if answer is not None and self._open:
                self._depend(answer, footprint, NO_TIMESTAMP)
            return
        self._open.append(gts)
        own, shared = self._group, self._shared
        for group in destinations:
            if group != own:
                if group in shared:
                    shared[group].append(gts)
                else:
                    shared[group] = [gts]
                self._shared_last[group] = gts
        if answer is not None:
            self._depend(answer, footprint, gts)
        if gts <= self._taken_over:
            self._inherited = gts

    def read(self, answer: Answer, footprint: Footprint) -> None:
        """A strict read stands behind what is delivered, like a transaction of this group alone."""
        self._depend(answer, footprint, NO_TIMESTAMP)

    def executed(self, answer: Answer) -> None:
        """Take an answer; also to a repeated request, or to what an earlier leader delivered."""
        if answer not in self._depends:
            self._hold(answer, self._inherited)
        if answer in self._depends:
            self._executed.add(answer)
        else:
            self._answers.append(answer)

    def heard(self, announcement: Announcement) -> None:
        """Take an announcement of another group's leader, or of our own."""
        group, closed, levels, wanted = announcement
        if wanted:
            self._owed.add(group)
        if group == self._group:
            self._close(min(closed, self._deliveries))
            return
        known = self._heard.get(group)
        if known is not None:
            closed = max(closed, known.closed)
            merged = [
                new if new[0] >= old[0] else old
                for new, old in zip_longest(levels, known.levels, fillvalue=NO_LEVEL)
            ]
            levels = tuple(merged)
        while levels and levels[-1].value <= closed:
            levels = levels[:-1]
        self._heard[group] = Announcement(group, closed, levels)
        self._changed = True

    def new_ballot(self, taken_over: Timestamp) -> None:
        """The group's leader changes. Of what depends on what before that, a new leader assumes the worst.

        That goes for what it has delivered, and for what earlier leaders may have: up to `taken_over`. They
        may not know that they are deposed, and still answer reads that they hold.
        """
        self._taken_over = taken_over
        self._inherited = self._open[-1] if self._open else NO_TIMESTAMP
        self._announced.clear()
        self._dependencies = Dependencies()
        self._depends.clear()
        self._held.clear()
        self._executed.clear()
        self._answers.clear()
        self._changed = True

    @property
    def is_due(self) -> bool:
        """Whether `turn` may have anything to say."""
        return bool(self._changed or self._answers or self._owed)

    def settle(self) -> None:
        """Close what can be closed, at a replica that does not lead: without a turn, which it does not need,
        and only when what is closed matters. Groups that have asked are answered if this replica leads next.
        """
        if self._changed:
            self._changed = False
            self._close(self._levels()[-1].value)

    def turn(self) -> Turn[Answer]:
        """What may leave now, at a leader. Announcements go in the same turn: other groups may wait for them,
        but only for those of a leader.
        """
        announcements: list[tuple[GroupId, Announcement]] = []
        if self._changed or self._owed:
            self._changed = False
            listeners = sorted(self._owed.union(self._shared))
            levels = self._levels()
            self._close(levels[-1].value)
            for group in listeners:
                if group not in self._owed and self._waits_for_nothing(group):
                    continue
                announcement = self._announcement(levels, group)
                announced = [announcement.closed, *(level.value for level in announcement.levels)]
                if group in self._owed or self._announced.get(group) != announced:
                    self._announced[group] = announced
                    announcements.append((group, announcement))
            self._owed.clear()
        answers, self._answers = self._answers, []
        return Turn(answers, announcements)

    def repeat(self) -> list[tuple[GroupId, Announcement]]:
        """Return announcements that may have been lost, which also ask for the other groups'."""
        levels = self._levels()
        return [(g, self._announcement(levels, g)._replace(wanted=True)) for g in sorted(self._shared)]

    def _depend(self, answer: Answer, footprint: Footprint, own: Timestamp) -> None:
        """dep(T, g), and what those that conflict with T later get from it."""
        if not self._open:
            return
        if answer in self._depends:
            raise InvariantBroken(f"{answer} waits for an answer already")
        dependency = max(self._inherited, self._dependencies.of(footprint))
        self._hold(answer, dependency)
        passed_on = max(dependency, own)
        if passed_on > self._closed:
            self._dependencies.add(footprint, passed_on)

    def _hold(self, answer: Answer, dependency: Timestamp) -> None:
        if dependency > self._closed:
            self._depends[answer] = dependency
            self._held.setdefault(dependency, []).append(answer)

    def _levels(self) -> list[Level]:
        """L0, L1, ... up to the first whose reach has no more groups than paths of its length visit."""
        if not self._shared:
            return [Level(self._deliveries, 1 << self._group)]
        levels = [Level(self._deliveries, self._reach(0, self._deliveries))]
        while levels[-1].reach.bit_count() > len(levels):
            value = self._level(len(levels))
            levels.append(Level(value, self._reach(len(levels), value)))
        return levels

    def _level(self, n: int) -> Timestamp:
        """Just below the first message that is not known to be at level n - 1 at another destination."""
        value = self._deliveries
        heard = self._heard
        for group, shared in self._shared.items():
            known = heard.get(group)
            announced = NO_TIMESTAMP
            if known is not None:
                _, announced, levels, _ = known
                if n <= len(levels) and levels[n - 1][0] > announced:
                    announced = levels[n - 1][0]
            first = bisect_right(shared, announced)
            if first < len(shared):
                value = min(value, Timestamp(shared[first] - 1))
        return value

    def _reach(self, n: int, value: Timestamp) -> int:
        """The groups to which messages up to here lead in n + 1 hops. What is closed leads nowhere."""
        reach = 1 << self._group
        heard = self._heard
        for group, shared in self._shared.items():
            known = heard.get(group)
            first = 0 if known is None else bisect_right(shared, known.closed)
            if first < len(shared) and shared[first] <= value:
                reach |= 1 << group
                if n and known is not None:  # who has announced nothing is not passed by a level
                    reach |= known.levels[n - 1].reach
        return reach

    def _waits_for_nothing(self, group: GroupId) -> bool:
        """Whether the group has announced that all it shares with us is closed there. Then it waits for no
        announcement of ours; a new leader that does not know it asks.
        """
        known = self._heard.get(group)
        return known is not None and known.closed >= self._shared_last[group]

    def _announcement(self, levels: list[Level], group: GroupId) -> Announcement:
        """What matters to the group: up to the last message it shares with us, unless it has asked."""
        last = self._deliveries if group in self._owed else self._shared_last[group]
        lowered = tuple(Level(min(level.value, last), level.reach) for level in levels)
        return Announcement(self._group, min(self._closed, last), lowered)

    def _close(self, closed: Timestamp) -> None:
        """Everything up to this is closed. Let go what waited for it, and forget it."""
        if closed <= self._closed:
            return
        self._closed = closed
        if not self._open or self._open[0] > closed:
            return
        while self._open and self._open[0] <= closed:
            gts = self._open.popleft()
            self._dependencies.forget(gts)
            for answer in self._held.pop(gts, ()):
                del self._depends[answer]
                if answer in self._executed:
                    self._executed.remove(answer)
                    self._answers.append(answer)
        for group, shared in list(self._shared.items()):
            del shared[: bisect_right(shared, closed)]
            if not shared:
                del self._shared[group]
        if self._inherited <= closed:
            self._inherited = NO_TIMESTAMP
