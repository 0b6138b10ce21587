"""Evaluate conditions and perform operations on a group's keys.

What is done on ranges is done in slices, by generators that yield where a step ends (`slices`). All replicas
must come to the same result, although compaction may have left rows of removed keys in some of them and not
in others: such rows, at or below the floor, are looked at and not counted.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, assert_never

import msgspec

from kvstore.machine.placement import GroupShare
from kvstore.machine.request import (
    INT64_MAX,
    INT64_MIN,
    RANGE_OPERATIONS,
    Append,
    Arithmetic,
    Calculate,
    Compare,
    Delete,
    DeleteRange,
    Get,
    Limits,
    Operation,
    Operator,
    PointOperation,
    Put,
    RangeOperation,
    Scan,
    Shape,
    Subject,
    Swap,
    Unchanged,
)
from kvstore.machine.results import (
    WRITTEN,
    Deleted,
    Failed,
    Failure,
    Fault,
    Got,
    KeyValue,
    Number,
    OperationResult,
    Scanned,
    Unmet,
)
from kvstore.machine.slices import REMOVED, ROW_BYTES, Meter
from kvstore.machine.versions import OutOfRows, Version, Versions, Writer, entry_of

_COMPARE: Final[dict[Operator, Callable[[Any, Any], bool]]] = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.GREATER: operator.gt,
    Operator.LESS_EQUAL: operator.le,
    Operator.GREATER_EQUAL: operator.ge,
    Operator.STARTS_WITH: bytes.startswith,
}
_ABSENT: Final = Version(None, 0, 0, 0)
T = TypeVar("T")
_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")

RESULTS_BYTES: Final = 8 << 20
"""Of keys and values that one group's results of a request may hold. All replicas must agree on it. Results
are kept for repetitions, and travel in one message, which has to fit into a frame.
"""
FAILURES_MAX: Final = 16
"""Failures that one group tells of an aborted transaction: the first ones. All replicas must agree on it."""
ENTRY_BYTES: Final = 64
"""What an entry counts for beside its key and value."""


class Room:
    """The room left for the results of one request in one group. The first may be of any size."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = RESULTS_BYTES

    def get(self, key: bytes, found: Version | None) -> Got | Failed:
        """Return the result of a get."""
        if found is None or found.value is None:
            return Got(None)
        if not self._take(len(key) + len(found.value) + ENTRY_BYTES):
            return Failed(Fault.VALUE_TOO_LARGE)
        return Got(entry_of(key, found.value, found))

    def scan(self, asked: Scan, entries: Iterable[KeyValue]) -> Scanned | Failed:
        """Return the result of a scan, as far as there is room."""
        return self.take(scan(asked, entries, self._left))

    def gathering(self, asked: Scan) -> Gathering:
        """Return the beginning of a scan's result, which ends where there is no more room."""
        return Gathering(asked, self._left)

    def take(self, found: Scanned) -> Scanned | Failed:
        """Return the result of a scan, unless there is no room for it."""
        sizes = [len(entry.key) + len(entry.value) + ENTRY_BYTES for entry in found.entries]
        return found if self._take(sum(sizes)) else Failed(Fault.VALUE_TOO_LARGE)

    def admit(self, result: OperationResult) -> OperationResult:
        """Return a result that was read elsewhere, unless there is no room for it."""
        if isinstance(result, Got) and result.entry is not None:
            entry = result.entry
            fits = self._take(len(entry.key) + len(entry.value) + ENTRY_BYTES)
            return result if fits else Failed(Fault.VALUE_TOO_LARGE)
        return self.take(result) if isinstance(result, Scanned) else result

    def _take(self, size: int) -> bool:
        if size > self._left < RESULTS_BYTES:
            return False
        self._left -= size
        return True


class Allowance(NamedTuple):
    """What each operation and condition on a range may do in one group: the transaction's limits are shared
    equally. So no transaction does more than one that has a single range.
    """

    rows: int
    """Rows of the range."""
    keys: int
    """Keys that a range delete without a limit of its own removes."""
    size: int
    """Bytes of the keys and values that a range delete removes."""


