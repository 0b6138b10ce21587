"""The values that go into and come out of a machine, and all that it remembers.

A machine's data is in the maps of its `Store`; the rest is a `MachineState`, as large as what is in flight.
Both must become durable in one batch, at any moment between two calls of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from kvstore.machine.commands import Compact, Delivered, Expire, Pin
from kvstore.machine.data import Data
from kvstore.machine.ordered import MemoryMap, OrderedMap
from kvstore.machine.placement import Placement
from kvstore.machine.request import INT64_MAX
from kvstore.machine.results import Decision, Failure, Result, Unmet
from kvstore.machine.sessions import Number, Session, SessionKey, Stored
from kvstore.machine.versions import Row, Version
from multicast.types import NO_TIMESTAMP, Destinations, GroupId, MessageId, Timestamp

VOTE_BYTES: Final = 8 << 10
"""A bit for each condition that a transaction may have."""


class Judgement(Data, frozen=True):
    """What a group knows of a transaction when it has its locks: which of its conditions do not hold, and why
    a branch cannot be performed here. A branch was tried only if it can be picked, and if others must know.
    """

    unmet: tuple[Unmet, ...] = ()
    then: tuple[Failure, ...] = ()
    otherwise: tuple[Failure, ...] = ()


class Vote(Data, frozen=True):
    """A group's vote on a message, at its position in the order: whether its conditions hold, and which
    branches it can perform.
    """

    gts: Annotated[Timestamp, Meta(ge=0, le=INT64_MAX)]
    mid: MessageId
    group: GroupId
    yes: bool
    """Whether all of its conditions hold, if the transaction has no formula."""
    can_then: bool = True
    can_otherwise: bool = True
    unmet: Annotated[bytes, Meta(max_length=VOTE_BYTES)] = b""
    """With a formula, its conditions that do not hold: a bit for each condition, as a little-endian
    number.
    """

    def allows(self, decision: Decision) -> bool:
        """Whether the decision does not contradict this vote. (With a formula, other votes count, too.)"""
        if decision.picks_then and not self.yes:
            return False
        if decision is Decision.THEN:
            return self.can_then
        return self.can_otherwise or decision is not Decision.OTHERWISE


class Executed(Data, frozen=True):
    """A message, its result in this group, and where it was executed: a repetition, at another position."""

    delivered: Delivered
    revision: Timestamp
    result: Result


@dataclass(slots=True)
class Effects:
    """What a machine has done since it was last drained."""

    results: list[Executed] = field(default_factory=list)
    votes: list[tuple[Vote, Destinations]] = field(default_factory=list)
    """Votes of this group, and the other groups that need them."""
    outcomes: list[tuple[Timestamp, MessageId, Decision]] = field(default_factory=list)
    """Decisions on transactions that other groups voted on: for this group's other replicas."""
    reads: list[int] = field(default_factory=list)
    """Reads that the host performs before it calls the machine again."""
    rows: list[tuple[Timestamp, Row]] = field(default_factory=list)
    """Changes, as they were executed: not in the order of their revisions. No host uses them yet: the hook
    waits for a hub that serves many watches from one feed.
    """


class Waiting(Data, frozen=True):
    """A message that is delivered, not executed; with the map's version and the floor as of its position."""

    delivered: Delivered
    version: int
    floor: int
    judged: Judgement | None = None
    """Of a long one, what is known of it. Others may have written to what its conditions read since."""
    decision: Decision | None = None
    """Of a long one whose execution has begun: others may write to what it reads."""


Chore: TypeAlias = Compact | Expire
"""A command that has taken effect at its position in the order, and leaves rows to remove."""


class MachineState(Data, frozen=True):
    """All of a machine that is not in its store."""

    placement: Placement
    delivered: Timestamp = NO_TIMESTAMP
    watermark: Timestamp = NO_TIMESTAMP
    executed: tuple[Timestamp, ...] = ()
    """What is executed above the watermark."""
    waiting: tuple[Waiting, ...] = ()
    older: tuple[Placement, ...] = ()
    """Earlier maps that waiting messages were routed by."""
    floor: int = 0
    pins: tuple[Pin, ...] = ()
    chores: tuple[tuple[Timestamp, Chore], ...] = ()
    outcomes: int = 0
    """How many outcomes are kept."""


@dataclass(slots=True)
class Store:
    """The maps that hold the data."""

    latest: OrderedMap[bytes, Version] = field(default_factory=MemoryMap)
    history: OrderedMap[int, Row] = field(default_factory=MemoryMap)
    sessions: OrderedMap[SessionKey, Session] = field(default_factory=MemoryMap)
    results: OrderedMap[Number, Stored] = field(default_factory=MemoryMap)
    outcomes: OrderedMap[int, Decision] = field(default_factory=MemoryMap)
