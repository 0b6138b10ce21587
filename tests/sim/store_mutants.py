"""Sabotages of the store, each in a line or two: what its design does not get wrong."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from msgspec.structs import replace
from wbkv.core.locks import Holding

from kvstore.config.history import KeepHistory
from kvstore.machine import Delivered, Footprint, Machine, MachineState
from kvstore.machine.codec import decode_request
from kvstore.machine.commands import Compact, Pin, Request
from kvstore.machine.locks import LockTable
from kvstore.machine.request import NOTHING, Range
from kvstore.machine.results import Decision, Refused, Result
from kvstore.machine.sessions import Repeated, Sessions
from kvstore.machine.slices import Meter
from kvstore.machine.state import Judgement
from kvstore.machine.versions import Row, Versions
from kvstore.machine.waiting import OpenTransaction
from kvstore.node.ports import Outgoing
from kvstore.node.snapshots import SnapshotTransfers
from kvstore.simulation.disk import SimStoreDisk
from kvstore.simulation.store import SimApplication
from kvstore.storage.ports import GroupCheckpoint
from kvstore.store.compactor import Compactor
from kvstore.store.feeds import FeedPosition, MergedFeed
from kvstore.store.gate import Announcement, Gate, Level
from kvstore.store.gateway import RETRY_S, Committed, Gateway, OnDone, Ordered
from kvstore.store.hub import Audience, Cursor, Hub
from kvstore.store.messages import Votes
from kvstore.store.partition import Partition
from kvstore.store.questions import Changes, CompactedReply, Feed, Page, ReadAt, Response, Values
from kvstore.store.reads import FeedQueue, perform_reads
from kvstore.store.replica_view import ReplicaView
from multicast.messages import Multicast
from multicast.types import (
    NO_TIMESTAMP,
    TICKS_PER_S,
    ClientId,
    Destinations,
    GroupId,
    ReplicaId,
    Timestamp,
    timestamp,
)

# The machine


class EvaluatesAtDelivery(Machine):
    """Conditions are evaluated when a transaction is delivered, not when it has its locks."""

    def _lock(self, opened: OpenTransaction) -> None:
        opened.judged = self._judge(opened.delivered, opened.part, opened.floor)
        super()._lock(opened)


class OneAppliedPosition(Machine):
    """What is delivered counts as executed after a restart."""

    def state(self) -> MachineState:
        return replace(super().state(), watermark=self.delivered, executed=(), waiting=())


class _NoLocks(LockTable):
    def blockers(self, footprint: Footprint) -> set[int]:
        return set()

    def claim(self, owner: int, footprint: Footprint) -> bool:
        return True

    def release(self, owner: int) -> list[int]:
        return []

    def narrow(self, owner: int, kept: Footprint) -> list[int]:
        return []


class ExecutesInTheOrderOfVotes(Machine):
    """Locks are not kept in the order of delivery: who has its votes is executed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._locks = _NoLocks()


class ServesWhatIsNotComplete(Machine):
    """Reads at a revision are served up to the last delivery."""

    def deliver(self, delivered: Delivered) -> Footprint:
        footprint = super().deliver(delivered)
        self.versions.watermark = self.delivered
        return footprint


class CompactsPastPins(Machine):
    """Compaction does not mind what holds it."""

    def _compact(self, gts: Timestamp, command: Compact) -> Result:
        self._pins: dict[str, Pin] = {}
        return super()._compact(gts, command)


class WatermarkPassesWhatRuns(Machine):
    """The watermark does not wait for a transaction that is executed in slices."""

    def _advance(self) -> None:
        order, executed = self._order, self._executed
        while order and (order[0] in executed or order[0] in self._paused):
            gts = order.popleft()
            executed.discard(gts)
            self._watermark = self.versions.watermark = gts


class WritesWithEverySlice(Machine):
    """What a transaction on ranges has written so far is in commits and snapshots that are made meanwhile."""

    def _execution(
        self, found: OpenTransaction, judged: Judgement, decision: Decision
    ) -> Generator[None, None, None]:
        work: Any = super()._execution(found, judged, decision)
        for _ in work:
            work.gi_frame.f_locals["overlay"].apply()
            yield


