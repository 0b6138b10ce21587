"""Garbage collection: dropping delivered messages that no destination can ask for again.

E(h) is the highest watermark up to which a quorum of group h has durably executed. A delivered message is
dropped when its effects are durable here and E(h) has passed it for *every* destination h. A leader computes
its own group's E from heartbeat acknowledgements, sends it to its followers in heartbeats, and exchanges it
with the groups with which it still holds common messages. E is a fact: it stays true, whichever process
reports it.
"""

from __future__ import annotations

import itertools

from multicast.durable import Dropped
from multicast.errors import PeerViolation
from multicast.messages import Executed
from multicast.process.entry import E
from multicast.process.memories import Memories
from multicast.types import NO_TIMESTAMP, Destinations, GroupId, MessageId, Process, ReplicaId, Timestamp


class Collection(Memories[E]):
    """Watermarks of this group and of those it shares messages with."""

    def _learn_fact(self, group: GroupId, watermark: Timestamp) -> None:
        if watermark > self.facts.get(group, NO_TIMESTAMP):
            self.facts[group] = watermark

    def _compute_watermark(self) -> None:
        """Compute E(g0): the highest watermark that a quorum has reported in this ballot, and we have
        delivered.

        Reports of other ballots do not count: a later leader's quorum must contain a member that had
        executed that much *before* it promised. Nor does what members have executed and their leader has
        not delivered: the leader may still need the other groups to commit it. The leader's own report comes
        from its heartbeat's acknowledgement to itself, when its log has it.
        """
        reports = sorted(
            (self.reports.get(m, NO_TIMESTAMP) for m in self.configuration.members), reverse=True
        )
        self.executed_by_quorum = reports[self.configuration.quorum - 1]
        self._learn_fact(self.group, min(self.executed_by_quorum, self.last_delivered))

    def _exchange_watermarks(self) -> None:
        """Send our own group's watermark to the groups that we wait for, and ask for theirs."""
        wanted = {group for dest in self.retained for group in dest} - {self.group}
        for group in sorted(wanted):
            known = self.facts.get(group, NO_TIMESTAMP)
            message = Executed(self.group, self.facts.get(self.group, NO_TIMESTAMP), reply_wanted=True)
            stuck = self.asked_facts.get(group) == known
            self.asked_facts[group] = known
            receivers = self.topology.members(group) if stuck else (self.leader_of(group),)
            self._ready.send.append((receivers, message))

    def on_executed(self, sender: Process, message: Executed) -> None:
        """Learn another group's watermark, and answer with ours if the sender asks. Housekeeping uses it."""
        if not isinstance(sender, ReplicaId) or sender.group != message.group:
            raise PeerViolation(f"EXECUTED of group {message.group} came from {sender}")
        self._learn_fact(message.group, message.watermark)
        mine = self.facts.get(self.group, NO_TIMESTAMP)
        if message.reply_wanted and mine:
            self._ready.send.append(((sender,), Executed(self.group, mine, reply_wanted=False)))

    def _bound(self, dest: Destinations) -> Timestamp:
        """Return the position up to which messages to these destinations may be dropped."""
        get = self.facts.get
        return min([self.executed_ts, *[get(group, NO_TIMESTAMP) for group in dest]])

    def _collect(self) -> None:
        """Drop the messages that all their destinations have executed."""
        dropped: list[MessageId] = []
        for dest, bucket in list(self.retained.items()):
            if bucket and bucket[0].global_ts > self.executed_ts:
                continue
            bound = self._bound(dest)
            while bucket and bucket[0].global_ts <= bound:
                dropped.append(bucket.popleft().mid)
            if not bucket:
                del self.retained[dest]
        self._forget(dropped)
        while self.superseded and self.superseded[0][0] <= self.executed_ts:
            dropped.append(self.superseded.popleft()[1])
        if dropped:
            self._ready.persist.append(Dropped(tuple(dropped)))

    def _expire_orphans(self) -> None:
        """Drop other groups' proposals for messages that never arrived here: they will be repeated."""
        horizon = self.now - self.timing.orphan_s
        expired = list(itertools.takewhile(lambda mid: self.orphans[mid] <= horizon, self.orphans))
        for mid in expired:
            del self.orphans[mid]
        self._forget(expired)
