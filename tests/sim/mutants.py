"""Sabotages of the protocols, each in a line or two. The simulator must catch every one of them.

Those of what all protocols share are put on top of a protocol with `of`.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from multicast import messages as msg
from multicast import types as t
from multicast.delivered import DeliveredIds
from multicast.durable import Checkpoint, Dropped
from multicast.membership import Membership
from multicast.process import Replica
from multicast.process.recovery import Promise
from multicast.protocol import Protocol, Ready, Start
from multicast.queue import DeliveryQueue
from multicast.whitebox import Entry, WhiteBox
from multicast.whitebox.entry import BallotVector

Shared: TypeAlias = Replica[Any]


def of(mutant: type[Any], protocol: type[Protocol]) -> type[Protocol]:
    """The protocol with this sabotage of what it shares with others."""
    return type(f"{protocol.__name__}-{mutant.__name__}", (mutant, protocol), {"__module__": __name__})


class NoClockUpdateOnAccept(WhiteBox):
    """Line 15 is skipped: the clock is not moved past the proposals."""

    def _accept(self, run: Sequence[Entry], repeated: t.GroupId | None) -> None:
        clock = self.clock
        super()._accept(run, repeated)
        self.clock = clock


class AcceptInStaleBallot(WhiteBox):
    """Line 11 is skipped: an ACCEPT of an older ballot is taken too."""

    def on_accept(self, sender: t.ReplicaId, message: msg.Accept) -> None:
        cballot = self.cballot
        if message.group == self.group and message.ballot < cballot:
            self.cballot = message.ballot
        super().on_accept(sender, message)
        self.cballot = cballot


class MismatchingVectors(WhiteBox):
    """Line 18: acknowledgements of other ballots are counted for the current ones."""

    def on_accept_ack(self, sender: t.ReplicaId, message: msg.AcceptAck) -> None:
        for mid in message.mids:
            entry = self.entries.get(mid)
            known = message.ballots if entry is None or entry.bal is None else entry.bal.vector
            super().on_accept_ack(sender, msg.AcceptAck((mid,), message.group, known))


class AcknowledgesInTheNewestBallots(WhiteBox):
    """Line 17: what was accepted together is acknowledged in one ballot of each group, the newest of them."""

    def _send_accept_ack(self, acked: dict[BallotVector, list[t.MessageId]]) -> None:
        newest: dict[t.GroupId, t.Ballot] = {}
        for bal in acked:
            for group, ballot in zip(bal.dest, bal.vector, strict=True):
                newest[group] = max(ballot, newest.get(group, ballot))
        together: dict[BallotVector, list[t.MessageId]] = {}
        for bal, mids in acked.items():
            together.setdefault(self._bal(tuple(newest[group] for group in bal.dest)), []).extend(mids)
        super()._send_accept_ack(together)


class OwnAcknowledgementNotRequired(WhiteBox):
    """Line 18: the quorum of the own group need not include the leader."""

    def _is_agreed(self, bal: BallotVector, votes: int) -> bool:
        return super()._is_agreed(bal, votes | bal.own)


class AcceptedFromAnyBallot(Shared):
    """Line 52: ACCEPTED is taken from every promise, not only from those of the highest cballot."""

    def _merge(self, promises: Sequence[Promise]) -> dict[t.MessageId, msg.EntryState]:
        highest = max(promise.cballot for promise in promises)
        return super()._merge([dataclasses.replace(promise, cballot=highest) for promise in promises])


class ClockNotRecovered(Shared):
    """Line 55: the new leader keeps its own clock instead of the highest."""

    def _recovered_clock(self, promises: Sequence[Promise]) -> int:
        return 0


class LeadsBeforeNewStateAck(Shared):
    """Lines 64-65: normal operation starts before a quorum is in sync."""

    def _send_new_state(self, receivers: tuple[t.ReplicaId, ...]) -> None:
        super()._send_new_state(receivers)
        if self.campaign is not None and self.campaign.merged:
            self._lead()


class ResumesOldBallot(Shared):
    """Departure 1: a restarted leader goes on in the ballot it led."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._resume()

    def _break_silence(self) -> None:
        super()._break_silence()
        self._resume()

    def _resume(self) -> None:
        if self.ballot == self.cballot and self.ballot.leader == self.me and not self.is_silent:
            self._lead()


