"""What became of a request: results as data, the same in every replica."""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

from kvstore.machine.data import Data
from kvstore.machine.placement import Placement


class KeyValue(Data, frozen=True):
    """A key with its value, and the transactions that made it what it is."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int


class Got(Data, frozen=True, tag=1):
    """Of a get: the entry, if there is one."""

    entry: KeyValue | None


class Written(Data, frozen=True, tag=2):
    """Of a put."""


WRITTEN: Final = Written()


class Deleted(Data, frozen=True, tag=3):
    """Of a delete: how many keys there were."""

    count: int


class Scanned(Data, frozen=True, tag=4):
    """Of a scan: this group's part, as far as the limits went. Keys only have empty values."""

    entries: tuple[KeyValue, ...]
    count: int
    more: bool


class Number(Data, frozen=True, tag=5):
    """Of a calculation, the number that is stored now; of an append, the value's length."""

    value: int


class Fault(enum.Enum):
    """Why an operation wrote nothing, or a condition could not be evaluated."""

    OVERFLOW = "overflow"
    """The sum is not a signed 64-bit number."""
    NOT_A_NUMBER = "not_a_number"
    """The value is not a signed 64-bit number in decimal digits."""
    VALUE_TOO_LARGE = "value_too_large"
    """The value would be larger than the limit; or, of what was read, all results together."""
    COMPACTED = "compacted"
    """The revision is below the compaction floor."""
    FUTURE_REVISION = "future_revision"
    """The revision is not in the past."""


class Failed(Data, frozen=True, tag=6):
    """Of an operation that could not be performed; it wrote nothing."""

    fault: Fault


OperationResult: TypeAlias = Got | Written | Deleted | Scanned | Number | Failed


class Unmet(Data, frozen=True):
    """A condition of this group that did not hold; or, with a fault, of which nothing can be known."""

    condition: int
    fault: Fault | None = None


class Outcome(Data, frozen=True, tag=1):
    """Of a transaction: what this group has done of it."""

    succeeded: bool
    """Whether all conditions held, in all groups."""
    unmet: tuple[Unmet, ...]
    results: tuple[tuple[int, OperationResult], ...]
    """By the operation's index in its branch, in that order. Groups' results merge by it."""


class Refusal(enum.Enum):
    """Why a request was not executed."""

    MALFORMED = "malformed"
    """It cannot be read."""
    EXPIRED = "expired"
    """It came after its own deadline."""
    MISMATCH = "mismatch"
    """Another request to the same groups has this number."""
    WINDOW_FULL = "window_full"
    """Too many results are not acknowledged."""
    FORGOTTEN = "forgotten"
    """Its result was acknowledged and is forgotten."""
    COMPACTED = "compacted"
    """The revision is below the compaction floor."""
    FUTURE_REVISION = "future_revision"
    """The revision is not in the past."""
    PINNED = "pinned"
    """A pin holds an older revision."""
    STALE_PLACEMENT = "stale_placement"
    """The map does not follow the current one."""
    MOVES_DATA = "moves_data"
    """The map would give keys to another group."""
    NOT_TO_ALL = "not_to_all"
    """It must be multicast to all groups."""
    NOT_ALONE = "not_alone"
    """It is about one group, and was multicast to several."""


class Refused(Data, frozen=True, tag=2):
    """Of a request that had no effect, in any group; the message names what was wrong."""

    refusal: Refusal
    message: str


class WrongPartition(Data, frozen=True, tag=3):
    """Of a transaction that was sent by another map to other groups. It had no effect in any of them."""

    placement: Placement


class Done(Data, frozen=True, tag=4):
    """Of housekeeping."""


DONE: Final = Done()

Result: TypeAlias = Outcome | Refused | WrongPartition | Done
