"""A transaction as the machine sees it: conditions, then, otherwise; and what a request may hold.

If all conditions hold, the operations of `then` are performed, in order, else those of `otherwise`; each sees
what those before it wrote. If a write of that branch cannot be performed, in any group, nothing is written in
all of them: the transaction is aborted. With `allow_failures` the failure is the result of that write alone.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, NoReturn, TypeAlias, assert_never

from kvstore.machine.data import Data
from kvstore.machine.formula import Combined, check_formula

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
UINT64_MAX: Final = 2**64 - 1
REVISION_MAX: Final = (1 << 53) - 1


class InvalidRequest(ValueError):
    """A request that can never be executed. The message names what is wrong."""


class LimitExceeded(InvalidRequest):
    """A request that exceeds the limit of this name, which has this value."""

    def __init__(self, message: str, name: str, value: int) -> None:
        super().__init__(message)
        self.name = name
        self.value = value


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
    floor: int | None = None
    """An addition fails if its sum is below this."""
    ceiling: int | None = None
    """An addition fails if its sum is above this."""
    writes: ClassVar[bool] = True


class Append(Data, frozen=True, tag=5):
    """Add bytes to the end of a value."""

    key: bytes
    value: bytes
    most: int = 1 << 20
    """The most bytes that the value may have then. The gateway says so, in the message: if each replica
    applied its own configuration, two of them could disagree on whether the transaction fails.
    """
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
    """Remove all keys of a range, or the first ones.

    Without a limit it is all or nothing: if a group has more keys of the range than `Limits.delete_keys`
    allows, the transaction is aborted, also if it allows failures.
    """

    range: Range
    limit: int = 0
    """The most keys to remove in each group; 0 for all."""
    writes: ClassVar[bool] = True

    @property
    def is_whole(self) -> bool:
        """Whether it removes all keys of the range, or nothing."""
        return not self.limit


class Swap(Data, frozen=True, tag=8):
    """Write a key, and return what was there before."""

    key: bytes
    value: bytes
    writes: ClassVar[bool] = True


PointOperation: TypeAlias = Get | Put | Delete | Calculate | Append | Swap
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
    LESS_EQUAL = "<="
    GREATER_EQUAL = ">="
    STARTS_WITH = "starts_with"
    """Of values only."""


class Subject(enum.Enum):
    """What of a key a condition is about. An absent key has version and revisions 0."""

    VALUE = "value"
    NUMBER = "number"
    """The value, as a signed 64-bit number in decimal digits."""
    EXISTS = "exists"
    VERSION = "version"
    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"


class Compare(Data, frozen=True, tag=1):
    """A condition on a key.

    The value of an absent key differs from every value, and is not ordered. A comparison of a number holds
    only if there is a number: an absent key, and a value that is not a number, satisfy none, not even `!=`.
    """

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
    """Operations that are performed together, at one position in the order."""

    conditions: tuple[Condition, ...] = ()
    then: tuple[Operation, ...] = ()
    otherwise: tuple[Operation, ...] = ()
    formula: tuple[Combined, ...] = ()
    """Combines some of the conditions by any and all."""
    allow_failures: bool = False
    """Whether a write that cannot be performed fails alone, instead of aborting the transaction."""

    def __post_init__(self) -> None:
        if self.formula:
            check_formula(len(self.conditions), self.formula)

    @property
    def writes(self) -> bool:
        """Whether an operation of either branch writes."""
        for branch in (self.then, self.otherwise):
            for operation in branch:
                if operation.writes:
                    return True
        return False


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
    transaction_rows: int = 30_000
    """Rows that the ranges of a transaction may have in one group. Its operations and conditions on ranges
    share them. Like the next, this is a constant: no configuration changes it.
    """
    delete_keys: int = 10_000
    """Keys that the range deletes of a transaction may remove in one group, which they share. What is removed
    is written in one step, and is one row of history.
    """
    delete_bytes: int = 16 << 20
    """Of the keys and values that these deletes remove, likewise. The first key is removed whatever its size.
    """


def validate(transaction: Transaction, limits: Limits) -> None:
    """Raise `InvalidRequest` unless the transaction may be ordered.

    The API judges every request by this once, before anything of it is done. Nothing behind the API judges
    again: service and gateway take valid transactions, and what is ordered is executed.
    """
    count = len(transaction.conditions) + len(transaction.then) + len(transaction.otherwise)
    check_count(count, limits)
    total = 0
    for name, items in (
        ("conditions", transaction.conditions),
        ("then", transaction.then),
        ("otherwise", transaction.otherwise),
    ):
        if items:
            total += _sizes_of(name, items, limits, alone=count == 1)
    if total > limits.transaction_bytes:
        _exceeds("a transaction's keys and values", total, limits, "transaction_bytes", "split it")
    _check_deletes("then", transaction.then, limits)
    _check_deletes("otherwise", transaction.otherwise, limits)


def _sizes_of(name: str, items: Iterable[Condition | Operation], limits: Limits, *, alone: bool) -> int:
    """Judge conditions or operations. Returns the bytes of their keys and values. An error says which one is
    wrong, unless it is the only one.
    """
    total = i = 0
    try:
        for item in items:
            total += _size_of(item, limits)
            i += 1
    except InvalidRequest as error:
        if not alone:
            error.args = (f"{name}[{i}]: {error}",)
        raise
    return total


def _check_deletes(name: str, branch: tuple[Operation, ...], limits: Limits) -> None:
    """Judge a branch's deletes of ranges: how many keys they may remove together."""
    declared = sum([each.limit for each in branch if isinstance(each, DeleteRange)])
    if declared > limits.delete_keys:
        raise LimitExceeded(
            f"the limits of the range deletes in `{name}` are {declared} keys together, which exceeds the "
            f"limit of {limits.delete_keys} keys (delete_keys); delete in smaller pages",
            *("delete_keys", limits.delete_keys),
        )


