"""What a kind of history must offer: list-append and registers differ in what a read tells."""

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
        """Write down an answered transaction."""

    def note(self, transaction: int, operations: list[Operation]) -> None:
        """Write down a transaction that failed, or that was never answered."""

    def shown(self, key: int, value: int) -> object:
        """What a read saw."""

    def infer(self, dependencies: Dependencies) -> bytearray:
        """Draw all conclusions. Returns which transactions were executed."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A history as it was read, and its kind."""

    history: HistoryColumns
    model: Model
