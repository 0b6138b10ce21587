"""Evaluate conditions and perform operations on a group's keys."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, assert_never

import msgspec

from kvstore.machine.request import (
    INT64_MAX,
    INT64_MIN,
    Append,
    Arithmetic,
    Calculate,
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Get,
    Limits,
    Operation,
    Operator,
    Put,
    Scan,
    Shape,
    Subject,
    Unchanged,
)
from kvstore.machine.results import (
    WRITTEN,
    Deleted,
    Failed,
    Fault,
    Got,
    KeyValue,
    Number,
    OperationResult,
    Scanned,
    Unmet,
)
from kvstore.machine.versions import Version, Versions, Writer, entry_of

_COMPARE: Final[dict[Operator, Callable[[Any, Any], bool]]] = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.GREATER: operator.gt,
}
_ABSENT: Final = Version(None, 0, 0, 0)
_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")

RESULTS_BYTES: Final = 8 << 20
"""Of keys and values that one group's results of a request may hold. All replicas must agree on it. Results
are kept for repetitions, and travel in one message, which has to fit into a frame.
"""
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
        found = scan(asked, entries, self._left)
        sizes = [len(entry.key) + len(entry.value) + ENTRY_BYTES for entry in found.entries]
        return found if self._take(sum(sizes)) else Failed(Fault.VALUE_TOO_LARGE)

    def _take(self, size: int) -> bool:
        if size > self._left < RESULTS_BYTES:
            return False
        self._left -= size
        return True


def evaluate(
    conditions: Iterable[tuple[int, Condition]], versions: Versions, revision: int, floor: int
) -> tuple[Unmet, ...]:
    """Return the conditions that do not hold at this position in the order, with this floor."""
    unmet = []
    for i, condition in conditions:
        if isinstance(condition, Compare):
            found = versions.get(condition.key) or _ABSENT
            if not _holds(found, condition.subject, condition.operator, condition.operand):
                unmet.append(Unmet(i))
        elif not isinstance(condition, Unchanged):
            assert_never(condition)
        elif condition.since < floor:
            unmet.append(Unmet(i, Fault.COMPACTED))
        elif condition.since >= revision:
            unmet.append(Unmet(i, Fault.FUTURE_REVISION))
        elif versions.changed_since(condition.range, condition.since):
            unmet.append(Unmet(i))
    return tuple(unmet)


def _holds(found: Version, subject: Subject, how: Operator, operand: bytes | int) -> bool:
    if subject is Subject.VALUE:
        if found.value is None:
            return how is Operator.NOT_EQUAL
        return _COMPARE[how](found.value, operand)
    if subject is Subject.EXISTS:
        return _COMPARE[how](found.value is not None, operand)
    if subject is Subject.VERSION:
        return _COMPARE[how](found.version, operand)
    if subject is Subject.CREATE_REVISION:
        return _COMPARE[how](found.create_revision, operand)
    if subject is Subject.MOD_REVISION:
        return _COMPARE[how](found.mod_revision, operand)
    assert_never(subject)


def perform(
    operation: Operation, versions: Versions, writer: Writer, limits: Limits, room: Room
) -> OperationResult:
    """Perform an operation. An error is its result."""
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
        return _append(operation, versions, writer, limits)
    if isinstance(operation, DeleteRange):
        keys = [entry.key for entry in versions.scan(operation.range)]
        for key in keys:
            writer.delete(key)
        return Deleted(len(keys))
    if isinstance(operation, Scan):
        return room.scan(operation, versions.scan(operation.range, reverse=operation.reverse))
    assert_never(operation)


def _calculate(operation: Calculate, versions: Versions, writer: Writer) -> Number | Failed:
    found = versions.get(operation.key)
    number = operation.operand
    if found is not None and found.value is not None:
        if not _NUMBER.fullmatch(found.value):
            return Failed(Fault.NOT_A_NUMBER)
        stored = int(found.value)
        if not INT64_MIN <= stored <= INT64_MAX:
            return Failed(Fault.NOT_A_NUMBER)
        if operation.arithmetic is Arithmetic.ADD:
            number += stored
        elif operation.arithmetic is Arithmetic.MIN:
            number = min(stored, number)
        elif operation.arithmetic is Arithmetic.MAX:
            number = max(stored, number)
        else:
            assert_never(operation.arithmetic)
    if not INT64_MIN <= number <= INT64_MAX:
        return Failed(Fault.OVERFLOW)
    writer.put(operation.key, b"%d" % number)
    return Number(number)


def _append(operation: Append, versions: Versions, writer: Writer, limits: Limits) -> Number | Failed:
    found = versions.get(operation.key)
    value = operation.value if found is None or found.value is None else found.value + operation.value
    if len(value) > limits.value_bytes:
        return Failed(Fault.VALUE_TOO_LARGE)
    writer.put(operation.key, value)
    return Number(len(value))


def scan(asked: Scan, entries: Iterable[KeyValue], room: int = INT64_MAX) -> Scanned:
    """Return what a scan returns of these entries: at least one, if there is one, else what fits."""
    if asked.shape is Shape.COUNT:
        return Scanned((), sum(1 for _ in entries), more=False)
    found: list[KeyValue] = []
    size = 0
    keys_only = asked.shape is Shape.KEYS
    for entry in entries:
        size += len(entry.key) if keys_only else len(entry.key) + len(entry.value)
        room -= ENTRY_BYTES
        if found and (size > asked.limit_bytes or len(found) == asked.limit or size > room):
            return Scanned(tuple(found), len(found), more=True)
        found.append(msgspec.structs.replace(entry, value=b"") if keys_only else entry)
    return Scanned(tuple(found), len(found), more=False)
