"""Protobuf messages to the machine's types, and results back.

What comes from a client is checked here, once, and before anything of its size is made: whatever passes could
be ordered as it is. Messages name the field that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, assert_never

from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.api.errors import LimitExceeded
from kvstore.machine.request import (
    INT64_MAX,
    REVISION_MAX,
    Append,
    Arithmetic,
    Calculate,
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Get,
    InvalidRequest,
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
    Deleted,
    Failed,
    Fault,
    Got,
    KeyValue,
    Number,
    OperationResult,
    Scanned,
    Unmet,
    Written,
)
from kvstore.store.service import Committed, Consistency, Identity
from multicast.types import GROUPS_MAX

SCAN_BYTES: Final = 1 << 20
"""Of a scan inside a transaction, if it does not say."""

_OPERATOR: Final[Mapping[int, Operator]] = {
    kv.EQUAL: Operator.EQUAL,
    kv.NOT_EQUAL: Operator.NOT_EQUAL,
    kv.LESS: Operator.LESS,
    kv.GREATER: Operator.GREATER,
}
_SUBJECT: Final = {
    "value": Subject.VALUE,
    "exists": Subject.EXISTS,
    "version": Subject.VERSION,
    "create_revision": Subject.CREATE_REVISION,
    "mod_revision": Subject.MOD_REVISION,
}
_SHAPE: Final[Mapping[int, Shape]] = {
    kv.SHAPE_UNSPECIFIED: Shape.ENTRIES,
    kv.ENTRIES: Shape.ENTRIES,
    kv.KEYS: Shape.KEYS,
    kv.COUNT: Shape.COUNT,
}
_CONSISTENCY: Final[Mapping[int, Consistency]] = {
    kv.CONSISTENCY_UNSPECIFIED: Consistency.STRICT,
    kv.STRICT: Consistency.STRICT,
    kv.SERIALIZABLE: Consistency.SERIALIZABLE,
}
_FAULT: Final = {
    Fault.OVERFLOW: kv.OVERFLOW,
    Fault.NOT_A_NUMBER: kv.NOT_A_NUMBER,
    Fault.VALUE_TOO_LARGE: kv.VALUE_TOO_LARGE,
    Fault.COMPACTED: kv.COMPACTED,
    Fault.FUTURE_REVISION: kv.FUTURE_REVISION,
}


# Requests


class Reader:
    """Reads one request. Its own state is how many bytes of keys and values it has seen."""

    __slots__ = ("_limits", "_total")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._total = 0

    def transaction(self, message: kv.TxnRequest) -> Transaction:
        """Conditions, then, otherwise."""
        conditions, then, otherwise = message.conditions, message.then, message.otherwise
        count = len(conditions) + len(then) + len(otherwise)
        if not count:
            raise InvalidRequest("the transaction is empty")
        if count > self._limits.operations:
            _exceeds("the conditions and operations", count, "operations", self._limits.operations)
        found = Transaction(
            self._all("conditions", conditions, self._condition) if conditions else (),
            self._all("then", then, self._operation),
            self._all("otherwise", otherwise, self._operation) if otherwise else (),
        )
        if self._total > self._limits.transaction_bytes:
            _exceeds(
                "the transaction's bytes of keys and values",
                *(self._total, "transaction_bytes", self._limits.transaction_bytes),
            )
        return found

    def key(self, key: bytes) -> bytes:
        """A key."""
        if not key:
            raise InvalidRequest("the key is empty")
        size = len(key)
        if size > self._limits.key_bytes:
            _exceeds("the key's bytes", size, "key_bytes", self._limits.key_bytes)
        self._total += size
        return key

    def value(self, value: bytes) -> bytes:
        """A value."""
        size = len(value)
        if size > self._limits.value_bytes:
            _exceeds("the value's bytes", size, "value_bytes", self._limits.value_bytes)
        self._total += size
        return value

    def range(self, message: kv.Range) -> Range:
        """A range that says which keys it means."""
        kind = message.WhichOneof("keys")
        if kind == "prefix":
            found = Range.of_prefix(message.prefix)
        elif kind == "interval":
            found = Range(message.interval.start, message.interval.end or None)
        else:
            raise InvalidRequest("a range must have a prefix or an interval")
        start, end = found
        for name, bound in (("start", start), ("end", end or b"")):
            if len(bound) > self._limits.key_bytes:
                _exceeds(f"the range's {name}, its bytes", len(bound), "key_bytes", self._limits.key_bytes)
            self._total += len(bound)
        if end is not None and start >= end:
            raise InvalidRequest(f"the range's start {_short(start)} is not below its end {_short(end)}")
        return found

    def scan(self, message: kv.Scan) -> Scan:
        """A scan of one page."""
        limits = self._limits
        if message.limit_bytes > limits.scan_bytes:
            _exceeds("limit_bytes", message.limit_bytes, "scan_bytes", limits.scan_bytes)
        if message.limit > INT64_MAX:
            raise InvalidRequest(f"limit must be at most {INT64_MAX}, not {message.limit}")
        return Scan(
            self.range(message.range),
            message.limit,
            message.limit_bytes or min(SCAN_BYTES, limits.scan_bytes),
            message.reverse,
            shape_of(message.shape),
        )

    def _all(self, name: str, messages: Iterable[Any], read: Callable[[Any], Any]) -> tuple[Any, ...]:
        found: list[Any] = []
        try:
            for message in messages:
                found.append(read(message))  # noqa: PERF401 - how many there are says which one is wrong
        except InvalidRequest as error:
            error.args = (f"{name}[{len(found)}]: {error}",)
            raise
        return tuple(found)

    def _condition(self, message: kv.Condition) -> Condition:
        kind = message.WhichOneof("condition")
        if kind == "compare":
            return self._compare(message.compare)
        if kind == "unchanged":
            unchanged = message.unchanged
            return Unchanged(self.range(unchanged.range), revision_of("since", unchanged.since))
        raise InvalidRequest("a condition must be compare or unchanged")

    def _compare(self, message: kv.Compare) -> Compare:
        key = self.key(message.key)
        operator = _OPERATOR.get(message.operator)
        if operator is None:
            raise InvalidRequest(f"the operator must be =, !=, < or >, not number {message.operator}")
        kind = message.WhichOneof("operand")
        if kind is None:
            raise InvalidRequest("the comparison has nothing to compare with")
        operand = getattr(message, kind)
        if kind == "value":
            self.value(operand)
        elif kind == "exists":
            if operator is not Operator.EQUAL and operator is not Operator.NOT_EQUAL:
                raise InvalidRequest(f"existence is compared by = or !=, not by {operator.value}")
            operand = int(operand)
        else:
            revision_of(kind, operand)
        return Compare(key, _SUBJECT[kind], operator, operand)

    def _operation(self, message: kv.Operation) -> Operation:
        kind = message.WhichOneof("operation")
        if kind is None:
            raise InvalidRequest("the operation is none that this server knows")
        return _OPERATION[kind](self, getattr(message, kind))

    def put(self, message: kv.Put | kv.PutRequest) -> Put:
        """A put, alone or in a transaction."""
        return Put(self.key(message.key), self.value(message.value))

    def _append(self, message: kv.Append) -> Append:
        return Append(self.key(message.key), self.value(message.value))

    def _calculate(self, arithmetic: Arithmetic, message: kv.Calculate) -> Calculate:
        return Calculate(self.key(message.key), arithmetic, message.operand)


_OPERATION: Final[Mapping[str, Callable[[Reader, Any], Operation]]] = {
    "get": lambda reader, message: Get(reader.key(message.key)),
    "scan": Reader.scan,
    "put": Reader.put,
    "delete": lambda reader, message: Delete(reader.key(message.key)),
    "delete_range": lambda reader, message: DeleteRange(reader.range(message.range)),
    "append": Reader._append,  # noqa: SLF001 - its own table
    "add": lambda reader, message: reader._calculate(Arithmetic.ADD, message),  # noqa: SLF001 - the same
    "min": lambda reader, message: reader._calculate(Arithmetic.MIN, message),  # noqa: SLF001 - the same
    "max": lambda reader, message: reader._calculate(Arithmetic.MAX, message),  # noqa: SLF001 - the same
}


def _exceeds(what: str, count: int, name: str, value: int) -> NoReturn:
    raise LimitExceeded(f"{what}, {count}, are more than the limit {name} of {value}", name, value)


def _short(value: bytes) -> str:
    return repr(value) if len(value) <= 64 else f"{value[:64]!r}..."


def revision_of(name: str, revision: int) -> int:
    """A revision, or a version, that could exist."""
    if revision > REVISION_MAX:
        raise InvalidRequest(f"{name} must be at most {REVISION_MAX}, not {revision}")
    return revision


def partitions_of(numbers: Sequence[int]) -> tuple[int, ...]:
    """Some partitions, each once."""
    if len(numbers) > GROUPS_MAX:
        raise InvalidRequest(f"there are no {len(numbers)} partitions")
    return tuple(dict.fromkeys(numbers))


def shape_of(number: int) -> Shape:
    """What a scan returns."""
    shape = _SHAPE.get(number)
    if shape is None:
        raise InvalidRequest(f"the shape must be entries, keys or count, not number {number}")
    return shape


def consistency_of(number: int) -> Consistency:
    """How up to date a read must be."""
    consistency = _CONSISTENCY.get(number)
    if consistency is None:
        raise InvalidRequest(f"the consistency must be strict or serializable, not number {number}")
    return consistency


def identity_of(message: kv.TxnRequest | kv.PutRequest | kv.DeleteRequest) -> Identity | None:
    """The request id, if there is one."""
    if not message.HasField("id"):
        return None
    found = message.id
    client, sequence, ack_below = found.client, found.sequence, found.ack_below
    for name, number in (("client", client), ("sequence", sequence)):
        if not 0 < number <= INT64_MAX:
            raise InvalidRequest(f"id.{name} must be from 1 to {INT64_MAX}, not {number}")
    if ack_below > sequence:
        raise InvalidRequest(f"id.ack_below, {ack_below}, is above id.sequence, {sequence}")
    return Identity(client, sequence, ack_below, revision_of("id.deadline", found.deadline))


# Results


def entry_fields(entry: KeyValue) -> dict[str, Any]:
    """An entry, as the arguments of its message."""
    return {
        "key": entry.key,
        "value": entry.value,
        "create_revision": entry.create_revision,
        "mod_revision": entry.mod_revision,
        "version": entry.version,
    }


def header_fields(committed: Committed) -> dict[str, Any]:
    """The revisions of a response's header."""
    return {"revision": committed.complete, "transaction_revision": committed.revision}


