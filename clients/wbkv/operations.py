"""Operations and conditions of transactions, and the results of operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, TypeVar

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.codecs import Values
from wbkv.data import Entry, Failed, Key, KeyRange, Keys, Scanned, V, key_bytes, range_of, short
from wbkv.errors import FAULTS, Failure, OperationFailed

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

NAMED: Final = 3
"""How many failed operations an error's message names."""

DEPTH: Final = 8
"""How deeply `any_of` and `all_of` may be nested."""


class Operation:
    """One step of a transaction. `get`, `put`, `swap`, `delete`, `append`, `add`, `minimum`, `maximum` and
    `scan` return one.
    """

    __slots__ = ("key",)

    writes = True

    def __init__(self, key: bytes) -> None:
        self.key = key
        """The key, or the start of the range: it decides which partition is asked."""

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()}({self.key!r})"

    def fill(self, message: kv.Operation, values: Values[Any]) -> None:
        """Fill the message of the API."""
        raise NotImplementedError


class Get(Operation):
    """Read a key."""

    __slots__ = ()
    writes = False

    def fill(self, message: kv.Operation, values: Values[Any]) -> None:
        """Fill the message of the API."""
        message.get.key = self.key


class Put(Operation):
    """Write a key."""

    __slots__ = ("value",)

    def __init__(self, key: bytes, value: object) -> None:
        self.key = key
        self.value = value

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()}({self.key!r}, ...)"

    def fill(self, message: kv.Operation, values: Values[Any]) -> None:
        """Fill the message of the API."""
        put = message.put
        put.key = self.key
        put.value = values.encode(self.key, self.value)


class Append(Put):
    """Append to a value."""

    __slots__ = ()

    def fill(self, message: kv.Operation, values: Values[Any]) -> None:
        """Fill the message of the API."""
        append = message.append
        append.key = self.key
        append.value = values.encode(self.key, self.value)


class Swap(Put):
    """Write a key, and return what was there."""

    __slots__ = ()

    def fill(self, message: kv.Operation, values: Values[Any]) -> None:
        """Fill the message of the API."""
        swap = message.swap
        swap.key = self.key
        swap.value = values.encode(self.key, self.value)


class Delete(Operation):
    """Remove a key."""

    __slots__ = ()

    def fill(self, message: kv.Operation, values: Values[Any]) -> None:
        """Fill the message of the API."""
        message.delete.key = self.key


class DeleteRange(Operation):
    """Remove the keys of a range."""

    __slots__ = ("limit", "range")

    def __init__(self, keys: KeyRange, limit: int = 0) -> None:
        self.key = keys.start
        self.range = keys
        self.limit = _positive("limit", limit)

    def __repr__(self) -> str:
        return f"delete({self.range!r})"

    def fill(self, message: kv.Operation, values: Values[Any]) -> None:
        """Fill the message of the API."""
        message.delete_range.range.CopyFrom(self.range.message())
        message.delete_range.limit = self.limit


class Calculate(Operation):
    """Add to a number, or bound it."""

    __slots__ = ("ceiling", "floor", "kind", "operand")

    def __init__(
        self, kind: str, key: bytes, operand: int, floor: int | None = None, ceiling: int | None = None
    ) -> None:
        self.key = key
        self.kind = kind
        self.operand = _number("operand", key, operand)
        self.floor = None if floor is None else _number("floor", key, floor)
        self.ceiling = None if ceiling is None else _number("ceiling", key, ceiling)
        if floor is not None and ceiling is not None and floor > ceiling:
            raise ValueError(
                f"the floor {floor} for {key!r} is above the ceiling {ceiling}: no sum could be stored; "
                "swap them"
            )

    def __repr__(self) -> str:
        bounds = "" if self.floor is None else f", floor={self.floor}"
        bounds += "" if self.ceiling is None else f", ceiling={self.ceiling}"
        return f"{self.kind}({self.key!r}, {self.operand}{bounds})"

    def bounded(self, number: int) -> str | None:
        """Return why a sum cannot be stored; None if it can."""
        if self.floor is not None and number < self.floor:
            return FAULTS[kv.BELOW_FLOOR]
        if self.ceiling is not None and number > self.ceiling:
            return FAULTS[kv.ABOVE_CEILING]
        return None if INT64_MIN <= number <= INT64_MAX else FAULTS[kv.OVERFLOW]

    def fill(self, message: kv.Operation, values: Values[Any]) -> None:
        """Fill the message of the API."""
        calculate: kv.Calculate = getattr(message, self.kind)
        calculate.key = self.key
        calculate.operand = self.operand
        if self.floor is not None:
            calculate.floor = self.floor
        if self.ceiling is not None:
            calculate.ceiling = self.ceiling