def allowance_of(part: GroupShare, limits: Limits) -> Allowance:
    """Share the limits among a group's operations and conditions on ranges."""
    ranges = sum(isinstance(condition, Unchanged) for _, condition in part.conditions)
    ranges += sum(isinstance(each, RANGE_OPERATIONS) for _, each in part.then + part.otherwise)
    keys, most = limits.delete_keys, 1
    for branch in (part.then, part.otherwise):
        deletes = [each for _, each in branch if isinstance(each, DeleteRange)]
        whole = sum(each.is_whole for each in deletes)
        declared = sum(each.limit for each in deletes)
        keys = min(keys, (limits.delete_keys - declared) // max(whole, 1))
        most = max(most, len(deletes))
    return Allowance(limits.transaction_rows // max(ranges, 1), keys, limits.delete_bytes // most)


def evaluate(
    part: GroupShare, versions: Versions, revision: int, floor: int, limits: Limits, meter: Meter
) -> Generator[None, None, tuple[Unmet, ...]]:
    """Return the conditions that do not hold at this position in the order, with this floor."""
    unmet = []
    allowed = allowance_of(part, limits)
    for i, condition in part.conditions:
        if isinstance(condition, Compare):
            found = (yield from patiently(partial(versions.get, condition.key))) or _ABSENT
            meter.left -= _cost(found.value)
            if meter.left <= 0:
                yield
            if not _holds(found, condition.subject, condition.operator, condition.operand):
                unmet.append(Unmet(i))
        elif not isinstance(condition, Unchanged):
            assert_never(condition)
        elif condition.since < floor:
            unmet.append(Unmet(i, Fault.COMPACTED))
        elif condition.since >= revision:
            unmet.append(Unmet(i, Fault.FUTURE_REVISION))
        else:
            rows = 0
            for row in counted(versions.rows(condition.range, meter), floor):
                if row is None:
                    yield
                    continue
                rows += 1
                if rows > allowed.rows:
                    unmet.append(Unmet(i, Fault.TOO_MANY_ROWS))
                    break
                if row[1].mod_revision > condition.since:
                    unmet.append(Unmet(i))
                    break
    return tuple(unmet)


def patiently(read: Callable[[], T]) -> Generator[None, None, T]:
    """Read, also if that takes several steps."""
    while True:
        try:
            return read()
        except OutOfRows:
            yield


def counted(
    rows: Iterator[tuple[bytes, Version] | None], floor: int
) -> Iterator[tuple[bytes, Version] | None]:
    """The rows that all replicas have: not those of removed keys that compaction has yet to drop."""
    for row in rows:
        if row is None or row[1].value is not None or row[1].mod_revision > floor:
            yield row


def number_of(value: bytes | None) -> int | None:
    """Return the signed 64-bit number that a value is in decimal digits; None if it is not one."""
    if value is None or not _NUMBER.fullmatch(value):
        return None
    number = int(value)
    return number if INT64_MIN <= number <= INT64_MAX else None


def _holds(found: Version, subject: Subject, how: Operator, operand: bytes | int) -> bool:
    if subject is Subject.VALUE:
        if found.value is None:
            return how is Operator.NOT_EQUAL
        return _COMPARE[how](found.value, operand)
    if subject is Subject.NUMBER:
        number = number_of(found.value)
        return number is not None and _COMPARE[how](number, operand)
    if subject is Subject.EXISTS:
        return _COMPARE[how](found.value is not None, operand)
    if subject is Subject.VERSION:
        return _COMPARE[how](found.version, operand)
    if subject is Subject.CREATE_REVISION:
        return _COMPARE[how](found.create_revision, operand)
    if subject is Subject.MOD_REVISION:
        return _COMPARE[how](found.mod_revision, operand)
    assert_never(subject)


def perform_all(
    branch: Iterable[tuple[int, Operation]],
    part: GroupShare,
    versions: Versions,
    writer: Writer,
    limits: Limits,
    floor: int,
    meter: Meter,
) -> Generator[None, None, list[tuple[int, OperationResult]]]:
    """Perform a branch's operations in this group, in slices."""
    allowed, room = allowance_of(part, limits), Room()
    results: list[tuple[int, OperationResult]] = []
    for i, operation in branch:
        if isinstance(operation, RANGE_OPERATIONS):
            result = yield from perform_range(operation, versions, writer, allowed, floor, room, meter)
        else:
            point: PointOperation = operation
            result = yield from patiently(partial(perform, point, versions, writer, room))
            meter.left -= cost_of(point, result)
            if meter.left <= 0:
                yield
        results.append((i, result))
    return results


def failures_of(
    branch: Iterable[tuple[int, Operation]],
    results: Iterable[tuple[int, OperationResult]],
    *,
    allowed: bool,
) -> tuple[Failure, ...]:
    """Return the first writes of a branch whose failure aborts the transaction; if failures are `allowed`,
    only deletes of whole ranges, which other groups may have done.
    """
    found = [
        Failure(i, result.fault)
        for (i, operation), (_, result) in zip(branch, results, strict=True)
        if isinstance(result, Failed)
        and operation.writes
        and (not allowed or (isinstance(operation, DeleteRange) and operation.is_whole))
    ]
    return tuple(found[:FAILURES_MAX])


def perform(operation: PointOperation, versions: Versions, writer: Writer, room: Room) -> OperationResult:
    """Perform an operation on a key. An error is its result, and then it has written nothing."""
    if isinstance(operation, Put):
        writer.put(operation.key, operation.value)
        return WRITTEN
    if isinstance(operation, Get):
        return room.get(operation.key, versions.get(operation.key))
    if isinstance(operation, Delete):
        return Deleted(int(writer.delete(operation.key)))
    if isinstance(operation, Calculate):
        return _calculate(operation, versions, writer)
    if isinstance(operation, Append):
        return _append(operation, versions, writer)
    if isinstance(operation, Swap):
        before = room.get(operation.key, versions.get(operation.key))
        if isinstance(before, Got):
            writer.put(operation.key, operation.value)
        return before
    assert_never(operation)


def cost_of(operation: PointOperation, result: OperationResult) -> int:
    """How many rows an operation on a key counts for."""
    if isinstance(result, Got):
        return _cost(None if result.entry is None else result.entry.value)
    if isinstance(result, Failed):
        return 1 + RESULTS_BYTES // 8 // ROW_BYTES  # what did not fit was read nevertheless
    if isinstance(operation, Append) and isinstance(result, Number):
        return 1 + result.value // ROW_BYTES
    return 1


def _cost(value: bytes | None) -> int:
    return 1 if value is None else 1 + len(value) // ROW_BYTES


def perform_range(
    operation: RangeOperation,
    versions: Versions,
    writer: Writer,
    allowed: Allowance,
    floor: int,
    room: Room,
    meter: Meter,
) -> Generator[None, None, OperationResult]:
    """Perform an operation on a range. Nothing is written before all of it was looked at."""
    if isinstance(operation, DeleteRange):
        return (yield from _delete_range(operation, versions, writer, allowed, floor, meter))
    if not isinstance(operation, Scan):
        assert_never(operation)
    found, rows, more = room.gathering(operation), 0, False
    for row in counted(versions.rows(operation.range, meter, reverse=operation.reverse), floor):
        if row is None:
            yield
            continue
        rows += 1
        key, version = row
        if rows > allowed.rows:
            if not found.entries:
                return Failed(Fault.TOO_MANY_ROWS)
            more = True
            break
        if version.value is not None and not found.add(entry_of(key, version.value, version)):
            more = True
            break
    return room.take(found.result(more=more))


def _delete_range(
    operation: DeleteRange,
    versions: Versions,
    writer: Writer,
    allowed: Allowance,
    floor: int,
    meter: Meter,
) -> Generator[None, None, Deleted | Failed]:
    found: list[tuple[bytes, Version]] = []
    rows, size, resume = 0, 0, b""
    for row in counted(versions.rows(operation.range, meter), floor):
        if row is None:
            yield
            continue
        key, version = row
        larger = size if version.value is None else size + len(key) + len(version.value)
        most = allowed.keys if operation.is_whole else operation.limit
        too_many = len(found) == most or (larger > allowed.size and found)
        if rows == allowed.rows or (version.value is not None and too_many):
            if operation.is_whole:
                return Failed(Fault.TOO_MANY_ROWS)
            resume = key
            break
        rows, size = rows + 1, larger
        if version.value is not None:
            found.append(row)
    for number, (key, version) in enumerate(found):
        if number % REMOVED == 0:
            meter.left -= 1
            if meter.left <= 0:
                yield
        writer.remove(key, version)
    return Deleted(len(found), resume)


def _calculate(operation: Calculate, versions: Versions, writer: Writer) -> Number | Failed:
    found = versions.get(operation.key)
    number = operation.operand
    if found is not None and found.value is not None:
        stored = number_of(found.value)
        if stored is None:
            return Failed(Fault.NOT_A_NUMBER)
        if operation.arithmetic is Arithmetic.ADD:
            number += stored
        elif operation.arithmetic is Arithmetic.MIN:
            number = min(stored, number)
        elif operation.arithmetic is Arithmetic.MAX:
            number = max(stored, number)
        else:
            assert_never(operation.arithmetic)
    if operation.floor is not None and number < operation.floor:
        return Failed(Fault.BELOW_FLOOR)
    if operation.ceiling is not None and number > operation.ceiling:
        return Failed(Fault.ABOVE_CEILING)
    if not INT64_MIN <= number <= INT64_MAX:
        return Failed(Fault.OVERFLOW)
    writer.put(operation.key, b"%d" % number)
    return Number(number)


def _append(operation: Append, versions: Versions, writer: Writer) -> Number | Failed:
    found = versions.get(operation.key)
    value = operation.value if found is None or found.value is None else found.value + operation.value
    if len(value) > operation.most:
        return Failed(Fault.VALUE_TOO_LARGE)
    writer.put(operation.key, value)
    return Number(len(value))


class Gathering:
    """The result of a scan as it grows: at least one entry, if there is one, else what fits."""

    __slots__ = ("_asked", "_keys_only", "_room", "_size", "count", "entries")

    def __init__(self, asked: Scan, room: int = INT64_MAX) -> None:
        self._asked = asked
        self._keys_only = asked.shape is Shape.KEYS
        self._room = room
        self._size = 0
        self.count = 0
        self.entries: list[KeyValue] = []

    def add(self, entry: KeyValue) -> bool:
        """Add the next entry. False if the limits end the scan before it."""
        asked = self._asked
        if asked.shape is Shape.COUNT:
            self.count += 1
            return True
        found, keys_only = self.entries, self._keys_only
        size = self._size + (len(entry.key) if keys_only else len(entry.key) + len(entry.value))
        room = self._room - ENTRY_BYTES
        if found and (size > asked.limit_bytes or self.count == asked.limit or size > room):
            return False
        self._size, self._room = size, room
        self.count += 1
        found.append(msgspec.structs.replace(entry, value=b"") if keys_only else entry)
        return True

    def result(self, *, more: bool) -> Scanned:
        """Return the result; `more` if the range goes on."""
        return Scanned(tuple(self.entries), self.count, more)


def scan(asked: Scan, entries: Iterable[KeyValue], room: int = INT64_MAX) -> Scanned:
    """Return what a scan returns of these entries."""
    found = Gathering(asked, room)
    return found.result(more=not all(map(found.add, entries)))
