"""One group's state machine: deliveries and other groups' votes go in, effects come out.

A transaction locks all that it may touch when it is delivered. When the locks are granted its conditions are
evaluated; if other groups have conditions too, it waits for their votes, and one "no" decides. Then it is
executed, and its locks are granted to others. Delivery never waits, so later transactions are executed ahead
of one that waits for a distant vote; everything up to the *watermark* is executed.

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
from functools import partial
from itertools import islice
from typing import Final

from kvstore.machine.commands import Compact, Delivered, Malformed, Request, Tick
from kvstore.machine.housekeeping import Housekeeper
from kvstore.machine.locks import LockTable
from kvstore.machine.operations import (
    Room,
    allowance_of,
    cost_of,
    evaluate,
    patiently,
    perform,
    perform_range,
)
from kvstore.machine.placement import GroupShare, Placement, share_of
from kvstore.machine.request import (
    NOTHING,
    RANGE_OPERATIONS,
    Footprint,
    Limits,
    PointOperation,
    Transaction,
)
from kvstore.machine.results import (
    WRITTEN,
    OperationResult,
    Outcome,
    Refusal,
    Refused,
    Result,
    Unmet,
    WrongPartition,
)
from kvstore.machine.sessions import WINDOW, Repeated
from kvstore.machine.slices import AT_ONCE_ROWS, RUN_ROWS, Meter, finish, unmetered
from kvstore.machine.state import Effects, Executed, MachineState, Store, Vote, Waiting
from kvstore.machine.versions import Row, Writer
from kvstore.machine.waiting import Facts, OpenTransaction
from multicast.errors import InvariantBroken, PeerViolation
from multicast.types import NO_TIMESTAMP, Destinations, GroupId, Timestamp

EARLY: Final = 100_000
"""Messages not delivered yet whose facts are kept. A replica that misses a fact asks for it again."""
OUTCOMES: Final = 1_000_000
"""Outcomes that are kept, of transactions with conditions and several groups: more than there can be among
the deliveries that replicas catch up with. A replica that has missed more gets a snapshot.
"""
_FORGOTTEN: Final = 4096


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
            unmet = self._evaluate(delivered, part, floor) if voters else ()
            self._execute(delivered, part, floor, unmet, succeeded=not unmet)
        else:
            self._sessions.open(request, destinations, gts)
            self._lock(OpenTransaction(delivered, part, self._placement, floor, others))
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
            elif not vote.yes and self._outcomes.get(gts):
                raise PeerViolation(f"{vote} contradicts the outcome")
            return
        if vote.group == self._group:
            return
        if vote.group not in found.others or vote.mid != found.delivered.mid:
            raise PeerViolation(f"{vote} is not for {found.delivered.mid}")
        found.facts.vote(vote)
        if found.unmet is not None:
            self._decide([gts])

    def outcome(self, gts: Timestamp, *, succeeded: bool) -> None:
        """Take a message's outcome from a replica that has executed it. Outcomes may repeat.

        Raises `PeerViolation`, with nothing changed, if it contradicts what is known.
        """
        self._release_reads()
        found = self._open.get(gts)
        if found is None:
            if gts > self._delivered:
                self._early_facts(gts).decide(gts, succeeded=succeeded)
            elif self._outcomes.get(gts) not in (None, succeeded):
                outcome = "succeeded" if succeeded else "failed"
                raise PeerViolation(f"{gts} is reported as {outcome}, but has not")
            return
        if succeeded and found.unmet:
            raise PeerViolation(f"{gts} is reported as succeeded, but its conditions do not hold here")
        found.facts.decide(gts, succeeded=succeeded)
        if found.unmet is not None:
            self._decide([gts])

    def waits_for(self, gts: Timestamp, group: GroupId) -> bool:
        """Return whether a message waits for another group's vote, or was decided by it and is not executed
        yet.
        """
        found = self._open.get(gts)
        return found is not None and group in found.others

    def known_of(self, gts: Timestamp) -> Vote | bool | None:
        """Return a message's outcome, or else this group's vote; None if neither is known."""
        found = self._open.get(gts)
        if found is None:
            return self._outcomes.get(gts)
        if found.facts.outcome is not None:
            return found.facts.outcome
        return (
            self._vote(found.delivered, found.unmet)
            if found.unmet is not None and self._group in found.part.voters
            else None
        )

    def open_votes(self) -> list[tuple[Timestamp, frozenset[GroupId]]]:
        """Return what waits for votes, the oldest first, and the groups whose votes are missing."""
        return [
            (gts, found.others.difference(found.facts.votes))
            for gts, found in self._open.items()
            if found.facts.outcome is None and not found.others.issubset(found.facts.votes)
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
        opened = OpenTransaction(delivered, part, placement, waiting.floor, part.voters - {self._group})
        opened.unmet, opened.facts.outcome = waiting.unmet, waiting.succeeded
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
        if self._locks.claim(gts, part.footprint if opened.unmet is None else part.branches):
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
            if found.unmet is None:
                found.unmet = self._evaluate(found.delivered, found.part, found.floor)
            succeeded = found.outcome()
            if succeeded is not None:
                del self._open[gts]
                self._execute(found.delivered, found.part, found.floor, found.unmet, succeeded=succeeded)
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
                if found.unmet is None:
                    found.work = self._evaluation(found)
                else:
                    found.succeeded = found.outcome()
                    if found.succeeded is None:
                        return self._locks.narrow(gts, found.part.branches)
                    found.work = self._execution(found, succeeded=found.succeeded)
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
        waits = found.succeeded is None and found.others
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
        delivered, part = found.delivered, found.part
        versions = self.versions.over(self.versions.overlay(self._as_of(found), self._meter))
        found.unmet = yield from evaluate(
            part, versions, delivered.gts, found.floor, self._limits, self._meter
        )
        self._tell(delivered, part, found.unmet)

    def _execution(self, found: OpenTransaction, *, succeeded: bool) -> Generator[None, None, None]:
        """Perform the operations on an overlay, and then write it."""
        delivered, part, floor = found.delivered, found.part, found.floor
        overlay = self.versions.overlay(self._as_of(found), self._meter)
        versions, limits, room = self.versions.over(overlay), self._limits, Room()
        writer, allowed = Writer(versions, delivered.gts, floor), allowance_of(part, limits)
        results = []
        for i, operation in part.then if succeeded else part.otherwise:
            if isinstance(operation, RANGE_OPERATIONS):
                result = yield from perform_range(
                    operation, versions, writer, allowed, floor, room, self._meter
                )
            else:
                point: PointOperation = operation
                result = yield from patiently(partial(perform, point, versions, writer, limits, room))
                self._meter.left -= cost_of(point, result)
                if self._meter.left <= 0:
                    yield
            results.append((i, result))
        row = yield from writer.finish_in_slices(self._meter)
        overlay.apply()
        del self._open[delivered.gts]
        outcome = Outcome(succeeded, found.unmet or (), tuple(results))
        self._executed_as(delivered, part, row, outcome)
        self._effects.results += [Executed(again, delivered.gts, outcome) for again in found.repeats]

    def _evaluate(self, delivered: Delivered, part: GroupShare, floor: int) -> tuple[Unmet, ...]:
        """Evaluate this group's conditions at once, and vote."""
        if self._group not in part.voters:
            return ()
        unmet = finish(evaluate(part, self.versions, delivered.gts, floor, self._limits, unmetered()))
        self._tell(delivered, part, unmet)
        return unmet

    def _tell(self, delivered: Delivered, part: GroupShare, unmet: tuple[Unmet, ...]) -> None:
        """Send this group's vote to the other groups, if it has one."""
        if self._group in part.voters and len(delivered.destinations) > 1:
            others = tuple([group for group in delivered.destinations if group != self._group])
            self._effects.votes.append((self._vote(delivered, unmet), others))

    def _vote(self, delivered: Delivered, unmet: tuple[Unmet, ...]) -> Vote:
        return Vote(delivered.gts, delivered.mid, self._group, not unmet)

    def _execute(
        self, delivered: Delivered, part: GroupShare, floor: int, unmet: tuple[Unmet, ...], *, succeeded: bool
    ) -> None:
        """Execute a short transaction, at once."""
        versions, limits = self.versions, self._limits
        results: list[tuple[int, OperationResult]]
        if part.only_puts and succeeded:
            puts = [(put.key, put.value) for _, put in part.then]  # type: ignore[union-attr]  # they are
            row = versions.put_all(puts, delivered.gts, floor)
            results = [(i, WRITTEN) for i, _ in part.then]
        else:
            writer, room = Writer(versions, delivered.gts, floor), Room()
            results = [
                (i, perform(operation, versions, writer, limits, room))  # type: ignore[arg-type]  # no range
                for i, operation in (part.then if succeeded else part.otherwise)
            ]
            row = writer.finish()
        self._executed_as(delivered, part, row, Outcome(succeeded, unmet, tuple(results)))

    def _executed_as(self, delivered: Delivered, part: GroupShare, row: Row, outcome: Outcome) -> None:
        gts = delivered.gts
        if row:
            self._effects.rows.append((gts, row))
        if part.voters and len(delivered.destinations) > 1:
            self._outcomes.put(gts, outcome.succeeded)
            self._outcome_count += 1
            if part.voters != {self._group}:
                self._effects.outcomes.append((gts, delivered.mid, outcome.succeeded))
        self._finish(delivered, outcome)

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


def _waiting(opened: OpenTransaction) -> Waiting:
    delivered, version, floor = opened.delivered, opened.placement.version, opened.floor
    if not opened.part.is_long:
        return Waiting(delivered, version, floor)
    return Waiting(delivered, version, floor, opened.unmet, opened.succeeded)
