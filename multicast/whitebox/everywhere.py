"""Delivery at every replica after 3δ: acknowledgements go to all processes of all destinations.

In the paper a follower delivers on DELIVER of its leader, one delay after the leader. Here every process
counts acknowledgements, and a follower delivers by itself; there is no DELIVER. The price is messages: in
groups of n, there are n times as many acknowledgements. docs/divergence.md (15) argues why this is safe.

A message may be delivered when no other can precede it. A leader knows what it has proposed; a follower must
know that it has received all of its leader's proposals:

- A leader acknowledges m once its clock is past m's global timestamp. What it proposes later follows m; what
  it had proposed before, it had sent before its acknowledgement. So a follower counts quorums that include
  its *leader*, as a leader counts quorums that include itself.
- When a connection breaks, proposals may be lost. Every ACCEPT to the own group names what its leader had
  proposed just before (`after`), every acknowledgement and heartbeat of a leader what it had proposed last
  (`issued`). A follower that has not received that is *blind*: it delivers nothing by itself, and catches up.
- Heartbeats carry the leader's last delivery, and the lowest local timestamp that it has yet to deliver. When
  that is above all that a follower may have missed, then what it may have missed is delivered at the leader;
  and once the follower has delivered as much, it sees again. A new ballot begins in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from multicast.durable import Checkpoint
from multicast.errors import PeerViolation
from multicast.messages import Accept, AcceptAck, Decision, Deliveries, Heartbeat, NewState
from multicast.protocol import Start
from multicast.types import NO_TIMESTAMP, MessageId, Phase, Process, ReplicaId, Status, Timestamp, timestamp
from multicast.whitebox.entry import AckBallots, BallotVector, Entry
from multicast.whitebox.normal import CACHED_MAX, WhiteBox

START = Phase.START
ACCEPTED = Phase.ACCEPTED
COMMITTED = Phase.COMMITTED
LEADER = Status.LEADER
FOLLOWER = Status.FOLLOWER


class DeliverEverywhere(WhiteBox):
    """The white-box protocol, with followers that deliver as soon as leaders."""

    def __init__(self, start: Start) -> None:
        self.heard = NO_TIMESTAMP
        """At a follower: the last local timestamp of its leader in this ballot that it has heard of."""
        self.missed = NO_TIMESTAMP
        """At a follower: a proposal of its leader up to here may be unknown."""
        self.sees_from: Timestamp | None = None
        """At a follower: once it has delivered up to here, it knows all that is yet to be delivered."""
        self.promised_upto: Timestamp | None = None
        """At a follower: the leader's last delivery as of the heartbeat before the last."""
        self.overtaking: dict[MessageId, dict[ReplicaId, AckBallots]] = {}
        """At a follower: acknowledgements of messages that are not known here yet, with their ballots."""
        super().__init__(start)
        self._follow()

    @property
    def answers_clients(self) -> bool:
        """True at every process that counts: the nearest one answers a client first."""
        return self._counts()

    # At a leader

    def _counts(self) -> bool:
        return self.status is LEADER or self.status is FOLLOWER

    def _counting(self, bal: BallotVector) -> Sequence[ReplicaId]:
        return bal.voters

    def _send_deliver(self, previous: Timestamp, run: Sequence[Decision]) -> None:
        """Send nothing: followers deliver by themselves."""

    def _pending(self) -> tuple[Timestamp, Timestamp]:
        lowest = [entry.local_ts for entry in self.queue]
        return min(lowest, default=timestamp(self.clock + 1, self.group)), self.issued

    # At a follower

    def _follow(self) -> None:
        """Begin or resume a ballot, with nothing known of its leader's proposals."""
        self.heard = self.missed = NO_TIMESTAMP
        self.sees_from = self.promised_upto = None
        self.overtaking.clear()
        if self.status is FOLLOWER:
            self._requeue()

    def _break_silence(self) -> None:
        super()._break_silence()
        if not self.is_silent:
            self._follow()

    def on_new_state(self, sender: Process, message: NewState) -> None:
        """Lines 58-63: the initial state has what is yet to be delivered of earlier ballots."""
        before = self.cballot
        super().on_new_state(sender, message)
        if self.cballot != before:
            self._follow()

    def _requeue(self) -> None:
        """Rebuild the queue of what is yet to be delivered here from the entries."""
        self.queue.clear()
        for entry in self.entries.values():
            if entry.phase is COMMITTED:
                if not entry.delivered:
                    self.queue.add_committed(entry.global_ts, entry)
            elif entry.phase is ACCEPTED:
                self.queue.propose(entry.local_ts, entry)
            elif local_ts := self._own_proposal(entry):
                self.queue.propose(local_ts, entry)

    def _own_proposal(self, entry: Entry) -> Timestamp:
        """Return our leader's proposal for the message in this ballot, or bottom."""
        at = entry.dest.index(self.group)
        return entry.proposals[at] if entry.ballots[at] == self.cballot else NO_TIMESTAMP

    def _hear(self, after: Timestamp, upto: Timestamp) -> None:
        """Record that the leader has proposed up to `upto`, of which we know all that follows `after`."""
        if self.heard < after:
            self._miss(after)
        if self.heard < upto:
            self.heard = upto

    def _miss(self, upto: Timestamp) -> None:
        """Become blind: a proposal of the leader up to here may be unknown."""
        self.missed = max(self.missed, upto)
        self.sees_from = None

    def _check_accept(self, sender: ReplicaId, message: Accept) -> list[Entry | None]:
        """Also reject a local timestamp that another message has: the queue relies on uniqueness."""
        found = super()._check_accept(sender, message)
        if self._follows(message.ballot):
            named = dict(zip(message.local_ts, message.mids, strict=True))
            for mid, local_ts in zip(message.mids, message.local_ts, strict=True):
                holder = self.queue.holder(local_ts)
                if named[local_ts] != mid or (holder is not None and holder.mid != mid):
                    what = f"ACCEPT of {mid} has the local timestamp of another message"
                    raise PeerViolation(f"{what}; it came from {sender}")
        return found

    def _gather(self, found: Sequence[Entry | None], message: Accept) -> None:
        own = message.group == self.group and self.status is FOLLOWER
        if own:
            self._hear(message.after, max(message.local_ts))
        try:
            super()._gather(found, message)
        finally:  # also if the ACCEPT must be repeated, since a configuration is unknown here
            if own:
                self._await_all(message)
        if self.overtaking and self.status is FOLLOWER:
            self._count_overtaking(message.mids)

    def _await_all(self, message: Accept) -> None:
        for mid, local_ts in zip(message.mids, message.local_ts, strict=True):
            entry = self.entries.get(mid)
            if entry is None:
                self._miss(local_ts)  # the message, or its number, counts as delivered here
            elif entry.phase is not COMMITTED and self.queue.holder(local_ts) is not entry:
                self.queue.propose(local_ts, entry)

    def _count(self, sender: ReplicaId, message: AcceptAck, acked_in: AckBallots) -> None:
        """Lines 18-24, at every process."""
        if self.status is FOLLOWER and sender == self.cballot.leader:
            self._hear(message.issued, message.issued)
        super()._count(sender, message, acked_in)
        if self.status is FOLLOWER:
            self._keep_overtaking(sender, message, acked_in)

    def _keep_overtaking(self, sender: ReplicaId, message: AcceptAck, acked_in: AckBallots) -> None:
        """Keep acknowledgements that overtake proposals: no process repeats them to a follower."""
        for mid in message.mids:
            if mid not in self.entries and not self.delivered_ids.find(mid):
                if len(self.overtaking) >= CACHED_MAX:
                    self.overtaking.clear()
                self.overtaking.setdefault(mid, {})[sender] = acked_in

    def _count_overtaking(self, mids: Sequence[MessageId]) -> None:
        for mid in mids:
            for sender, acked_in in self.overtaking.pop(mid, {}).items():
                super()._count(sender, AcceptAck((mid,), sender.group, ()), acked_in)

    def on_heartbeat(self, sender: Process, message: Heartbeat) -> None:
        """See again, if all that may be unknown here is delivered at the leader."""
        if self._follows(message.ballot) and sender == self.cballot.leader:
            self._hear(message.issued, message.issued)
            if self.sees_from is None and message.lowest > self.missed:
                self.sees_from = message.last_delivered
            self._deliver_committed()
        super().on_heartbeat(sender, message)

    def _forget(self, mids: Iterable[MessageId]) -> None:
        """Drop messages. A proposal of our leader that expires with an entry is unknown here again."""
        mids = tuple(mids)
        if self.status is FOLLOWER:
            for entry in map(self.entries.get, mids):
                if entry is not None and entry.phase is START and self._own_proposal(entry):
                    self._miss(self._own_proposal(entry))
        super()._forget(mids)

    def _is_late(self, upto: Timestamp) -> bool:
        """Return whether we missed a delivery. The leader's newest ones may still be on their way here."""
        before, self.promised_upto = self.promised_upto, upto
        return self.last_delivered < (before if self._sees() and before is not None else upto)

    def on_deliveries(self, sender: Process, message: Deliveries) -> None:
        """Apply what we missed, some of which may be in the queue."""
        super().on_deliveries(sender, message)
        if self.status is FOLLOWER:
            self._requeue()
            self._deliver_committed()

    def install(self, checkpoint: Checkpoint, now: float) -> bool:
        """Jump to a snapshot's position."""
        taken = super().install(checkpoint, now)
        if taken and self.status is FOLLOWER:
            self._requeue()
        return taken

    def _deliver_committed(self) -> None:
        """Lines 22-24, at a follower too, if it sees."""
        if self.status is LEADER or self._sees():
            super()._deliver_committed()

    def _sees(self) -> bool:
        """Return, at a follower, whether it knows all messages that may be next."""
        return self.sees_from is not None and self.last_delivered >= self.sees_from
