"""One group's state machine: deliveries and other groups' votes go in, effects come out.

A transaction locks all that it may touch when it is delivered. When the locks are granted its conditions are
evaluated; if other groups have conditions too, it waits for their votes, and one "no" decides. Then it is
executed, and others get its locks. Delivery never waits, so what is executed runs ahead of a transaction that
waits for a far vote; everything up to the *watermark* is executed.

All data is in the maps of a `Store`. The rest is in a `Picture`, whose size is that of what is in flight.
Both must become durable in one batch, at any moment between two calls. A machine that starts from them goes
on with the deliveries after the picture's, and with votes told again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstore.machine.commands import (
    ChangePlacement,
    Compact,
    Delivered,
    Expire,
    Housekeeping,
    Malformed,
    Pin,
    Unpin,
)
from kvstore.machine.locks import LockTable
from kvstore.machine.operations import evaluate, perform
from kvstore.machine.ordered import MemoryMap, OrderedMap
from kvstore.machine.placement import Part, Placement, part_of
from kvstore.machine.request import Limits, Transaction
from kvstore.machine.results import DONE, Outcome, Refusal, Refused, Result, Unmet, WrongPartition
from kvstore.machine.sessions import WINDOW, Number, Repeated, Sessions, Stored
from kvstore.machine.versions import Row, Version, Versions, Writer
from multicast.errors import InvariantBroken
from multicast.types import NO_TIMESTAMP, ClientId, Destinations, GroupId, MessageId, Timestamp


class Vote(NamedTuple):
    """Whether a group's conditions of a message hold, at its place in the order."""

    gts: Timestamp
    mid: MessageId
    group: GroupId
    yes: bool


class Executed(NamedTuple):
    """A message and its result in this group."""

    delivered: Delivered
    result: Result


@dataclass(slots=True)
class Effects:
    """What has happened since the last time."""

    results: list[Executed] = field(default_factory=list)
    votes: list[tuple[Vote, Destinations]] = field(default_factory=list)
    """Votes of this group, and the other groups to tell them."""
    rows: list[tuple[Timestamp, Row]] = field(default_factory=list)
    """Changes, as they were executed: not in the order of their revisions."""


class Waiting(NamedTuple):
    """A message that is delivered and not executed, with the map and the floor as of its place."""

    delivered: Delivered
    placement: Placement
    floor: int


@dataclass(frozen=True, slots=True)
class Picture:
    """All of a machine that is not in its store."""

    placement: Placement
    delivered: Timestamp = NO_TIMESTAMP
    watermark: Timestamp = NO_TIMESTAMP
    executed: tuple[Timestamp, ...] = ()
    """What is executed above the watermark."""
    waiting: tuple[Waiting, ...] = ()
    votes: tuple[Vote, ...] = ()
    """Of other groups, for what is not executed, or not even delivered."""
    told: tuple[Vote, ...] = ()
    """Of this group, for whoever asks again."""
    floor: int = 0
    pins: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class Store:
    """The maps that hold the data."""

    latest: OrderedMap[bytes, Version] = field(default_factory=MemoryMap)
    history: OrderedMap[int, Row] = field(default_factory=MemoryMap)
    lows: OrderedMap[ClientId, int] = field(default_factory=MemoryMap)
    results: OrderedMap[Number, Stored] = field(default_factory=MemoryMap)


class _Open:
    """A message that is delivered and not executed."""

    __slots__ = ("part", "unmet", "waiting")

    def __init__(self, waiting: Waiting, part: Part | None) -> None:
        self.waiting = waiting
        self.part = part
        """None: housekeeping that waits for everything before it."""
        self.unmet: tuple[Unmet, ...] | None = None
        """This group's conditions that do not hold; None until the locks are granted."""


