"""Convert protobuf messages to the machine's types, and results back.

A request is converted first; that judges its shape, which a value of the machine cannot lack. Then it is
judged once, by the rules of `kvstore.machine.request`. Whatever passes may be ordered. Errors name the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, assert_never

from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.machine.formula import FORMULA_DEPTH, Combined
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
    Swap,
    Transaction,
    Unchanged,
    check_count,
    check_integer,
    check_range,
    validate,
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
"""The default of `limit_bytes` of a scan inside a transaction."""

_OPERATOR: Final[Mapping[int, Operator]] = {
    kv.EQUAL: Operator.EQUAL,
    kv.NOT_EQUAL: Operator.NOT_EQUAL,
    kv.LESS: Operator.LESS,
    kv.GREATER: Operator.GREATER,
    kv.LESS_EQUAL: Operator.LESS_EQUAL,
    kv.GREATER_EQUAL: Operator.GREATER_EQUAL,
    kv.STARTS_WITH: Operator.STARTS_WITH,
}
_SUBJECT: Final = {
    "value": Subject.VALUE,
    "number": Subject.NUMBER,
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
FAULT: Final = {
    Fault.OVERFLOW: kv.OVERFLOW,
    Fault.NOT_A_NUMBER: kv.NOT_A_NUMBER,
    Fault.VALUE_TOO_LARGE: kv.VALUE_TOO_LARGE,
    Fault.COMPACTED: kv.COMPACTED,
    Fault.FUTURE_REVISION: kv.FUTURE_REVISION,
    Fault.TOO_MANY_ROWS: kv.TOO_MANY_ROWS,
    Fault.BELOW_FLOOR: kv.BELOW_FLOOR,
    Fault.ABOVE_CEILING: kv.ABOVE_CEILING,
}


# Requests


class Reader:
    """Reads requests: converts and judges them."""

    __slots__ = ("_limits",)

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def transaction(self, message: kv.TxnRequest) -> Transaction:
        """Conditions, then, otherwise."""
        conditions, then, otherwise = message.conditions, message.then, message.otherwise
        check_count(len(conditions) + len(then) + len(otherwise), self._limits)
        formula = _Formula(self._limits)
        if conditions:
            _all("conditions", conditions, formula.add)
        found = Transaction(
            tuple(formula.conditions),
            _all("then", then, self._operation),
            _all("otherwise", otherwise, self._operation) if otherwise else (),
            formula.nodes(),
            message.allow_failures,
        )
        validate(found, self._limits)
        return found

    def single(self, operation: Operation) -> Transaction:
        """The transaction of a call that is one operation."""
        found = Transaction(then=(operation,))
        validate(found, self._limits)
        return found

    def range(self, message: kv.Range) -> Range:
        """The range of a scan or a watch."""
        found = range_of(message)
        check_range(found, self._limits)
        return found

    def _operation(self, message: kv.Operation) -> Operation:
        match message.WhichOneof("operation"):
            case "get":
                return Get(message.get.key)
            case "put":
                return Put(message.put.key, message.put.value)
            case "delete":
                return Delete(message.delete.key)
            case "add":
                return _calculate(message.add, Arithmetic.ADD)
            case "min":
                return _calculate(message.min, Arithmetic.MIN)
            case "max":
                return _calculate(message.max, Arithmetic.MAX)
            case "append":
                return Append(message.append.key, message.append.value, self._limits.value_bytes)
            case "swap":
                return Swap(message.swap.key, message.swap.value)
            case "scan":
                return self._scan(message.scan)
            case "delete_range":
                return DeleteRange(range_of(message.delete_range.range), message.delete_range.limit)
            case _:
                raise InvalidRequest("this server does not know the operation, or it is missing")

    def _scan(self, message: kv.Scan) -> Scan:
        limit_bytes = message.limit_bytes or min(SCAN_BYTES, self._limits.scan_bytes)
        return Scan(
            range_of(message.range), message.limit, limit_bytes, message.reverse, shape_of(message.shape)
        )


def _all(name: str, messages: Iterable[Any], read: Callable[[Any], Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    try:
        for message in messages:
            found.append(read(message))  # noqa: PERF401 - how many there are says which one is wrong
    except InvalidRequest as error:
        error.args = (f"{name}[{len(found)}]: {error}",)
        raise
    return tuple(found)


def _calculate(message: kv.Calculate, arithmetic: Arithmetic) -> Calculate:
    floor = message.floor if message.HasField("floor") else None
    ceiling = message.ceiling if message.HasField("ceiling") else None
    return Calculate(message.key, arithmetic, message.operand, floor, ceiling)


class _Formula:
    """Conditions as a message nests them, made flat: the conditions, and the nodes that combine them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.conditions: list[Condition] = []
        self._nodes: list[tuple[bool, list[int]]] = []
        """Their members have negative numbers if they are nodes: how many conditions there are is not known
        yet.
        """

    def nodes(self) -> tuple[Combined, ...]:
        """Return the nodes. They are numbered after the conditions."""
        count = len(self.conditions)
        return tuple(
            Combined(any_, tuple([at if at >= 0 else count - at - 1 for at in members]))
            for any_, members in self._nodes
        )

    def add(self, message: kv.Condition, depth: int = 1) -> int:
        """Add a condition, and return its number."""
        kind = message.WhichOneof("condition")
        if kind == "compare":
            self.conditions.append(_compare(message.compare))
        elif kind == "unchanged":
            self.conditions.append(Unchanged(range_of(message.unchanged.range), message.unchanged.since))
        elif kind == "any" or kind == "all":
            return self._combine(kind, getattr(message, kind).conditions, depth)
        else:
            raise InvalidRequest("a condition must be compare, unchanged, any or all")
        return len(self.conditions) - 1

    def _combine(self, kind: str, inner: Sequence[kv.Condition], depth: int) -> int:
        if not inner:
            raise InvalidRequest(f"{kind} combines no conditions; leave it out, or give it at least one")
        if depth > FORMULA_DEPTH:
            raise InvalidRequest(f"conditions are nested deeper than {FORMULA_DEPTH} levels; flatten them")
        check_count(len(self.conditions) + len(inner), self._limits)
        members = [self.add(each, depth + 1) for each in inner]
        self._nodes.append((kind == "any", members))
        return -len(self._nodes)