class Scan(Operation):
    """Read one page of a range."""

    __slots__ = ("limit", "range", "reverse")
    writes = False

    def __init__(self, keys: KeyRange, limit: int, reverse: bool) -> None:  # noqa: FBT001 - as `scan` has it
        self.key = keys.start
        self.range = keys
        self.limit = _positive("limit", limit)
        self.reverse = reverse

    def fill(self, message: kv.Operation, values: Values[Any]) -> None:
        """Fill the message of the API."""
        scan = message.scan
        scan.range.CopyFrom(self.range.message())
        scan.limit = self.limit
        scan.reverse = self.reverse


def get(key: Key) -> Operation:
    """Read a key. The result is an `Entry`, or None."""
    return Get(key_bytes(key))


def put(key: Key, value: object) -> Operation:
    """Write a key; the client's codec encodes the value. The result is None."""
    return Put(key_bytes(key), value)


def swap(key: Key, value: object) -> Operation:
    """Write a key. The result is the `Entry` that was there before, or None."""
    return Swap(key_bytes(key), value)


def delete(keys: Key | KeyRange, *, limit: int = 0) -> Operation:
    """Remove a key, or all keys of a `prefix`, `between` or `EVERYTHING`. The result is how many.

    A transaction removes at most 10,000 keys of ranges in each partition. If there are more, it does nothing
    and raises `OperationFailed`; with a `limit`, it removes the first ones, so many in each partition.
    """
    return DeleteRange(keys, limit) if isinstance(keys, KeyRange) else Delete(key_bytes(keys))


def append(key: Key, value: object) -> Operation:
    """Append bytes to a value. The result is the new length. It fails if the value would become too large."""
    return Append(key_bytes(key), value)


def add(key: Key, amount: int = 1, *, floor: int | None = None, ceiling: int | None = None) -> Operation:
    """Add to a number; an absent key counts as 0. The result is the new number.

    It fails if the value is not a number, or if the sum would be below the floor, above the ceiling, or more
    than a signed 64-bit number.
    """
    return Calculate("add", key_bytes(key), amount, floor, ceiling)


def minimum(key: Key, operand: int) -> Operation:
    """Set a number to the operand if it is greater or absent. The result is the new number. It fails if the
    value is not a number.
    """
    return Calculate("min", key_bytes(key), operand)


def maximum(key: Key, operand: int) -> Operation:
    """Set a number to the operand if it is less or absent. The result is the new number. It fails if the
    value is not a number.
    """
    return Calculate("max", key_bytes(key), operand)


def scan(keys: Keys, *, limit: int = 0, reverse: bool = False) -> Operation:
    """Read a range, as far as one response has room. The result is a `Scanned`. See also `client.scan`."""
    return Scan(range_of(keys), limit, reverse)


# Conditions


class Condition:
    """A condition of a transaction. Comparing `value(key)`, `number(key)`, `version(key)` and so on returns
    one; `any_of` and `all_of` combine several.
    """

    __slots__ = ("key", "operand", "operator", "subject")

    depth = 0
    """How deeply other conditions are nested in it."""

    def __init__(self, key: bytes, subject: str, operator: kv.Operator, operand: object) -> None:
        self.key = key
        self.subject = subject
        self.operator = operator
        self.operand = operand

    def __repr__(self) -> str:
        if self.operator == kv.STARTS_WITH:
            return f"{self.subject}({self.key!r}).starts_with({short(self.operand)})"
        return f"{self.subject}({self.key!r}) {_SIGNS[self.operator]} {short(self.operand)}"

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} is a condition for `when`, not a truth value")

    def fill(self, message: kv.Condition, values: Values[Any]) -> None:
        """Fill the message of the API."""
        compare = message.compare
        compare.key = self.key
        compare.operator = self.operator
        if self.subject == "value":
            if self.operator in _ORDERS and not values.ordered:
                raise TypeError(
                    f"{self!r}: values are compared as bytes, whose order is not that of this codec's values "
                    '("100" comes before "30"); compare by == or !=, or numbers by `wbkv.number(key)`'
                )
            compare.value = values.encode(self.key, self.operand)
        else:
            setattr(compare, self.subject, self.operand)


class Unchanged(Condition):
    """The condition that no key of a range was written or removed after a revision."""

    __slots__ = ("range", "since")

    def __init__(self, keys: KeyRange, since: int) -> None:
        self.key = keys.start
        self.range = keys
        self.since = _positive("since", since)

    def __repr__(self) -> str:
        return f"unchanged({self.range!r}, since={self.since})"

    def fill(self, message: kv.Condition, values: Values[Any]) -> None:
        """Fill the message of the API."""
        message.unchanged.range.CopyFrom(self.range.message())
        message.unchanged.since = self.since


