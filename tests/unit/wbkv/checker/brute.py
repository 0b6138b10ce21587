"""A second checker, slow and obvious: try every order. And small random histories for it."""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any, NamedTuple

from wbkv import checker

Operations = list[list[Any]]


class Transaction(NamedTuple):
    process: int
    start: int
    end: int
    outcome: str
    operations: Operations
    revision: int | None = None


def events(transactions: list[Transaction]) -> list[dict[str, Any]]:
    """What a recorder would have written. An outcome that is unknown has no line."""
    lines = []
    for number, (process, start, end, outcome, operations, revision) in enumerate(transactions):
        asked = [[f, k, None if f == "r" else v] for f, k, v in operations]
        lines.append((start, number, {"type": "invoke", "process": process, "time": start, "txn": asked}))
        if outcome != "unknown":
            event: dict[str, Any] = {"type": outcome, "process": process, "time": end, "txn": operations}
            if revision is not None:
                event["revision"] = revision
            lines.append((end, number, event))
    return [event for _, _, event in sorted(lines, key=lambda line: line[:2])]


def check(transactions: list[Transaction], model: str = "strict-serializable") -> checker.Verdict:
    """What the checker says of them."""
    return checker.check(checker.of_events(events(transactions)), model)


def serializable(transactions: list[Transaction], *, lists: bool, realtime: bool, process: bool) -> bool:
    """Whether some order explains the history, with or without those whose outcome is unknown."""
    done = [t for t in transactions if t.outcome == "ok"]
    unknown = [t for t in transactions if t.outcome == "unknown"]
    for chosen in range(2 ** len(unknown)):
        members = done + [t for place, t in enumerate(unknown) if chosen >> place & 1]
        for order in permutations(members):
            if _in_time(order, realtime=realtime, process=process) and _explains(order, lists=lists):
                return True
    return False


def _in_time(order: tuple[Transaction, ...], *, realtime: bool, process: bool) -> bool:
    for place, later in enumerate(order):
        for earlier in order[:place]:
            counts = realtime or (process and later.process == earlier.process)
            if counts and later.outcome == "ok" and later.end < earlier.start:
                return False
    return True


def _explains(order: tuple[Transaction, ...], *, lists: bool) -> bool:
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


def small(rng: random.Random, *, lists: bool) -> list[Transaction]:
    """A few transactions as a store has executed them, in or out of the order of time; reads may be stale."""
    asked = _requests(rng, "append" if lists else "w")
    order = list(asked)
    if rng.random() < 0.5:
        order.sort(key=lambda t: rng.uniform(t.start, t.end))
    else:
        rng.shuffle(order)
    state: dict[str, Any] = {}
    states: list[dict[str, Any]] = []
    for transaction in order:
        if rng.random() < {"ok": 0, "fail": 0.8, "unknown": 0.4}[transaction.outcome]:
            continue
        states.append({key: list(value) if lists else value for key, value in state.items()})
        seen = rng.choice(states) if rng.random() < 0.25 else state
        for operation in transaction.operations:
            function, key, value = operation
            if function == "append":
                state.setdefault(key, []).append(value)
            elif function == "w":
                state[key] = value
            else:
                operation[2] = seen.get(key, [] if lists else None)
                if lists:
                    operation[2] = operation[2][: -1 if rng.random() < 0.03 else None]
    return asked


def _requests(rng: random.Random, write: str) -> list[Transaction]:
    keys = ["x", "y"][: rng.randint(1, 2)]
    written = dict.fromkeys(keys, 0)
    free = dict.fromkeys(range(rng.choice([1, 2, 3, 6, 6, 6])), 0)
    """By process: when it is free."""
    transactions = []
    for _ in range(rng.randint(2, 6)):
        if not free:
            break
        process = rng.choice(list(free))
        start = free[process] + rng.randint(1, 6)
        end = start + rng.randint(1, 8)
        outcome = rng.choices(["ok", "fail", "unknown"], [10, 1, 1])[0]
        free[process] = end
        if outcome == "unknown":
            del free[process]
        operations: Operations = []
        for _ in range(rng.choice([1, 1, 2, 2, 3])):
            key = rng.choice(keys)
            if rng.random() < 0.5:
                operations.append(["r", key, None])
            else:
                written[key] += 1
                operations.append([write, key, written[key]])
        transactions.append(Transaction(process, start, end, outcome, operations))
    return transactions
