"""What can be asked of a single replica of a group, without ordering anything; and its replies."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

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


class Feed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Ask for the changes in these ranges after a revision. If there are none, the replica waits a while."""

    after: int
    ranges: tuple[Range, ...]
    limit_bytes: int
    wait_s: float


class Sample(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Ask where the keys of a range are: examine at most `most`, and return every `every`-th."""

    range: Range
    every: int
    most: int


class ClockWanted(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Ask for the replica's clock."""


Question: TypeAlias = StrictRead | ReadAt | Page | Feed | Sample | ClockWanted


class Values(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Results of operations, in their order."""

    revision: int
    """Everything up to here is in them."""
    results: tuple[OperationResult, ...]


class Entries(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A page. The next begins behind its last key."""

    revision: int
    entries: tuple[KeyValue, ...]
    more: bool


class Busy(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Too many reads wait here."""


class Event(NamedTuple):
    """What a transaction made of a key; without a value, it was removed."""

    key: bytes
    value: bytes | None
    create_revision: int
    version: int


class Changes(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Transactions in the order of their revisions: all that changed anything there, up to a revision."""

    upto: int
    transactions: tuple[tuple[int, tuple[Event, ...]], ...]


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


Response: TypeAlias = (
    Values | Entries | Busy | Changes | Sampled | NotLeading | NotYetReply | CompactedReply | ClockReport
)
