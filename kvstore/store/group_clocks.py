"""What a gateway knows of the groups' clocks: which revisions can exist, and what time it is.

A gateway has no clock of its own. Groups tell it revisions with every result, its node's replicas have
clocks, and it can ask all replicas for theirs. *Now* is the highest of these times plus the monotonic time
since.

A revision that a client brings is *confirmed* if some group's clock has reached it: only then may other
groups' clocks be raised to it. It is *refuted* if quorums of all groups have answered that theirs have not:
what was delivered in a group has passed the clocks of one of its quorums, so no client can have seen that
revision. An answer counts only if its replica knows no newer membership of its group than the gateway: a
quorum of members that were replaced says nothing of those that have replaced them. Without either within a
time limit, because replicas do not answer, nothing is known.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from multicast.membership import Membership
from multicast.topology import Topology
from multicast.types import TICKS_PER_S, ReplicaId, Timestamp, time_of

CONFIRM_S: Final = 0.5
"""How long to wait for replicas' clocks."""

AGAIN_S: Final = 0.1
"""How soon to ask the replicas again that have not answered."""

LEARN_S: Final = 1.0
"""How often all groups are asked after a start, while some do not answer."""

DOUBTED_S: Final = 5.0
"""For how long a revision that was not confirmed is not asked about again before a write."""

DOUBTED: Final = 1024
"""How many such revisions are remembered."""

WAITING: Final = 16_384
"""How many calls may wait for a confirmation."""

IDLE_TICKS: Final = 3600 * TICKS_PER_S
"""The most monotonic time that is added to a revision: the time of a group that is held back does not
pass."""


class Verdict(enum.Enum):
    """What is known of a revision that a client brought."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


OnVerdict = Callable[[Verdict], None]


@dataclass(slots=True)
class _Round:
    """One round of questions, and the revisions that wait for it."""

    number: int
    waiting: list[tuple[int, OnVerdict]]
    until: float
    again_at: float
    learns: bool
    """Whether it goes on until quorums of all groups have answered, though no call waits for it."""
    answered: dict[ReplicaId, int] = field(default_factory=dict)
    """The replicas that have answered, and the version of their group's membership that they know."""


