"""Consensus within a group, as a black box: multi-Paxos with a stable leader.

A group decides many independent questions, its instances, in any order. Whoever leads a ballot may
`propose` an answer to an instance; members `vote`; when a quorum has voted for it, `on_2b` says that it is
decided. So a stable leader needs one round trip per decision. This is Paxos' phase 2.

Phase 1 is the recovery that all protocols share (`process.recovery`): a ballot begins with an initial state
that has all local timestamps that may have been decided before, and is open when a quorum holds it. Opening
it so, at once, matters: instances depend on each other, since no timestamp may turn up from the past, below
what has been delivered since. Whoever follows a ballot holds all that it began with, and has forgotten
what lower ballots had proposed in vain. (A log of slots does the same by filling its gaps.)

- In one ballot, an instance has one answer: its leader proposes no other, and never leads it in another life.
- Members vote in the ballot they follow only. A vote is durable before it is counted: it leaves as a promise
  of the `Ready` that persists it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from multicast.durable import Voted
from multicast.membership import Configuration
from multicast.messages import ClockUpdates, Instance, LocalTimestamp, LocalTimestamps, Phase2a, Phase2b
from multicast.protocol import Ready, Timing
from multicast.types import NO_BALLOT, NO_TIMESTAMP, Ballot, MessageId, ReplicaId, Timestamp, time_of

K = TypeVar("K")


class Consensus:
    """One member: it votes, and while it leads a ballot, it proposes."""

    def __init__(self, me: ReplicaId, configuration: Configuration, timing: Timing) -> None:
        self._me = me
        self._configuration = configuration
        """Of the ballot this member leads, or led last."""
        self._others: tuple[ReplicaId, ...] = ()
        self._timing = timing
        self.ready = Ready()
        """Where votes and messages go; the process puts its own here."""
        self._ballot = NO_BALLOT
        """The ballot this member leads, if any."""
        self._local_votes: dict[MessageId, int] = {}
        self._clock_votes: dict[Instance, int] = {}
        """Proposed in this ballot and not decided yet: who has voted for it, as bits."""
        self._local: list[LocalTimestamp] = []
        self._clocks: list[Instance] = []
        """Proposed, and neither sent to the others nor voted for yet."""
        self._again: dict[tuple[ReplicaId, ...], tuple[list[LocalTimestamp], list[Instance]]] = {}
        """What others are to be asked again."""
        self._acked_local: list[MessageId] = []
        self._acked_clocks: list[Instance] = []
        self._acked_ballot = NO_BALLOT
        """Votes not yet answered with, and the ballot they were given in."""

    def lead(self, ballot: Ballot, configuration: Configuration) -> None:
        """The ballot is open, and this member leads it."""
        self._ballot = ballot
        self._configuration = configuration
        self._others = tuple(m for m in configuration.members if m != self._me)

    def leave(self) -> None:
        """This member leads no more. What it proposed may or may not be decided."""
        self.flush()
        self._ballot = NO_BALLOT
        self._local_votes = {}
        self._clock_votes = {}

    def propose(self, value: LocalTimestamp) -> None:
        """Ask for a decision about a local timestamp, and vote for it. Once per message and ballot."""
        self._local_votes[value[0]] = 0
        self._local.append(value)

    def propose_clock(self, mid: MessageId, global_ts: Timestamp) -> None:
        """Ask to let the clock pass this, and vote for it."""
        instance = (mid, global_ts)
        self._clock_votes[instance] = 0
        self._clocks.append(instance)

    def withdraw(self, mid: MessageId, global_ts: Timestamp) -> None:
        """It does not matter any more whether the clock passes this."""
        self._clock_votes.pop((mid, global_ts), None)

    def repeat(self, value: LocalTimestamp) -> None:
        """Ask again whoever has not voted for it, if it is still on its way."""
        votes = self._local_votes.get(value[0])
        if votes is not None and (silent := self._silent(votes)):
            self._again.setdefault(silent, ([], []))[0].append(value)

    def repeat_clock(self, mid: MessageId, global_ts: Timestamp) -> None:
        """As `repeat`."""
        votes = self._clock_votes.get((mid, global_ts))
        if votes is not None and (silent := self._silent(votes)):
            self._again.setdefault(silent, ([], []))[1].append((mid, global_ts))

    def _silent(self, votes: int) -> tuple[ReplicaId, ...]:
        bit = self._configuration.bit
        return tuple(m for m in self._others if not votes & bit[m])

    def asked_about(self) -> list[MessageId]:
        """Messages about which a proposal of ours is on its way."""
        return [*self._local_votes, *(mid for mid, _ in self._clock_votes)]

    def on_2b(self, member: ReplicaId, message: Phase2b) -> tuple[list[MessageId], list[Instance]]:
        """Votes arrive. What a quorum has voted for is decided, and returned once: whose local timestamps,
        and what the clock passes.
        """
        if message.ballot != self._ballot:
            return [], []
        bit = self._configuration.bit.get(member, 0)
        local = self._count(self._local_votes, message.local, bit)
        clocks = self._count(self._clock_votes, zip(*message.clocks, strict=True), bit)
        return local, clocks

    def _count(self, votes: dict[K, int], instances: Iterable[K], bit: int) -> list[K]:
        quorum = self._configuration.quorum
        decided = []
        for instance in instances:
            known = votes.get(instance)
            if known is not None:
                known |= bit
                if known.bit_count() >= quorum:
                    del votes[instance]
                    decided.append(instance)
                else:
                    votes[instance] = known
        return decided

    def vote(
        self,
        ballot: Ballot,
        local: LocalTimestamps,
        clocks: ClockUpdates,
        again: Iterable[MessageId] = (),
    ) -> None:
        """Vote for these answers, in the ballot this member follows, with one record.

        Local timestamps that it votes for again are on its disk.
        """
        if ballot is not self._acked_ballot and ballot != self._acked_ballot:
            self._answer()
            self._acked_ballot = ballot
        self._acked_local.extend(local.mids)
        self._acked_local.extend(again)
        self._acked_clocks.extend(zip(*clocks, strict=True))
        highest = max(chain(local.local_ts, clocks.global_ts), default=NO_TIMESTAMP)
        if highest:
            self.ready.persist.append(Voted(local, time_of(highest)))

    def flush(self) -> None:
        """Send what was asked and answered since the last time: one 2a, if it fits a frame, and one 2b."""
        if self._local or self._clocks:
            for local, clocks in self._runs(self._local, self._clocks):
                if self._others:
                    self.ready.send.append((self._others, Phase2a(self._ballot, local, clocks)))
                self.vote(self._ballot, local, clocks)
            self._local, self._clocks = [], []
        if self._again:
            for silent, (rows, instances) in self._again.items():
                for local, clocks in self._runs(rows, instances):
                    self.ready.send.append((silent, Phase2a(self._ballot, local, clocks)))
            self._again = {}
        self._answer()

    def _runs(
        self, rows: Sequence[LocalTimestamp], instances: Sequence[Instance]
    ) -> Iterator[tuple[LocalTimestamps, ClockUpdates]]:
        """The same in columns, in pieces that fit a frame."""
        most, most_bytes = self._timing.part_entries, self._timing.part_bytes
        at = 0
        while at < len(rows) or instances:
            begin, size = at, 0
            while at < len(rows) and at - begin < most:
                size += len(rows[at][2])
                if size > most_bytes and at > begin:
                    break
                at += 1
            yield LocalTimestamps.of(rows[begin:at]), ClockUpdates.of(instances[:most])
            instances = instances[most:]

    def _answer(self) -> None:
        if self._acked_local or self._acked_clocks:
            clocks = ClockUpdates.of(self._acked_clocks)
            message = Phase2b(self._acked_ballot, tuple(self._acked_local), clocks)
            self.ready.promise.append(((self._acked_ballot.leader,), message))
            self._acked_local, self._acked_clocks = [], []
