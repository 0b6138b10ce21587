"""A history as columns: an operation takes a few integers, so that a million operations fit into memory.

Transactions are numbered in the order of their beginning. Keys and values are numbered as they first occur;
within a key every value is written once, so a value's number identifies a version of the key.
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
"""The result of a read without a response."""
ODD = -3
"""The result of a read that matches no version: it is stored apart, whole."""
NEVER = 2**63 - 1
"""The end time of an operation whose outcome is unknown."""

SHOWN = 8
"""How many elements of a list are shown, from its end."""


class HistoryError(ValueError):
    """The history cannot be checked; the message says where and why."""


def called(transaction: int) -> str:
    """Return the name of a transaction in a verdict, where transactions count from 1."""
    return f"T{transaction + 1}"


def show(value: object) -> str:
    """Return a value as JSON, without control characters; a long list is cut to its end."""
    if isinstance(value, list):
        elements = [show(element) for element in value[-SHOWN:]]
        return f"[{' '.join((['...'] if len(value) > SHOWN else []) + elements)}]"
    return json.dumps(value, ensure_ascii=not isinstance(value, str) or not value.isprintable())


@dataclass(frozen=True, slots=True)
class Finding:
    """An anomaly of single transactions, found without their order."""

    name: str
    transactions: tuple[int, ...]
    text: str


class HistoryColumns:
    """Transactions, their operations, and their values."""

    def __init__(self) -> None:
        self.process = array("q")
        self.start = array("q")
        self.end = array("q")
        self.status = bytearray()
        self.revision = array("q")
        self.line = array("q")
        self.first = array("q")
        """The index of a transaction's first operation; it has `count`."""
        self.count = array("i")
        self.op_kind = bytearray()
        self.op_key = array("i")
        self.op_value = array("i")
        """The value written; for a read the model decides."""
        self.odd: dict[int, object] = {}
        """By operation: the result of a read that matches no version."""
        self.keys: list[str | int] = []
        self.values: list[Scalar] = []
        self.value_key = array("i")
        self.writer = array("q")
        """By value: the transaction that wrote it; of several, the one that did not fail."""
        self.final = bytearray()
        """By value: whether it was its transaction's last write to the key."""
        self.findings: list[Finding] = []
        self.lost: list[tuple[int, int, tuple[int, ...]]] = []
        """A key, a version of it, and the transactions that each replaced this version."""
        self.warnings: list[str] = []
        self._key_numbers: dict[str | int, int] = {}
        self.numbers: list[dict[Scalar, int]] = []
        """By key: the numbers of its values."""

    def __len__(self) -> int:
        return len(self.process)

    def find(self, name: str, text: str, *transactions: int) -> None:
        """Record a finding."""
        self.findings.append(Finding(name, transactions, text))

    def begin(self, process: int, time: int, line: int) -> int:
        """Add a transaction. Until its end is recorded, the outcome is unknown."""
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
        """Return the number of a key, which is new at its first occurrence."""
        number = self._key_numbers.get(key)
        if number is None:
            number = self._key_numbers[key] = len(self.keys)
            self.keys.append(key)
            self.numbers.append({})
        return number

    def value_number(self, key: int, value: Scalar) -> int:
        """Return the number of a key's value, which is new at its first occurrence."""
        number = self.numbers[key].get(value)
        if number is None:
            number = self.numbers[key][value] = len(self.values)
            self.values.append(value)
            self.value_key.append(key)
            self.writer.append(NOTHING)
            self.final.append(0)
        return number

    def add_operation(self, kind: int, key: int, value: int) -> int:
        """Add an operation to the transaction that is being recorded. Return its index."""
        self.op_kind.append(kind)
        self.op_key.append(key)
        self.op_value.append(value)
        return len(self.op_kind) - 1

    def wrote(self, transaction: int, key: int, value: Scalar) -> int:
        """Record the writer of a value. Two possible writers make the history undecidable."""
        number = self.value_number(key, value)
        before = self.writer[number]
        if before == NOTHING or (self.status[before] == FAIL and before != transaction):
            self.writer[number] = transaction
            self.final[number] = 0
        elif before != transaction and self.status[transaction] != FAIL:
            raise HistoryError(
                f"{show(value)} is written to key {show(self.keys[key])} again (first by the transaction of "
                f"line {self.line[before]}): values of a key must differ, so that each has one writer"
            )
        return number

    def end_writes(self, transaction: int, last: dict[int, int]) -> None:
        """Mark the last write of a transaction to each key."""
        for number in last.values():
            if self.writer[number] == transaction:
                self.final[number] = 1

    def operations(self, transaction: int) -> range:
        """Return the indexes of a transaction's operations."""
        first = self.first[transaction]
        return range(first, first + self.count[transaction])

    def writes(self, transaction: int, key: int) -> list[int]:
        """Return the values that a transaction wrote to a key, in order."""
        return [
            self.op_value[index]
            for index in self.operations(transaction)
            if self.op_kind[index] == WRITE and self.op_key[index] == key
        ]
