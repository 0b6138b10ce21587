"""What clients did and saw, in columns: a history of a million operations is some integers each, not text.

Transactions are numbered in the order of their beginning. Keys and values are numbered as they are met;
within a key every value is written once, so a value's number names a version of the key.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

Scalar = str | int | float | bool
Operation = Sequence[object]
"""["r", key, value], ["append", key, element] or ["w", key, value]."""

OK, FAIL, UNKNOWN = 0, 1, 2
READ, WRITE = 0, 1
NOTHING = -1
"""No value, no writer, no revision."""
UNSEEN = -2
"""The result of a read that was never answered."""
ODD = -3
"""The result of a read that fits nothing: kept aside, whole."""
NEVER = 2**63 - 1
"""When an operation ends of which nobody knows whether it did."""

SHOWN = 8
"""Elements of a list that are shown, from its end."""


class HistoryError(ValueError):
    """This is no history that can be judged; the message says where and why."""


def called(transaction: int) -> str:
    """What a transaction is called in a verdict: they count from 1 there."""
    return f"T{transaction + 1}"


def show(value: object) -> str:
    """A value as JSON would have it, with nothing that a terminal obeys; of a long list its end."""
    if isinstance(value, list):
        elements = [show(element) for element in value[-SHOWN:]]
        return f"[{' '.join((['...'] if len(value) > SHOWN else []) + elements)}]"
    return json.dumps(value, ensure_ascii=not isinstance(value, str) or not value.isprintable())


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with single transactions, seen without any order of them."""

    name: str
    transactions: tuple[int, ...]
    text: str


class HistoryColumns:
    """Transactions, their operations and the values they are about."""

    def __init__(self) -> None:
        self.process = array("q")
        self.start = array("q")
        self.end = array("q")
        self.status = bytearray()
        self.revision = array("q")
        self.line = array("q")
        self.first = array("q")
        """Where a transaction's operations begin, of `count`."""
        self.count = array("i")
        self.op_kind = bytearray()
        self.op_key = array("i")
        self.op_value = array("i")
        """The value written; of a read what its model puts there."""
        self.odd: dict[int, object] = {}
        """By operation: what was read and fits nothing."""
        self.keys: list[str | int] = []
        self.values: list[Scalar] = []
        self.value_key = array("i")
        self.writer = array("q")
        """By value: the transaction that wrote it, of several the one that did not fail."""
        self.final = bytearray()
        """By value: whether it was its transaction's last write to the key."""
        self.findings: list[Finding] = []
        self.lost: list[tuple[int, int, tuple[int, ...]]] = []
        """A key, a version of it, and those who each replaced that very version."""
        self.warnings: list[str] = []
        self._key_numbers: dict[str | int, int] = {}
        self.numbers: list[dict[Scalar, int]] = []
        """By key: the numbers of its values."""

    def __len__(self) -> int:
        return len(self.process)

    def find(self, name: str, text: str, *transactions: int) -> None:
        """Note that something is wrong."""
        self.findings.append(Finding(name, transactions, text))

    def begin(self, process: int, time: int, line: int) -> int:
        """A transaction was sent; until it is answered its outcome is unknown."""
        self.process.append(process)
        self.start.append(time)
        self.end.append(NEVER)
        self.status.append(UNKNOWN)
        self.revision.append(NOTHING)
        self.line.append(line)
        self.first.append(0)
        self.count.append(0)
        return len(self.process) - 1

    def key_number(self, key: str | int) -> int:
        """The key's number, a new one if it is met first."""
        number = self._key_numbers.get(key)
        if number is None:
            number = self._key_numbers[key] = len(self.keys)
            self.keys.append(key)
            self.numbers.append({})
        return number

    def value_number(self, key: int, value: Scalar) -> int:
        """The value's number, a new one if the key is met with it first."""
        number = self.numbers[key].get(value)
        if number is None:
            number = self.numbers[key][value] = len(self.values)
            self.values.append(value)
            self.value_key.append(key)
            self.writer.append(NOTHING)
            self.final.append(0)
        return number

    def add_operation(self, kind: int, key: int, value: int) -> int:
        """One more operation of the transaction that is being written down."""
        self.op_kind.append(kind)
        self.op_key.append(key)
        self.op_value.append(value)
        return len(self.op_kind) - 1

    def wrote(self, transaction: int, key: int, value: Scalar) -> int:
        """Note who wrote a value. Two who may both have done it make the history undecidable."""
        number = self.value_number(key, value)
        before = self.writer[number]
        if before == NOTHING or (self.status[before] == FAIL and before != transaction):
            self.writer[number] = transaction
            self.final[number] = 0
        elif before != transaction and self.status[transaction] != FAIL:
            raise HistoryError(
                f"{show(value)} is written to key {show(self.keys[key])} again (first by the transaction of "
                f"line {self.line[before]}): values of a key must differ, or nobody can tell who wrote what"
            )
        return number

    def end_writes(self, transaction: int, last: dict[int, int]) -> None:
        """Mark what each key was left with, of a transaction that is written down."""
        for number in last.values():
            if self.writer[number] == transaction:
                self.final[number] = 1

    def operations(self, transaction: int) -> range:
        """The positions of its operations."""
        first = self.first[transaction]
        return range(first, first + self.count[transaction])

    def writes(self, transaction: int, key: int) -> list[int]:
        """The values it wrote to the key, in its order."""
        return [
            self.op_value[index]
            for index in self.operations(transaction)
            if self.op_kind[index] == WRITE and self.op_key[index] == key
        ]
