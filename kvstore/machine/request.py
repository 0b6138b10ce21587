"""A transaction as the machine sees it: conditions, then, otherwise; and what a request may hold.

If all conditions hold, the operations of `then` are performed, in order, else those of `otherwise`; each sees
what those before it wrote. Whatever goes wrong inside an operation is its result, and aborts nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, TypeAlias, assert_never

from kvstore.machine.data import Data

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
REVISION_MAX: Final = (1 << 53) - 1


class InvalidRequest(ValueError):
    """A request that can never be executed. The message names what is wrong, and which limit."""


class Range(NamedTuple):
    """Keys from `start` up to, not including, `end`; without an end, to the last key."""

    start: bytes
    end: bytes | None

    @classmethod
    def of_prefix(cls, prefix: bytes) -> Range:
        """All keys that begin with the prefix."""
        stem = prefix.rstrip(b"\xff")
        return cls(prefix, stem[:-1] + bytes((stem[-1] + 1,)) if stem else None)

    def covers(self, key: bytes) -> bool:
        """Whether the key is in the range."""
        return self.start <= key and (self.end is None or key < self.end)

    def overlaps(self, start: bytes, end: bytes | None) -> bool:
        """Whether some key could be in both ranges."""
        return (end is None or self.start < end) and (self.end is None or start < self.end)


class Get(Data, frozen=True, tag=1):
    """Read a key."""

    key: bytes
    writes: ClassVar[bool] = False


class Put(Data, frozen=True, tag=2):
    """Write a key."""

    key: bytes
    value: bytes
    writes: ClassVar[bool] = True


class Delete(Data, frozen=True, tag=3):
    """Remove a key."""

    key: bytes
    writes: ClassVar[bool] = True


class Arithmetic(enum.Enum):
    """What to do with a number that is stored in decimal digits."""

    ADD = "add"
    MIN = "min"
    MAX = "max"


class Calculate(Data, frozen=True, tag=4):
    """Add to a signed 64-bit number, or lower or raise it. An absent one counts as 0, or as the operand."""

    key: bytes
    arithmetic: Arithmetic
    operand: int
    writes: ClassVar[bool] = True


class Append(Data, frozen=True, tag=5):
    """Add bytes to the end of a value."""

    key: bytes
    value: bytes
    writes: ClassVar[bool] = True


class Shape(enum.Enum):
    """What a scan returns."""

    ENTRIES = "entries"
    KEYS = "keys"
    COUNT = "count"


class Scan(Data, frozen=True, tag=6):
    """Read a range. Each group returns its own part, within the limits; a count has none."""

    range: Range
    limit: int = 0
    """The most keys to return; 0 for as many as the bytes allow."""
    limit_bytes: int = 1 << 20
    """The most bytes of keys and values. A single entry is returned whatever its size."""
    reverse: bool = False
    shape: Shape = Shape.ENTRIES
    writes: ClassVar[bool] = False


class DeleteRange(Data, frozen=True, tag=7):
    """Remove all keys of a range."""

    range: Range
    writes: ClassVar[bool] = True


PointOperation: TypeAlias = Get | Put | Delete | Calculate | Append
"""Operations on one key, which is `key`. They belong to one group."""
RangeOperation: TypeAlias = Scan | DeleteRange
"""Operations on the keys of `range`. Every group with keys of the range does its share."""
RANGE_OPERATIONS: Final = (Scan, DeleteRange)
ReadOperation: TypeAlias = Get | Scan
"""Operations that can also be asked of one replica, without a position in the order."""
Operation: TypeAlias = PointOperation | RangeOperation


class Operator(enum.Enum):
    """How a condition compares."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    GREATER = ">"


class Subject(enum.Enum):
    """What of a key a condition is about. An absent key has version and revisions 0."""

    VALUE = "value"
    EXISTS = "exists"
    VERSION = "version"
    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"


class Compare(Data, frozen=True, tag=1):
    """A condition on a key. The value of an absent key differs from every value, and is not ordered."""

    key: bytes
    subject: Subject
    operator: Operator
    operand: bytes | int

    def __post_init__(self) -> None:
        if isinstance(self.operand, bytes) is not (self.subject is Subject.VALUE):
            kind = type(self.operand).__name__
            raise InvalidRequest(f"the {self.subject.value} of {self.key!r} is not compared with {kind}")


class Unchanged(Data, frozen=True, tag=2):
    """The condition that no key of the range was written or removed after a revision."""

    range: Range
    since: int


Condition: TypeAlias = Compare | Unchanged


class Transaction(Data, frozen=True, tag=1):
    """Operations that are performed together, at one place in the order."""

    conditions: tuple[Condition, ...] = ()
    then: tuple[Operation, ...] = ()
    otherwise: tuple[Operation, ...] = ()


class Footprint(Data, frozen=True):
    """The keys and ranges that both branches and the conditions touch."""

    reads: tuple[bytes, ...] = ()
    writes: tuple[bytes, ...] = ()
    """A key that is read and written is only here."""
    read_ranges: tuple[Range, ...] = ()
    write_ranges: tuple[Range, ...] = ()


NOTHING: Final = Footprint()


