"""Lost updates: two transactions that read the same version of a key and both replaced it.

Whatever the order of versions, one of them must have come between the other's read and its write.
"""

from __future__ import annotations

from wbkv.checker.history import HistoryColumns


class Updates:
    """The transactions that replaced each version of one key."""

    def __init__(self) -> None:
        self._by_version: dict[int, list[int]] = {}

    def add(self, version: int, transaction: int) -> None:
        """Record that a transaction read the version, and wrote another."""
        self._by_version.setdefault(version, []).append(transaction)

    def of(self, version: int) -> list[int]:
        """Return the transactions that replaced the version: one, unless an update was lost."""
        return self._by_version.get(version, [])

    def first(self) -> list[tuple[int, int]]:
        """Return the replaced versions, each with one transaction that replaced it."""
        return [(version, transactions[0]) for version, transactions in self._by_version.items()]

    def report(self, history: HistoryColumns, key: int) -> None:
        """Record the lost updates."""
        for version, transactions in self._by_version.items():
            if len(transactions) > 1:
                history.lost.append((key, version, tuple(transactions)))
