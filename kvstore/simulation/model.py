"""A naive store: executes everything at once, in the order of global timestamps, over all groups together.

It keeps every version for ever, locks nothing, waits for nothing, and shares no code with the machine but the
definitions of requests and results, and the map of keys to groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, assert_never

from msgspec.structs import replace

from kvstore.machine.commands import (
    ChangePlacement,
    Compact,
    Delivered,
    Deviates,
    Expire,
    Malformed,
    Pin,
    Tick,
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
    PointOperation,
    Put,
    Range,
    Scan,
    Shape,
    Subject,
    Swap,
    Transaction,
    Unchanged,
)
from kvstore.machine.results import (
    DONE,
    WRITTEN,
    Aborted,
    Deleted,
    Failed,
    Failure,
    Fault,
    Got,
    KeyValue,
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

Values = dict[bytes, KeyValue]
FAILURES_MAX: Final = 16
"""How many failures a group tells."""


@dataclass
class Group:
    """One group's state after each transaction."""

    now: Values = field(default_factory=dict)
    states: list[tuple[int, Values]] = field(default_factory=lambda: [(0, {})])
    """The whole state after each revision."""
    floor: int = 0
    removed: dict[bytes, int] = field(default_factory=dict)
    """When the keys that are not there were removed, of all that ever were."""
    gone: set[bytes] = field(default_factory=set)
    """What the current transaction has removed."""
    pins: dict[str, Pin] = field(default_factory=dict)
    answers: list[tuple[int, Result | Refusal]] = field(default_factory=list)

    def at(self, revision: int) -> Values:
        """The state as of a revision."""
        return [values for r, values in self.states if r <= revision][-1]

    def rows(self, within: Range) -> list[bytes]:
        """The keys of a range that count: those that are there, and those removed since the floor."""
        removed = {key for key, when in self.removed.items() if when > self.floor}
        return sorted(key for key in {*self.now, *removed, *self.gone} if within.covers(key))

    def remove(self, key: bytes) -> bool:
        """Remove a key, if it is there."""
        if self.now.pop(key, None) is None:
            return False
        self.gone.add(key)
        return True

    def changed(self, within: Range, since: int) -> bool:
        """Whether any state after the revision differs from the one before it, within the range."""
        tail = [self.at(since), *(values for r, values in self.states if r > since)]
        parts = [{k: e for k, e in values.items() if within.covers(k)} for values in tail]
        return any(one != other for one, other in pairwise(parts))


@dataclass
class Asked:
    """What one client has requested of one set of groups; all of them know the same of it."""

    numbers: dict[int, tuple[int, dict[GroupId, Result | Refusal]]] = field(default_factory=dict)
    acked: int = 0
    until: int = 0