def check_count(count: int, limits: Limits) -> None:
    """Judge the number of a transaction's conditions and operations.

    A converter calls this before it converts: a message within gRPC's limit may have millions.
    """
    if not count:
        raise InvalidRequest("the transaction is empty")
    if count > limits.operations:
        raise LimitExceeded(
            f"{count} conditions and operations exceed the limit of {limits.operations} (operations); "
            f"split the transaction",
            *("operations", limits.operations),
        )


def check_range(asked: Range, limits: Limits) -> int:
    """Judge a range. Returns the bytes of its bounds."""
    total = 0
    for name, bound in (("start", asked.start), ("end", asked.end)):
        if bound is None:
            continue
        if not isinstance(bound, bytes):
            raise InvalidRequest(f"the {name} of a range must be bytes, not {type(bound).__name__}")
        if len(bound) > limits.key_bytes:
            _exceeds(f"the {name} of a range", len(bound), limits, "key_bytes", "use a shorter one")
        total += len(bound)
    if asked.end is not None and asked.start >= asked.end:
        start, end = _short(asked.start), _short(asked.end)
        raise InvalidRequest(f"the range's start {start} is not below its end {end}")
    return total


def check_integer(what: str, number: object, lowest: int, highest: int) -> None:
    """Judge a number."""
    if type(number) is not int or not lowest <= number <= highest:
        raise InvalidRequest(f"{what} must be an integer from {lowest} to {highest}, not {number!r}")


def _size_of(item: Condition | Operation, limits: Limits) -> int:
    """Judge a condition or an operation. Returns its bytes of keys and values."""
    if isinstance(item, (Put, Swap)):
        return _key(item.key, limits) + _value(item.value, limits)
    if isinstance(item, (Get, Delete)):
        return _key(item.key, limits)
    if isinstance(item, Append):
        check_integer("most", item.most, 1, INT64_MAX)
        return _key(item.key, limits) + _value(item.value, limits)
    if isinstance(item, Calculate):
        _check_bounds(item)
        return _key(item.key, limits)
    if isinstance(item, Scan):
        check_integer("limit", item.limit, 0, INT64_MAX)
        check_integer("limit_bytes", item.limit_bytes, 1, UINT64_MAX)
        if item.limit_bytes > limits.scan_bytes:
            _exceeds("limit_bytes", item.limit_bytes, limits, "scan_bytes", "scan in smaller pages")
        return check_range(item.range, limits)
    if isinstance(item, DeleteRange):
        check_integer("limit", item.limit, 0, INT64_MAX)
        return check_range(item.range, limits)
    if isinstance(item, Unchanged):
        check_integer("since", item.since, 0, REVISION_MAX)
        return check_range(item.range, limits)
    if isinstance(item, Compare):
        return _key(item.key, limits) + _operand(item, limits)
    assert_never(item)


def _check_bounds(item: Calculate) -> None:
    check_integer("operand", item.operand, INT64_MIN, INT64_MAX)
    floor, ceiling = item.floor, item.ceiling
    if floor is None and ceiling is None:
        return
    if item.arithmetic is not Arithmetic.ADD:
        raise InvalidRequest(f"only an addition has a floor and a ceiling, not a {item.arithmetic.value}")
    low = INT64_MIN if floor is None else floor
    high = INT64_MAX if ceiling is None else ceiling
    check_integer("floor", low, INT64_MIN, INT64_MAX)
    check_integer("ceiling", high, INT64_MIN, INT64_MAX)
    if low > high:
        raise InvalidRequest(
            f"the floor {low} is above the ceiling {high}: no sum could be stored; swap them"
        )


def _operand(compare: Compare, limits: Limits) -> int:
    subject, operator, operand = compare.subject, compare.operator, compare.operand
    if subject is Subject.VALUE:
        return _value(operand, limits)
    if operator is Operator.STARTS_WITH:
        raise InvalidRequest(f"only a value is compared by starts_with, not the {subject.value} of a key")
    if subject is Subject.NUMBER:
        check_integer("the number compared with", operand, INT64_MIN, INT64_MAX)
    elif subject is Subject.EXISTS:
        if operator not in (Operator.EQUAL, Operator.NOT_EQUAL):
            raise InvalidRequest(f"existence is compared by = or !=, not by {operator.value}")
        check_integer("existence", operand, 0, 1)
    else:
        check_integer(subject.value, operand, 0, REVISION_MAX)
    return 0


def _key(key: bytes, limits: Limits) -> int:
    if not isinstance(key, bytes):
        raise InvalidRequest(f"a key must be bytes, not {type(key).__name__}")
    if not key:
        raise InvalidRequest("the key is empty")
    if len(key) > limits.key_bytes:
        _exceeds("a key", len(key), limits, "key_bytes", "use a shorter key")
    return len(key)


def _value(value: object, limits: Limits) -> int:
    if not isinstance(value, bytes):
        raise InvalidRequest(f"a value must be bytes, not {type(value).__name__}")
    if len(value) > limits.value_bytes:
        _exceeds("a value", len(value), limits, "value_bytes", "store it under several keys")
    return len(value)


def _exceeds(what: str, size: int, limits: Limits, name: str, remedy: str) -> NoReturn:
    limit: int = getattr(limits, name)
    raise LimitExceeded(
        f"{what} of {size} bytes exceeds the limit of {limit} bytes ({name}); {remedy}", name, limit
    )


def _short(key: bytes) -> str:
    return repr(key) if len(key) <= 64 else f"{key[:64]!r}..."
