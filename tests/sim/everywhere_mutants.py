"""Sabotages of delivery at every replica, each in a line or two. The simulator must catch every one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from multicast.messages import Accept, Heartbeat
from multicast.types import NO_TIMESTAMP, MessageId, Process, Timestamp
from multicast.whitebox import DeliverEverywhere, WhiteBox
from multicast.whitebox.entry import BallotVector, Entry


class DeliversBlindly(DeliverEverywhere):
    """A follower delivers what is committed, whether or not it knows what may come before it."""

    def _sees(self) -> bool:
        return True


class NeedsNoLeader(DeliverEverywhere):
    """A follower counts quorums that its leader is not in: the leader may propose something lower still."""

    def _is_agreed(self, bal: BallotVector, votes: int) -> bool:
        return super()._is_agreed(bal, votes | bal.own)


class HearsNoGap(DeliverEverywhere):
    """Whatever was lost between two ACCEPTs is not missed."""

    def _hear(self, after: Timestamp, upto: Timestamp) -> None:
        super()._hear(NO_TIMESTAMP, upto)


class MissesTheLast(DeliverEverywhere):
    """Only the next ACCEPT tells that something was lost; acknowledgements and heartbeats do not."""

    def _hear(self, after: Timestamp, upto: Timestamp) -> None:
        if after != upto:
            super()._hear(after, upto)


class SeesTooSoon(DeliverEverywhere):
    """A follower that has missed something sees again at the next heartbeat."""

    def on_heartbeat(self, sender: Process, message: Heartbeat) -> None:
        if message.ballot == self.cballot:
            self.heard = max(self.heard, message.issued)
        self.missed = NO_TIMESTAMP
        super().on_heartbeat(sender, message)


class SeesBeforeItHasCaughtUp(DeliverEverywhere):
    """A follower delivers by itself although it lacks some of what its leader had delivered before."""

    def _sees(self) -> bool:
        return self.sees_from is not None


class ForgetsWhatWasProposed(DeliverEverywhere):
    """What a follower waited for in vain is forgotten, as if it had never been proposed."""

    def _forget(self, mids: Iterable[MessageId]) -> None:
        WhiteBox._forget(self, mids)


class AwaitsOnlyTheAccepted(DeliverEverywhere):
    """A message that only the own leader has proposed holds nothing back."""

    def _own_proposal(self, entry: Entry) -> Timestamp:
        return NO_TIMESTAMP

    def _gather(self, found: Sequence[Entry | None], message: Accept) -> None:
        super()._gather(found, message)
        if self._follows(self.cballot):
            self._requeue()