def txn_fields(committed: Committed) -> dict[str, Any]:
    """A transaction's response, as the arguments of its message."""
    fields: dict[str, Any] = {
        "header": header_fields(committed),
        "results": [_result(result) for result in committed.results],
    }
    if committed.succeeded:
        fields["succeeded"] = True
    if committed.unmet:
        fields["unmet"] = [_unmet(unmet) for unmet in committed.unmet]
    return fields


def _unmet(unmet: Unmet) -> kv.Unmet:
    fault = kv.FAULT_UNSPECIFIED if unmet.fault is None else _FAULT[unmet.fault]
    return kv.Unmet(condition=unmet.condition, fault=fault)


_WRITTEN: Final = kv.OperationResult(written=kv.Written())
_ABSENT: Final = kv.OperationResult(got=kv.Got())


def _result(result: OperationResult) -> kv.OperationResult:
    if isinstance(result, Got):
        if result.entry is None:
            return _ABSENT
        return kv.OperationResult(got={"entry": entry_fields(result.entry)})
    if isinstance(result, Written):
        return _WRITTEN
    if isinstance(result, Number):
        return kv.OperationResult(number={"value": result.value})
    if isinstance(result, Deleted):
        return kv.OperationResult(deleted={"count": result.count})
    if isinstance(result, Scanned):
        entries = [entry_fields(entry) for entry in result.entries]
        return kv.OperationResult(scanned={"entries": entries, "count": result.count, "more": result.more})
    if isinstance(result, Failed):
        return kv.OperationResult(failed={"fault": _FAULT[result.fault]})
    assert_never(result)


def results_size(results: Sequence[OperationResult]) -> int:
    """Bytes of keys and values that results hold."""
    size = 0
    for result in results:
        if isinstance(result, Got):
            size += 0 if result.entry is None else len(result.entry.key) + len(result.entry.value)
        elif isinstance(result, Scanned):
            size += sum(len(entry.key) + len(entry.value) for entry in result.entries)
        else:
            _: Written | Deleted | Number | Failed = result  # these hold neither keys nor values
    return size