class Machine:
    """One group's machine. See the module's contract."""

    __slots__ = (
        "_delivered",
        "_effects",
        "_executed",
        "_group",
        "_limits",
        "_locks",
        "_open",
        "_order",
        "_pins",
        "_placement",
        "_sessions",
        "_told",
        "_votes",
        "_watermark",
        "versions",
    )

    def __init__(
        self,
        group: GroupId,
        store: Store,
        picture: Picture,
        limits: Limits | None = None,
        window: int = WINDOW,
    ) -> None:
        self._group = group
        self._limits = limits or Limits()
        self._placement = picture.placement
        self._delivered = picture.delivered
        self._watermark = picture.watermark
        self._executed = set(picture.executed)
        self._order = deque(sorted([*picture.executed, *(w.delivered.gts for w in picture.waiting)]))
        """What is delivered above the watermark."""
        self._votes: dict[Timestamp, dict[GroupId, Vote]] = {}
        for vote in picture.votes:
            self._votes.setdefault(vote.gts, {})[vote.group] = vote
        self._told = {vote.gts: vote for vote in picture.told}
        self._pins = dict(picture.pins)
        self._sessions = Sessions(store.lows, store.results, window)
        self.versions = Versions(store.latest, store.history)
        self.versions.floor = picture.floor
        self.versions.watermark = picture.watermark
        self._locks = LockTable()
        self._open: dict[Timestamp, _Open] = {}
        self._effects = Effects()
        for waiting in picture.waiting:
            self._sessions.reopen(waiting.delivered.mid)
            self._reopen(waiting)
        self._advance()

    @property
    def delivered(self) -> Timestamp:
        """The last delivery."""
        return self._delivered

    @property
    def watermark(self) -> Timestamp:
        """Every delivery up to it is executed. No revision above it may be shown to anyone."""
        return self._watermark

    @property
    def placement(self) -> Placement:
        """The map as of the last delivery."""
        return self._placement

    def picture(self) -> Picture:
        """What to make durable, together with the store."""
        return Picture(
            placement=self._placement,
            delivered=self._delivered,
            watermark=self._watermark,
            executed=tuple(sorted(self._executed)),
            waiting=tuple(self._open[gts].waiting for gts in self._order if gts in self._open),
            votes=tuple(vote for known in self._votes.values() for vote in known.values()),
            told=tuple(self._told.values()),
            floor=self.versions.floor,
            pins=tuple(sorted(self._pins.items())),
        )

    def drain(self) -> Effects:
        """What has happened since the last time."""
        effects, self._effects = self._effects, Effects()
        return effects

    def deliver(self, delivered: Delivered) -> None:
        """The next message of this group's order. What was delivered before a restart is ignored."""
        gts = delivered.gts
        if gts <= self._delivered:
            return
        self._delivered = gts
        self._order.append(gts)
        known = self._sessions.admit(delivered.mid, delivered.ack_below)
        if known is None:
            self._begin(delivered)
        else:
            result = known.result if isinstance(known, Repeated) else known
            if result is not None:
                self._effects.results.append(Executed(delivered, result))
            self._close(gts)

    def vote(self, vote: Vote) -> None:
        """What another group says of a message, delivered here or not. Votes may repeat."""
        gts = vote.gts
        found = self._open.get(gts)
        if found is None and gts <= self._delivered:
            return
        if found is not None and found.waiting.delivered.mid != vote.mid:
            raise InvariantBroken(f"{vote} is not for {found.waiting.delivered.mid}")
        if self._votes.setdefault(gts, {}).setdefault(vote.group, vote) != vote:
            raise InvariantBroken(f"{vote} contradicts an earlier one")
        if found is not None and found.unmet is not None:
            self._decide([gts])

    def told(self, gts: Timestamp) -> Vote | None:
        """This group's vote, for a group that asks; None if it is not known yet, or not any more."""
        return self._told.get(gts)

    def forget_vote(self, gts: Timestamp) -> None:
        """All destinations have executed the message: nobody will ask for the vote."""
        self._told.pop(gts, None)

    def stored(self, mid: MessageId) -> Result | None:
        """The result of a request that was multicast again; None if it is not executed, or forgotten."""
        known = self._sessions.find(mid)
        return known.result if isinstance(known, Repeated) else known

    # Messages, in the order of delivery

    def _begin(self, delivered: Delivered) -> None:
        command = delivered.command
        if not isinstance(command, Transaction):
            result = self._housekeep(delivered, command)
            if result is not None:
                self._finish(delivered, result)
            return
        part = part_of(command, self._placement, self._group, delivered.destinations)
        if part is None:
            self._finish(delivered, WrongPartition(self._placement))
        elif not part.voters - {self._group} and not self._locks.blockers(part.footprint):
            unmet = self._evaluate(delivered, part, self.versions.floor)
            self._execute(delivered, part, self.versions.floor, unmet, succeeded=not unmet)
        else:
            self._lock(Waiting(delivered, self._placement, self.versions.floor), part)

    def _housekeep(self, delivered: Delivered, command: Housekeeping) -> Result | None:
        """Decide it; None if it is to be executed once everything before it is."""
        if isinstance(command, Compact):
            refused = self._compact(delivered, command.floor)
            if refused is None:
                self._open[delivered.gts] = _Open(Waiting(delivered, self._placement, command.floor), None)
                self._advance()
            return refused
        if isinstance(command, Pin):
            refused = self._check_revision(delivered, command.revision)
            if refused is None:
                self._pins[command.name] = command.revision
            return refused or DONE
        if isinstance(command, Unpin):
            for name in command.names:
                self._pins.pop(name, None)
        elif isinstance(command, Expire):
            if set(delivered.destinations) != set(self._placement.groups):
                return _not_to_all(delivered, self._placement.groups)
            for client in command.clients:
                self._sessions.expire(client)
        elif isinstance(command, ChangePlacement):
            return self._change_placement(delivered, command.placement)
        elif isinstance(command, Malformed):
            return Refused(Refusal.MALFORMED, command.reason)
        return DONE

    def _check_revision(self, delivered: Delivered, revision: int) -> Refused | None:
        if revision < self.versions.floor:
            return Refused(
                Refusal.COMPACTED, f"revision {revision} is below the floor of {self.versions.floor}"
            )
        if revision > delivered.gts:
            return Refused(Refusal.FUTURE_REVISION, f"revision {revision} is above {delivered.gts}")
        return None

    def _compact(self, delivered: Delivered, floor: int) -> Refused | None:
        refused = self._check_revision(delivered, floor)
        if refused is None:
            for name, revision in sorted(self._pins.items()):
                if revision < floor:
                    return Refused(Refusal.PINNED, f"{name} holds revision {revision}, below {floor}")
            self.versions.floor = floor
        return refused

    def _change_placement(self, delivered: Delivered, placement: Placement) -> Result:
        groups = {*self._placement.groups, *placement.groups}
        if set(delivered.destinations) != groups:
            return _not_to_all(delivered, tuple(sorted(groups)))
        if not placement.follows(self._placement):
            return Refused(
                Refusal.STALE_PLACEMENT,
                f"version {placement.version} ({placement.scheme.value}) does not follow "
                f"{self._placement.version} ({self._placement.scheme.value})",
            )
        self._placement = placement
        return DONE

    # Locks, votes, execution

    def _reopen(self, waiting: Waiting) -> None:
        delivered, placement, _ = waiting
        if not isinstance(delivered.command, Transaction):
            self._open[delivered.gts] = _Open(waiting, None)
            return
        part = part_of(delivered.command, placement, self._group, delivered.destinations)
        if part is None:
            raise InvariantBroken(f"{delivered.mid} waits in group {self._group}, where it has no part")
        self._lock(waiting, part)

    def _lock(self, waiting: Waiting, part: Part) -> None:
        gts = waiting.delivered.gts
        self._open[gts] = _Open(waiting, part)
        if self._locks.claim(gts, part.footprint):
            self._decide([gts])

    def _decide(self, granted: list[Timestamp]) -> None:
        """Execute those that have their locks and all votes, and whoever gets their locks."""
        for gts in granted:  # grows
            found = self._open[gts]
            part, (delivered, _, floor) = found.part, found.waiting
            if part is None:
                raise InvariantBroken(f"{delivered.mid} has no locks")
            if found.unmet is None:
                found.unmet = self._evaluate(delivered, part, floor)
            succeeded = self._outcome(gts, part, found.unmet)
            if succeeded is not None:
                del self._open[gts]
                self._execute(delivered, part, floor, found.unmet, succeeded=succeeded)
                granted += self._locks.release(gts)

    def _evaluate(self, delivered: Delivered, part: Part, floor: int) -> tuple[Unmet, ...]:
        """Evaluate this group's conditions, and tell the others."""
        if not part.conditions:
            return ()
        gts, mid, destinations = delivered[:3]
        unmet = evaluate(part.conditions, self.versions, gts, floor)
        if len(destinations) > 1:
            vote = self._told[gts] = Vote(gts, mid, self._group, not unmet)
            others = tuple(group for group in destinations if group != self._group)
            self._effects.votes.append((vote, others))
        return unmet

    def _outcome(self, gts: Timestamp, part: Part, unmet: tuple[Unmet, ...]) -> bool | None:
        """Whether all conditions hold in all groups; None if that is not known yet."""
        votes = self._votes.get(gts, {})
        others = part.voters - {self._group}
        if unmet or any(group in votes and not votes[group].yes for group in others):
            return False
        return True if all(group in votes for group in others) else None

    def _execute(
        self, delivered: Delivered, part: Part, floor: int, unmet: tuple[Unmet, ...], *, succeeded: bool
    ) -> None:
        versions, limits = self.versions, self._limits
        writer = Writer(versions, delivered.gts, floor)
        results = tuple(
            [
                (i, perform(operation, versions, writer, limits))
                for i, operation in (part.then if succeeded else part.otherwise)
            ]
        )
        row = writer.finish()
        if row:
            self._effects.rows.append((delivered.gts, row))
        self._finish(delivered, Outcome(succeeded, unmet, results))

    def _finish(self, delivered: Delivered, result: Result) -> None:
        self._answer(delivered, result)
        self._close(delivered.gts)

    def _answer(self, delivered: Delivered, result: Result) -> None:
        self._sessions.executed(delivered.mid, result)
        self._effects.results.append(Executed(delivered, result))

    def _close(self, gts: Timestamp) -> None:
        self._votes.pop(gts, None)
        self._executed.add(gts)
        self._advance()

    def _advance(self) -> None:
        """Move the watermark, and execute what waited for it."""
        order, executed = self._order, self._executed
        while order:
            gts = order[0]
            if gts in executed:
                executed.remove(gts)
                order.popleft()
                self._watermark = self.versions.watermark = gts
                continue
            found = self._open.get(gts)
            if found is None or found.part is not None:
                return
            del self._open[gts]
            self.versions.compact(found.waiting.floor)
            self._answer(found.waiting.delivered, DONE)
            executed.add(gts)


def _not_to_all(delivered: Delivered, groups: tuple[GroupId, ...]) -> Refused:
    return Refused(Refusal.NOT_TO_ALL, f"it was sent to {delivered.destinations}, not to all of {groups}")