def _compare(message: kv.Compare) -> Compare:
    operator = _OPERATOR.get(message.operator)
    if operator is None:
        raise InvalidRequest(
            f"the operator must be =, !=, <, >, <=, >= or starts_with, not number {message.operator}"
        )
    kind = message.WhichOneof("operand")
    if kind is None:
        raise InvalidRequest("the comparison has nothing to compare with")
    operand = getattr(message, kind)
    return Compare(message.key, _SUBJECT[kind], operator, int(operand) if kind == "exists" else operand)


def range_of(message: kv.Range) -> Range:
    """The keys that a range means. It is not judged yet."""
    kind = message.WhichOneof("keys")
    if kind == "prefix":
        return Range.of_prefix(message.prefix)
    if kind == "interval":
        return Range(message.interval.start, message.interval.end or None)
    raise InvalidRequest("a range must have a prefix or an interval")


def revision_of(name: str, revision: int) -> int:
    """A revision that could exist, of a request itself: those in its transaction are judged with that."""
    check_integer(name, revision, 0, REVISION_MAX)
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
    if not (0 < client <= INT64_MAX and 0 < sequence <= INT64_MAX):
        for name, number in (("client", client), ("sequence", sequence)):
            check_integer(f"id.{name}", number, 1, INT64_MAX)
    if ack_below > sequence:
        raise InvalidRequest(f"id.ack_below, {ack_below}, is above id.sequence, {sequence}")
    return Identity(client, sequence, ack_below, revision_of("id.deadline", found.deadline))


# Results


def fill_entry(message: kv.Entry, entry: KeyValue) -> None:
    """Fill the message of an entry."""
    message.key = entry.key
    message.value = entry.value
    message.create_revision = entry.create_revision
    message.mod_revision = entry.mod_revision
    message.version = entry.version


def fill_header(header: kv.Header, committed: Committed) -> None:
    """Fill in the revisions of a response's header."""
    header.revision = committed.complete
    header.transaction_revision = committed.revision


def fill_txn(response: kv.TxnResponse, committed: Committed) -> None:
    """Fill a transaction's response."""
    fill_header(response.header, committed)
    fill_results(response, committed)


def fill_results(response: kv.TxnResponse, committed: Committed) -> None:
    """Fill in the outcome and the results of a transaction."""
    if committed.succeeded:
        response.succeeded = True
    if committed.results:
        response.results.extend([_result(result) for result in committed.results])
    if committed.unmet:
        response.unmet.extend([_unmet(unmet) for unmet in committed.unmet])


def _unmet(unmet: Unmet) -> kv.Unmet:
    fault = kv.FAULT_UNSPECIFIED if unmet.fault is None else FAULT[unmet.fault]
    return kv.Unmet(condition=unmet.condition, fault=fault)


_WRITTEN: Final = kv.OperationResult(written=kv.Written())
_ABSENT: Final = kv.OperationResult(got=kv.Got())


def _result(result: OperationResult) -> kv.OperationResult:
    if isinstance(result, Got):
        if result.entry is None:
            return _ABSENT
        found = kv.OperationResult()
        fill_entry(found.got.entry, result.entry)
        return found
    if isinstance(result, Written):
        return _WRITTEN
    if isinstance(result, Number):
        return kv.OperationResult(number={"value": result.value})
    if isinstance(result, Deleted):
        return kv.OperationResult(deleted={"count": result.count, "resume": result.resume})
    if isinstance(result, Scanned):
        found = kv.OperationResult(scanned={"count": result.count, "more": result.more})
        add = found.scanned.entries.add
        for entry in result.entries:
            fill_entry(add(), entry)
        return found
    if isinstance(result, Failed):
        return kv.OperationResult(failed={"fault": FAULT[result.fault]})
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