class Combined(Condition):
    """Conditions of which any holds, or all do."""

    __slots__ = ("conditions", "depth", "kind")

    def __init__(self, kind: str, conditions: tuple[Condition, ...]) -> None:
        if not conditions:
            raise ValueError(f"{kind}_of needs at least one condition; leave it out if there is none")
        self.kind = kind
        self.conditions = checked(conditions, Condition)
        self.key = conditions[0].key
        self.depth = 1 + max(condition.depth for condition in conditions)
        if self.depth > DEPTH:
            raise ValueError(
                f"{kind}_of: conditions are nested {self.depth} deep, and at most {DEPTH}: flatten them"
            )

    def __repr__(self) -> str:
        return f"{self.kind}_of({', '.join(map(repr, self.conditions))})"

    def fill(self, message: kv.Condition, values: Values[Any]) -> None:
        """Fill the message of the API."""
        combined: kv.Conditions = getattr(message, self.kind)
        for condition in self.conditions:
            condition.fill(combined.conditions.add(), values)


_ORDERS: Final = (kv.LESS, kv.GREATER, kv.LESS_EQUAL, kv.GREATER_EQUAL, kv.STARTS_WITH)
_SIGNS: Final = {
    kv.EQUAL: "==", kv.NOT_EQUAL: "!=", kv.LESS: "<", kv.GREATER: ">",
    kv.LESS_EQUAL: "<=", kv.GREATER_EQUAL: ">=",
}  # fmt: skip


class _Subject:
    """A property of a key that can be compared."""

    __slots__ = ("_key",)
    _name = "value"

    def __init__(self, key: Key) -> None:
        self._key = key_bytes(key)

    def _compare(self, operator: kv.Operator, operand: object) -> Condition:
        return Condition(self._key, self._name, operator, operand)

    __hash__ = None  # type: ignore[assignment]  # == returns a condition, not whether two are equal

    def __eq__(self, operand: object) -> Condition:  # type: ignore[override]  # conditions are made so
        return self._compare(kv.EQUAL, operand)

    def __ne__(self, operand: object) -> Condition:  # type: ignore[override]  # likewise
        return self._compare(kv.NOT_EQUAL, operand)


class ValueOf(_Subject):
    """A key's value, compared as bytes. The value of an absent key differs from all others; it is neither
    less nor greater, and begins with nothing.
    """

    __slots__ = ()

    def __lt__(self, operand: object) -> Condition:
        return self._compare(kv.LESS, operand)

    def __gt__(self, operand: object) -> Condition:
        return self._compare(kv.GREATER, operand)

    def __le__(self, operand: object) -> Condition:
        return self._compare(kv.LESS_EQUAL, operand)

    def __ge__(self, operand: object) -> Condition:
        return self._compare(kv.GREATER_EQUAL, operand)

    def starts_with(self, prefix: object) -> Condition:
        """Require that the value begins with these bytes, or this text."""
        return self._compare(kv.STARTS_WITH, prefix)


class NumberOf(_Subject):
    """A key's number, or its version or a revision, which are 0 if the key is absent."""

    __slots__ = ("_lowest", "_name")

    def __init__(self, key: Key, name: str, lowest: int = 0) -> None:
        super().__init__(key)
        self._name = name
        self._lowest = lowest

    def _compare(self, operator: kv.Operator, operand: object) -> Condition:
        if not isinstance(operand, int) or isinstance(operand, bool):
            raise TypeError(
                f"the {self._name} of {self._key!r} is an int, not comparable with {operand!r}; compare it "
                "with an int"
            )
        if not self._lowest <= operand <= INT64_MAX:
            least = "-2^63" if self._lowest else "0"
            raise ValueError(f"{self._name} must be a number from {least} to 2^63 - 1, not {operand!r}")
        return Condition(self._key, self._name, operator, operand)

    def __lt__(self, operand: int) -> Condition:
        return self._compare(kv.LESS, operand)

    def __gt__(self, operand: int) -> Condition:
        return self._compare(kv.GREATER, operand)

    def __le__(self, operand: int) -> Condition:
        return self._compare(kv.LESS_EQUAL, operand)

    def __ge__(self, operand: int) -> Condition:
        return self._compare(kv.GREATER_EQUAL, operand)


def value(key: Key) -> ValueOf:
    """Compare the key's value: `value("alice") == b"100"`, `value("job").starts_with(b"done:")`. `<`, `>`,
    `<=` and `>=` compare bytes, which does not order numbers: codecs other than bytes and text reject them.
    """
    return ValueOf(key)


