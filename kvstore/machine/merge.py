"""Merge what the groups of a transaction have done, for the gateway that answers its client."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple, assert_never

from kvstore.machine.formula import evaluate_formula, roots_of
from kvstore.machine.operations import scan
from kvstore.machine.placement import Placement, owners_of
from kvstore.machine.request import (
    RANGE_OPERATIONS,
    DeleteRange,
    Operation,
    RangeOperation,
    Scan,
    Shape,
    Transaction,
)
from kvstore.machine.results import (
    Aborted,
    Deleted,
    Failed,
    Failure,
    Fault,
    KeyValue,
    OperationResult,
    Outcome,
    Scanned,
    Unmet,
)
from multicast.errors import InvariantBroken
from multicast.types import GroupId


class Merged(NamedTuple):
    """A transaction's outcome in all its groups."""

    succeeded: bool
    unmet: tuple[Unmet, ...]
    """By the conditions that all must hold: with a formula, its roots."""
    results: tuple[OperationResult, ...]
    """Of the branch taken, in the order of the request."""


def merge(transaction: Transaction, placement: Placement, parts: Mapping[GroupId, Outcome]) -> Merged:
    """Merge the outcomes of all groups that have keys of it, by the map that it was routed by."""
    outcomes = {part.succeeded for part in parts.values()}
    if len(outcomes) != 1:
        raise InvariantBroken(f"groups {sorted(parts)} do not agree on whether a transaction succeeded")
    succeeded = outcomes.pop()
    points = _merge_points(transaction.then if succeeded else transaction.otherwise, parts)
    if points is not None:
        return Merged(succeeded, _unmet(transaction, parts), points)
    answers: dict[int, list[OperationResult]] = {}
    for _, part in sorted(parts.items()):
        for i, result in part.results:
            answers.setdefault(i, []).append(result)
    results = []
    for i, operation in enumerate(transaction.then if succeeded else transaction.otherwise):
        found = answers.get(i, [])
        if len(found) != 1 or isinstance(operation, RANGE_OPERATIONS):
            owners = sorted(owners_of(operation, placement))
            if len(found) < len(owners):
                raise InvariantBroken(
                    f"operation {i} belongs to groups {owners}, but only {len(found)} of them have a result"
                )
        if len(found) == 1:
            results.append(found[0])
        elif isinstance(operation, RANGE_OPERATIONS):
            results.append(_merge(operation, found))
        else:
            raise InvariantBroken(f"operation {i} on one key has results of {len(found)} groups")
    return Merged(succeeded, _unmet(transaction, parts), tuple(results))


def merge_aborted(
    transaction: Transaction, parts: Mapping[GroupId, Outcome | Aborted]
) -> tuple[bool, tuple[Failure, ...]]:
    """Return whether `then` was picked, and the failures of all groups, of a transaction that one has
    aborted.
    """
    aborted = [part for part in parts.values() if isinstance(part, Aborted)]
    picked = {part.in_then for part in aborted}
    if len(picked) != 1:
        raise InvariantBroken(f"groups {sorted(parts)} do not agree on why a transaction was aborted")
    in_then = picked.pop()
    for group, part in parts.items():
        if isinstance(part, Outcome) and any(transaction.then[i].writes for i, _ in part.results):
            raise InvariantBroken(f"group {group} has executed a transaction that another one has aborted")
    # Each group of a range may have failed at the same operation.
    failures = {failure.operation: failure for part in aborted for failure in part.failures}
    if not failures:
        raise InvariantBroken(f"groups {sorted(parts)} have aborted a transaction in which nothing fails")
    return in_then, tuple([failure for _, failure in sorted(failures.items())])


def _merge_points(
    branch: Sequence[Operation], parts: Mapping[GroupId, Outcome]
) -> tuple[OperationResult, ...] | None:
    """Return the results of a branch whose operations are on single keys, if each has exactly one."""
    found: dict[int, OperationResult] = {}
    count = 0
    for part in parts.values():
        count += len(part.results)
        found.update(part.results)
    if len(found) != len(branch) or count != len(branch):
        return None
    results = []
    for i, operation in enumerate(branch):
        result = found.get(i)
        if result is None or isinstance(operation, RANGE_OPERATIONS):
            return None
        results.append(result)
    return tuple(results)


def _unmet(transaction: Transaction, parts: Mapping[GroupId, Outcome]) -> tuple[Unmet, ...]:
    """Return each unmet condition once. If one group knows that it does not hold, no fault matters."""
    if not any(part.unmet for part in parts.values()):
        return ()
    faults: dict[int, Fault | None] = {}
    for _, part in sorted(parts.items()):
        for unmet in part.unmet:
            if unmet.fault is None or unmet.condition not in faults:
                faults[unmet.condition] = unmet.fault
    if transaction.formula:
        return _unmet_roots(transaction, faults)
    return tuple([Unmet(condition, fault) for condition, fault in sorted(faults.items())])


def _unmet_roots(transaction: Transaction, faults: Mapping[int, Fault | None]) -> tuple[Unmet, ...]:
    """Return the roots of a formula that do not hold, by their place among the roots. A root that combines
    conditions has the fault of its first condition with one.
    """
    count, nodes = len(transaction.conditions), transaction.formula
    values = evaluate_formula([i not in faults for i in range(count)], nodes)
    first: list[Fault | None] = [faults.get(i) for i in range(count)]
    for node in nodes:
        first.append(next((first[member] for member in node.members if first[member] is not None), None))
    roots = enumerate(roots_of(count, nodes))
    return tuple([Unmet(place, first[root]) for place, root in roots if not values[root]])


def _merge(operation: RangeOperation, found: list[OperationResult]) -> OperationResult:
    for each in found:
        if isinstance(each, Failed):
            return each
    if isinstance(operation, DeleteRange):
        deleted = [each for each in found if isinstance(each, Deleted)]
        resume = min((each.resume for each in deleted if each.resume), default=b"")
        return Deleted(sum(each.count for each in deleted), resume)
    if not isinstance(operation, Scan):
        assert_never(operation)
    scans = [each for each in found if isinstance(each, Scanned)]
    if operation.shape is Shape.COUNT:
        return Scanned((), sum(each.count for each in scans), more=False)
    return _merge_scans(operation, scans)


def _merge_scans(asked: Scan, parts: list[Scanned]) -> Scanned:
    """In the order of keys, up to the limits, and only as far as every group has gone."""

    def key_of(entry: KeyValue) -> bytes:
        return entry.key

    ends = [part.entries[-1].key for part in parts if part.more]
    merged = heapq.merge(*(part.entries for part in parts), key=key_of, reverse=asked.reverse)
    if not ends:
        return scan(asked, merged)
    end = max(ends) if asked.reverse else min(ends)
    within = [entry for entry in merged if (entry.key >= end if asked.reverse else entry.key <= end)]
    found = scan(asked, within)
    return Scanned(found.entries, found.count, more=True)
