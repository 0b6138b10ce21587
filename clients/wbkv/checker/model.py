"""The interface of a kind of history: list-append and registers differ in what a read shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wbkv.checker.dependencies import Dependencies
from wbkv.checker.history import HistoryColumns, Operation


class Model(Protocol):
    """List-append or registers."""

    name: str
    write: str

    def observe(self, transaction: int, operations: list[Operation]) -> None:
        """Record a transaction with its results."""

    def note(self, transaction: int, operations: list[Operation]) -> None:
        """Record a transaction that failed, or has no response."""

    def shown(self, key: int, value: int) -> object:
        """Return the result of a read."""

    def infer(self, dependencies: Dependencies) -> bytearray:
        """Infer all dependencies. Return which transactions were executed."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A history that was read from a file, and its kind."""

    history: HistoryColumns
    model: Model