def number(key: Key) -> NumberOf:
    """Compare the key's value as a signed 64-bit number: `number("stock") >= 3`.

    A comparison of numbers holds only if there is a number: an absent key, and a value that is not a number,
    satisfy none, not even `!=`.
    """
    return NumberOf(key, "number", INT64_MIN)


def any_of(*conditions: Condition) -> Condition:
    """Require that at least one of these conditions holds."""
    return Combined("any", conditions)


def all_of(*conditions: Condition) -> Condition:
    """Require that all of these conditions hold: for use inside of `any_of`."""
    return Combined("all", conditions)


def version(key: Key) -> NumberOf:
    """Compare the number of transactions that have written the key since its creation."""
    return NumberOf(key, "version")


def mod_revision(key: Key) -> NumberOf:
    """Compare the revision that last wrote the key."""
    return NumberOf(key, "mod_revision")


def create_revision(key: Key) -> NumberOf:
    """Compare the revision that created the key."""
    return NumberOf(key, "create_revision")


def exists(key: Key) -> Condition:
    """Require that the key exists."""
    return Condition(key_bytes(key), "exists", kv.EQUAL, operand=True)


def absent(key: Key) -> Condition:
    """Require that the key is absent."""
    return Condition(key_bytes(key), "exists", kv.EQUAL, operand=False)


def unchanged(keys: Keys, *, since: int) -> Condition:
    """Require that no key of the range was written or removed after a revision: a read then still holds."""
    return Unchanged(range_of(keys), since)


def _number(name: str, key: bytes, given: int) -> int:
    if not isinstance(given, int) or not INT64_MIN <= given <= INT64_MAX:
        raise ValueError(f"the {name} for {key!r} must be a signed 64-bit number, not {given!r}")
    return given


def _positive(name: str, number: int) -> int:
    if not isinstance(number, int) or not 0 <= number <= INT64_MAX:
        raise ValueError(f"{name} must be a number from 0 to 2^63 - 1, not {number!r}")
    return number


C = TypeVar("C", Condition, Operation)


def checked(given: tuple[C, ...], wanted: type[C]) -> tuple[C, ...]:
    """Return the arguments of a transaction. Raises `TypeError` if one has the wrong type."""
    for each in given:
        if not isinstance(each, wanted):
            kind = wanted.__name__.lower()
            raise TypeError(f"{each!r} is not a wbkv {kind}: see `wbkv.{_EXAMPLES[kind]}`")
    return given


_EXAMPLES: Final = {"condition": "exists", "operation": "put"}


# Results

Result: TypeAlias = Entry[V] | Scanned[V] | Failed | int | None


def entry_of(message: kv.Entry, values: Values[V]) -> Entry[V]:
    """Decode a key with its value."""
    key = message.key
    return Entry(
        key,
        values.decode(key, message.value),
        message.create_revision,
        message.mod_revision,
        message.version,
    )


def result_of(message: kv.OperationResult, values: Values[V]) -> Result[V]:
    """Decode the result of an operation."""
    kind = message.WhichOneof("result")
    if kind == "written":
        return None
    if kind == "got":
        return entry_of(message.got.entry, values) if message.got.HasField("entry") else None
    if kind == "number":
        return message.number.value
    if kind == "deleted":
        return message.deleted.count
    if kind == "scanned":
        scanned = message.scanned
        entries = tuple(entry_of(entry, values) for entry in scanned.entries)
        return Scanned(entries, scanned.count, scanned.more)
    return Failed(FAULTS.get(message.failed.fault, "unknown fault"))


def number_of(key: bytes, result: Result[V]) -> int:
    """Return the number that is an operation's result. Raises `OperationFailed`."""
    if isinstance(result, Failed):
        raise operation_failed(key, result.fault)
    assert isinstance(result, int)
    return result


def operation_failed(key: bytes, reason: str) -> OperationFailed:
    """Return the error of a single operation."""
    return OperationFailed(f"{key!r}: {reason}", (Failure(0, key, reason, otherwise=False),))


def named(
    error: OperationFailed, then: Sequence[Operation], otherwise: Sequence[Operation]
) -> OperationFailed:
    """Return the error of a transaction with the keys of what has failed."""
    failures, texts = [], []
    for at, _, reason, of_otherwise in error.failures:
        operation = (otherwise if of_otherwise else then)[at]
        failures.append(Failure(at, operation.key, reason, of_otherwise))
        texts.append(f"operation {at} of {'otherwise' if of_otherwise else 'then'}, {operation!r}: {reason}")
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return OperationFailed(f"{'; '.join(texts[:NAMED])}{more}. Nothing was written", failures)
