"""The two kinds of history: list-append and registers differ in what a read shows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from dataclasses import dataclass

from wbkv.checker.dependencies import Dependencies
from wbkv.checker.history import READ, UNSEEN, WRITE, HistoryColumns, HistoryError, Operation, Scalar


class Model(ABC):
    """The reads of each key, and the dependencies that follow from them."""

    name: str
    write: str
    """The function that writes."""
    written: str
    """What it writes, for error messages."""

    def __init__(self, history: HistoryColumns) -> None:
        self._history = history
        self._reads: list[tuple[array[int], array[int], bytearray]] = []
        """By key: reads of other transactions' writes, as transactions, versions, and whether they write."""

    @abstractmethod
    def observe(self, transaction: int, operations: list[Operation]) -> None:
        """Record a transaction with its results."""

    @abstractmethod
    def shown(self, key: int, value: int) -> object:
        """Return the result of a read."""

    @abstractmethod
    def infer(self, dependencies: Dependencies) -> bytearray:
        """Infer all dependencies. Return which transactions were executed."""

    def note(self, transaction: int, operations: list[Operation]) -> None:
        """Record a transaction that failed, or has no response."""
        last: dict[int, int] = {}
        for function, name, value in operations:
            key = self._key(name)
            if function == self.write:
                self._add_write(transaction, key, value, last)
            else:
                self._history.add_operation(READ, key, UNSEEN)
        self._end(transaction, last, {})

    def _add_write(self, transaction: int, key: int, value: object, last: dict[int, int]) -> None:
        last[key] = self._history.wrote(transaction, key, self._scalar(value))
        self._history.add_operation(WRITE, key, last[key])

    def _end(self, transaction: int, last: dict[int, int], outside: dict[int, int]) -> None:
        """End a transaction, with its last write and its read of another's version of each key."""
        self._history.end_writes(transaction, last)
        for key, version in outside.items():
            transactions, versions, writes = self._reads[key]
            transactions.append(transaction)
            versions.append(version)
            writes.append(key in last)

    def _key(self, name: object) -> int:
        if not isinstance(name, str | int) or isinstance(name, bool):
            raise HistoryError(f"key {name!r} is neither a string nor an integer")
        key = self._history.key_number(name)
        if key == len(self._reads):
            self._add_key()
        return key

    def _add_key(self) -> None:
        self._reads.append((array("q"), array("i"), bytearray()))

    def _scalar(self, value: object) -> Scalar:
        if not isinstance(value, str | int | float):
            raise HistoryError(f"{self.written} must be a string or a number, not {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class Recording:
    """A history that was read from a file, and its kind."""

    history: HistoryColumns
    model: Model
