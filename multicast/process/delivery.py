"""Delivery: one path for leaders, followers and recovery, and catching up where the chain has a gap.

A follower applies DELIVER only if it names the follower's own last delivery as its predecessor; otherwise the
follower asks for what it missed. Deliveries are facts, so any replica that retains them may serve them, and a
process in any status but LEADER may apply them.
"""

from __future__ import annotations

import abc
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from multicast.durable import Checkpoint, Learned
from multicast.errors import InvariantBroken, PeerViolation
from multicast.history import DeliveryHistory
from multicast.messages import CatchUp, Decision, Deliver, Deliveries, Delivery
from multicast.process.entry import E
from multicast.process.state import State
from multicast.quorum_time import ANCHOR, OWN_CLIENTS
from multicast.types import Ballot, Destinations, Phase, Process, ReplicaId, Status, Timestamp, time_of

START = Phase.START
ACCEPTED = Phase.ACCEPTED
COMMITTED = Phase.COMMITTED

ASKED_S: Final = 10.0
"""How long an answer to a CATCH_UP is awaited. A replica that is behind repeats it every `retry_s`."""

_new_delivery: Final[Callable[[tuple[Any, ...]], Delivery]] = partial(tuple.__new__, Delivery)
"""Make a `Delivery` as `Delivery._make` does, in half the time: without Python code."""


