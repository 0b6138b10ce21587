"""A naive store: executes everything at once, in the order of global timestamps, over all groups together.

It keeps every version for ever, locks nothing, waits for nobody, and shares no code with the machine but the
definitions of requests and results, and the map of keys to groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from kvstore.machine.commands import (
    ChangePlacement,
    Compact,
    Delivered,
    Expire,
    Malformed,
    Pin,
    Unpin,
)
from kvstore.machine.placement import Placement
from kvstore.machine.request import (
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
    Range,
    Scan,
    Shape,
    Subject,
    Transaction,
    Unchanged,
)
from kvstore.machine.results import (
    DONE,
    WRITTEN,
    Deleted,
    Entry,
    Failed,
    Fault,
    Got,
    Number,
    OperationResult,
    Outcome,
    Refusal,
    Result,
    Scanned,
    Unmet,
    WrongPartition,
)
from multicast.types import GroupId

Values = dict[bytes, Entry]


@dataclass
class Group:
    """One group's state after each transaction."""

    now: Values = field(default_factory=dict)
    states: list[tuple[int, Values]] = field(default_factory=lambda: [(0, {})])
    """The whole state after each revision."""
    floor: int = 0
    pins: dict[str, int] = field(default_factory=dict)
    sessions: dict[tuple[int, int], tuple[int, Result]] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)
    expired: set[int] = field(default_factory=set)
    answers: list[tuple[int, Result | Refusal]] = field(default_factory=list)

    def at(self, revision: int) -> Values:
        return [values for r, values in self.states if r <= revision][-1]

    def changed(self, within: Range, since: int) -> bool:
        """Whether any state after the revision differs from the one before it, within the range."""
        tail = [self.at(since), *(values for r, values in self.states if r > since)]
        parts = [{k: e for k, e in values.items() if within.covers(k)} for values in tail]
        return any(one != other for one, other in pairwise(parts))


class Model:
    """All groups."""

    def __init__(self, placement: Placement, limits: Limits, window: int) -> None:
        self.placement = placement
        self.limits = limits
        self.window = window
        self.groups = {g: Group() for g in placement.groups}

    def execute(self, message: Delivered) -> None:
        touched = [self.groups[g] for g in message.destinations]
        fresh = [
            g for g, group in zip(message.destinations, touched, strict=True) if self._admit(group, message)
        ]
        command = message.command
        results: dict[GroupId, Result | Refusal] = {}
        if isinstance(command, Transaction):
            if fresh:
                results = self._transaction(message, command, fresh)
        elif isinstance(command, ChangePlacement):
            results = dict.fromkeys(fresh, self._change(message, command.placement) if fresh else DONE)
        else:
            results = {g: self._housekeep(self.groups[g], message) for g in fresh}
        for g in fresh:
            group, result = self.groups[g], results[g]
            group.answers.append((message.gts, result))
            client, sequence, digest = message.mid
            if client not in group.expired and sequence >= group.acked.get(client, 0):
                group.sessions[client, sequence] = (digest, result)  # type: ignore[assignment]

    def _admit(self, group: Group, message: Delivered) -> bool:
        client, sequence, digest = message.mid
        answer: Result | Refusal | None = None
        if client in group.expired:
            group.answers.append((message.gts, Refusal.EXPIRED))
            return False
        known = group.sessions.get((client, sequence))
        if known is not None:
            answer = known[1] if known[0] == digest else Refusal.MISMATCH
        elif sequence < group.acked.get(client, 0):
            group.answers.append((message.gts, Refusal.FORGOTTEN))
            return False
        elif sequence - message.ack_below >= self.window:
            group.answers.append((message.gts, Refusal.WINDOW_FULL))
            return False
        group.acked[client] = max(group.acked.get(client, 0), message.ack_below)
        for number in list(group.sessions):
            if number[0] == client and number[1] < group.acked[client]:
                del group.sessions[number]
        if answer is not None:
            group.answers.append((message.gts, answer))
        return answer is None

    def _change(self, message: Delivered, placement: Placement) -> Result | Refusal:
        if set(message.destinations) != set(self.placement.groups) | set(placement.groups):
            return Refusal.NOT_TO_ALL
        if placement.version != self.placement.version + 1:
            return Refusal.STALE_PLACEMENT
        self.placement = placement
        return DONE

    def _housekeep(self, group: Group, message: Delivered) -> Result | Refusal:
        command = message.command
        if isinstance(command, Malformed):
            return Refusal.MALFORMED
        if isinstance(command, Compact | Pin):
            revision = command.floor if isinstance(command, Compact) else command.revision
            if revision < group.floor:
                return Refusal.COMPACTED
            if revision > message.gts:
                return Refusal.FUTURE_REVISION
            if isinstance(command, Pin):
                group.pins[command.name] = revision
            elif any(pin < revision for pin in group.pins.values()):
                return Refusal.PINNED
            else:
                group.floor = revision
        elif isinstance(command, Unpin):
            for name in command.names:
                group.pins.pop(name, None)
        elif isinstance(command, Expire):
            if set(message.destinations) != set(self.placement.groups):
                return Refusal.NOT_TO_ALL
            for client in command.clients:
                group.expired.add(client)
                for number in [n for n in group.sessions if n[0] == client]:
                    del group.sessions[number]
        return DONE

    def _owners(self, item: Condition | Operation) -> set[GroupId]:
        if isinstance(item, Unchanged | Scan | DeleteRange):
            return set(self.placement.groups_of_range(item.range))
        return {self.placement.group_of(item.key)}

    def _transaction(
        self, message: Delivered, transaction: Transaction, fresh: list[GroupId]
    ) -> dict[GroupId, Result | Refusal]:
        for item in (*transaction.conditions, *transaction.then, *transaction.otherwise):
            if not self._owners(item) <= set(message.destinations):
                return dict.fromkeys(fresh, WrongPartition(self.placement))
        unmet: dict[GroupId, list[Unmet]] = {g: [] for g in fresh}
        for i, condition in enumerate(transaction.conditions):
            for g in self._owners(condition):
                failed = self._unmet(i, condition, self.groups[g], message.gts)
                if failed:
                    unmet[g].append(failed)
        succeeded = not any(unmet.values())
        found: dict[GroupId, list[tuple[int, OperationResult]]] = {g: [] for g in fresh}
        for i, operation in enumerate(transaction.then if succeeded else transaction.otherwise):
            for g in self._owners(operation):
                found[g].append((i, self._perform(operation, self.groups[g].now, message.gts)))
        for g in fresh:
            group = self.groups[g]
            if group.now != group.states[-1][1]:
                group.states.append((message.gts, dict(group.now)))
        return {g: Outcome(succeeded, tuple(unmet[g]), tuple(found[g])) for g in fresh}

    def _unmet(self, i: int, condition: Condition, group: Group, gts: int) -> Unmet | None:
        if isinstance(condition, Unchanged):
            if condition.since < group.floor:
                return Unmet(i, Fault.COMPACTED)
            if condition.since >= gts:
                return Unmet(i, Fault.FUTURE_REVISION)
            return Unmet(i) if group.changed(condition.range, condition.since) else None
        return None if holds(condition, group.now.get(condition.key)) else Unmet(i)

    def _perform(self, operation: Operation, now: Values, gts: int) -> OperationResult:
        if isinstance(operation, Get):
            return Got(now.get(operation.key))
        if isinstance(operation, Scan):
            return scan(operation, now)
        if isinstance(operation, DeleteRange):
            keys = [k for k in now if operation.range.covers(k)]
            for k in keys:
                del now[k]
            return Deleted(len(keys))
        key = operation.key
        old = now.get(key)
        if isinstance(operation, Delete):
            now.pop(key, None)
            return Deleted(old is not None)
        result: OperationResult = WRITTEN
        if isinstance(operation, Put):
            value = operation.value
        elif isinstance(operation, Append):
            value = (old.value if old else b"") + operation.value
            if len(value) > self.limits.value_bytes:
                return Failed(Fault.VALUE_TOO_LARGE)
            result = Number(len(value))
        else:
            number = calculate(operation, old)
            if isinstance(number, Fault):
                return Failed(number)
            value, result = str(number).encode(), Number(number)
        if old is None:
            now[key] = Entry(key, value, gts, gts, 1)
        else:
            again = old.mod_revision == gts
            now[key] = Entry(key, value, old.create_revision, gts, old.version + (not again))
        return result


