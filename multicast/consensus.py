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

from multicast.durable import Voted
from multicast.membership import Configuration
from multicast.messages import Instance, Phase2a, Phase2b, Value
from multicast.protocol import Ready
from multicast.types import NO_BALLOT, Ballot, MessageId, ReplicaId, Timestamp


class _Round:
    """A proposal on its way: who has voted for it, as bits."""

    __slots__ = ("members", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.members = 0


class Consensus:
    """One member: it votes, and while it leads a ballot, it proposes."""

    def __init__(self, me: ReplicaId, configuration: Configuration) -> None:
        self._me = me
        self._configuration = configuration
        """Of the ballot this member leads, or led last."""
        self._others: tuple[ReplicaId, ...] = ()
        self.ready = Ready()
        """Where votes and messages go; the process puts its own here."""
        self._ballot = NO_BALLOT
        """The ballot this member leads, if any."""
        self._rounds: dict[Instance, _Round] = {}
        """Proposed in this ballot and not decided yet."""
        self._asked: list[Value] = []
        """Proposed, and not yet sent to the others."""
        self._acked: list[Instance] = []
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
        self._rounds = {}

    def propose(self, value: Value) -> None:
        """Ask for a decision, and vote for it. Once per instance and ballot."""
        self._rounds[value.mid, value.at] = _Round(value)
        if self._others:
            self._asked.append(value)
        self.vote(self._ballot, value)

    def withdraw(self, mid: MessageId, at: Timestamp) -> None:
        """It does not matter any more whether this is decided."""
        self._rounds.pop((mid, at), None)

    def repeat(self, mid: MessageId, at: Timestamp) -> None:
        """Ask again whoever has not voted, if that proposal is still on its way."""
        known = self._rounds.get((mid, at))
        if known is not None:
            bit = self._configuration.bit
            silent = tuple(m for m in self._others if not known.members & bit[m])
            if silent:
                self.ready.send.append((silent, Phase2a(self._ballot, (known.value,))))

    def asked_about(self) -> list[MessageId]:
        """Messages about which a proposal of ours is on its way."""
        return [mid for mid, _ in self._rounds]

    def on_2b(self, member: ReplicaId, message: Phase2b) -> list[Value]:
        """Votes arrive. What a quorum has now voted for is decided, and returned once."""
        decided: list[Value] = []
        if message.ballot != self._ballot:
            return decided
        bit, quorum = self._configuration.bit.get(member, 0), self._configuration.quorum
        rounds = self._rounds
        for instance in message.instances:
            known = rounds.get(instance)
            if known is not None:
                known.members |= bit
                if known.members.bit_count() >= quorum:
                    del rounds[instance]
                    decided.append(known.value)
        return decided

    def vote(self, ballot: Ballot, value: Value, *, again: bool = False) -> None:
        """Vote for the answer, in the ballot this member follows. What it votes for again is on disk."""
        if ballot is not self._acked_ballot and ballot != self._acked_ballot:
            self._answer()
            self._acked_ballot = ballot
        self._acked.append((value.mid, value.at))
        if not again:
            self.ready.persist.append(Voted(value))

    def flush(self) -> None:
        """Send what was asked and answered since the last time: one 2a, one 2b."""
        if self._asked:
            self.ready.send.append((self._others, Phase2a(self._ballot, tuple(self._asked))))
            self._asked = []
        self._answer()

    def _answer(self) -> None:
        if self._acked:
            message = Phase2b(self._acked_ballot, tuple(self._acked))
            self.ready.promise.append(((self._acked_ballot.leader,), message))
            self._acked = []