class GroupClocks:
    """What one gateway knows. Monotonic time is an argument, in seconds."""

    def __init__(self, topology: Callable[[], Topology], local: Callable[[], int]) -> None:
        """`local` returns the highest clock of the node's own replicas."""
        self._topology = topology
        self._local = local
        self.highest = 0
        """The highest time that any group has told."""
        self._told_at = 0.0
        self._round: _Round | None = None
        self._next: list[tuple[int, OnVerdict]] = []
        """Revisions that wait for the next round: answers to the current one may be older than they."""
        self._doubted: dict[int, tuple[float, Verdict]] = {}
        """Revisions that were not confirmed, and until when they are not asked about again."""
        self._rounds = 0
        self._learned = False
        """Whether quorums of all groups have told their clocks since the start."""
        self._learn_at = 0.0
        self.informed = False
        """Whether a leader has told what time it is since the start."""
        self._uninformed: list[Callable[[], None]] = []

    def tell(self, time: int, now: float) -> None:
        """Take a time that a group's clock has reached, or a leader's quorum time."""
        if time > self.highest:
            self.highest = time
            self._told_at = now

    def inform(self, time: int, now: float) -> None:
        """Take the time of a leader."""
        self.tell(time, now)
        self.informed = True
        waiting, self._uninformed = self._uninformed, []
        for call in waiting:
            call()

    def when_informed(self, call: Callable[[], None], now: float) -> None:
        """Call when a leader has told what time it is: without one, nothing can be ordered anyway."""
        self._uninformed.append(call)
        if self._round is None:
            self._begin(now)

    def now(self, now: float) -> int:
        """Return what time it is."""
        self.tell(self._local(), now)
        passed = int((now - self._told_at) * TICKS_PER_S)
        return self.highest + min(max(passed, 0), IDLE_TICKS)

    def knows(self, revision: int, now: float) -> bool:
        """Return whether a revision is confirmed by what is known here."""
        time = time_of(Timestamp(revision))
        if time > self.highest:
            self.tell(self._local(), now)
        return time <= self.highest

    def doubt(self, revision: int, now: float) -> Verdict | None:
        """Return the verdict of a moment ago on a revision that was not confirmed."""
        until, verdict = self._doubted.get(revision, (0.0, None))
        return verdict if until > now else None

    @property
    def waiting(self) -> int:
        """How many calls wait for a verdict."""
        asked = 0 if self._round is None else len(self._round.waiting)
        return len(self._uninformed) + len(self._next) + asked

    def ask(self, revision: int, done: OnVerdict, now: float) -> None:
        """Ask all replicas for their clocks, and call `done` when there is a verdict on the revision."""
        self._next.append((revision, done))
        if self._round is None:
            self._begin(now)

    def _begin(self, now: float, asks_at: float = 0.0) -> None:
        self._rounds += 1
        waiting, self._next = self._next, []
        learns = not self._learned or not self.informed
        asks_at = max(now, asks_at)
        self._round = _Round(self._rounds, waiting, asks_at + CONFIRM_S, asks_at, learns)

    def questions(self, now: float) -> tuple[int, list[ReplicaId]]:
        """Return the number of the round, and the replicas to ask now: first those that told the client."""
        current = self._round
        if current is None or now < current.again_at:
            return 0, []
        current.again_at = now + AGAIN_S
        topology = self._topology()
        members = [member for group in topology.groups for member in topology.members(group)]
        return current.number, [member for member in members if member not in current.answered]

    def answered(self, member: ReplicaId, number: int, clock: int, version: int, now: float) -> None:
        """Take a replica's clock, as an answer to a round, and the version of the membership that the replica
        knows.
        """
        self.tell(clock, now)
        current = self._round
        if current is None:
            return
        if number == current.number:
            current.answered[member] = version
        self._judge(current, now, over=self._all_answered(current))

    def _all_answered(self, current: _Round) -> bool:
        """Return whether quorums of all groups have answered."""
        topology = self._topology()
        return all(self._has_quorum(topology.membership(group), current) for group in topology.groups)

    def _has_quorum(self, membership: Membership, current: _Round) -> bool:
        """Return whether quorums of all configurations that count have answered, by what their members know:
        one that knows a newer membership may belong to none of its quorums.
        """
        answered = current.answered
        return membership.agrees(
            {m for m in membership.everyone if answered.get(m, math.inf) <= membership.version}
        )

    def tick(self, now: float) -> None:
        """Give up on a round whose time is over. After a start, begin rounds until all groups are known, and
        what time it is.
        """
        if self._round is not None and now >= self._round.until:
            self._judge(self._round, now, over=False, late=True)
        if self._round is None and not self._knows_all and now >= self._learn_at:
            self._learn_at = now + LEARN_S
            self._begin(now)

    @property
    def wake_at(self) -> float:
        """When `tick` or `questions` is due."""
        if self._round is not None:
            return min(self._round.again_at, self._round.until)
        return float("inf") if self._knows_all else self._learn_at

    @property
    def _knows_all(self) -> bool:
        return self._learned and self.informed

    def _judge(self, current: _Round, now: float, *, over: bool, late: bool = False) -> None:
        """Answer what is decided; at the end of the round, everything."""
        confirmed = [each for each in current.waiting if time_of(Timestamp(each[0])) <= self.highest]
        rest = [each for each in current.waiting if time_of(Timestamp(each[0])) > self.highest]
        current.waiting = rest
        self._learned = self._learned or over
        if over or late or not (rest or current.learns):
            current.waiting = []
            self._round = None
            for revision, _ in rest:
                self._doubt(revision, Verdict.REFUTED if over else Verdict.UNKNOWN, now)
            if self._next:
                self._begin(now)
            elif self._uninformed:
                self._begin(now, now + AGAIN_S)  # quorums have answered, but no group has a leader yet
        else:
            rest = []
        for _, done in confirmed:
            done(Verdict.CONFIRMED)
        for _, done in rest:
            done(Verdict.REFUTED if over else Verdict.UNKNOWN)

    def _doubt(self, revision: int, verdict: Verdict, now: float) -> None:
        if len(self._doubted) >= DOUBTED:
            del self._doubted[next(iter(self._doubted))]
        self._doubted[revision] = now + DOUBTED_S, verdict