class ReleasesLocksEarly(Machine):
    """A transaction on ranges has its locks for one slice only."""

    def _go_on(self, found: OpenTransaction) -> list[int]:
        granted = super()._go_on(found)
        gts = found.delivered.gts
        if gts in self._paused:
            granted += self._locks.release(gts)
            self._locks.claim(gts, NOTHING)
        return granted


class ReadsWhatHasPassedIt(Machine):
    """A transaction that others may pass reads what they have written."""

    def _as_of(self, found: OpenTransaction) -> int | None:
        return None

    def _pass(self, found: OpenTransaction) -> list[int]:
        return self._locks.narrow(found.delivered.gts, found.part.writes)


class PassesWhatWaitsForVotes(Machine):
    """A transaction whose votes are missing has given up the locks of its operations."""

    def _pass(self, found: OpenTransaction) -> list[int]:
        return (
            [] if self._as_of(found) is None else self._locks.narrow(found.delivered.gts, found.part.writes)
        )


class FloorRisesUnderReads(Machine):
    """The floor rises while transactions read as of a revision below it."""

    def _finish_running(self, floor: int) -> None:
        pass


class ForgetsWhatItEvaluated(Machine):
    """After a restart, a transaction's conditions are evaluated again, though others have passed it."""

    def state(self) -> MachineState:
        state = super().state()
        return replace(state, waiting=tuple([replace(each, judged=None) for each in state.waiting]))


class ForgetsItsOutcome(Machine):
    """After a restart, a transaction that others have passed waits for its votes again."""

    def state(self) -> MachineState:
        state = super().state()
        return replace(state, waiting=tuple([replace(each, decision=None) for each in state.waiting]))


class ReadsDoNotWait(Machine):
    """A strict read does not wait for what is delivered and not executed."""

    def read(self, token: int, footprint: Footprint) -> None:
        self._effects.reads.append(token)


class _ForgetfulSessions(Sessions):
    def admit(
        self, request: Request, destinations: Destinations, gts: Timestamp
    ) -> Repeated | Refused | None:
        known = super().admit(request, destinations, gts)
        return None if isinstance(known, Repeated) and known.result is not None else known


class RefusesOnce(Machine):
    """Of what was refused, nothing is known afterwards."""

    def stored(self, request: Request, destinations: Destinations) -> tuple[Timestamp, Result] | None:
        stored = super().stored(request, destinations)
        return None if self._sessions.find(request, destinations) is None else stored


