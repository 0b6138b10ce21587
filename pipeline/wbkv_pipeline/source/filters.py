"""Filters that the store can evaluate: ranges and sets of keys, and partitions.

Keys compare by their bytes, in Spark as in the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from wbkv import KeyRange

MANY: Final = 256
"""Most keys that are looked up one by one. With more, all keys from the first to the last are read."""

_COLUMNS: Final = frozenset({"key", "value", "create_revision", "mod_revision", "version", "partition"})


@dataclass(frozen=True, slots=True)
class Selection:
    """The keys and partitions to read."""

    keys: KeyRange
    points: tuple[bytes, ...] | None = None
    """Only these keys, in order."""
    partitions: frozenset[int] | None = None
    """Only these partitions; None: all."""

    @property
    def empty(self) -> bool:
        """Whether nothing can be found."""
        start, end = self.keys.start, self.keys.end
        return self.points == () or self.partitions == frozenset() or (end is not None and end <= start)


def push(selection: Selection, filters: Sequence[Filter]) -> tuple[Selection, list[Filter]]:
    """Narrow the selection by the filters. Return it, and the filters that Spark must still apply."""
    rest = []
    for each in filters:
        narrowed = _narrow(selection, each)
        if narrowed is None:
            rest.append(each)
            continue
        if narrowed.points is not None and len(narrowed.points) > MANY:
            first, last = narrowed.points[0], narrowed.points[-1]
            narrowed = replace(narrowed, keys=KeyRange(first, last + b"\0"), points=None)
            rest.append(each)
        selection = narrowed
    return selection, rest


def _narrow(selection: Selection, each: Filter) -> Selection | None:
    """Return the selection narrowed by one filter, or None if the store cannot evaluate the filter."""
    match each:
        case IsNotNull((name,)) if name in _COLUMNS:
            return selection  # nothing is null in a snapshot
        case EqualTo(("key",), bytes(key)) | EqualNullSafe(("key",), bytes(key)):
            return _among(selection, [key])
        case In(("key",), values) if _all(values, bytes):
            return _among(selection, values)
        case GreaterThanOrEqual(("key",), bytes(key)):
            return _between(selection, key, None)
        case GreaterThan(("key",), bytes(key)):
            return _between(selection, key + b"\0", None)
        case LessThan(("key",), bytes(key)):
            return _between(selection, b"", key)
        case LessThanOrEqual(("key",), bytes(key)):
            return _between(selection, b"", key + b"\0")
        case EqualTo(("partition",), int(number)) | EqualNullSafe(("partition",), int(number)):
            return _of_partitions(selection, [number])
        case In(("partition",), values) if _all(values, int):
            return _of_partitions(selection, values)
    return None


def _all(values: Iterable[Any], kind: type) -> bool:
    return all(isinstance(value, kind) for value in values)


def _among(selection: Selection, keys: Iterable[bytes]) -> Selection:
    allowed = None if selection.points is None else set(selection.points)
    found = {key for key in keys if key in selection.keys and (allowed is None or key in allowed)}
    return replace(selection, points=tuple(sorted(found)))


def _between(selection: Selection, start: bytes, end: bytes | None) -> Selection:
    old = selection.keys
    ends = [each for each in (old.end, end) if each is not None]
    keys = KeyRange(max(old.start, start), min(ends) if ends else None)
    points = selection.points
    if points is not None:
        points = tuple(key for key in points if key in keys)
    return replace(selection, keys=keys, points=points)


def _of_partitions(selection: Selection, numbers: Iterable[int]) -> Selection:
    found = frozenset(numbers)
    if selection.partitions is not None:
        found &= selection.partitions
    return replace(selection, partitions=found)
