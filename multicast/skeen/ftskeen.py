"""Fault-tolerant Skeen: each group plays one process of Figure *skeen*, by consensus.

Two steps of the figure change the state of a process: a message gets its local timestamp, and the clock
passes its global timestamp. Here each of them is an instance of consensus, and takes effect when it is
decided. Only leaders communicate with other groups; they deliver, and send the order to their followers.

                  MULTICAST   consensus on lts    PROPOSE   consensus on the clock
    client ───────────> leader ═══════════> leader ───────> leader ═══════════> leader: deliver
              δ                   2δ                  δ               2δ

As in the paper, a leader issues local timestamps by its own clock, at once, and its clock passes a global
timestamp when that is decided. So a message that arrives in between still gets a lower local timestamp and
delays the delivery (the convoy effect). With `eager`, the clock does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from multicast.consensus import Consensus
from multicast.errors import InvariantBroken, PeerViolation
from multicast.messages import Hint, LocalTimestamp, LocalTimestamps, Phase2a, Phase2b, Propose
from multicast.process import Replica
from multicast.protocol import Ready, Start
from multicast.skeen.entry import Entry
from multicast.types import (
    NO_TIMESTAMP,
    Destinations,
    GroupId,
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

    Clocks may always advance, so this is safe, and it shortens the convoy. The paper's protocols do not do
    it.
    """

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._handlers[Propose] = self.on_propose
        self._handlers[Phase2a] = self.on_phase_2a
        self._handlers[Phase2b] = self.on_phase_2b
        self.consensus = Consensus(self.me, self.configuration, self.timing)
        self.consensus.ready = self._ready
        self.proposals_due: dict[GroupId, list[Entry]] = {}
        """The proposals for the leaders of other groups, for the next PROPOSE."""
        self.answers_due: dict[ReplicaId, list[Entry]] = {}
        """The same for replicas that asked, whether they lead or not."""

    def new_entry(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> Entry:
        """Return an entry in START."""
        return Entry(mid, dest, payload, ack_below)

    def ready(self) -> Ready:
        """Drain what the host is to do."""
        ready = super().ready()
        self.consensus.ready = self._ready
        return ready

    def _flush(self) -> None:
        if self.proposals_due:
            due, self.proposals_due = self.proposals_due, {}
            for group, entries in due.items():
                self._send_propose(self.leader_of(group), entries)
        if self.answers_due:
            answers, self.answers_due = self.answers_due, {}
            for asker, entries in answers.items():
                self._send_propose(asker, entries)
        self.consensus.flush()

    # Figure skeen, at a leader

    def _send_proposal(self, entry: Entry) -> None:
        """Have the group decide the message's local timestamp."""
        entry.phase = ACCEPTED
        self.consensus.propose(_local_timestamp(entry))

    def _queue_propose(self, entry: Entry) -> None:
        """Queue a PROPOSE to the leaders of the other destinations."""
        due = self.proposals_due
        for group in entry.dest:
            if group != self.group:
                if group in due:
                    due[group].append(entry)
                else:
                    due[group] = [entry]

    def _send_propose(self, receiver: ReplicaId, entries: Sequence[Entry]) -> None:
        group, most = self.group, self.timing.part_entries
        for begin in range(0, len(entries), most):
            run = entries[begin : begin + most]
            message = Propose(
                group,
                self.cballot,
                tuple([entry.mid for entry in run]),
                tuple([entry.dest for entry in run]),
                tuple([entry.local_ts for entry in run]),
                tuple([entry.is_decided(group) for entry in run]),
            )
            self._ready.send.append(((receiver,), message))

    def on_propose(self, sender: ReplicaId, message: Propose) -> None:
        """Record the local timestamps that another destination proposes."""
        found = self._check_propose(sender, message)
        if self.status is LEADER:
            self._hear(found, sender, message)
        elif self.status is FOLLOWER:
            self._ready.send.append(((sender,), Hint(self.group, self.ballot)))
        self.note_ballot(message.group, message.ballot)

    def _check_propose(self, sender: ReplicaId, message: Propose) -> list[Entry | None]:
        """Return the messages' known entries. Raise, with nothing changed, if no leader sends this."""
        group, ballot, mids = message.group, message.ballot, message.mids
        columns = mids, message.dests, message.local_ts, message.decided
        if len(set(map(len, columns))) > 1 or not mids:
            raise PeerViolation(f"PROPOSE of {len(mids)} messages from {sender} has columns of wrong lengths")
        if not sender.group == group != self.group:
            raise PeerViolation(f"PROPOSE of {mids[0]} for group {group} came from {sender}")
        if ballot.leader != sender:
            raise PeerViolation(f"PROPOSE of {mids[0]} in ballot {ballot} came from {sender}")
        self.topology.check_ballot(group, ballot)
        found = list(map(self.entries.get, mids))
        for entry, (mid, dest, local_ts, decided) in zip(found, zip(*columns, strict=True), strict=True):
            if not local_ts or group_of(local_ts) != group:
                shown = format_timestamp(local_ts)
                raise PeerViolation(f"PROPOSE of {mid} at {shown} for group {group} came from {sender}")
            if entry is None:
                self.topology.check_destinations(dest)
                if self.group not in dest or group not in dest:
                    what = f"PROPOSE of {mid} to groups {dest}, by group {group}"
                    raise PeerViolation(f"{what}, came to group {self.group}")
            elif group not in entry.dest:
                raise PeerViolation(f"PROPOSE of {mid} to groups {entry.dest} came from {sender}")
            elif decided and entry.phase is not COMMITTED and entry.contradicts(group, local_ts):
                raise PeerViolation(f"{sender} says that its group decided another timestamp for {mid}")
        return found

    def _hear(self, found: Sequence[Entry | None], sender: ReplicaId, message: Propose) -> None:
        """Record proposals at a leader, and advance the messages that now have all of them."""
        group = message.group
        complete: list[Entry] = []
        for entry, mid, dest, local_ts, decided in zip(
            found, message.mids, message.dests, message.local_ts, message.decided, strict=True
        ):
            if entry is None:
                entry = self.entries.get(mid)  # the run may have named it before
                if entry is None:
                    entry = self._first_heard(mid, dest, group)
                    if entry is None:
                        continue
            if entry.phase is not COMMITTED:
                self._note(entry, sender, local_ts, decided=decided)
                if not entry.missing:
                    complete.append(entry)
        for entry in complete:
            self._advance(entry)
        self._deliver_committed()

    def _note(self, entry: Entry, sender: ReplicaId, local_ts: Timestamp, *, decided: bool) -> None:
        if not entry.note(sender.group, local_ts, decided=decided):
            raise PeerViolation(f"{sender} says that its group decided another timestamp for {entry.mid}")

    def _advance(self, entry: Entry) -> None:
        """Advance a message that has all local timestamps: let the clock pass their maximum, then commit."""
        if entry.missing or entry.phase is not ACCEPTED:
            return
        global_ts = max(entry.proposals)
        if self._must_pass(entry, global_ts):
            if self.eager:
                self._pass(global_ts)
            if entry.asked != global_ts:
                self._withdraw(entry)
                entry.asked = global_ts
                self.consensus.propose_clock(entry.mid, global_ts)
        elif not entry.undecided:
            self._withdraw(entry)
            entry.phase = COMMITTED
            entry.global_ts = global_ts
            self.queue.commit(entry.local_ts, global_ts)

    def _withdraw(self, entry: Entry) -> None:
        """Withdraw the proposal about the clock: a failed speculation, or not needed any more."""
        if entry.asked:
            self.consensus.withdraw(entry.mid, entry.asked)

    def _must_pass(self, entry: Entry, global_ts: Timestamp) -> bool:
        """Return whether the group has yet to decide that its clock passes this timestamp.

        The only destination of a message decided that together with the local timestamp.
        """
        return entry.passed < global_ts and len(entry.dest) > 1

    def _pass(self, ts: Timestamp) -> None:
        time = time_of(ts)
        if self.clock < time:
            self.clock = time

    def _repeat(self, entry: Entry, asker: Process) -> None:
        """Repeat what another leader may have missed; on our own retry, what our group may have missed."""
        if asker == self.me:
            self.consensus.repeat(_local_timestamp(entry))
            if entry.asked:
                self.consensus.repeat_clock(entry.mid, entry.asked)
            if self._may_speak(entry):
                self._queue_propose(entry)
            self._advance(entry)
            self._deliver_committed()
        elif isinstance(asker, ReplicaId) and self._may_speak(entry):
            self.answers_due.setdefault(asker, []).append(entry)

    def _may_speak(self, entry: Entry) -> bool:
        """Return whether our local timestamp may be sent to other groups."""
        return entry.is_decided(self.group)

    # Consensus

    def on_phase_2a(self, sender: Process, message: Phase2a) -> None:
        """Vote for our leader's proposals."""
        ballot = message.ballot
        leader = self._member(sender)
        if ballot.leader != leader:
            raise PeerViolation(f"{sender} speaks for ballot {ballot}, which it does not lead")
        self._check_2a(sender, message)
        if self.status is not FOLLOWER or ballot != self.cballot:
            if ballot < self.ballot:
                self._ready.send.append(((leader,), Hint(self.group, self.ballot)))
            return
        local, again = self._accept(message.local)
        for column in (message.local.local_ts, message.clocks.global_ts):
            self._pass(max(column, default=NO_TIMESTAMP))
        self.consensus.vote(ballot, local, message.clocks, again)

    def _check_2a(self, sender: Process, message: Phase2a) -> None:
        """Raise, with nothing changed, if no leader of this group proposes this."""
        for columns in (message.local, message.clocks):
            if len(set(map(len, columns))) > 1:
                raise PeerViolation(f"2A from {sender} has columns of wrong lengths")
        mids, dests, _, _, local_ts = message.local
        for mid, dest, ts in zip(mids, dests, local_ts, strict=True):
            self.topology.check_destinations(dest)
            if not (self.group in dest and ts and group_of(ts) == self.group):
                found = format_timestamp(ts)
                raise PeerViolation(f"{sender} proposes {found} for {mid} to groups {dest}")

    def _accept(self, local: LocalTimestamps) -> tuple[LocalTimestamps, list[MessageId]]:
        """Take over our leader's local timestamps. Return the new ones, and those already on our disk."""
        entries, orphans = self.entries, self.orphans
        new: list[LocalTimestamp] = []
        again: list[MessageId] = []
        for row in zip(*local, strict=True):
            mid, dest, payload, ack_below, local_ts = row
            entry = entries.get(mid)
            if entry is None:
                if mid in self.delivered_ids:
                    continue  # every destination has executed it, and so has our leader
                entry = entries[mid] = Entry(mid, dest, payload, ack_below)
            elif entry.phase is COMMITTED:
                if self._outdated(entry, local_ts):
                    continue
            elif entry.phase is ACCEPTED and entry.local_ts == local_ts:
                again.append(mid)
                continue
            else:
                orphans.pop(mid, None)
                entry.payload, entry.ack_below = payload, ack_below
            if entry.phase is not COMMITTED:
                entry.phase = ACCEPTED
                entry.local_ts = local_ts
            new.append(row)
        return (local if len(new) == len(local.mids) else LocalTimestamps.of(new)), again

    def _outdated(self, entry: Entry, local_ts: Timestamp) -> bool:
        """Return whether our leader's proposal differs from what was decided.

        We may have learned what a higher ballot decided; this ballot decides nothing any more.
        """
        return entry.local_ts != local_ts

    def on_phase_2b(self, sender: Process, message: Phase2b) -> None:
        """Count votes for our proposals, and act on what they decide."""
        local, clocks = self.consensus.on_2b(self._member(sender), message)
        entries, decided = self.entries, []
        for mid in local:
            entry = entries[mid]
            self._note(entry, self.me, entry.local_ts, decided=True)
            self._queue_propose(entry)
            decided.append(entry)
        for mid, global_ts in clocks:
            entry = entries[mid]
            self._pass(global_ts)
            entry.passed = max(entry.passed, global_ts)
            decided.append(entry)
        for entry in decided:
            self._advance(entry)
        if decided and self.status is LEADER:
            self._deliver_committed()

    def unfinished(self) -> list[MessageId]:
        """Return also the messages of undecided proposals."""
        return [*super().unfinished(), *self.consensus.asked_about()]

    # Changes of leader

    def _lead(self) -> None:
        """Lead. A quorum holds the ballot's initial state, so the local timestamps in it are decided."""
        self.consensus.lead(self.cballot, self.configuration)
        for entry in self.entries.values():
            if entry.phase is ACCEPTED:
                self._note(entry, self.me, entry.local_ts, decided=True)
        super()._lead()

    def _leave_ballot(self) -> None:
        self._flush()
        self.consensus.leave()
        super()._leave_ballot()


def _local_timestamp(entry: Entry) -> LocalTimestamp:
    """Return the value that the group decides for the message."""
    if entry.payload is None:
        raise InvariantBroken(f"{entry.mid} is proposed, but its payload is missing")
    return entry.mid, entry.dest, entry.payload, entry.ack_below, entry.local_ts


class EagerFtSkeen(FtSkeen):
    """Fault-tolerant Skeen whose clocks do not wait."""

    eager = True