class AcknowledgesBeforeDurable(Shared):
    """The contract: promises leave at once, whatever the disk does."""

    def ready(self) -> Ready:
        ready = super().ready()
        ready.send += ready.promise
        ready.promise = []
        return ready


class NoDeliveryChain(Shared):
    """Departure 3: DELIVER is applied whatever was delivered before it."""

    def on_deliver(self, sender: t.ReplicaId, message: msg.Deliver) -> None:
        for decision in message.run:
            super().on_deliver(sender, msg.Deliver(message.ballot, self.last_delivered, (decision,)))


class CollectsOnOwnGroupsQuorum(Shared):
    """Departure 5: the other destinations' watermarks are not waited for."""

    def _bound(self, dest: t.Destinations) -> t.Timestamp:
        return super()._bound((self.group,))


class CollectsOnOwnDurability(Shared):
    """Departure 5: no group's watermark is waited for."""

    def _bound(self, dest: t.Destinations) -> t.Timestamp:
        return super()._bound(())


class CandidateDoesNotCatchUp(Shared):
    """Departure 5: NEW_STATE is sent without executing what others in the quorum have executed."""

    def on_new_leader_ack(self, sender: t.Process, message: msg.NewLeaderAck) -> None:
        super().on_new_leader_ack(sender, dataclasses.replace(message, executed=t.NO_TIMESTAMP))


class KeepsDeliveredEntries(Shared):
    """Departure 5: recovered entries are kept although their ids have been delivered."""

    def _merge(self, promises: Sequence[Promise]) -> dict[t.MessageId, msg.EntryState]:
        known, self.delivered_ids = self.delivered_ids, DeliveredIds()
        merged = super()._merge(promises)
        self.delivered_ids = known
        return merged

    def _adopt(self, ballot: t.Ballot, clock: int, states: dict[t.MessageId, msg.EntryState]) -> None:
        known, self.delivered_ids = self.delivered_ids, DeliveredIds()
        super()._adopt(ballot, clock, states)
        self.delivered_ids = known


class OrdersCollectedAgain(WhiteBox):
    """Departure 6: a repeated message is ordered again once its entry has been collected."""

    def on_multicast(self, sender: t.Process, message: msg.Multicast) -> None:
        known, self.delivered_ids = self.delivered_ids, DeliveredIds()
        super().on_multicast(sender, message)
        self.delivered_ids = known

    def on_accept(self, sender: t.ReplicaId, message: msg.Accept) -> None:
        known, self.delivered_ids = self.delivered_ids, DeliveredIds()
        super().on_accept(sender, message)
        self.delivered_ids = known


class ForgetsPromise(Shared):
    """Departure 1: a follower that restarts goes on in cballot, although it has promised more."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        if self.cballot < self.ballot and self.cballot != t.NO_BALLOT and self.cballot.leader != self.me:
            self.ballot = self.cballot
            self.status = t.Status.FOLLOWER


class AppliesNewStateTwice(Shared):
    """Departure 1: a repeated NEW_STATE is applied again."""

    def on_new_state(self, sender: t.Process, message: msg.NewState) -> None:
        if message.ballot == self.cballot and self.status is t.Status.FOLLOWER:
            self.cballot = t.NO_BALLOT
        super().on_new_state(sender, message)


class JoinsWithPartOfNewState(Shared):
    """Departure 1: the first piece of a NEW_STATE is taken for all of it."""

    def on_new_state(self, sender: t.Process, message: msg.NewState) -> None:
        part = msg.StatePart(message.part.transfer, 0, 1)
        super().on_new_state(sender, dataclasses.replace(message, part=part))


class _IgnoresAccepted(DeliveryQueue[Entry]):
    def pop(self) -> Entry | None:
        proposed = [entry.local_ts for entry in self.uncommitted() if entry.phase is t.Phase.PROPOSED]
        if not self._committed or (proposed and proposed[0] <= self._committed[0][0]):
            return None
        return heapq.heappop(self._committed)[2]


class DeliveryIgnoresAccepted(WhiteBox):
    """Line 22: only PROPOSED messages hold back delivery."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.queue = _IgnoresAccepted()


