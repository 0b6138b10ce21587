"""The values that go into and come out of a machine, and all that it remembers.

A machine's data is in the maps of its `Store`; the rest is a `MachineState`, as large as what is in flight.
Both must become durable in one batch, at any moment between two calls of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from msgspec import Meta

from kvstore.machine.commands import Compact, Delivered, Expire, Pin
from kvstore.machine.data import Data
from kvstore.machine.ordered import MemoryMap, OrderedMap
from kvstore.machine.placement import Placement
from kvstore.machine.request import INT64_MAX
from kvstore.machine.results import Result
from kvstore.machine.sessions import Number, Session, SessionKey, Stored
from kvstore.machine.versions import Row, Version
from multicast.types import NO_TIMESTAMP, Destinations, GroupId, MessageId, Timestamp


class Vote(Data, frozen=True):
    """Whether a group's conditions of a message hold, at its place in the order."""

    gts: Annotated[Timestamp, Meta(ge=0, le=INT64_MAX)]
    mid: MessageId
    group: GroupId
    yes: bool


class Executed(Data, frozen=True):
    """A message, its result in this group, and where it was executed: repetitions were at another place."""

    delivered: Delivered
    revision: Timestamp
    result: Result


@dataclass(slots=True)
class Effects:
    """What has happened since the last time."""

    results: list[Executed] = field(default_factory=list)
    votes: list[tuple[Vote, Destinations]] = field(default_factory=list)
    """Votes of this group, and the other groups to tell them."""
    outcomes: list[tuple[Timestamp, MessageId, bool]] = field(default_factory=list)
    """Whether transactions succeeded that other groups had a say in: for this group's other replicas."""
    reads: list[int] = field(default_factory=list)
    """Reads that are to be carried out before the machine is called again."""
    rows: list[tuple[Timestamp, Row]] = field(default_factory=list)
    """Changes, as they were executed: not in the order of their revisions. No host uses them yet: the hook
    waits for a hub that serves many watches from one feed.
    """


class Waiting(Data, frozen=True):
    """A message that is delivered and not executed, with the map's version and the floor as of its place."""

    delivered: Delivered
    version: int
    floor: int


Chore: TypeAlias = Compact | Expire
"""What has happened at its place in the order, and leaves rows to remove."""


class MachineState(Data, frozen=True):
    """All of a machine that is not in its store."""

    placement: Placement
    delivered: Timestamp = NO_TIMESTAMP
    watermark: Timestamp = NO_TIMESTAMP
    executed: tuple[Timestamp, ...] = ()
    """What is executed above the watermark."""
    waiting: tuple[Waiting, ...] = ()
    older: tuple[Placement, ...] = ()
    """The maps before the current one that something waiting goes by."""
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
    outcomes: OrderedMap[int, bool] = field(default_factory=MemoryMap)
