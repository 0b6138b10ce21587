"""How many rows a transaction may look at: what a gateway admits long transactions by.

An estimate has no influence on any result. It is made from the rows of a replica of the same node, and may be
wrong: keys may have been added since, and removed keys may lie before those that a scan with a limit finds. A
transaction that is not known to look at few rows counts as one that looks at all that it may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeAlias

from kvstore.machine.placement import Placement
from kvstore.machine.request import DeleteRange, Limits, Range, Scan, Shape, Transaction, Unchanged
from multicast.types import Destinations, GroupId

COUNTED: Final = 1024
"""Rows of a group that are counted for an estimate."""

RANGES: Final = 16
"""Ranges whose rows are counted."""

SPARE: Final = 64
"""Rows that a limit may be exceeded by, since some keys are removed."""

CountRows: TypeAlias = Callable[[GroupId, Range, int], int | None]
"""Counts the rows of a group's range, up to a number; None if that is not known here."""


_OF_RANGES: Final = (Unchanged, Scan, DeleteRange)


def has_ranges(transaction: Transaction) -> bool:
    """Return whether a transaction looks at ranges of keys: without any, `rows_of` it is 0."""
    for part in (transaction.conditions, transaction.then, transaction.otherwise):
        for each in part:
            if isinstance(each, _OF_RANGES):
                return True
    return False


def rows_of(
    transaction: Transaction,
    placement: Placement,
    destinations: Destinations,
    limits: Limits,
    count: CountRows,
) -> int:
    """Return about how many rows a transaction looks at in all groups; 0 if it has no ranges."""
    limited = 0
    ranges: Counter[Range] = Counter()
    for condition in transaction.conditions:
        if isinstance(condition, Unchanged):
            ranges[condition.range] += 1
    for branch in (transaction.then, transaction.otherwise):
        for each in branch:
            if isinstance(each, (Scan, DeleteRange)):
                if each.limit and not (isinstance(each, Scan) and each.shape is Shape.COUNT):
                    limited += each.limit + SPARE
                else:
                    ranges[each.range] += 1
    if not (ranges or limited):
        return 0
    most = limits.transaction_rows
    total = 0
    for group in destinations:
        rows = limited
        for asked, times in ranges.items() if len(ranges) <= RANGES else ():
            if rows >= COUNTED:
                break
            if group in placement.groups_of_range(asked):
                found = count(group, asked, COUNTED)
                rows += times * (most if found is None or found >= COUNTED else found)
        total += most if len(ranges) > RANGES else min(rows, most)
    return total
