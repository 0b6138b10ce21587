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
replica has a gate, and gives it every delivery; only a leader's holds answers.

Few answers wait, so a gate collects what is new for `CALM_S`, and announces it once. A gate that holds an
answer asks the groups of which it misses something, up to what the answer depends on. A group that was asked
announces what is new at once until it has closed that, and asks others. docs/gate.md has the argument.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable
from itertools import zip_longest
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

from kvstore.machine.request import NOTHING, Footprint
from kvstore.store.dependencies import Dependencies
from multicast.errors import InvariantBroken
from multicast.types import NO_TIMESTAMP, Destinations, GroupId, Timestamp, timestamp

Answer = TypeVar("Answer", bound=Hashable)

CALM_S: Final = 0.01
"""How long a gate collects what no group is known to wait for. It announces that in its next turn, and wants
one after another `CALM_S`."""

OFTEN: Final = timestamp(30, GroupId(0))
"""A gate that has to ask again so soon (3 ms, with hybrid clocks) asks ahead."""

AHEAD: Final = timestamp(500, GroupId(0))
"""How far a gate then asks beyond what it has delivered: until the other group has closed that, it announces
everything at once. Halfway there, a gate that holds answers asks again."""


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
    wanted: Timestamp = NO_TIMESTAMP
    """If the group asks: up to where it waits for what the other has closed."""


class Turn(NamedTuple, Generic[Answer]):
    """What a turn of the gate has led to: answers that may leave, and what to tell leaders of groups."""

    answers: list[Answer]
    announcements: list[tuple[GroupId, Announcement]]
    """For these, answers of other groups may wait."""
    calm: list[tuple[GroupId, Announcement]]
    """For these, no answer is known to wait."""


class Gate(Generic[Answer]):
    """One group's gate, at one of its replicas."""

    __slots__ = (
        "_ahead",
        "_announced",
        "_answers",
        "_asked",
        "_awaited",
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
        "_levels_now",
        "_news",
        "_open",
        "_overdue",
        "_owed",
        "_say_at",
        "_shared",
        "_shared_last",
        "_taken_over",
        "_unsaid",
        "_wished",
        "_wished_at",
        "wake_at",
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
        self._owed: set[GroupId] = set()  # who has asked since the last turn
        self._awaited: dict[GroupId, Timestamp] = {}  # up to where a group that has asked waits for us
        self._asked: dict[GroupId, Timestamp] = {}  # up to where we have asked
        self._wished = self._wished_at = NO_TIMESTAMP  # the last answers that made us ask, and when
        self._ahead = NO_TIMESTAMP  # up to where we have asked ahead
        self._overdue = NO_TIMESTAMP  # what was delivered at the last repetition
        self._unsaid: set[GroupId] = set()  # whom something new concerns
        self._say_at = inf
        self.wake_at = inf
        """When to call `turn`, at a leader, if nothing happens before."""
        self._changed = False  # since levels were computed
        self._news = False  # whether another group has said anything since
        self._levels_now = [Level(NO_TIMESTAMP, 1 << group)]
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
                self._unsaid.add(group)
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
            self._awaited[group] = max(wanted, self._awaited.get(group, NO_TIMESTAMP))
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
        self._changed = self._news = True

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
        self._unsaid.update(self._shared)
        self._say_at = -inf
        self._asked.clear()
        self._overdue = self._deliveries  # what earlier leaders have heard is not known here

    @property
    def is_due(self) -> bool:
        """Whether `turn` may have anything to do before `wake_at`."""
        return bool(self._changed or self._answers or self._owed)

    def settle(self) -> None:
        """Close what can be closed: what is closed matters, also at a replica that does not lead.

        Groups that have asked are answered if this replica leads next.
        """
        if self._changed:
            self._changed = self._news = False
            before, self._levels_now = self._levels_now, self._levels()
            if self._levels_now != before:
                self._unsaid.update(self._shared)
                self._close(self._levels_now[-1].value)

    def turn(self, now: float) -> Turn[Answer]:
        """What may leave now, at a leader: other groups wait only for announcements of a leader."""
        announcements: list[tuple[GroupId, Announcement]] = []
        calm: list[tuple[GroupId, Announcement]] = []
        if self._news or self._held or self._awaited or not self._shared or now >= self._say_at:
            self.settle()
            asked = self._questions()
            due = self._unsaid if now >= self._say_at else self._unsaid.intersection(self._awaited)
            for group in sorted(due.union(self._owed, asked)):
                self._unsaid.discard(group)
                waits = group in self._awaited or group in asked
                must = group in self._owed or group in asked
                if not must and self._waits_for_nothing(group):
                    continue
                announcement = self._announcement(group, asked.get(group, NO_TIMESTAMP))
                said = [announcement.closed, *(level.value for level in announcement.levels)]
                if must or self._announced.get(group) != said:
                    self._announced[group] = said
                    (announcements if waits else calm).append((group, announcement))
            self._owed.clear()
            for group in [group for group, upto in self._awaited.items() if upto <= self._closed]:
                del self._awaited[group]
        if not self._unsaid:
            self._say_at = inf
        elif self._say_at == inf:
            self._say_at = now + CALM_S
        self.wake_at = self._say_at + CALM_S
        answers, self._answers = self._answers, []
        return Turn(answers, announcements, calm)

    def _questions(self) -> dict[GroupId, Timestamp]:
        """The groups to ask, and up to where: for answers that are held here, or for groups that have asked.

        No group is asked twice for the same; and what it passes on is never more than it was asked for. So
        questions end, whichever way they go.
        """
        upto = max((upto for upto in self._awaited.values() if upto > self._closed), default=NO_TIMESTAMP)
        if self._held:
            upto = max(upto, self._wish())
        found: dict[GroupId, Timestamp] = {}
        if upto:
            for group in self._shared:
                if self._asked.get(group, NO_TIMESTAMP) < upto and self._misses(group, upto):
                    self._asked[group] = found[group] = upto
        return found

    def _wish(self) -> Timestamp:
        """Up to where the answers that are held wait for others; further, if answers are held often."""
        here, held, ahead = self._deliveries, max(self._held), self._ahead
        if here >= ahead:
            if held > self._wished:
                if here < max(self._wished_at, ahead) + OFTEN:
                    self._ahead = Timestamp(here + AHEAD)
                self._wished, self._wished_at = held, here
        elif here >= ahead - AHEAD // 2:
            self._ahead = Timestamp(here + AHEAD)
        return max(held, self._ahead)

    def _misses(self, group: GroupId, upto: Timestamp) -> bool:
        """Whether anything up to here is shared with the group, and open as far as it has announced."""
        known, shared = self._heard.get(group), self._shared[group]
        first = 0 if known is None else bisect_right(shared, known.closed)
        return first < len(shared) and shared[first] <= upto

    def repeat(self) -> list[tuple[GroupId, Announcement]]:
        """Return questions to the groups of which something is missed since the last call: it may be lost."""
        self.settle()
        overdue, self._overdue = self._overdue, self._deliveries
        return [
            (group, self._announcement(group, self._deliveries))
            for group in sorted(self._shared)
            if self._misses(group, overdue)
        ]

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

    def _announcement(self, group: GroupId, wanted: Timestamp = NO_TIMESTAMP) -> Announcement:
        """What matters to the group: up to the last message it shares with us, unless it has asked."""
        last = self._deliveries if group in self._owed else self._shared_last[group]
        lowered = tuple(Level(min(level.value, last), level.reach) for level in self._levels_now)
        return Announcement(self._group, min(self._closed, last), lowered, wanted)

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
