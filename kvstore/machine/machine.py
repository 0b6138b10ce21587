"""One group's state machine: deliveries and other groups' votes go in, effects come out.

A transaction locks all that it may touch when it is delivered. When the locks are granted it is judged: its
conditions are evaluated, and what may fail of its branches is tried. If other groups have conditions too, or
writes that may fail, it waits for their votes: whether conditions hold, and which branches can be performed.
Then it is executed, or aborted, and its locks are granted to others. Delivery never waits, so later
transactions are executed ahead of one that waits for a distant vote; everything up to the *watermark* is
executed.

A *long* transaction, on ranges or on many keys that it reads, is evaluated and executed in slices: it reads
some rows at a time, while others are executed. It reads as of its own revision. So once its locks are granted
it does not need those on what it only reads: later transactions write there, and pass it. What it writes is
written in one step, at its end. Until then neither a read nor a commit nor a snapshot knows anything of it,
and after a restart it begins anew, as of the same revision.

All data is in the maps of a `Store`, the rest in a `MachineState`, as large as what is in flight. Both must
become durable in one batch, at any moment between two calls. A machine that starts from them goes on with the
deliveries after that state's. Votes and outcomes are facts that other replicas know: the host asks for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from itertools import islice
from typing import Final

from kvstore.machine.commands import Compact, Delivered, Malformed, Request, Tick
from kvstore.machine.housekeeping import Housekeeper
from kvstore.machine.locks import LockTable
from kvstore.machine.operations import Room, evaluate, failures_of, perform, perform_all
from kvstore.machine.placement import GroupShare, Placement, share_of
from kvstore.machine.request import NOTHING, Footprint, Limits, Operation, Transaction
from kvstore.machine.results import (
    WRITTEN,
    Aborted,
    Decision,
    Failure,
    OperationResult,
    Outcome,
    Refusal,
    Refused,
    Result,
    WrongPartition,
)
from kvstore.machine.sessions import WINDOW, Repeated
from kvstore.machine.slices import AT_ONCE_ROWS, RUN_ROWS, Meter, finish, unmetered
from kvstore.machine.state import Effects, Executed, Judgement, MachineState, Store, Vote, Waiting
from kvstore.machine.versions import Row, Versions, Writer
from kvstore.machine.waiting import Facts, OpenTransaction, decide, truth_of
from multicast.errors import InvariantBroken, PeerViolation
from multicast.types import NO_TIMESTAMP, Destinations, GroupId, Timestamp

EARLY: Final = 100_000
"""Messages not delivered yet whose facts are kept. A replica that misses a fact asks for it again."""
OUTCOMES: Final = 1_000_000
"""Decisions that are kept, on transactions that several groups voted on: more than there can be among
the deliveries that replicas catch up with. A replica that has missed more gets a snapshot.
"""
_FORGOTTEN: Final = 4096
_NO_VOTES: Final[dict[GroupId, Vote]] = {}
_WELL: Final = Judgement()


class Machine(Housekeeper):
    """One group's machine. See the package's contract."""

    __slots__ = (
        "_delivered",
        "_early",
        "_effects",
        "_executed",
        "_granted",
        "_group",
        "_limits",
        "_locks",
        "_meter",
        "_open",
        "_order",
        "_outcome_count",
        "_outcomes",
        "_paused",
        "_reads",
        "_reads_number",
        "_shown",
        "_slice_rows",
        "_used",
    )

    def __init__(
        self,
        group: GroupId,
        store: Store,
        state: MachineState,
        limits: Limits | None = None,
        window: int = WINDOW,
        *,
        slice_rows: int = RUN_ROWS,
    ) -> None:
        """`slice_rows` are the rows that long transactions look at in one step. They need not be the same in
        all replicas.
        """
        super().__init__(store, state, window)
        self._group = group
        self._limits = limits or Limits()
        self._delivered = state.delivered
        self._executed = set(state.executed)
        self._order = deque(sorted([*state.executed, *(w.delivered.gts for w in state.waiting)]))
        """Deliveries above the watermark, in order."""
        self._early: dict[Timestamp, Facts] = {}
        """Facts of messages that are not delivered yet."""
        self._outcomes = store.outcomes
        self._outcome_count = state.outcomes
        self._locks = LockTable()
        self._open: dict[Timestamp, OpenTransaction] = {}
        """Transactions that wait, in the order of delivery."""
        self._reads: dict[int, int] = {}
        """Tokens of reads that have claims; their numbers are negative, unlike those of messages."""
        self._reads_number = 0
        self._granted: list[int] = []
        self._shown: list[int] = []
        """Reads that have their locks; and those of them that the host has drained."""
        self._effects = Effects()
        self._slice_rows = slice_rows
        self._meter = Meter(min(slice_rows, AT_ONCE_ROWS))
        self._paused: dict[Timestamp, None] = {}
        """Transactions that go on with the next slice."""
        self._used: dict[int, int] = {}
        """Rows that the transactions of clients have looked at, while some go on."""
        maps = {p.version: p for p in (*state.older, state.placement)}
        for waiting in state.waiting:
            self._reopen(waiting, maps[waiting.version])
        self._advance()

    @property
    def delivered(self) -> Timestamp:
        """The last delivery."""
        return self._delivered

    @property
    def watermark(self) -> Timestamp:
        """Every delivery up to it is executed. No revision above it may be read."""
        return self._watermark

    def state(self) -> MachineState:
        """Return what to make durable, together with the store."""
        older = {o.placement.version: o.placement for o in self._open.values()}
        older.pop(self._placement.version, None)
        return MachineState(
            placement=self._placement,
            delivered=self._delivered,
            watermark=self._watermark,
            executed=tuple(sorted(self._executed)),
            waiting=tuple([_waiting(opened) for opened in self._open.values()]),
            older=tuple(older.values()),
            floor=self.versions.floor,
            pins=tuple([pin for _, pin in sorted(self._pins.items())]),
            chores=tuple(self._chores),
            outcomes=self._outcome_count,
        )

    @property
    def has_effects(self) -> bool:
        """Whether there is anything to drain."""
        effects = self._effects
        return bool(
            effects.results or effects.reads or self._shown or self._granted
            or effects.votes or effects.outcomes
        )  # fmt: skip

    def drain(self) -> Effects:
        """Return what has happened since the last drain.

        The host performs the reads before it calls the machine again. What waited for their locks goes on
        with the next call: if there are reads, drain again after them.
        """
        self._release_reads()
        effects, self._effects = self._effects, Effects()
        if self._granted:
            self._shown, self._granted = self._granted, []
        return effects

    def deliver(self, delivered: Delivered) -> Footprint:
        """Take the next message of this group's order. One that was delivered before a restart is ignored.

        Returns the footprint of this group's share, whether it is executed now, later, or was before.
        """
        gts, request, destinations = delivered.gts, delivered.request, delivered.destinations
        if gts <= self._delivered:
            return NOTHING
        if self._shown:
            self._release_reads()
        self._delivered = gts
        self._order.append(gts)
        command = request.command
        if isinstance(command, Malformed):
            return self._refuse(delivered, Refused(Refusal.MALFORMED, command.reason))
        known = self._sessions.admit(request, destinations, gts)
        if isinstance(known, Refused):
            return self._refuse(delivered, known)
        if not isinstance(command, Transaction):
            if known is None:
                if isinstance(command, Compact):
                    self._finish_running(command.floor)
                self._finish(delivered, self._housekeep(delivered, command))
            else:
                self._repeat(delivered, known)
            return Footprint(read_ranges=command.ranges) if isinstance(command, Tick) else NOTHING
        part = share_of(command, self._placement, self._group, destinations)
        if known is not None:
            self._repeat(delivered, known)
            return NOTHING if part is None else part.footprint
        if part is None:
            self._finish(delivered, WrongPartition(self._placement))
            return NOTHING
        floor = self.versions.floor
        voters = part.voters
        others = voters - {self._group} if voters else voters
        if not others and not part.is_long and not self._locks.blockers(part.footprint):
            judged, decision = _WELL, Decision.THEN
            if voters:
                judged = self._judge(delivered, part, floor)
                decision = (
                    decide(part, self._group, judged, _NO_VOTES) or decision
                )  # it is: no vote is missing
            self._execute(delivered, part, floor, judged, decision)
        else:
            self._sessions.open(request, destinations, gts)
            self._lock(OpenTransaction(delivered, part, self._placement, floor, self._group))
        return part.footprint

    def skip(self, gts: Timestamp) -> None:
        """Skip a delivery of this group's order that is not for the store."""
        if gts > self._delivered:
            self._release_reads()
            self._delivered = gts
            self._order.append(gts)
            self._close(gts)

    def vote(self, vote: Vote) -> None:
        """Take another group's vote on a message, delivered here or not. Votes may repeat.

        Raises `PeerViolation`, with nothing changed, if it contradicts what is known.
        """
        self._release_reads()
        gts = vote.gts
        found = self._open.get(gts)
        if found is None:
            if gts > self._delivered:
                self._early_facts(gts).vote(vote)
            elif (decision := self._outcomes.get(gts)) is not None and not vote.allows(decision):
                raise PeerViolation(f"{vote} contradicts the decision {decision.name}")
            return
        if vote.group == self._group:
            return
        if vote.group not in found.others or vote.mid != found.delivered.mid:
            raise PeerViolation(f"{vote} is not for {found.delivered.mid}")
        found.facts.vote(vote)
        if found.judged is not None:
            self._decide([gts])

    def outcome(self, gts: Timestamp, decision: Decision) -> None:
        """Take the decision on a message from a replica that has executed it. Outcomes may repeat.

        Raises `PeerViolation`, with nothing changed, if it contradicts what is known.
        """
        self._release_reads()
        found = self._open.get(gts)
        if found is None:
            if gts > self._delivered:
                self._early_facts(gts).decide(gts, decision)
            elif self._outcomes.get(gts) not in (None, decision):
                raise PeerViolation(f"{gts} is reported as {decision.name}, and was not decided so")
            return
        if found.judged is not None and self._group in found.part.voters:
            mine = self._vote(found.delivered, found.part, found.judged)
            if not mine.allows(decision):
                raise PeerViolation(
                    f"{gts} is reported as {decision.name}, which this group's vote contradicts"
                )
        found.facts.decide(gts, decision)
        if found.judged is not None:
            self._decide([gts])

    def waits_for(self, gts: Timestamp, group: GroupId) -> bool:
        """Return whether a message waits for another group's vote, or was decided by it and is not executed
        yet.
        """
        found = self._open.get(gts)
        return found is not None and group in found.others

    def known_of(self, gts: Timestamp) -> Vote | Decision | None:
        """Return the decision on a message, or else this group's vote; None if neither is known."""
        found = self._open.get(gts)
        if found is None:
            return self._outcomes.get(gts)
        if found.facts.decision is not None:
            return found.facts.decision
        return (
            self._vote(found.delivered, found.part, found.judged)
            if found.judged is not None and self._group in found.part.voters
            else None
        )

    def open_votes(self) -> list[tuple[Timestamp, frozenset[GroupId]]]:
        """Return what waits for votes, the oldest first, and the groups whose votes are missing."""
        return [
            (gts, found.others.difference(found.facts.votes))
            for gts, found in self._open.items()
            if found.facts.decision is None and not found.others.issubset(found.facts.votes)
        ]

    def forget_outcomes(self, below: Timestamp, keep: int = OUTCOMES) -> None:
        """Forget some outcomes below a position, if very many are kept: requests for them are rare.

        A replica that waits for an outcome that is forgotten everywhere waits for ever.
        """
        surplus = min(self._outcome_count - keep, _FORGOTTEN)
        if surplus > 0:
            for gts, _ in list(islice(self._outcomes.items(NO_TIMESTAMP, below), surplus)):
                self._outcomes.delete(gts)
                self._outcome_count -= 1

    def read(self, token: int, footprint: Footprint) -> None:
        """Read after everything delivered so far. The effects name the token when its locks are granted."""
        self._release_reads()
        self._reads_number -= 1
        number = self._reads_number
        self._reads[number] = token
        if self._locks.claim(number, footprint):
            self._decide([number])

    def stored(self, request: Request, destinations: Destinations) -> tuple[Timestamp, Result] | None:
        """Return the result of a request that was multicast again after delivery, and where it was executed;
        None if it is not executed yet. A refused request leaves no trace, and is refused again.
        """
        if isinstance(request.command, Malformed):
            return NO_TIMESTAMP, Refused(Refusal.MALFORMED, request.command.reason)
        known = self._sessions.find(request, destinations)
        if isinstance(known, Refused):
            return NO_TIMESTAMP, known
        if known is None:
            return NO_TIMESTAMP, self._sessions.refused(request)
        return None if known.result is None else (known.gts, known.result)

    @property
    def waiting(self) -> int:
        """Transactions that are delivered and not executed."""
        return len(self._open)

    def has_expired(self, before: int) -> bool:
        """Whether sessions have expired before a revision."""
        return self._sessions.has_expired(before)

    def work(self) -> bool:
        """Do a slice of what compaction and expiry have left to do. True if there is more."""
        if self._shown:
            self._release_reads()
        return bool(self._chores) and self._work()

    @property
    def running(self) -> bool:
        """Whether transactions go on with the next `run`."""
        return bool(self._paused)

    def is_waited_for(self) -> bool:
        """Whether transactions or reads wait for locks of those that go on with the next `run`."""
        return any(map(self._locks.is_waited_for, self._paused))

    def run(self, most: int = RUN_ROWS) -> int:
        """Execute a slice of the long transactions, of so many rows at most; return how many were looked at.

        The host calls this now and then, not too often, or nothing else gets done. What is delivered until
        the next call uses the rest of the slice, up to `AT_ONCE_ROWS`.
        """
        self._release_reads()
        rows = min(most, self._slice_rows)
        # The oldest gets half of the slice: it holds up the watermark. The rest goes to the clients whose
        # transactions have looked at the fewest rows.
        half = rows // 2
        self._meter.left = rows - half
        if self._paused:
            self._run(min(self._paused))
        self._meter.left += half
        while self._paused and self._meter.left > 0:
            self._run(min(self._paused, key=self._looked_at))
        if not self._paused:
            self._used.clear()
        looked_at = rows - self._meter.left
        self._meter.left = min(self._meter.left, AT_ONCE_ROWS)
        return looked_at

    def _run(self, gts: Timestamp) -> None:
        found, left = self._open[gts], self._meter.left
        self._decide([gts])
        spent = left - self._meter.left
        found.rows += spent
        client = found.delivered.request.client
        self._used[client] = self._used.get(client, 0) + spent

    def _looked_at(self, gts: Timestamp) -> tuple[int, int, Timestamp]:
        found = self._open[gts]
        return self._used.get(found.delivered.request.client, 0), found.rows, gts

    # Messages, in the order of delivery

    def _refuse(self, delivered: Delivered, refused: Refused) -> Footprint:
        self._effects.results.append(Executed(delivered, delivered.gts, refused))
        self._close(delivered.gts)
        return NOTHING

    def _repeat(self, delivered: Delivered, known: Repeated) -> None:
        if known.result is not None:
            self._effects.results.append(Executed(delivered, known.gts, known.result))
        else:
            self._open[known.gts].repeats.append(delivered)
        self._close(delivered.gts)

    # Locks, votes, execution

    def _reopen(self, waiting: Waiting, placement: Placement) -> None:
        delivered = waiting.delivered
        request, destinations = delivered.request, delivered.destinations
        command = request.command
        part = None
        if isinstance(command, Transaction):
            part = share_of(command, placement, self._group, destinations)
        if part is None:
            raise InvariantBroken(f"{delivered.mid} waits in group {self._group}, where it has no part")
        self._sessions.open(request, destinations, delivered.gts)
        opened = OpenTransaction(delivered, part, placement, waiting.floor, self._group)
        opened.judged, opened.facts.decision = waiting.judged, waiting.decision
        self._lock(opened)

    def _lock(self, opened: OpenTransaction) -> None:
        gts = opened.delivered.gts
        facts = self._early.pop(gts, None)
        if facts is not None:
            facts.keep(opened.delivered, opened.others)
            opened.facts = facts
        self._open[gts] = opened
        part = opened.part
        # Others may have passed it, before a restart, that conflict with conditions which it has evaluated.
        if self._locks.claim(gts, part.footprint if opened.judged is None else part.branches):
            self._decide([gts])

    def _early_facts(self, gts: Timestamp) -> Facts:
        early = self._early
        if gts not in early:
            if len(early) >= EARLY:
                del early[next(iter(early))]
            early[gts] = Facts()
        return early[gts]

    def _release_reads(self) -> None:
        """Release the locks of the reads that were drained: the host has performed them."""
        if self._shown:
            shown, self._shown = self._shown, []
            for number in shown:
                self._decide(self._locks.release(number))

    def _decide(self, granted: list[int]) -> None:
        """Execute transactions that have their locks and all votes, and those that get their locks then."""
        for owner in granted:  # grows
            if owner < 0:
                self._effects.reads.append(self._reads.pop(owner))
                self._granted.append(owner)
                continue
            gts = Timestamp(owner)
            found = self._open[gts]
            if found.part.is_long:
                granted += self._go_on(found)
                continue
            if found.judged is None:
                found.judged = self._judge(found.delivered, found.part, found.floor)
            decision = found.decided()
            if decision is not None:
                del self._open[gts]
                self._execute(found.delivered, found.part, found.floor, found.judged, decision)
                result = self._effects.results[-1].result
                self._effects.results += [Executed(again, gts, result) for again in found.repeats]
                granted += self._locks.release(gts)

    def _go_on(self, found: OpenTransaction) -> list[int]:
        """Evaluate and execute a long transaction, as far as the step's rows and the known votes allow.
        Returns the owners of locks that are granted then.
        """
        gts = found.delivered.gts
        self._paused.pop(gts, None)
        while gts in self._open:
            if found.work is None:
                if found.judged is None:
                    found.work = self._evaluation(found)
                else:
                    found.decision = found.decided()
                    if found.decision is None:
                        return self._locks.narrow(gts, found.part.branches)
                    found.work = self._execution(found, found.judged, found.decision)
            if self._meter.left <= 0 or next(found.work, self) is None:
                self._paused[gts] = None
                return self._pass(found)
            found.work = None
        return self._locks.release(gts)

    def _pass(self, found: OpenTransaction) -> list[int]:
        """Let others write to what a transaction reads that is evaluated or executed as of its revision.

        From then on it must not wait for anything but its next slice, also after a restart. If it needs
        votes, which a restart forgets, its operations keep their locks until its outcome is known. Returns
        the owners of locks that are granted.
        """
        if self._as_of(found) is None:
            return []
        part = found.part
        waits = found.decision is None and found.others
        return self._locks.narrow(found.delivered.gts, part.branches if waits else part.writes)

    def _as_of(self, found: OpenTransaction) -> int | None:
        """Return the revision as of which a long transaction reads; None if it reads the latest versions, as
        its locks allow.

        If the floor has risen above its position, the versions as of its revision may be lost.
        """
        return found.delivered.gts if found.delivered.gts >= self.versions.floor else None

    def _finish_running(self, floor: int) -> None:
        """Do all at once that goes on with the next slices and is below a floor: then nothing reads as of a
        revision below it any more, and the floor may rise.
        """
        left, self._meter.left = self._meter.left, unmetered().left
        while below := [int(gts) for gts in self._paused if gts < floor]:
            self._decide(below)
        self._meter.left = left

    def _evaluation(self, found: OpenTransaction) -> Generator[None, None, None]:
        found.judged = yield from self._judgement(
            found.delivered, found.part, found.floor, self._as_of(found), self._meter
        )
        self._tell(found.delivered, found.part, found.judged)

    def _execution(
        self, found: OpenTransaction, judged: Judgement, decision: Decision
    ) -> Generator[None, None, None]:
        """Perform the operations on an overlay, and then write it."""
        delivered, part, floor = found.delivered, found.part, found.floor
        row: Row = ()
        result: Result = _aborted(judged, decision)
        if not decision.aborts:
            overlay = self.versions.overlay(self._as_of(found), self._meter)
            versions = self.versions.over(overlay)
            writer = Writer(versions, delivered.gts, floor)
            branch = part.then if decision.picks_then else part.otherwise
            results = yield from perform_all(branch, part, versions, writer, self._limits, floor, self._meter)
            failures = self._failures(delivered, part, decision, results)
            if failures:
                decision, result = _failing(decision), Aborted(decision.picks_then, failures)
            else:
                row = yield from writer.finish_in_slices(self._meter)
                overlay.apply()
                result = Outcome(decision.picks_then, judged.unmet, tuple(results))
        del self._open[delivered.gts]
        self._executed_as(delivered, part, row, result, decision)
        self._effects.results += [Executed(again, delivered.gts, result) for again in found.repeats]

    def _judge(self, delivered: Delivered, part: GroupShare, floor: int) -> Judgement:
        """Judge a short transaction at once, and vote."""
        if self._group not in part.voters:
            return _WELL
        judged = finish(self._judgement(delivered, part, floor, None, unmetered()))
        self._tell(delivered, part, judged)
        return judged

    def _judgement(
        self, delivered: Delivered, part: GroupShare, floor: int, as_of: int | None, meter: Meter
    ) -> Generator[None, None, Judgement]:
        """Evaluate this group's conditions, and try what others must know of its branches: each on an overlay
        of the same state, which holds until the transaction is executed, since its keys are locked.
        """
        versions = self.versions if as_of is None else self._over(as_of, meter)
        unmet = yield from evaluate(part, versions, delivered.gts, floor, self._limits, meter)
        judged = Judgement(unmet)
        if len(delivered.destinations) == 1:
            return judged
        holds = truth_of(part, self._group, judged, _NO_VOTES)
        then: tuple[Failure, ...] = ()
        otherwise: tuple[Failure, ...] = ()
        if holds is not False and self._group in part.then_may_fail:
            then = yield from self._try(part.then, part, delivered, floor, as_of, meter)
        if holds is not True and self._group in part.otherwise_may_fail:
            otherwise = yield from self._try(part.otherwise, part, delivered, floor, as_of, meter)
        return Judgement(unmet, then, otherwise) if then or otherwise else judged

    def _over(self, as_of: int | None, meter: Meter) -> Versions:
        """Return the keys with nothing written over them yet."""
        return self.versions.over(self.versions.overlay(as_of, meter))

    def _try(
        self,
        branch: tuple[tuple[int, Operation], ...],
        part: GroupShare,
        delivered: Delivered,
        floor: int,
        as_of: int | None,
        meter: Meter,
    ) -> Generator[None, None, tuple[Failure, ...]]:
        """Perform a branch on an overlay that is thrown away. Returns why it cannot be performed."""
        versions = self._over(as_of, meter)
        writer = Writer(versions, delivered.gts, floor)
        results = yield from perform_all(branch, part, versions, writer, self._limits, floor, meter)
        return failures_of(branch, results, allowed=part.allow_failures)

    def _tell(self, delivered: Delivered, part: GroupShare, judged: Judgement) -> None:
        """Send this group's vote to the other groups that wait for it, if it has one."""
        if self._group in part.voters and len(delivered.destinations) > 1:
            others = tuple([group for group in part.listeners if group != self._group])
            if others:
                self._effects.votes.append((self._vote(delivered, part, judged), others))

    def _vote(self, delivered: Delivered, part: GroupShare, judged: Judgement) -> Vote:
        can_then, can_otherwise = not judged.then, not judged.otherwise
        gts, mid, group = delivered.gts, delivered.mid, self._group
        if not part.formula:
            return Vote(gts, mid, group, not judged.unmet, can_then, can_otherwise)
        bits = sum([1 << each.condition for each in judged.unmet])
        unmet = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        return Vote(gts, mid, group, yes=True, can_then=can_then, can_otherwise=can_otherwise, unmet=unmet)

    def _execute(
        self, delivered: Delivered, part: GroupShare, floor: int, judged: Judgement, decision: Decision
    ) -> None:
        """Execute a short transaction, at once."""
        versions = self.versions
        results: list[tuple[int, OperationResult]]
        if decision.aborts:
            self._executed_as(delivered, part, (), _aborted(judged, decision), decision)
            return
        then = decision is Decision.THEN
        if part.only_puts and then:
            puts = [(put.key, put.value) for _, put in part.then]  # type: ignore[union-attr]  # they are
            row = versions.put_all(puts, delivered.gts, floor)
            results = [(i, WRITTEN) for i, _ in part.then]
        else:
            writer, room = Writer(versions, delivered.gts, floor), Room()
            results = [
                (i, perform(operation, versions, writer, room))  # type: ignore[arg-type]  # no range
                for i, operation in (part.then if then else part.otherwise)
            ]
            failures = self._failures(delivered, part, decision, results)
            if failures:
                writer.undo()
                self._executed_as(delivered, part, (), Aborted(then, failures), _failing(decision))
                return
            row = writer.finish()
        self._executed_as(delivered, part, row, Outcome(then, judged.unmet, tuple(results)), decision)

    def _failures(
        self,
        delivered: Delivered,
        part: GroupShare,
        decision: Decision,
        results: list[tuple[int, OperationResult]],
    ) -> tuple[Failure, ...]:
        """Return why a branch that was just performed must be taken back. Only a group alone may find that
        out then.
        """
        then = decision is Decision.THEN
        if self._group not in (part.then_may_fail if then else part.otherwise_may_fail):
            return ()
        found = failures_of(part.then if then else part.otherwise, results, allowed=part.allow_failures)
        if found and len(delivered.destinations) > 1:
            raise InvariantBroken(f"{delivered.mid} fails here by {found}, and other groups execute it")
        return found

    def _executed_as(
        self, delivered: Delivered, part: GroupShare, row: Row, result: Result, decision: Decision
    ) -> None:
        gts = delivered.gts
        if row:
            self._effects.rows.append((gts, row))
        if part.voters and len(delivered.destinations) > 1:
            self._outcomes.put(gts, decision)
            self._outcome_count += 1
            if part.voters != {self._group}:
                self._effects.outcomes.append((gts, delivered.mid, decision))
        self._finish(delivered, result)

    def _finish(self, delivered: Delivered, result: Result) -> None:
        self._sessions.executed(delivered.request, delivered.destinations, delivered.gts, result)
        self._effects.results.append(Executed(delivered, delivered.gts, result))
        self._close(delivered.gts)

    def _close(self, gts: Timestamp) -> None:
        order = self._order
        if len(order) == 1 and order[0] == gts:  # nothing else is under way
            order.popleft()
            self._watermark = self.versions.watermark = gts
        else:
            self._executed.add(gts)
            self._advance()

    def _advance(self) -> None:
        """Advance the watermark."""
        order, executed = self._order, self._executed
        while order and order[0] in executed:
            gts = order.popleft()
            executed.remove(gts)
            self._watermark = self.versions.watermark = gts


def _aborted(judged: Judgement, decision: Decision) -> Aborted:
    """Return the result of a transaction that is aborted: this group's failures, of the branch that was
    picked.
    """
    return Aborted(decision.picks_then, judged.then if decision.picks_then else judged.otherwise)


def _failing(decision: Decision) -> Decision:
    return Decision.THEN_FAILS if decision is Decision.THEN else Decision.OTHERWISE_FAILS


def _waiting(opened: OpenTransaction) -> Waiting:
    delivered, version, floor = opened.delivered, opened.placement.version, opened.floor
    if not opened.part.is_long:
        return Waiting(delivered, version, floor)
    return Waiting(delivered, version, floor, opened.judged, opened.decision)