def calculate(operation: Calculate, old: Entry | None) -> int | Fault:
    number = operation.operand
    if old is not None:
        text = old.value.decode("latin-1")
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or str(int(text)) != text:
            return Fault.NOT_A_NUMBER
        stored = int(text)
        if not -(2**63) <= stored < 2**63:
            return Fault.NOT_A_NUMBER
        number = {
            Arithmetic.ADD: stored + number,
            Arithmetic.MIN: min(stored, number),
            Arithmetic.MAX: max(stored, number),
        }[operation.arithmetic]
    return number if -(2**63) <= number < 2**63 else Fault.OVERFLOW


def holds(condition: Compare, entry: Entry | None) -> bool:
    subject, how, operand = condition.subject, condition.operator, condition.operand
    if subject is Subject.VALUE and entry is None:
        return how is Operator.NOT_EQUAL
    found: bytes | int
    if subject is Subject.EXISTS:
        found = int(entry is not None)
    elif entry is None:
        found = 0
    else:
        numbers: dict[Subject, bytes | int] = {
            Subject.VALUE: entry.value,
            Subject.VERSION: entry.version,
            Subject.CREATE_REVISION: entry.create_revision,
            Subject.MOD_REVISION: entry.mod_revision,
        }
        found = numbers[subject]
    if how is Operator.EQUAL:
        return found == operand
    if how is Operator.NOT_EQUAL:
        return found != operand
    low, high = (found, operand) if how is Operator.LESS else (operand, found)
    return sorted([low, high]) == [low, high] and low != high


def ordered(values: Values, within: Range, *, reverse: bool) -> Iterator[Entry]:
    for key in sorted(values, reverse=reverse):
        if within.covers(key):
            yield values[key]


def scan(asked: Scan, values: Values) -> Scanned:
    entries = list(ordered(values, asked.range, reverse=asked.reverse))
    if asked.shape is Shape.COUNT:
        return Scanned((), len(entries), more=False)
    if asked.shape is Shape.KEYS:
        entries = [e._replace(value=b"") for e in entries]
    taken = 0
    while taken < len(entries):
        size = sum(len(e.key) + len(e.value) for e in entries[: taken + 1])
        if taken and (taken == asked.limit or size > asked.limit_bytes):
            break
        taken += 1
    return Scanned(tuple(entries[:taken]), taken, more=taken < len(entries))