class _AnyOne(Membership):
    def agrees(self, replicas: Collection[t.ReplicaId]) -> bool:
        return True


class MergesAMinority(Shared):
    """Line 43, and departure 10: the candidate does not wait for a quorum of promises."""

    def _try_merge(self) -> None:
        if self.campaign is not None:
            self.campaign.electorate = _AnyOne(self.campaign.electorate.current)
        super()._try_merge()


class KeepsOldMaximum(WhiteBox):
    """Departure 10: a re-proposed, lower local timestamp does not replace the old one."""

    def on_accept(self, sender: t.ReplicaId, message: msg.Accept) -> None:
        if message.group != self.group:
            entries = [self.entries.get(mid) for mid in message.mids]
            known = [
                t.NO_TIMESTAMP if entry is None else entry.proposals[entry.dest.index(message.group)]
                for entry in entries
            ]
            message = dataclasses.replace(message, local_ts=tuple(map(max, known, message.local_ts)))
        super().on_accept(sender, message)


class NeverRetries(Shared):
    """Departure 2: no leader multicasts a message again."""

    def retry(self, entry: Any) -> None:
        pass


class SnapshotWithoutRetained(Shared):
    """Departure 4: a snapshot leaves out what other groups may still ask for."""

    def checkpoint(self) -> Checkpoint:
        return dataclasses.replace(super().checkpoint(), entries=())


class WatermarkAheadOfItsLeader(Shared):
    """Departure 5: E counts what members have executed, whether or not their leader has delivered it."""

    def _compute_watermark(self) -> None:
        last, self.last_delivered = self.last_delivered, max([self.last_delivered, *self.reports.values()])
        super()._compute_watermark()
        self.last_delivered = last


class NumbersPiecesAnewInEachLife(Shared):
    """Departure 1: pieces of states sent before and after a restart can be taken for one state."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._transfer = 0


class ReplacesWhatWasDecided(WhiteBox):
    """Departure 4: a late proposal of a lower ballot replaces a decision learned from another replica."""

    def _outdated(self, entry: Entry, own: t.Timestamp) -> bool:
        return False


class ForgetsWhatItDelivered(Shared):
    """A ballot begins without what its leader has delivered, durable or not."""

    def _merge(self, promises: Sequence[Promise]) -> dict[t.MessageId, msg.EntryState]:
        merged = super()._merge(promises)
        return {mid: state for mid, state in merged.items() if mid not in self.delivered_ids}

    def held(self) -> list[msg.EntryState]:
        delivered = self.campaign is not None and self.campaign.merged
        return [state for state in super().held() if not delivered or state.mid not in self.delivered_ids]


class ReportsNothingExecuted(Shared):
    """A promise leaves out what its member has executed, although no quorum may have."""

    def held(self) -> list[msg.EntryState]:
        return [
            state
            for state in super().held()
            if not self.entries[state.mid].delivered or state.global_ts > self.executed_ts
        ]


class ReportsWhatIsOnlyDelivered(Shared):
    """Departure 5: what is durably delivered is reported as executed."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.executed_ts = start.checkpoint.position


class CollectsWhatIsOnlyDelivered(Shared):
    """Departure 5: a process waits for the others to execute, but not for itself."""

    def _collect(self) -> None:
        executed, self.executed_ts = self.executed_ts, self.last_delivered
        super()._collect()
        self.executed_ts = executed


class TakesBackWhatItExecuted(Shared):
    """Departure 5: a snapshot is taken that has executed less than was reported."""

    def takes(self, checkpoint: Checkpoint) -> bool:
        return self.status is not t.Status.LEADER and checkpoint.position > self.last_delivered


# Membership


