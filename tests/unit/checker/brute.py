"""A second checker, slow and obvious: try every order of the transactions."""

from __future__ import annotations

from itertools import permutations
from typing import Any, NamedTuple

Operations = list[list[Any]]


class Transaction(NamedTuple):
    process: int
    start: int
    end: int
    outcome: str
    operations: Operations


def events(transactions: list[Transaction]) -> list[dict[str, Any]]:
    """What a recorder would have written. An outcome that is unknown has no line."""
    lines = []
    for number, (process, start, end, outcome, operations) in enumerate(transactions):
        asked = [[f, k, None if f == "r" else v] for f, k, v in operations]
        lines.append((start, number, {"type": "invoke", "process": process, "time": start, "txn": asked}))
        if outcome != "unknown":
            lines.append((end, number, {"type": outcome, "process": process, "time": end, "txn": operations}))
    return [event for _, _, event in sorted(lines, key=lambda line: line[:2])]


def explains(order: tuple[Transaction, ...], *, lists: bool) -> bool:
    """Whether a serial store shows in this order what the transactions saw."""
    state: dict[str, Any] = {}
    for transaction in order:
        for function, key, value in transaction.operations:
            if function == "append":
                state[key] = [*state.get(key, ()), value]
            elif function == "w":
                state[key] = value
            elif transaction.outcome == "ok" and state.get(key, [] if lists else None) != value:
                return False
    return True


def serializable(transactions: list[Transaction], *, lists: bool, realtime: bool, process: bool) -> bool:
    """Whether some order explains the history, with or without those whose outcome is unknown."""
    done = [t for t in transactions if t.outcome == "ok"]
    unknown = [t for t in transactions if t.outcome == "unknown"]
    for chosen in range(2 ** len(unknown)):
        members = done + [t for place, t in enumerate(unknown) if chosen >> place & 1]
        for order in permutations(members):
            if _in_time(order, realtime=realtime, process=process) and explains(order, lists=lists):
                return True
    return False


def _in_time(order: tuple[Transaction, ...], *, realtime: bool, process: bool) -> bool:
    for place, later in enumerate(order):
        for earlier in order[:place]:
            counts = realtime or (process and later.process == earlier.process)
            if counts and later.outcome == "ok" and later.end < earlier.start:
                return False
    return True
