"""Memories: how a replica notices that its log was rolled back (departure 22).

A log that is restored from an old copy of its disk is whole, and lacks promises. Its replica cannot see that;
but other members can. Every replica *counts* what it makes durable: at most once in a heartbeat, by a record
beside the others. It tells its count, once that is durable, when it acknowledges heartbeats. Leaders pass all
counts on with their heartbeats, and every member keeps them, lazily, in its own log.

A replica that starts is in doubt, and silent: it delivers what it missed, and promises nothing. It asks the
members of its group which count they remember. Once a quorum, itself included, remembers no more than its own
log does, it takes part. If any member remembers more, it has forgotten promises, and never takes part again:
its host gives it a new disk, and so another identity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from multicast.durable import Counted, Record, Remembered
from multicast.membership import Membership
from multicast.messages import MembersWanted, Recall, Recalled
from multicast.process.entry import E
from multicast.process.restoration import Restoration
from multicast.protocol import Start
from multicast.types import Process, ReplicaId

COUNT_S: Final = 1.0
"""After so long without another record, the last ones are counted by a record of its own."""

KEEP_S: Final = 2.0
"""The shortest time between two records of a member's count."""


class Memories(Restoration[E]):
    """Count, remember others' counts, and end or confirm the doubt about the own log."""

    def __init__(self, start: Start) -> None:
        self.uncounted = False
        """Whether anything was made durable since the count rose."""
        self.count_at = start.now
        """When the count may rise again."""
        self.memos: list[Record] = []
        """Records about counts, which go with the next batch and are not counted themselves: otherwise
        replicas that remember each other's counts would count for ever."""
        super().__init__(start)
        self.kept = dict(self.memories)
        """The counts that the own log has, or is about to have."""
        self.keep_at = -math.inf
        """When the next record of counts may be written."""
        self.life = start.rng.getrandbits(62) if self.is_doubting else 0
        self.recalled: set[ReplicaId] = set()
        """Members that remember no more than the own log does."""

    # Counting and remembering

    def counted(self) -> int:
        """Return the own count, for a message that leaves when all that was recorded before is durable."""
        if self.uncounted and self.now >= self.count_at + COUNT_S:
            self._raise_count()
        return self.count

    def _raise_count(self) -> None:
        """Count what was recorded. A silent replica does not: its count is what others must confirm."""
        self.uncounted = False
        self.count += 1
        self.count_at = self.now + self.timing.heartbeat_s
        self.memos.append(Counted(self.count))

    def known_counts(self) -> tuple[int, ...]:
        """Return the counts of the ballot's members, in the order of its configuration."""
        memories = self.memories
        return tuple([memories.get(member, 0) for member in self.configuration.members])

    def remember(self, counts: Iterable[tuple[ReplicaId, int]]) -> None:
        """Remember the counts of members, which never fall."""
        memories = self.memories
        for member, count in counts:
            if count > memories.get(member, 0):
                memories[member] = count

    def _keep_memories(self) -> None:
        """Record the counts of others that have risen, now and then."""
        if self.now < self.keep_at:
            return
        kept = self.kept
        risen = {m: n for m, n in self.memories.items() if n > kept.get(m, 0) and m != self.me}
        if risen:
            self.keep_at = self.now + KEEP_S
            kept.update(risen)
            self.memos += [Remembered(member, count) for member, count in risen.items()]

    def _learn(self, membership: Membership) -> bool:
        news = super()._learn(membership)
        if news and membership.group == self.group:  # former members take part in nothing
            self.memories = {m: n for m, n in self.memories.items() if m in membership.everyone}
            self.kept = {m: n for m, n in self.kept.items() if m in membership.everyone}
        return news

    # Doubt

    def _ask_memories(self, members: Iterable[ReplicaId]) -> None:
        """Ask those members that have not answered. A replica that never was a member has nothing to ask."""
        asked = tuple(m for m in members if m != self.me and m not in self.recalled)
        if asked and self.me in self.topology:
            self._ready.send.append((asked, Recall(self.life)))

    def on_recall(self, sender: Process, message: Recall) -> None:
        """Tell a member what is remembered of it. If this replica is in doubt too, ask the member in turn:
        it may not have been there before.
        """
        member = self._member(sender)
        answer = Recalled(message.life, self.memories.get(member, 0), self.membership.version)
        self._ready.send.append(((member,), answer))
        if self.is_doubting and member in self.membership.everyone:
            self._ask_memories((member,))

    def on_recalled(self, sender: Process, message: Recalled) -> None:
        """Take part when a quorum remembers no more than the own log does.

        A member that knows a newer membership does not count: those that this replica asks may have been
        replaced, and remember too little.
        """
        member = self._member(sender)
        if not self.life or message.life != self.life:
            return
        self.compare_count(message.count, member)
        if self.forgot or not self.is_doubting:
            return
        if message.version > self.membership.version:
            self._ready.send.append(((member,), MembersWanted(self.group)))
        else:
            self.recalled.add(member)
            self._end_doubt()

    def compare_count(self, count: int, member: ReplicaId) -> None:
        """Note that another member remembers more of this replica than its own log has, also when the doubt
        was over before: a count is told only when it is durable.
        """
        if count > self.count and not self.forgot:
            self.forgot = (
                f"the log of {self.me} ends at count {self.count}, but {member} remembers {count}: "
                "it was rolled back, and may lack promises"
            )

    def _end_doubt(self) -> None:
        """Take part, if those that have answered suffice by the membership that is known now.

        Previous members matter to a replica that was one of them: a new one has promised nothing there.
        """
        known, electorate = {self.me, *self.recalled}, self.electorate
        before = electorate.previous
        if self.forgot or not self.is_doubting or not electorate.current.has_quorum(known):
            return
        if before is None or self.me not in before.bit or before.has_quorum(known):
            self.is_doubting = False
            self._break_silence()
            if self._is_first():
                self.selection.expect_leader(self.now, at_once=True)
            elif self.me in self.membership.current.bit:
                self.selection.stand_early(self.membership, self.now)
