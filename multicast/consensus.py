"""Consensus within a group, as a black box: multi-Paxos with a stable leader.

A group decides many independent instances, in any order. The leader of a ballot may `propose` a value for an
instance; members `vote`; when a quorum has voted for it, `on_2b` reports that it is decided. So a stable
leader needs one round trip per decision. This is Paxos' phase 2.

Phase 1 is the recovery that all protocols share (`process.recovery`): a ballot begins with an initial state
that has all local timestamps that may have been decided before, and is open when a quorum holds that state.
Opening all instances at once matters: instances depend on each other, since no timestamp may appear later
that is below what has been delivered since. A follower of a ballot holds all that the ballot began with, and
has forgotten what lower ballots had proposed without a decision. (A log of slots does the same by filling its
gaps.)

- In one ballot, an instance has one value: its leader proposes no other, and never leads the ballot again
  after a restart.
- Members vote only in the ballot that they follow. A vote is durable before it is counted: it leaves as a
  promise of the `Ready` that persists it.
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
    """One member of a group: it votes, and proposes while it leads a ballot."""

    def __init__(self, me: ReplicaId, configuration: Configuration, timing: Timing) -> None:
        self._me = me
        self._configuration = configuration
        """The configuration of the ballot that this member leads, or led last."""
        self._others: tuple[ReplicaId, ...] = ()
        self._timing = timing
        self.ready = Ready()
        """Where votes and messages go: the `Ready` of the process."""
        self._ballot = NO_BALLOT
        """The ballot that this member leads, if any."""
        self._local_votes: dict[MessageId, int] = {}
        self._clock_votes: dict[Instance, int] = {}
        """The votes, as bits of members, for what is proposed in this ballot and not decided yet."""
        self._local: list[LocalTimestamp] = []
        self._clocks: list[Instance] = []
        """Proposed, and neither sent to the others nor voted for yet."""
        self._again: dict[tuple[ReplicaId, ...], tuple[list[LocalTimestamp], list[Instance]]] = {}
        """What is to be proposed again, by receivers."""
        self._acked_local: list[MessageId] = []
        self._acked_clocks: list[Instance] = []
        self._acked_ballot = NO_BALLOT
        """Votes that are not sent yet, and their ballot."""

    def lead(self, ballot: Ballot, configuration: Configuration) -> None:
        """Begin to lead the ballot, which is open."""
        self._ballot = ballot
        self._configuration = configuration
        self._others = tuple(m for m in configuration.members if m != self._me)

    def leave(self) -> None:
        """Stop leading. What was proposed may or may not be decided."""
        self.flush()
        self._ballot = NO_BALLOT
        self._local_votes = {}
        self._clock_votes = {}

    def propose(self, value: LocalTimestamp) -> None:
        """Propose a local timestamp, and vote for it. Once per message and ballot."""
        self._local_votes[value[0]] = 0
        self._local.append(value)

    def propose_clock(self, mid: MessageId, global_ts: Timestamp) -> None:
        """Propose that the clock passes this timestamp, and vote for it."""
        instance = (mid, global_ts)
        self._clock_votes[instance] = 0
        self._clocks.append(instance)

    def withdraw(self, mid: MessageId, global_ts: Timestamp) -> None:
        """Withdraw a proposal about the clock that does not matter any more."""
        self._clock_votes.pop((mid, global_ts), None)

    def repeat(self, value: LocalTimestamp) -> None:
        """Propose again to members that have not voted, unless the instance is decided."""
        votes = self._local_votes.get(value[0])
        if votes is not None and (silent := self._silent(votes)):
            self._again.setdefault(silent, ([], []))[0].append(value)

    def repeat_clock(self, mid: MessageId, global_ts: Timestamp) -> None:
        """Propose again, as `repeat`, that the clock passes this timestamp."""
        votes = self._clock_votes.get((mid, global_ts))
        if votes is not None and (silent := self._silent(votes)):
            self._again.setdefault(silent, ([], []))[1].append((mid, global_ts))

    def _silent(self, votes: int) -> tuple[ReplicaId, ...]:
        bit = self._configuration.bit
        return tuple(m for m in self._others if not votes & bit[m])

    def asked_about(self) -> list[MessageId]:
        """Return the messages with an undecided proposal of this member."""
        return [*self._local_votes, *(mid for mid, _ in self._clock_votes)]

    def on_2b(self, member: ReplicaId, message: Phase2b) -> tuple[list[MessageId], list[Instance]]:
        """Count votes. Return what they decide, each instance once: the messages whose local timestamps are
        decided, and the clock updates.
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
        """Vote for these values, in the ballot that this member follows, with one record.

        The local timestamps of `again` are on its disk already.
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
        """Send the proposals and votes since the last time: one 2a, if they fit a frame, and one 2b."""
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
        """Yield the same as columns, in pieces that fit a frame."""
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