class Model:
    """All groups."""

    def __init__(self, placement: Placement, limits: Limits, window: int) -> None:
        self.placement = placement
        self.limits = limits
        self.window = window
        self.groups = {g: Group() for g in placement.groups}
        self.asked: dict[tuple[int, tuple[GroupId, ...]], Asked] = {}
        self.executed: list[Delivered] = []
        """Messages that were neither refused nor repetitions."""

    def execute(self, message: Delivered) -> None:
        """The next message of the order of all groups."""
        for g, answer in self._judge(message).items():
            self.groups[g].answers.append((message.gts, answer))

    def _judge(self, message: Delivered) -> dict[GroupId, Result | Refusal]:
        request, destinations = message.request, message.destinations
        command = request.command
        if isinstance(command, Malformed):
            return dict.fromkeys(destinations, Refusal.MALFORMED)
        if message.gts > request.deadline:
            return dict.fromkeys(destinations, Refusal.EXPIRED)
        asked = self.asked.setdefault((request.client, destinations), Asked())
        if asked.until < message.gts:
            asked = self.asked[request.client, destinations] = Asked()
        if request.sequence < asked.acked:
            return dict.fromkeys(destinations, Refusal.FORGOTTEN)
        known = asked.numbers.get(request.sequence)
        if known is not None and known[0] != request.digest:
            return dict.fromkeys(destinations, Refusal.MISMATCH)
        if known is None and request.sequence - request.ack_below >= self.window:
            return dict.fromkeys(destinations, Refusal.WINDOW_FULL)
        asked.acked = max(asked.acked, request.ack_below)
        asked.until = max(asked.until, request.deadline)
        if known is None:
            known = asked.numbers[request.sequence] = (request.digest, self._execute(message))
        return known[1]

    def _execute(self, message: Delivered) -> dict[GroupId, Result | Refusal]:
        command, destinations = message.request.command, message.destinations
        self.executed.append(message)
        if isinstance(command, Transaction):
            return self._transaction(message, command)
        if isinstance(command, Malformed):
            raise TypeError(f"{message} was refused before")
        if isinstance(command, ChangePlacement):
            return dict.fromkeys(destinations, self._change(message, command.placement))
        if len(destinations) > 1 and not isinstance(command, Tick):
            return dict.fromkeys(destinations, Refusal.NOT_ALONE)
        return {g: self._housekeep(self.groups[g], command, message.gts) for g in destinations}

    def _change(self, message: Delivered, placement: Placement) -> Result | Refusal:
        if set(message.destinations) != set(self.placement.groups) | set(placement.groups):
            return Refusal.NOT_TO_ALL
        if placement.version != self.placement.version + 1:
            return Refusal.STALE_PLACEMENT
        for start in (*self.placement.starts, *placement.starts):
            owners = [
                owner
                for by in (self.placement, placement)
                for low, high, owner in zip(by.starts, (*by.starts[1:], None), by.owners, strict=True)
                if low <= start and (high is None or start < high)
            ]
            if owners[0] != owners[1]:
                return Refusal.MOVES_DATA
        self.placement = placement
        return DONE

    def _housekeep(
        self, group: Group, command: Compact | Pin | Unpin | Expire | Tick | Deviates, gts: int
    ) -> Result | Refusal:
        if isinstance(command, Compact | Pin):
            revision = command.floor if isinstance(command, Compact) else command.revision
            if revision < group.floor:
                return Refusal.COMPACTED
            if revision > gts:
                return Refusal.FUTURE_REVISION
            if isinstance(command, Pin):
                if command.until < gts:
                    return Refusal.EXPIRED
                group.pins[command.name] = command
            elif any(pin.revision < revision and pin.until >= gts for pin in group.pins.values()):
                return Refusal.PINNED
            else:
                group.floor = revision
        elif isinstance(command, Unpin):
            for name in command.names:
                group.pins.pop(name, None)
        elif isinstance(command, Expire):
            if command.before > gts:
                return Refusal.FUTURE_REVISION
        elif not isinstance(command, Tick | Deviates):
            assert_never(command)
        return DONE

    def _owners(self, item: Condition | Operation) -> set[GroupId]:
        if isinstance(item, Unchanged | Scan | DeleteRange):
            return set(self.placement.groups_of_range(item.range))
        point: Compare | PointOperation = item
        return {self.placement.group_of(point.key)}

    def _transaction(self, message: Delivered, transaction: Transaction) -> dict[GroupId, Result | Refusal]:
        for item in (*transaction.conditions, *transaction.then, *transaction.otherwise):
            if not self._owners(item) <= set(message.destinations):
                return dict.fromkeys(message.destinations, WrongPartition(self.placement))
        unmet: dict[GroupId, list[Unmet]] = {g: [] for g in message.destinations}
        for i, condition in enumerate(transaction.conditions):
            for g in self._owners(condition):
                most = self._allowed(transaction, g)[0]
                failed = self._unmet(i, condition, self.groups[g], message.gts, most)
                if failed:
                    unmet[g].append(failed)
        failing = {each.condition for each_group in unmet.values() for each in each_group}
        succeeded = _holds(transaction, failing)
        branch = transaction.then if succeeded else transaction.otherwise
        saved = {g: (dict(self.groups[g].now), set(self.groups[g].gone)) for g in message.destinations}
        found: dict[GroupId, list[tuple[int, OperationResult]]] = {g: [] for g in message.destinations}
        failures: dict[GroupId, list[Failure]] = {g: [] for g in message.destinations}
        for i, operation in enumerate(branch):
            for g in self._owners(operation):
                result = self._perform(operation, self.groups[g], message.gts, self._allowed(transaction, g))
                found[g].append((i, result))
                whole = isinstance(operation, DeleteRange) and not operation.limit
                aborts = operation.writes and (whole or not transaction.allow_failures)
                if isinstance(result, Failed) and aborts:
                    failures[g].append(Failure(i, result.fault))
        aborted = any(failures.values())
        if aborted:
            for g, (now, gone) in saved.items():
                self.groups[g].now, self.groups[g].gone = now, gone
        for g in message.destinations:
            group = self.groups[g]
            before = group.states[-1][1]
            if group.now != before:
                group.states.append((message.gts, dict(group.now)))
            for key in before:
                if key not in group.now:
                    group.removed[key] = message.gts
            group.gone.clear()
        answers: dict[GroupId, Result | Refusal] = {}
        for g in message.destinations:
            answers[g] = Outcome(succeeded, tuple(unmet[g]), tuple(found[g]))
            only_reads = not transaction.conditions and not any(
                g in self._owners(each) for each in transaction.then if each.writes
            )
            if aborted and not only_reads:  # reads that depend on nothing are answered, and not passed on
                answers[g] = Aborted(succeeded, tuple(failures[g][:FAILURES_MAX]))
        return answers

    def _allowed(self, transaction: Transaction, g: GroupId) -> tuple[int, int, int]:
        """How many rows each range may have in a group; how many keys and bytes a range delete may remove."""
        here = [
            each for each in (*transaction.conditions, *transaction.then, *transaction.otherwise)
            if isinstance(each, Unchanged | Scan | DeleteRange) and g in self._owners(each)
        ]  # fmt: skip
        keys, deletes = [], []
        for branch in (transaction.then, transaction.otherwise):
            limits = [e.limit for e in branch if isinstance(e, DeleteRange) and g in self._owners(e)]
            keys.append((self.limits.delete_keys - sum(limits)) // (limits.count(0) or 1))
            deletes.append(len(limits))
        return (
            self.limits.transaction_rows // (len(here) or 1),
            min(keys),
            self.limits.delete_bytes // (max(deletes) or 1),
        )

    def _unmet(self, i: int, condition: Condition, group: Group, gts: int, most: int) -> Unmet | None:
        if isinstance(condition, Unchanged):
            if condition.since < group.floor:
                return Unmet(i, Fault.COMPACTED)
            if condition.since >= gts:
                return Unmet(i, Fault.FUTURE_REVISION)
            rows = group.rows(condition.range)
            if any(group.changed(Range(key, key + b"\0"), condition.since) for key in rows[:most]):
                return Unmet(i)
            return Unmet(i, Fault.TOO_MANY_ROWS) if len(rows) > most else None
        if isinstance(condition, Compare):
            return None if holds(condition, group.now.get(condition.key)) else Unmet(i)
        assert_never(condition)

    def _perform(
        self, operation: Operation, group: Group, gts: int, allowed: tuple[int, int, int]
    ) -> OperationResult:
        now, most = group.now, allowed[0]
        if isinstance(operation, Get):
            return Got(now.get(operation.key))
        if isinstance(operation, Scan | DeleteRange):
            rows = group.rows(operation.range)
            if isinstance(operation, DeleteRange):
                return _delete(operation, group, rows, allowed)
            if len(rows) <= most:
                return scan(operation, now)
            rows = rows[-most:] if operation.reverse else rows[:most]
            seen = scan(operation, {key: now[key] for key in rows if key in now})
            if not seen.entries:
                return Failed(Fault.TOO_MANY_ROWS)
            return replace(seen, more=True)
        key = operation.key
        old = now.get(key)
        if isinstance(operation, Delete):
            return Deleted(group.remove(key))
        result: OperationResult = WRITTEN
        if isinstance(operation, Put):
            value = operation.value
        elif isinstance(operation, Swap):
            value, result = operation.value, Got(old)
        elif isinstance(operation, Append):
            value = (old.value if old else b"") + operation.value
            if len(value) > operation.most:
                return Failed(Fault.VALUE_TOO_LARGE)
            result = Number(len(value))
        elif isinstance(operation, Calculate):
            number = calculate(operation, old)
            if isinstance(number, Fault):
                return Failed(number)
            value, result = str(number).encode(), Number(number)
        else:
            assert_never(operation)
        if old is None:
            now[key] = KeyValue(key, value, gts, gts, 1)
        else:
            again = old.mod_revision == gts
            now[key] = KeyValue(key, value, old.create_revision, gts, old.version + (not again))
        return result


def _size(group: Group, key: bytes) -> int:
    return len(key) + len(group.now[key].value)


def _delete(
    operation: DeleteRange, group: Group, rows: list[bytes], allowed: tuple[int, int, int]
) -> Deleted | Failed:
    """Remove the keys of a range, up to its limit, or all of them."""
    most, keys, size = allowed
    there = [key for key in rows if key in group.now]
    if not operation.limit:
        too_large = len(there) > 1 and sum(_size(group, key) for key in there) > size
        if len(rows) > most or len(there) > keys or too_large:
            return Failed(Fault.TOO_MANY_ROWS)
    removed = 0
    for at, key in enumerate(rows):
        if at == most:
            return Deleted(removed, key)
        if key in group.now:
            size -= _size(group, key)
            if operation.limit and removed and (removed == operation.limit or size < 0):
                return Deleted(removed, key)
            removed += group.remove(key)
    return Deleted(removed)


def _holds(transaction: Transaction, failing: set[int]) -> bool:
    """Whether all conditions hold that are in no any or all, and all of these that are in no other."""
    count = len(transaction.conditions)

    def truth(number: int) -> bool:
        if number < count:
            return number not in failing
        node = transaction.formula[number - count]
        held = [truth(member) for member in node.members]
        return any(held) if node.any else all(held)

    inner = {member for node in transaction.formula for member in node.members}
    return all(truth(number) for number in range(count + len(transaction.formula)) if number not in inner)


def calculate(operation: Calculate, old: KeyValue | None) -> int | Fault:
    """The number that is stored now."""
    number = operation.operand
    if old is not None:
        stored = stored_number(old)
        if stored is None:
            return Fault.NOT_A_NUMBER
        number = {
            Arithmetic.ADD: stored + number,
            Arithmetic.MIN: min(stored, number),
            Arithmetic.MAX: max(stored, number),
        }[operation.arithmetic]
    if operation.floor is not None and number < operation.floor:
        return Fault.BELOW_FLOOR
    if operation.ceiling is not None and number > operation.ceiling:
        return Fault.ABOVE_CEILING
    return number if -(2**63) <= number < 2**63 else Fault.OVERFLOW


def stored_number(entry: KeyValue) -> int | None:
    """The number that a value is, if it is one."""
    text = entry.value.decode("latin-1")
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or str(int(text)) != text:
        return None
    return int(text) if -(2**63) <= int(text) < 2**63 else None


def holds(condition: Compare, entry: KeyValue | None) -> bool:
    """Whether a key is as the condition wants it."""
    subject, how, operand = condition.subject, condition.operator, condition.operand
    if subject is Subject.VALUE and entry is None:
        return how is Operator.NOT_EQUAL
    found: bytes | int | None
    if subject is Subject.NUMBER:
        found = None if entry is None else stored_number(entry)
        if found is None:
            return False
    elif subject is Subject.EXISTS:
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
    if how is Operator.STARTS_WITH:
        assert isinstance(operand, bytes)
        return entry is not None and entry.value[: len(operand)] == operand
    low, high = (found, operand) if how in (Operator.LESS, Operator.LESS_EQUAL) else (operand, found)
    in_order = sorted([low, high]) == [low, high]
    return {
        Operator.EQUAL: found == operand,
        Operator.NOT_EQUAL: found != operand,
        Operator.LESS: in_order and low != high,
        Operator.GREATER: in_order and low != high,
        Operator.LESS_EQUAL: in_order,
        Operator.GREATER_EQUAL: in_order,
    }[how]


def ordered(values: Values, within: Range, *, reverse: bool) -> Iterator[KeyValue]:
    """What is in a range."""
    for key in sorted(values, reverse=reverse):
        if within.covers(key):
            yield values[key]


def scan(asked: Scan, values: Values) -> Scanned:
    """What a scan returns of it."""
    entries = list(ordered(values, asked.range, reverse=asked.reverse))
    if asked.shape is Shape.COUNT:
        return Scanned((), len(entries), more=False)
    if asked.shape is Shape.KEYS:
        entries = [replace(e, value=b"") for e in entries]
    taken = 0
    while taken < len(entries):
        size = sum(len(e.key) + len(e.value) for e in entries[: taken + 1])
        if taken and (taken == asked.limit or size > asked.limit_bytes):
            break
        taken += 1
    return Scanned(tuple(entries[:taken]), taken, more=taken < len(entries))
