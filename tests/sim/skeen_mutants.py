"""Sabotages of consensus, fault-tolerant Skeen and FastCast. The simulator must catch every one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from multicast.consensus import Consensus
from multicast.delivered import DeliveredIds
from multicast.durable import Voted
from multicast.messages import Instance, Multicast, Phase2a, Phase2b, Propose
from multicast.protocol import Ready, Start
from multicast.skeen import Entry, FastCast, FtSkeen
from multicast.types import MessageId, Process, ReplicaId, Timestamp, time_of


def _as_if_decided(message: Propose) -> Propose:
    return dataclasses.replace(message, decided=(True,) * len(message.mids))


class DeliversBeforeTheClockIsDecided(FtSkeen):
    """No leader waits until the group's clock has passed the global timestamp."""

    def _must_pass(self, entry: Entry, global_ts: Timestamp) -> bool:
        return False


class VotesInStaleBallot(FtSkeen):
    """A member votes in a ballot below the one it follows."""

    def on_phase_2a(self, sender: Process, message: Phase2a) -> None:
        cballot = self.cballot
        if message.ballot < cballot:
            self.cballot = message.ballot
        super().on_phase_2a(sender, message)
        self.cballot = cballot


class BreaksItsPromise(FtSkeen):
    """A member that has promised a higher ballot still votes in the one it followed."""

    def on_phase_2a(self, sender: Process, message: Phase2a) -> None:
        status = self.status
        if message.ballot == self.cballot and not self.is_leader and self.campaign is None:
            self.status = type(status).FOLLOWER
        super().on_phase_2a(sender, message)
        self.status = status


class _Box(Consensus):
    def __init__(self, process: FtSkeen) -> None:
        super().__init__(process.me, process.configuration, process.timing)
        self.ready = process.consensus.ready


class _Minority(_Box):
    def on_2b(self, member: ReplicaId, message: Phase2b) -> tuple[list[MessageId], list[Instance]]:
        quorum, self._configuration.quorum = self._configuration.quorum, 1
        decided = super().on_2b(member, message)
        self._configuration.quorum = quorum
        return decided


class DecidesWithAMinority(FtSkeen):
    """One vote is enough."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.consensus = _Minority(self)


class _AnyBallot(_Box):
    def on_2b(self, member: ReplicaId, message: Phase2b) -> tuple[list[MessageId], list[Instance]]:
        return super().on_2b(member, dataclasses.replace(message, ballot=self._ballot))


class CountsVotesOfAnyBallot(FtSkeen):
    """Votes given in another ballot are counted in this one."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.consensus = _AnyBallot(self)


class SpeaksBeforeItIsDecided(FtSkeen):
    """PROPOSE leaves before the group has decided, as if it had."""

    def _send_propose(self, receiver: ReplicaId, entries: Sequence[Entry]) -> None:
        super()._send_propose(receiver, entries)
        for at, (to, message) in enumerate(self._ready.send):
            if isinstance(message, Propose):
                self._ready.send[at] = (to, _as_if_decided(message))

    def _send_proposal(self, entry: Entry) -> None:
        super()._send_proposal(entry)
        self._queue_propose(entry)


class FollowerForgetsItsClock(FtSkeen):
    """A vote that the clock passes a timestamp leaves no trace."""

    def ready(self) -> Ready:
        ready = super().ready()
        for at, record in enumerate(ready.persist):
            if isinstance(record, Voted):
                issued = max(map(time_of, record.local.local_ts), default=0)
                ready.persist[at] = dataclasses.replace(record, clock=issued)
        return ready


class PromisesTooLowAClock(FtSkeen):
    """A follower's vote for the clock is on its disk, but its promises do not report it."""

    def on_phase_2a(self, sender: Process, message: Phase2a) -> None:
        clock = self.clock
        super().on_phase_2a(sender, message)
        self.clock = max([clock, *map(time_of, message.local.local_ts)])


class NeverWithdraws(FastCast):
    """A question about the clock that was asked on a wrong speculation stays asked for ever."""

    def _withdraw(self, entry: Entry) -> None:
        pass


class ReplacesWhatWasDecided(FtSkeen):
    """A late proposal of a lower ballot replaces a decision learned from another replica."""

    def _outdated(self, entry: Entry, local_ts: Timestamp) -> bool:
        entry.local_ts = local_ts
        return False


class CommitsOnSpeculation(FastCast):
    """The decisions of other groups are not waited for."""

    def on_propose(self, sender: ReplicaId, message: Propose) -> None:
        super().on_propose(sender, _as_if_decided(message))


class KeepsItsSpeculation(FastCast):
    """What another group proposes later does not replace what was speculated with first."""

    def on_propose(self, sender: ReplicaId, message: Propose) -> None:
        local_ts = list(message.local_ts)
        for at, mid in enumerate(message.mids):
            entry = self.entries.get(mid)
            if entry is not None and message.group in entry.dest:
                local_ts[at] = entry.proposals[entry.dest.index(message.group)] or local_ts[at]
        super().on_propose(sender, dataclasses.replace(message, local_ts=tuple(local_ts)))


class OrdersCollectedAgain(FtSkeen):
    """A repeated message is ordered again once its entry has been collected."""

    def on_multicast(self, sender: Process, message: Multicast) -> None:
        known, self.delivered_ids = self.delivered_ids, DeliveredIds()
        super().on_multicast(sender, message)
        self.delivered_ids = known