class DeliveryPath(State[E]):
    """Deliver in order, and close gaps."""

    def _deliver_committed(self) -> None:
        """Lines 22-24 and 67-69: at a leader, deliver what may be delivered, by global timestamp."""
        previous, numbers, pop = self.last_delivered, self.numbers, self.queue.pop
        entries: list[E] = []
        run: list[Decision] = []
        while (entry := pop()) is not None:
            mid = entry.mid
            numbers.pop(mid[:2], None)
            entries.append(entry)
            run.append((mid, entry.local_ts, entry.global_ts))
        if run:
            self._deliver(entries, run)
            self._send_deliver(previous, run)

    def _send_deliver(self, previous: Timestamp, run: Sequence[Decision]) -> None:
        """Lines 24 and 69: send DELIVER to the followers."""
        if self.others:
            self._ready.send.append((self.others, Deliver(self.cballot, previous, tuple(run))))

    def on_deliver(self, sender: ReplicaId, message: Deliver) -> None:
        """Lines 25-32, with the chain of departure 3."""
        if message.ballot.leader != sender:
            raise PeerViolation(f"DELIVER in ballot {message.ballot} came from {sender}, not from its leader")
        if not self._follows(message.ballot):
            return
        previous, last, get = message.previous_ts, self.last_delivered, self.entries.get
        entries: list[E] = []
        run: list[Decision] = []
        gap = False
        for decision in message.run:
            global_ts = decision[2]
            if global_ts > last:
                entry = get(decision[0])
                gap = previous != last or entry is None or entry.payload is None
                if gap or entry is None:
                    break
                entries.append(entry)
                run.append(decision)
                last = global_ts
            previous = global_ts
        self._deliver(entries, run)
        if gap:
            self._catch_up(sender)

    def _deliver(self, entries: Sequence[E], run: Sequence[Decision]) -> None:
        """deliver(m): the only place where messages are delivered."""
        previous, add, retained = self.last_delivered, self.delivered_ids.add, self.retained
        deliveries: list[Delivery] = []
        changes: list[bytes] = []
        bucket: deque[E] = deque()
        bucket_dest: Destinations = ()
        for entry, (mid, local_ts, global_ts) in zip(entries, run, strict=True):
            dest, payload, ack_below = entry.dest, entry.payload, entry.ack_below
            if payload is None:
                raise InvariantBroken(f"{mid} is to be delivered, but its payload is missing")
            if entry.phase is START:
                self.orphans.pop(mid, None)
            entry.phase = COMMITTED
            entry.local_ts = local_ts
            entry.global_ts = global_ts
            entry.delivered = True
            mismatch = add(mid, ack_below)
            row = mid, dest, payload, ack_below, local_ts, global_ts, previous, mismatch
            deliveries.append(_new_delivery(row))
            previous = global_ts
            if dest is not bucket_dest:
                bucket, bucket_dest = retained.setdefault(dest, deque()), dest
            bucket.append(entry)
            if mid.client in OWN_CLIENTS and not mismatch:
                if mid.client == ANCHOR:
                    self.anchor.deliver(mid.sequence, self.now)
                else:
                    changes.append(payload)
        self.last_delivered = previous
        self.clock = max(self.clock, time_of(previous))
        self.history.extend(deliveries)
        self._ready.persist += deliveries
        self._ready.deliver += deliveries
        for change in changes:
            self._learn(self.membership.after(change))

    def _catch_up(self, source: ReplicaId) -> None:
        """Ask a replica for what follows the last delivery here, once per time-out."""
        if self.now >= self.asked_until:
            self.asked_until = self.now + self.timing.retry_s
            if source not in self.asked:
                self._transfer += 1
            number, _ = self.asked.get(source, (self._transfer, 0.0))
            self.asked[source] = number, self.now
            self._ready.send.append(((source,), CatchUp(self.last_delivered, number)))

    def _has_asked(self, source: ReplicaId) -> bool:
        """Return whether we have asked the replica for what we missed, within ASKED_S."""
        _, at = self.asked.get(source, (0, -math.inf))
        return self.now - at < ASKED_S

    def awaits(self, source: ReplicaId, number: int, now: float) -> bool:
        """Return whether we have asked the replica for a snapshot of this number, within ASKED_S."""
        asked, at = self.asked.get(source, (None, 0.0))
        return asked == number and now - at < ASKED_S

    def on_catch_up(self, sender: Process, message: CatchUp) -> None:
        """Serve what the history retains; beyond it, the host must send a snapshot or deliveries."""
        replica = self._member(sender)
        if message.after >= self.last_delivered:
            return
        found = self.history.after(message.after, self.timing.part_entries, self.timing.part_bytes)
        if found:
            self._ready.send.append(((replica,), Deliveries(found, self.last_delivered)))
        else:
            self._ready.transfers.append((replica, message.after, message.number))

    def on_deliveries(self, sender: Process, message: Deliveries) -> None:
        """Apply a run of the group's deliveries, for which we have asked, where it continues the own ones."""
        replica = self._member(sender)
        for delivery in message.deliveries:
            if not delivery.previous_ts < delivery.global_ts >= delivery.local_ts:
                raise PeerViolation(f"{sender} delivered {delivery.mid} at {delivery.global_ts}")
        if self.status is Status.LEADER or not self._has_asked(replica):
            return
        for delivery in message.deliveries:
            if delivery.global_ts <= self.last_delivered:
                continue
            if delivery.previous_ts != self.last_delivered:
                break
            entry = self.entries.get(delivery.mid)
            if entry is None:
                entry = self.new_entry(delivery.mid, delivery.dest, delivery.payload, delivery.ack_below)
                self.entries[delivery.mid] = entry
            entry.payload = delivery.payload
            entry.ack_below = delivery.ack_below
            self._deliver((entry,), ((delivery.mid, delivery.local_ts, delivery.global_ts),))
        self.asked_until = 0.0
        if message.last_delivered > self.last_delivered:
            self._catch_up(replica)
        self._caught_up()

    def takes(self, checkpoint: Checkpoint) -> bool:
        """Return whether the checkpoint is ahead. Never undo reported executions: others rely on them."""
        return (
            self.status is not Status.LEADER
            and checkpoint.position > self.last_delivered
            and checkpoint.executed >= self.executed_ts
        )

    def install(self, checkpoint: Checkpoint, now: float) -> bool:
        """Jump to a snapshot's position, and take over what its source still retains for other groups."""
        if not self.takes(checkpoint):
            return False
        self.now = now
        persist = self._ready.persist
        self._ready.deliver.clear()  # the snapshot contains all that was not yet drained
        self.asked.clear()  # what was asked for has come: a second snapshot needs a second question
        self.last_delivered = checkpoint.position
        self.delivered_ids = checkpoint.delivered.copy()
        self.anchor.deliver(self.delivered_ids.low(ANCHOR), now)
        if checkpoint.membership is not None:
            self._learn(checkpoint.membership)
        self.history = DeliveryHistory(self.timing.history, self.timing.history_bytes)
        self.clock = max(self.clock, time_of(self.last_delivered))
        taken = {state.mid for state in checkpoint.entries}
        for mid, entry in list(self.entries.items()):
            if mid in self.delivered_ids and mid not in taken and not entry.delivered:
                # The source had collected it, so every destination has executed it. The disk keeps the
                # acceptance until the snapshot is durable here.
                self._forget((mid,))
                self.orphans.pop(mid, None)
                if entry.phase >= ACCEPTED:
                    self.superseded.append((checkpoint.position, mid))
        for state in checkpoint.entries:
            persist.append(Learned(state))
            self.orphans.pop(state.mid, None)
            entry = self.entries.get(state.mid) or self._entry(state)
            self.entries[state.mid] = entry
            entry.take(state)
            entry.delivered = True
        self._rebuild_retained()
        self.asked_until = 0.0
        self._caught_up()
        return True

    def _follows(self, ballot: Ballot) -> bool:
        """Return whether this process follows the leader of the ballot."""
        return self.status is Status.FOLLOWER and ballot == self.cballot

    @abc.abstractmethod
    def _caught_up(self) -> None:
        """Continue recovery, if it waits for deliveries that have now arrived."""

    def _member(self, sender: Process) -> ReplicaId:
        """Return the sender if it is or was a member of the own group. Votes need a stricter check."""
        if isinstance(sender, ReplicaId) and sender.group == self.group and sender in self.topology:
            return sender
        raise PeerViolation(f"{sender} is not a member of group {self.group}")
