"""Operations and conditions of transactions, and the results of operations."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.codecs import Values
from wbkv.data import Entry, Failed, Key, KeyRange, Keys, Scanned, V, key_bytes, range_of, short
from wbkv.errors import OperationFailed

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

FAULTS: Final[dict[int, str]] = {
    kv.OVERFLOW: "overflow",
    kv.NOT_A_NUMBER: "not a number",
    kv.VALUE_TOO_LARGE: "value too large",
    kv.COMPACTED: "compacted",
    kv.FUTURE_REVISION: "future revision",
    kv.TOO_MANY_ROWS: "too many rows",
}


class Operation:
    """One step of a transaction. `get`, `put`, `delete`, `append`, `add`, `minimum`, `maximum` and `scan`
    return one.
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

    __slots__ = ("kind", "operand")

    def __init__(self, kind: str, key: bytes, operand: int) -> None:
        if not isinstance(operand, int) or not INT64_MIN <= operand <= INT64_MAX:
            raise ValueError(f"the operand for {key!r} must be a signed 64-bit number, not {operand!r}")
        self.key = key
        self.kind = kind
        self.operand = operand

    def __repr__(self) -> str:
        return f"{self.kind}({self.key!r}, {self.operand})"

    def fill(self, message: kv.Operation, values: Values[Any]) -> None:
        """Fill the message of the API."""
        calculate: kv.Calculate = getattr(message, self.kind)
        calculate.key = self.key
        calculate.operand = self.operand


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


def delete(keys: Key | KeyRange, *, limit: int = 0) -> Operation:
    """Remove a key, or all keys of a `prefix`, `between` or `EVERYTHING`. The result is how many.

    A transaction removes at most 10,000 keys of ranges in each partition. If there are more, it does nothing
    and raises `LimitExceeded`; with a `limit`, it removes the first ones, so many in each partition.
    """
    return DeleteRange(keys, limit) if isinstance(keys, KeyRange) else Delete(key_bytes(keys))


def append(key: Key, value: object) -> Operation:
    """Append bytes to a value. The result is the new length."""
    return Append(key_bytes(key), value)


def add(key: Key, amount: int = 1) -> Operation:
    """Add to a number; an absent key counts as 0. The result is the new number."""
    return Calculate("add", key_bytes(key), amount)


def minimum(key: Key, operand: int) -> Operation:
    """Set a number to the operand if it is greater or absent. The result is the new number."""
    return Calculate("min", key_bytes(key), operand)


def maximum(key: Key, operand: int) -> Operation:
    """Set a number to the operand if it is less or absent. The result is the new number."""
    return Calculate("max", key_bytes(key), operand)


def scan(keys: Keys, *, limit: int = 0, reverse: bool = False) -> Operation:
    """Read a range, as far as one response has room. The result is a `Scanned`. See also `client.scan`."""
    return Scan(range_of(keys), limit, reverse)


# Conditions


class Condition:
    """A condition of a transaction. Comparing `value(key)`, `version(key)` and so on returns one."""

    __slots__ = ("key", "operand", "operator", "subject")

    def __init__(self, key: bytes, subject: str, operator: kv.Operator, operand: object) -> None:
        self.key = key
        self.subject = subject
        self.operator = operator
        self.operand = operand

    def __repr__(self) -> str:
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
                    '("100" comes before "30"); compare by == or !=, or read the value in a transaction'
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


_ORDERS: Final = (kv.LESS, kv.GREATER)
_SIGNS: Final = {kv.EQUAL: "==", kv.NOT_EQUAL: "!=", kv.LESS: "<", kv.GREATER: ">"}


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
    """A key's value, compared as bytes. The value of an absent key differs from all others, and is neither
    less nor greater.
    """

    __slots__ = ()

    def __lt__(self, operand: object) -> Condition:
        return self._compare(kv.LESS, operand)

    def __gt__(self, operand: object) -> Condition:
        return self._compare(kv.GREATER, operand)


class NumberOf(_Subject):
    """A key's version or revision; 0 if the key is absent."""

    __slots__ = ("_name",)

    def __init__(self, key: Key, name: str) -> None:
        super().__init__(key)
        self._name = name

    def _compare(self, operator: kv.Operator, operand: object) -> Condition:
        if not isinstance(operand, int):
            raise TypeError(f"the {self._name} of {self._key!r} is an int, not comparable with {operand!r}")
        return Condition(self._key, self._name, operator, _positive(self._name, operand))

    def __lt__(self, operand: int) -> Condition:
        return self._compare(kv.LESS, operand)

    def __gt__(self, operand: int) -> Condition:
        return self._compare(kv.GREATER, operand)


def value(key: Key) -> ValueOf:
    """Compare the key's value: `value("alice") == b"100"`. `<` and `>` compare bytes, which does not order
    numbers: codecs other than bytes and text reject them.
    """
    return ValueOf(key)


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
        raise OperationFailed(f"{key!r}: {result.fault}", result.fault)
    assert isinstance(result, int)
    return result
