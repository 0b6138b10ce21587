"""Lost updates: two transactions that read the same version of a key and both replaced it.

Whatever the order of versions, one of them must have come between the other's read and its write.
"""

from __future__ import annotations

from wbkv.checker.history import HistoryColumns


class Updates:
    """Of one key: who replaced which version."""

    def __init__(self) -> None:
        self._by_version: dict[int, list[int]] = {}

    def add(self, version: int, transaction: int) -> None:
        """The transaction read the version, and wrote another."""
        self._by_version.setdefault(version, []).append(transaction)

    def of(self, version: int) -> list[int]:
        """Those who replaced the version: one, if all is well."""
        return self._by_version.get(version, [])

    def first(self) -> list[tuple[int, int]]:
        """The versions that were replaced, each with one who did it."""
        return [(version, transactions[0]) for version, transactions in self._by_version.items()]

    def report(self, history: HistoryColumns, key: int) -> None:
        """Note what was lost."""
        for version, transactions in self._by_version.items():
            if len(transactions) > 1:
                history.lost.append((key, version, tuple(transactions)))
