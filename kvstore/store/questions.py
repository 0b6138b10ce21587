"""What can be asked of a single replica of a group, without ordering anything; and its replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from kvstore.machine.request import Range, ReadOperation, Scan
from kvstore.machine.results import KeyValue, OperationResult
from multicast.types import Ballot


class StrictRead(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Read as of now. Only a leader can answer."""

    operations: tuple[ReadOperation, ...]


class ReadAt(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Read as of a revision, or as of the last that is complete here."""

    operations: tuple[ReadOperation, ...]
    revision: int = 0


class Page(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A part of a long scan, at a revision."""

    scan: Scan
    revision: int
    via: int = 0
    """Of a page that was ended while it looked for an old version of a key: how far that had come."""


class Feed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Ask for the changes in these ranges after a revision. If there are none, the replica waits a while."""

    after: int
    ranges: tuple[Range, ...]
    limit_bytes: int
    wait_s: float
    skip: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many changes of the transaction at revision `after + 1` were examined for earlier answers."""


class Sample(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Ask where the keys of a range are: examine at most `most`, and return every `every`-th."""

    range: Range
    every: int
    most: int


class ClockWanted(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Ask for the replica's clock."""


Question: TypeAlias = StrictRead | ReadAt | Page | Feed | Sample | ClockWanted


class Values(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Results of operations, in their order: of the first ones, if all are too much for one step."""

    revision: int
    """Everything up to here is in them."""
    results: tuple[OperationResult, ...]


class Entries(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A page: what was found among as many rows as one step may look at, perhaps nothing."""

    revision: int
    entries: tuple[KeyValue, ...]
    resume: bytes | None = None
    """Where the rest of the range begins; in reverse, where it ends. None if that was all."""
    via: int = 0
    """To be passed on with the next page."""
    count: int = 0
    """Keys found. A page of a count has no entries."""


class Busy(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Too many reads wait here. The asker may ask again later."""


class Event(NamedTuple):
    """What a transaction made of a key; without a value, it was removed."""

    key: bytes
    value: bytes | None
    create_revision: int
    version: int


class Changes(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Transactions in the order of their revisions: all that changed anything there, up to a revision.

    The first may be the rest of a transaction, and the last the beginning of one: the next question then has
    this `skip`. An answer names the position that it follows.
    """

    upto: int
    transactions: tuple[tuple[int, tuple[Event, ...]], ...]
    skip: int = 0
    """How many changes of the transaction at revision `upto + 1` were examined."""
    after: int = 0
    after_skip: int = 0
    """The question's position."""


class Sampled(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Where keys are, roughly: removed keys may count, and the newest may not."""

    keys: tuple[bytes, ...]
    rest: int
    """How many keys there were after the last of these."""
    last: bytes | None
    """The last key that was examined, if there may be more after it."""


class NotLeading(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """This replica does not lead: ask the leader of this ballot, if there is one."""

    ballot: Ballot


class NotYetReply(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The revision is above what is complete here."""

    watermark: int


class CompactedReply(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The revision is compacted; the oldest one is this."""

    floor: int


class ClockReport(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """The replica's clock: the time of the highest timestamp that was proposed or delivered there."""

    clock: int
    now: int
    """The clock, or quorum time if that is ahead: what the next timestamp is like."""
    leads: bool
    """Whether the replica leads its group: only a leader knows quorum time."""
    version: Annotated[int, msgspec.Meta(ge=0)]
    """The version of the group's membership that the replica knows."""


Response: TypeAlias = (
    Values | Entries | Busy | Changes | Sampled | NotLeading | NotYetReply | CompactedReply | ClockReport
)

RESPONSES: Final[Mapping[type, tuple[type, ...]]] = {
    StrictRead: (Values, Busy, NotLeading),
    ReadAt: (Values, NotYetReply, CompactedReply),
    Page: (Entries, NotYetReply, CompactedReply),
    Feed: (Changes, NotYetReply, CompactedReply),
    Sample: (Sampled,),
    ClockWanted: (ClockReport,),
}
"""The replies that each question may get."""
