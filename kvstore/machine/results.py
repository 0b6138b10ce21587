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
    """The result of a get: the entry, if there is one."""

    entry: KeyValue | None


class Written(Data, frozen=True, tag=2):
    """The result of a put."""


WRITTEN: Final = Written()


class Deleted(Data, frozen=True, tag=3):
    """The result of a delete: how many keys were removed."""

    count: int
    resume: bytes = b""
    """Of a range delete that its limit ended: where the rest of the range begins. Empty: there is no more."""


class Scanned(Data, frozen=True, tag=4):
    """The result of a scan: this group's part, within the limits. With `KEYS`, values are empty."""

    entries: tuple[KeyValue, ...]
    count: int
    more: bool


class Number(Data, frozen=True, tag=5):
    """The result of a calculation, the new number; or of an append, the new length."""

    value: int


class Fault(enum.Enum):
    """Why an operation wrote nothing, or a condition could not be evaluated."""

    OVERFLOW = "overflow"
    """The result is not a signed 64-bit number."""
    NOT_A_NUMBER = "not_a_number"
    """The value is not a signed 64-bit number in decimal digits."""
    VALUE_TOO_LARGE = "value_too_large"
    """The value would be larger than the limit; or, of what was read, all results together."""
    COMPACTED = "compacted"
    """The revision is below the compaction floor."""
    FUTURE_REVISION = "future_revision"
    """The revision is not in the past."""
    TOO_MANY_ROWS = "too_many_rows"
    """The range has more rows than an operation of this transaction may look at, or more keys than may be
    removed.
    """
    BELOW_FLOOR = "below_floor"
    """The sum would be below the floor of the addition."""
    ABOVE_CEILING = "above_ceiling"
    """The sum would be above the ceiling of the addition."""


class Failed(Data, frozen=True, tag=6):
    """The result of a read that could not be returned; or, in a transaction that allows failures, of a write
    that could not be performed: it wrote nothing.
    """

    fault: Fault


OperationResult: TypeAlias = Got | Written | Deleted | Scanned | Number | Failed


class Unmet(Data, frozen=True):
    """A condition of this group that did not hold; or, with a fault, of which nothing can be known."""

    condition: int
    """Its index."""
    fault: Fault | None = None


class Failure(Data, frozen=True):
    """A write that cannot be performed: why its transaction is aborted."""

    operation: int
    """Its index in its branch."""
    fault: Fault


class Decision(enum.Enum):
    """What becomes of a transaction, in all its groups alike.

    That a branch cannot be performed does not change which one is picked: the conditions decide that alone.
    An aborted transaction returns the failures of the branch that was picked, so an outcome says which one it
    was.
    """

    THEN = 1
    OTHERWISE = 2
    THEN_FAILS = 3
    """Aborted: the conditions hold, and `then` cannot be performed in some group."""
    OTHERWISE_FAILS = 4
    """Aborted: they do not hold, and `otherwise` cannot be performed."""

    @property
    def picks_then(self) -> bool:
        """Whether all conditions hold."""
        return self in (Decision.THEN, Decision.THEN_FAILS)

    @property
    def aborts(self) -> bool:
        """Whether nothing is performed."""
        return self in (Decision.THEN_FAILS, Decision.OTHERWISE_FAILS)


class Outcome(Data, frozen=True, tag=1):
    """The result of a transaction in this group."""

    succeeded: bool
    """Whether all conditions held, in all groups."""
    unmet: tuple[Unmet, ...]
    results: tuple[tuple[int, OperationResult], ...]
    """By the operation's index in its branch, in that order. Groups' results merge by it."""


class Aborted(Data, frozen=True, tag=5):
    """The result of a transaction with a write that could not be performed, here or in another group: nothing
    was written in any of them.
    """

    in_then: bool
    """Whether it was one of `then`, since all conditions held, or one of `otherwise`."""
    failures: tuple[Failure, ...]
    """Of this group."""


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
    """The result of a request that had no effect, in any group; the message says why."""

    refusal: Refusal
    message: str


class WrongPartition(Data, frozen=True, tag=3):
    """The result of a transaction that was routed by another map. It had no effect in any group."""

    placement: Placement


class Done(Data, frozen=True, tag=4):
    """The result of housekeeping."""


DONE: Final = Done()

Result: TypeAlias = Outcome | Aborted | Refused | WrongPartition | Done