def footprint_of(
    conditions: Iterable[tuple[int, Condition]], operations: Iterable[tuple[int, Operation]]
) -> Footprint:
    """What must be locked before the conditions may be evaluated and the operations performed."""
    reads: dict[bytes, None] = {}
    writes: dict[bytes, None] = {}
    read_ranges: dict[Range, None] = {}
    write_ranges: dict[Range, None] = {}
    for _, condition in conditions:
        if isinstance(condition, Unchanged):
            read_ranges[condition.range] = None
        elif isinstance(condition, Compare):
            reads[condition.key] = None
        else:
            assert_never(condition)
    for _, operation in operations:
        if isinstance(operation, RANGE_OPERATIONS):
            (write_ranges if operation.writes else read_ranges)[operation.range] = None
        else:
            point: PointOperation = operation  # the type checker sees that no other kind is left
            (writes if point.writes else reads)[point.key] = None
    if reads and writes:
        for key in writes:
            reads.pop(key, None)
    return Footprint(tuple(reads), tuple(writes), tuple(read_ranges), tuple(write_ranges))


@dataclass(frozen=True, slots=True)
class Limits:
    """How large things may be. All replicas must have the same limits."""

    key_bytes: int = 4 << 10
    value_bytes: int = 1 << 20
    transaction_bytes: int = 8 << 20
    operations: int = 4096
    """Conditions count too."""
    scan_bytes: int = 8 << 20


def validate(transaction: Transaction, limits: Limits) -> None:
    """Raise `InvalidRequest` unless the transaction may be ordered. For whoever takes it from a client."""
    count = len(transaction.conditions) + len(transaction.then) + len(transaction.otherwise)
    if not count:
        raise InvalidRequest("the transaction is empty")
    if count > limits.operations:
        raise InvalidRequest(
            f"{count} conditions and operations are more than the limit of {limits.operations}"
        )
    total = 0
    for i, condition in enumerate(transaction.conditions):
        total += _validate_condition(f"conditions[{i}]", condition, limits)
    for branch, operations in (("then", transaction.then), ("otherwise", transaction.otherwise)):
        for i, operation in enumerate(operations):
            total += _validate_operation(f"{branch}[{i}]", operation, limits)
    if total > limits.transaction_bytes:
        raise InvalidRequest(
            f"the transaction's {total} bytes of keys and values are more than the limit of "
            f"{limits.transaction_bytes}"
        )


def _validate_condition(where: str, condition: Condition, limits: Limits) -> int:
    if isinstance(condition, Unchanged):
        _integer(f"{where}: since", condition.since, 0, REVISION_MAX)
        return _range(where, condition.range, limits)
    if not isinstance(condition, Compare):
        assert_never(condition)
    size = _key(where, condition.key, limits)
    subject, operator, operand = condition.subject, condition.operator, condition.operand
    if subject is Subject.VALUE:
        return size + _value(where, operand, limits)
    if subject is Subject.EXISTS:
        if operator not in (Operator.EQUAL, Operator.NOT_EQUAL):
            raise InvalidRequest(f"{where}: existence is compared by = or !=, not by {operator.value}")
        _integer(f"{where}: existence", operand, 0, 1)
    else:
        _integer(f"{where}: {subject.value}", operand, 0, REVISION_MAX)
    return size


def _validate_operation(where: str, operation: Operation, limits: Limits) -> int:
    if isinstance(operation, (Put, Append)):
        return _key(where, operation.key, limits) + _value(where, operation.value, limits)
    if isinstance(operation, (Get, Delete)):
        return _key(where, operation.key, limits)
    if isinstance(operation, Calculate):
        _integer(f"{where}: operand", operation.operand, INT64_MIN, INT64_MAX)
        return _key(where, operation.key, limits)
    if isinstance(operation, Scan):
        _integer(f"{where}: limit", operation.limit, 0, INT64_MAX)
        _integer(f"{where}: limit_bytes", operation.limit_bytes, 1, limits.scan_bytes)
        return _range(where, operation.range, limits)
    if isinstance(operation, DeleteRange):
        return _range(where, operation.range, limits)
    assert_never(operation)


def _key(where: str, key: bytes, limits: Limits) -> int:
    if not isinstance(key, bytes):
        raise InvalidRequest(f"{where}: a key must be bytes, not {type(key).__name__}")
    if not key:
        raise InvalidRequest(f"{where}: the key is empty")
    if len(key) > limits.key_bytes:
        raise InvalidRequest(
            f"{where}: the key's {len(key)} bytes are more than the limit of {limits.key_bytes}"
        )
    return len(key)


def _value(where: str, value: object, limits: Limits) -> int:
    if not isinstance(value, bytes):
        raise InvalidRequest(f"{where}: a value must be bytes, not {type(value).__name__}")
    if len(value) > limits.value_bytes:
        raise InvalidRequest(
            f"{where}: the value's {len(value)} bytes are more than the limit of {limits.value_bytes}"
        )
    return len(value)


def _range(where: str, asked: Range, limits: Limits) -> int:
    total = 0
    for name, bound in (("start", asked.start), ("end", asked.end)):
        if bound is None:
            continue
        if not isinstance(bound, bytes):
            raise InvalidRequest(f"{where}: the {name} of a range must be bytes, not {type(bound).__name__}")
        if len(bound) > limits.key_bytes:
            raise InvalidRequest(
                f"{where}: the {name}'s {len(bound)} bytes are more than the limit of {limits.key_bytes}"
            )
        total += len(bound)
    if asked.end is not None and asked.start >= asked.end:
        raise InvalidRequest(f"{where}: the range's start {asked.start!r} is not below its end {asked.end!r}")
    return total


def _integer(what: str, number: object, lowest: int, highest: int) -> None:
    if type(number) is not int or not lowest <= number <= highest:
        raise InvalidRequest(f"{what} must be an integer from {lowest} to {highest}, not {number!r}")