class OpensABallotWithOneQuorum(Shared):
    """Departure 8: in a change, a candidate does not ask the previous configuration."""

    def recover(self) -> None:
        super().recover()
        if self.campaign is not None:
            self.campaign.electorate = self.campaign.electorate.completed()

    def _stand(self) -> None:
        known = self.membership
        self.topology.memberships[self.group] = known.completed()
        super()._stand()
        self.topology.memberships[self.group] = known


class PromisesToAnOldConfiguration(Shared):
    """Departure 8: ballots of an older configuration are not refused."""

    def _is_outdated(self, ballot: t.Ballot) -> bool:
        return False


class CompletesAtOnce(Shared):
    """Departure 8: a change completes before a quorum of it has executed what may have been collected."""

    def _is_executed(self) -> bool:
        return True


class _Hasty(Membership):
    """Takes every later step for the next one."""

    def __init__(self, known: Membership) -> None:
        super().__init__(known.current, known.previous)

    def after(self, step: bytes) -> Membership:
        found = Membership.decode(step)
        return _Hasty(found) if found.version > self.version else self


class ChangesTwiceAtOnce(Shared):
    """Departure 8: the next change does not wait until the last one is complete."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.topology.memberships[self.group] = _Hasty(self.membership)

    def _may_change(self) -> bool:
        return self.status is t.Status.LEADER

    def _follow_changes(self) -> None:
        """Nothing: the changes come faster than the leader looks for them."""

    def _learn(self, membership: Membership) -> bool:
        return super()._learn(_Hasty(membership) if membership.group == self.group else membership)


class SnapshotOverwritesWhatWasAccepted(Shared):
    """Departure 4: a snapshot replaces also what it does not know of."""

    def install(self, checkpoint: Checkpoint, now: float) -> bool:
        taken = super().install(checkpoint, now)
        if taken:
            undelivered = [e.mid for e in self.entries.values() if e.phase is t.Phase.ACCEPTED]
            self._forget(undelivered)
            self._ready.persist.append(Dropped(tuple(undelivered)))
        return taken


class CountsByTheFirstConfiguration(WhiteBox):
    """Departure 8: acknowledgements are counted by the configuration that a group began with."""

    def on_accept_ack(self, sender: t.ReplicaId, message: msg.AcceptAck) -> None:
        if sender in self.topology.configuration(sender.group, 0).bit:
            super().on_accept_ack(sender, message)


class ActsBeforeItIsAMember(Shared):
    """Departure 7: a replica on a new disk takes the place of the lost one by itself."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        known = self.membership.current
        old = next(member for member in known.members if member.number == self.me.number)
        if old != self.me:
            self.topology.learn(self.membership.replace(old, self.me, ""))
            self.topology.learn(self.membership.completed())


class IgnoresMemories(Shared):
    """Departure 22: a replica does not ask what others remember of it, nor listen when they say it."""

    def __init__(self, start: Start) -> None:
        start.trusts_log = True
        super().__init__(start)

    def compare_count(self, count: int, member: t.ReplicaId) -> None:
        pass


class RemembersInMemoryOnly(Shared):
    """Departure 22: the counts of others are not kept in the log."""

    def _keep_memories(self) -> None:
        pass


class IsSureAfterOneAnswer(Shared):
    """Departure 22: a replica that restarts takes part as soon as one member remembers no more."""

    def on_recalled(self, sender: t.Process, message: msg.Recalled) -> None:
        super().on_recalled(sender, message)
        if self.is_doubting and self.recalled:
            self.is_doubting = False
            self._break_silence()


class TellsItsCountTooSoon(Shared):
    """Departure 22: a leader tells its own count before it is durable."""

    def known_counts(self) -> tuple[int, ...]:
        self.memories[self.me] = self.count
        return super().known_counts()


class ChangesBeforeTheLastIsComplete(Shared):
    """Departure 8: the next change is proposed while the last one is not complete, and uses up a number. Who
    is well is not asked either: while the last newcomer is empty, no quorum is.
    """

    def _may_change(self) -> bool:
        return self.status is t.Status.LEADER and self._is_current()

    def _is_well_without(self, old: t.ReplicaId) -> bool:
        return True
