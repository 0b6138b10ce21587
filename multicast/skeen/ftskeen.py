"""Fault-tolerant Skeen: each group plays one process of Figure *skeen*, by consensus.

Two steps of the figure change the state of a process: a message gets its local timestamp, and the clock
passes its global timestamp. Here each of them is an instance of consensus, and counts when it is decided.
Only leaders talk to other groups; they deliver, and tell their followers in what order.

                  MULTICAST   consensus on lts    PROPOSE   consensus on the clock
    client ───────────> leader ═══════════> leader ───────> leader ═══════════> leader: deliver
              δ                   2δ                  δ               2δ

As in the paper, a leader issues local timestamps by its own clock, at once, and its clock passes a global
timestamp when that is decided. So a message that arrives in between still gets a lower local timestamp and
holds back the delivery (the convoy effect). `eager` says what happens if the clock does not wait.
"""

from __future__ import annotations

from typing import ClassVar

from multicast.consensus import Consensus
from multicast.errors import InvariantBroken, PeerViolation
from multicast.messages import ClockUpdate, Hint, LocalTimestamp, Phase2a, Phase2b, Propose, Value
from multicast.process import Replica
from multicast.protocol import Ready, Start
from multicast.skeen.entry import Entry
from multicast.types import (
    NO_TIMESTAMP,
    Destinations,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Status,
    Timestamp,
    format_timestamp,
    group_of,
    time_of,
)

ACCEPTED = Phase.ACCEPTED
COMMITTED = Phase.COMMITTED
LEADER = Status.LEADER
FOLLOWER = Status.FOLLOWER


