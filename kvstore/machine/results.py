"""What became of a request: results as data, the same in every replica."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from kvstore.machine.placement import Placement


class Entry(NamedTuple):
    """A key with its value, and the transactions that made it what it is."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int


@dataclass(frozen=True, slots=True)
class Got:
    """Of a get: the entry, if there is one."""

    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Written:
    """Of a put."""


WRITTEN: Final = Written()


@dataclass(frozen=True, slots=True)
class Deleted:
    """Of a delete: how many keys there were."""

    count: int


@dataclass(frozen=True, slots=True)
class Scanned:
    """Of a scan: this group's part, as far as the limits went. Keys only have empty values."""

    entries: tuple[Entry, ...]
    count: int
    more: bool


@dataclass(frozen=True, slots=True)
class Number:
    """Of a calculation, the number that is stored now; of an append, the value's length."""

    value: int


class Fault(enum.Enum):
    """Why an operation wrote nothing, or a condition could not be evaluated."""

    OVERFLOW = "the sum is not a signed 64-bit number"
    NOT_A_NUMBER = "the value is not a signed 64-bit number in decimal digits"
    VALUE_TOO_LARGE = "the value would be larger than the limit"
    COMPACTED = "the revision is below the compaction floor"
    FUTURE_REVISION = "the revision is not in the past"


@dataclass(frozen=True, slots=True)
class Failed:
    """Of an operation that could not be performed; it wrote nothing."""

    fault: Fault


OperationResult: TypeAlias = Got | Written | Deleted | Scanned | Number | Failed


class Unmet(NamedTuple):
    """A condition of this group that did not hold; or, with a fault, of which nothing can be known."""

    condition: int
    fault: Fault | None = None


class Outcome(NamedTuple):
    """Of a transaction: what this group has done of it."""

    succeeded: bool
    """Whether all conditions held, in all groups."""
    unmet: tuple[Unmet, ...]
    results: tuple[tuple[int, OperationResult], ...]
    """By the operation's place in its branch, in that order. Groups' results merge by it."""


class Refusal(enum.Enum):
    """Why a request was not executed."""

    MISMATCH = "another request has this number"
    WINDOW_FULL = "the window is full"
    EXPIRED = "the client has expired"
    FORGOTTEN = "the result was acknowledged and is forgotten"
    MALFORMED = "the request cannot be read"
    COMPACTED = "below the compaction floor"
    FUTURE_REVISION = "the revision is not in the past"
    PINNED = "a pin holds an older revision"
    STALE_PLACEMENT = "the placement does not follow the current one"
    NOT_TO_ALL = "the request must be multicast to all groups"


@dataclass(frozen=True, slots=True)
class Refused:
    """Of a request that had no effect, in any group; the message names what was wrong."""

    refusal: Refusal
    message: str


@dataclass(frozen=True, slots=True)
class WrongPartition:
    """Of a transaction that was sent by another map to other groups. It had no effect in any of them."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class Done:
    """Of housekeeping."""


DONE: Final = Done()

Result: TypeAlias = Outcome | Refused | WrongPartition | Done