class ExecutesAgain(Machine):
    """A request that comes by another gateway is executed again."""

    def __init__(self, group: GroupId, store: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(group, store, *arguments, **options)
        self._sessions = _ForgetfulSessions(store.sessions, store.results)


class _TimelessSessions(Sessions):
    def admit(
        self, request: Request, destinations: Destinations, gts: Timestamp
    ) -> Repeated | Refused | None:
        return super().admit(replace(request, deadline=max(request.deadline, gts)), destinations, gts)


class IgnoresDeadlines(Machine):
    """A request is executed however late it comes."""

    def __init__(self, group: GroupId, store: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(group, store, *arguments, **options)
        self._sessions = _TimelessSessions(store.sessions, store.results)


# The gate


class NoGate(Gate[Any]):
    """Answers leave when there are any."""

    def _hold(self, answer: Any, dependency: Timestamp) -> None:
        pass


class OneLevel(Gate[Any]):
    """The gate looks no further than to those it shares messages with."""

    def _levels(self) -> list[Level]:
        return super()._levels()[:2]


class NewLeaderInheritsNothing(Gate[Any]):
    """A new leader takes what it finds for independent of everything."""

    def new_ballot(self, taken_over: Timestamp) -> None:
        super().new_ballot(NO_TIMESTAMP)
        self._inherited = NO_TIMESTAMP


# The partition


class NoBallotCheck(Partition):
    """A leader answers strict reads without asking whether it still leads."""

    def _pass_round(self) -> None:
        if self._round is not None:
            self._round.standing.update(self.replica.readers[0])
        super()._pass_round()


class ReadsTheLatest(Partition):
    """A read without a revision sees what is executed above the watermark, too."""

    def _read_at(self, question: ReadAt | Page, meter: Meter) -> Response:
        if isinstance(question, ReadAt) and not question.revision:
            return Values(self.machine.watermark, perform_reads(self.machine.versions, question.operations))
        return super()._read_at(question, meter)


class ExecutedIsEnough(Partition):
    """What is executed is reported, whether the gate has closed it or not."""

    @property
    def executed(self) -> Timestamp:
        return self.machine.watermark


class ForgetsWhatWasClosed(Partition):
    """A gate that is made anew knows nothing to be closed."""

    def __init__(
        self, replica: ReplicaView, machine: Machine, closed: Timestamp = NO_TIMESTAMP, *others: Any
    ) -> None:
        super().__init__(replica, machine, NO_TIMESTAMP, *others)


class AnnouncesToOldLeaders(Partition):
    """Announcements are only sent to supposed leaders, and a follower does not say that it is none."""

    def _hear_levels(self, sender: ReplicaId, announcement: Announcement) -> None:
        super()._hear_levels(
            sender,
            announcement._replace(wanted=announcement.wanted if self.replica.is_leader else NO_TIMESTAMP),
        )

    def _pull(self) -> None:
        self._closed = Timestamp(-1)
        super()._pull()


class HearsAnyVote(Partition):
    """A vote counts, whichever group's replica sends it."""

    def _hear_votes(self, sender: ReplicaId, message: Votes) -> None:
        for vote in message.votes:
            super()._hear_votes(sender._replace(group=vote.group), Votes((vote,)))
        super()._hear_votes(sender, Votes((), message.outcomes))


class HearsAnyOutcome(Partition):
    """An outcome counts, whichever group's replica sends it."""

    def _hear_votes(self, sender: ReplicaId, message: Votes) -> None:
        super()._hear_votes(sender, Votes(message.votes))
        super()._hear_votes(sender._replace(group=self.group), Votes((), message.outcomes))


class RepeatsPassTheGate(Partition):
    """The result of a request that is repeated leaves at once."""

    def repeat(self, asked: Iterable[tuple[ClientId, Multicast]]) -> None:
        self._see_ballot()
        for _, message in asked:
            stored = self.machine.stored(decode_request(message.payload), message.dest)
            if self._ballot is not None and stored is not None:
                self._results[message.mid] = stored
                self._send_answers([message.mid])


# The gateway, the disk, the application


class CutsByTheClock(Gateway):
    """A snapshot's revision is where the clocks are: no group has promised to be past it."""

    def cut(self, ranges: tuple[Range, ...], done: OnDone) -> None:
        done(Ordered(timestamp(self.newest(), GroupId(0))))


class CompleteWhenItLeaves(Gateway):
    """What is complete is said as of when the answers left, not as of the transaction's place."""

    def _outcome(self, call: Any, results: Mapping[GroupId, Result], revision: int) -> object | None:
        outcome = super()._outcome(call, results, revision)
        return outcome._replace(complete=call.complete) if isinstance(outcome, Committed) else outcome


class TooBusyToRepeat(Gateway):
    """Every turn puts off the time for repeating."""

    def turn(self, now: float) -> list[Outgoing]:
        said = super().turn(now)
        if self.in_flight:
            self.wake_at = now + RETRY_S / 8
        return said


class SessionsCommitLater(SimStoreDisk):
    """What clients were answered is committed one commit after its effects."""

    def commit(self, images: Mapping[GroupId, GroupCheckpoint], after: int) -> None:
        super().commit(images, after)
        commits = self.asked
        for group, commit in commits.items():
            before = self.commit_of(group).maps
            for name in ("sessions", "results"):
                commit.maps[name] = before[name]


class ForgetsOutcomes(SimApplication):
    """Outcomes are forgotten when they are committed."""

    def commit(self, positions: Mapping[GroupId, Timestamp], after: int) -> None:
        for group in positions:
            machine = self.partition(group).machine
            machine.forget_outcomes(machine.delivered, keep=0)
        super().commit(positions, after)


class HubForgetsWhoIsBehind(Hub):
    """A watcher that lost its place in the buffer goes on with what is left there."""

    def cursor(self, audience: Audience, at: int) -> Cursor | None:
        return super().cursor(audience, at) or Cursor(audience, at, audience.first)


class HubStartsInTheMiddle(Hub):
    """Transactions count as whole of which some groups' feeds had passed their part before."""

    def __init__(self, positions: Mapping[GroupId, FeedPosition], *, buffer_bytes: int) -> None:
        super().__init__(positions, buffer_bytes=buffer_bytes)
        self.start = min(upto for upto, _ in positions.values())


class ForgetsTheRest(FeedQueue):
    """What does not fit into an answer of its transaction is left out."""

    def _changes(self, question: Feed, now: float, most: int, meter: Meter) -> Changes | CompactedReply:
        found = super()._changes(question, now, most, meter)
        if isinstance(found, Changes) and found.skip:
            return Changes(found.upto + 1, found.transactions, 0, found.after, found.after_skip)
        return found


class FeedOfTheFastest(MergedFeed):
    """Changes are passed on as far as any group has told them."""

    @property
    def complete(self) -> int:
        return max(self.upto.values())


class FeedIgnoresTheFloor(FeedQueue):
    """A watcher whose position is compacted goes on at the floor, and is not told."""

    def _changes(self, question: Feed, now: float, most: int, meter: Meter) -> Changes | CompactedReply:
        if question.after >= self._versions.floor:
            return super()._changes(question, now, most, meter)
        found = super()._changes(replace(question, after=self._versions.floor, skip=0), now, most, meter)
        assert isinstance(found, Changes)
        return replace(found, after=question.after, after_skip=question.skip)


# Retention


class CompactsByItsOwnClock(Compactor):
    """The time before which history is dropped is the leader's own."""

    def _by_age(self, group: GroupId, time: int, machine: Machine, now: float) -> int:
        own = int(self.wall() * TICKS_PER_S)
        return max(own - (self._keep.seconds or 0) * TICKS_PER_S, 0) // self._step * self._step

    def floor(self, replica: ReplicaView, machine: Machine, now: float) -> int:
        leader: Any = replica
        self.wall = leader.quorum.own
        return super().floor(replica, machine, now)


class CompactsWithoutAPace(Compactor):
    """Floors follow quorum time at once, wherever it goes."""

    def _by_age(self, group: GroupId, time: int, machine: Machine, now: float) -> int:
        self._reached[group] = time, now
        return super()._by_age(group, time, machine, now)


class ProposesAbovePins(Compactor):
    """Pins are left to the machine, which rejects the same proposal again and again."""

    def _permitted(self, replica: ReplicaView, machine: Machine, wanted: int) -> int:
        return wanted


class CompactsAnyTime(Compactor):
    """Floors are not rounded to common steps. This is harmless."""

    def __init__(self, keep: KeepHistory, used: Callable[[], int]) -> None:
        super().__init__(keep, used)
        self._step = 1


class DropsTheVersionAtTheFloor(Versions):
    """Compaction drops also what reads at the floor need."""

    def _needed(self, key: bytes, floor: int, decoded: dict[int, Row]) -> Generator[int, None, int]:
        yield from super()._needed(key, floor, decoded)
        return 0


# The SDK's locks


class HoldsFromTheAnswer(Holding):
    """A lock's time to live counts from the answer, and not from the request."""

    def _taken(self, token: int, asked: float) -> bool:
        return super()._taken(token, self._now())


class NeverRepeatsAPiece(SnapshotTransfers):
    """What a broken connection has lost of a snapshot is missed until the transfer begins anew."""

    def goes_on(self, me: ReplicaId, target: ReplicaId, transfer: int, now: float) -> bool:
        sender = self._senders.get((me, target))
        return sender is not None and now < sender.deadline