class FtSkeen(Replica[Entry]):
    """One process of a group that plays a process of Skeen's protocol."""

    eager: ClassVar[bool] = False
    """Whether a leader's clock passes a global timestamp as soon as it is known, before that is decided.

    Clocks may always advance, so this is safe, and it shortens the convoy. The paper's protocols do not.
    """

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._handlers[Propose] = self.on_propose
        self._handlers[Phase2a] = self.on_phase_2a
        self._handlers[Phase2b] = self.on_phase_2b
        self.consensus = Consensus(self.me, self.configuration)
        self.consensus.ready = self._ready

    def new_entry(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> Entry:
        """An entry in START."""
        return Entry(mid, dest, payload, ack_below)

    def ready(self) -> Ready:
        """Drain what is to be done."""
        ready = super().ready()
        self.consensus.ready = self._ready
        return ready

    def _flush(self) -> None:
        self.consensus.flush()

    # Figure skeen, at a leader

    def _spread(self, entry: Entry) -> None:
        """The message has its local timestamp: it counts when the group has decided it."""
        if entry.payload is None:
            raise InvariantBroken(f"{entry.mid} is proposed without its payload")
        entry.phase = ACCEPTED
        self.consensus.propose(
            LocalTimestamp(entry.mid, entry.dest, entry.payload, entry.ack_below, entry.local_ts)
        )

    def _send_propose(self, entry: Entry, receivers: tuple[Process, ...]) -> None:
        if receivers:
            decided = entry.is_decided(self.group)
            message = Propose(entry.mid, entry.dest, self.group, self.cballot, entry.local_ts, decided)
            self._ready.send.append((receivers, message))

    def _other_leaders(self, entry: Entry) -> tuple[ReplicaId, ...]:
        return tuple([self.leader_of(group) for group in entry.dest if group != self.group])

    def on_propose(self, sender: ReplicaId, message: Propose) -> None:
        """Another destination proposes its local timestamp."""
        group, local_ts = message.group, message.local_ts
        if not (local_ts and sender.group == group == group_of(local_ts) != self.group):
            raise PeerViolation(f"PROPOSE of {message.mid} for group {group} came from {sender}")
        if message.ballot.leader != sender:
            raise PeerViolation(f"PROPOSE of {message.mid} in ballot {message.ballot} came from {sender}")
        self.topology.check_ballot(group, message.ballot)
        entry = self.entries.get(message.mid)
        if entry is not None and group not in entry.dest:
            raise PeerViolation(f"PROPOSE of {message.mid} to groups {entry.dest} came from {sender}")
        if self.status is LEADER:
            entry = entry or self._first_heard(message.mid, message.dest, group)
            if entry is not None and entry.phase is not COMMITTED:
                self._note(entry, sender, local_ts, decided=message.decided)
                self._advance(entry)
                self._deliver_committed()
        elif self.status is FOLLOWER:
            self._ready.send.append(((sender,), Hint(self.group, self.ballot)))
        self.note_ballot(group, message.ballot)

    def _note(self, entry: Entry, sender: ReplicaId, local_ts: Timestamp, *, decided: bool) -> None:
        if not entry.note(sender.group, local_ts, decided=decided):
            raise PeerViolation(f"{sender} says that its group decided another timestamp for {entry.mid}")

    def _advance(self, entry: Entry) -> None:
        """With all local timestamps: the global one is their maximum, and the clock must pass it."""
        if entry.missing or entry.phase is not ACCEPTED:
            return
        global_ts = max(entry.proposals)
        if self._must_pass(entry, global_ts):
            if self.eager:
                self._pass(global_ts)
            if entry.asked != global_ts:
                self._withdraw(entry)
                entry.asked = global_ts
                self.consensus.propose(ClockUpdate(entry.mid, global_ts))
        elif not entry.undecided:
            self._withdraw(entry)
            entry.phase = COMMITTED
            entry.global_ts = global_ts
            self.queue.commit(entry.local_ts, global_ts)

    def _withdraw(self, entry: Entry) -> None:
        """What was asked about the clock was a speculation that failed, or is settled."""
        if entry.asked:
            self.consensus.withdraw(entry.mid, entry.asked)

    def _must_pass(self, entry: Entry, global_ts: Timestamp) -> bool:
        """Whether the group has yet to decide that its clock passes this.

        The only destination of a message decided so when it decided the local timestamp.
        """
        return entry.passed < global_ts and len(entry.dest) > 1

    def _pass(self, ts: Timestamp) -> None:
        time = time_of(ts)
        if self.clock < time:
            self.clock = time

    def _repeat(self, entry: Entry, asker: Process) -> None:
        """Say again what another leader may have missed; to ourselves, what our own group may have missed."""
        if asker == self.me:
            self.consensus.repeat(entry.mid, NO_TIMESTAMP)
            if entry.asked:
                self.consensus.repeat(entry.mid, entry.asked)
            if self._may_speak(entry):
                self._send_propose(entry, self._other_leaders(entry))
            self._advance(entry)
            self._deliver_committed()
        elif isinstance(asker, ReplicaId) and self._may_speak(entry):
            self._send_propose(entry, (asker,))

    def _may_speak(self, entry: Entry) -> bool:
        """Whether other groups may hear of our local timestamp."""
        return entry.is_decided(self.group)

    # Consensus

    def on_phase_2a(self, sender: Process, message: Phase2a) -> None:
        """Our leader asks for our votes."""
        ballot = message.ballot
        leader = self._member(sender)
        if ballot.leader != leader:
            raise PeerViolation(f"{sender} speaks for ballot {ballot}")
        for value in message.values:
            self._check(sender, value)
        if self.status is not FOLLOWER or ballot != self.cballot:
            if ballot < self.ballot:
                self._ready.send.append(((leader,), Hint(self.group, self.ballot)))
            return
        for value in message.values:
            if isinstance(value, LocalTimestamp):
                self._vote_local(value)
            else:
                self._pass(value.global_ts)
                self.consensus.vote(ballot, value)

    def _check(self, sender: Process, value: Value) -> None:
        """Raise, with nothing changed, if no leader of ours would propose this."""
        if isinstance(value, LocalTimestamp):
            self.topology.check_destinations(value.dest)
            if self.group in value.dest and value.local_ts and group_of(value.local_ts) == self.group:
                return
            place = format_timestamp(value.local_ts)
            raise PeerViolation(f"{sender} proposes {place} for {value.mid} to groups {value.dest}")

    def _vote_local(self, value: LocalTimestamp) -> None:
        mid = value.mid
        entry = self.entries.get(mid)
        if entry is None:
            if mid in self.delivered_ids:
                return  # every destination has executed it, and so has our leader
            entry = self.entries[mid] = self.new_entry(mid, value.dest, value.payload, value.ack_below)
        again = entry.phase is ACCEPTED and entry.local_ts == value.local_ts
        if entry.phase is not COMMITTED:
            self.orphans.pop(mid, None)
            entry.phase = ACCEPTED
            entry.payload, entry.ack_below, entry.local_ts = value.payload, value.ack_below, value.local_ts
        elif entry.local_ts != value.local_ts:
            return  # we have learnt what a higher ballot decided; this one decides nothing any more
        self._pass(value.local_ts)
        self.consensus.vote(self.cballot, value, again=again)

    def on_phase_2b(self, sender: Process, message: Phase2b) -> None:
        """Votes for what we proposed: act on what is decided now."""
        decided = self.consensus.on_2b(self._member(sender), message)
        found = [(self.entries[value.mid], value) for value in decided]
        for entry, value in found:
            self._decided(entry, value)
        for entry, _ in found:
            self._advance(entry)
        if self.status is LEADER:
            self._deliver_committed()

    def _decided(self, entry: Entry, value: Value) -> None:
        """If the local timestamp is decided, PROPOSE goes to the other destinations."""
        if isinstance(value, LocalTimestamp):
            self._note(entry, self.me, value.local_ts, decided=True)
            self._send_propose(entry, self._other_leaders(entry))
        else:
            self._pass(value.global_ts)
            entry.passed = max(entry.passed, value.global_ts)

    def unfinished(self) -> list[MessageId]:
        """Also what the group is still asked about."""
        return [*super().unfinished(), *self.consensus.asked_about()]

    # Leaders come and go

    def _lead(self) -> None:
        """A quorum holds the ballot's initial state: the local timestamps in it are decided."""
        self.consensus.lead(self.cballot, self.configuration)
        for entry in self.entries.values():
            if entry.phase is ACCEPTED:
                self._note(entry, self.me, entry.local_ts, decided=True)
        super()._lead()

    def _leave_ballot(self) -> None:
        self.consensus.leave()
        super()._leave_ballot()


class EagerFtSkeen(FtSkeen):
    """Fault-tolerant Skeen whose clocks do not wait."""

    eager = True
