"""Delivery at every replica after 3δ: acknowledgements go to all processes of all destinations.

In the paper a follower delivers when its leader tells it to, one delay after the leader. Here every process
counts acknowledgements, and a follower delivers by itself; there is no DELIVER. It costs messages: in groups
of n, there are n times as many acknowledgements. docs/divergence.md (15) argues why this is safe.

A message may be delivered when no other can come before it. A leader knows what it has proposed; a follower
must know that it has heard of all of it:

- A leader acknowledges m once its clock is past m's global timestamp. What it proposes later comes after m;
  what it had proposed before, it had sent before its acknowledgement. So a follower counts quorums that have
  its *leader* in them, as a leader counts those that have itself in them.
- Connections break, and then something may be missing. Every ACCEPT to the own group says what its leader had
  proposed just before (`after`), every acknowledgement and heartbeat of a leader what it had proposed last
  (`issued`). A follower that has not heard of that is *blind*: it delivers nothing by itself, and catches up.
- Heartbeats say how far the leader has delivered, and the lowest local timestamp that it has yet to deliver.
  When that is above all that a follower may have missed, then what it may have missed is delivered at the
  leader; and once the follower has delivered as much, it sees again. A new ballot begins in the same way.
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
    """The white-box protocol, where followers deliver as soon as leaders."""

    def __init__(self, start: Start) -> None:
        self.heard = NO_TIMESTAMP
        """At a follower: up to where it knows what its leader has proposed in this ballot."""
        self.missed = NO_TIMESTAMP
        """At a follower: of what the leader proposed up to here, something may be unknown."""
        self.sees_from: Timestamp | None = None
        """At a follower: once it has delivered this much, it knows all that is yet to be delivered."""
        self.promised_upto: Timestamp | None = None
        """At a follower: what the leader had delivered at the heartbeat before the last."""
        self.overtaking: dict[MessageId, dict[ReplicaId, AckBallots]] = {}
        """At a follower: who has acknowledged, in these ballots, what nobody has proposed here yet."""
        super().__init__(start)
        self._follow()

    @property
    def answers_clients(self) -> bool:
        """Everyone is among the first. A client hears it first from whoever is nearest."""
        return self._counts()

    # What a leader says

    def _counts(self) -> bool:
        return self.status is LEADER or self.status is FOLLOWER

    def _counting(self, bal: BallotVector) -> Sequence[ReplicaId]:
        return bal.voters

    def _send_deliver(self, previous: Timestamp, run: Sequence[Decision]) -> None:
        """They know."""

    def _pending(self) -> tuple[Timestamp, Timestamp]:
        lowest = [entry.local_ts for entry in self.queue]
        return min(lowest, default=timestamp(self.clock + 1, self.group)), self.issued

    # What a follower hears

    def _follow(self) -> None:
        """A ballot begins, or goes on after a restart: know nothing of what its leader proposes."""
        self.heard = self.missed = NO_TIMESTAMP
        self.sees_from = self.promised_upto = None
        self.overtaking.clear()
        if self.status is FOLLOWER:
            self._requeue()

    def on_new_state(self, sender: Process, message: NewState) -> None:
        """Lines 58-63: the initial state has what is yet to be delivered of earlier ballots."""
        before = self.cballot
        super().on_new_state(sender, message)
        if self.cballot != before:
            self._follow()

    def _requeue(self) -> None:
        """What is yet to be delivered here, from the entries."""
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
        """What our leader has proposed for the message in this ballot, if anything."""
        at = entry.dest.index(self.group)
        return entry.proposals[at] if entry.ballots[at] == self.cballot else NO_TIMESTAMP

    def _hear(self, after: Timestamp, upto: Timestamp) -> None:
        """The leader has proposed this much, and what follows `after` we know."""
        if self.heard < after:
            self._miss(after)
        if self.heard < upto:
            self.heard = upto

    def _miss(self, upto: Timestamp) -> None:
        """Of what the leader has proposed up to here, something is unknown."""
        self.missed = max(self.missed, upto)
        self.sees_from = None

    def _check_accept(self, sender: ReplicaId, message: Accept) -> list[Entry | None]:
        """A local timestamp is given to one message only: the queue relies on it."""
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
        finally:  # also if it has to be repeated, since a configuration is not known here
            if own:
                self._await_all(message)
        if self.overtaking and self.status is FOLLOWER:
            self._count_overtaking(message.mids)

    def _await_all(self, message: Accept) -> None:
        for mid, local_ts in zip(message.mids, message.local_ts, strict=True):
            entry = self.entries.get(mid)
            if entry is None:
                self._miss(local_ts)  # it counts as delivered here, or its number does
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
        """Proposals come from others than acknowledgements: nobody would repeat these to a follower."""
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
        """See again, if what may be unknown is delivered at the leader."""
        if self._follows(message.ballot) and sender == self.cballot.leader:
            self._hear(message.issued, message.issued)
            if self.sees_from is None and message.lowest > self.missed:
                self.sees_from = message.last_delivered
            self._deliver_committed()
        super().on_heartbeat(sender, message)

    def _forget(self, mids: Iterable[MessageId]) -> None:
        """What our leader has proposed, and others have not for long, is unknown here again."""
        mids = tuple(mids)
        if self.status is FOLLOWER:
            for entry in map(self.entries.get, mids):
                if entry is not None and entry.phase is START and self._own_proposal(entry):
                    self._miss(self._own_proposal(entry))
        super()._forget(mids)

    def _is_late(self, upto: Timestamp) -> bool:
        """Whether we missed something. What the leader has just delivered may still be on its way to us."""
        before, self.promised_upto = self.promised_upto, upto
        return self.last_delivered < (before if self._sees() and before is not None else upto)

    def on_deliveries(self, sender: Process, message: Deliveries) -> None:
        """What we missed. It may be in our queue."""
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
        """Lines 22-24: a follower does so, too, if it sees."""
        if self.status is LEADER or self._sees():
            super()._deliver_committed()

    def _sees(self) -> bool:
        """At a follower: whether it knows all that may come next."""
        return self.sees_from is not None and self.last_delivered >= self.sees_from
