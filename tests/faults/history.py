"""What the clients of a cluster did and saw, and what must be true of it.

Every request of a history has a definite outcome: clients repeat theirs until they know. Changes are what a
watch has seen of all keys, so that together they are the order of all transactions that wrote.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Action:
    """A request that was answered: when, and what it wrote and read."""

    who: str
    what: str
    begun: float
    ended: float
    revision: int = 0
    """The transaction's; 0 if it wrote nothing."""
    writes: dict[bytes, bytes | None] = field(default_factory=dict)
    """What must be there after it, as far as its client can know; None if it cannot."""
    reads: dict[bytes, int] = field(default_factory=dict)
    """Keys, and the revisions that wrote them last; 0 if they were absent."""
    at: int = 0
    """Of a read as of a revision: this."""
    strict: bool = True
    """Whether it sees what was completed before it began."""

    def __str__(self) -> str:
        when = f"{self.begun:.4f}-{self.ended:.4f}"
        return f"{self.who} {self.what} {when} @{self.revision} reads {self.reads} writes {self.writes}"


@dataclass(slots=True)
class Change:
    """A transaction, as a watch saw it."""

    revision: int
    values: dict[bytes, bytes]
    versions: dict[bytes, tuple[int, int]]
    """Of every key: the revision that created it, and how often it was written since."""


class Wrong(AssertionError):
    """The store has broken a promise."""


def check(condition: object, message: str) -> None:
    """Unlike `assert`, whose rewriting would print whole histories."""
    if not condition:
        raise Wrong(message)


@dataclass
class History:
    """All of it. Only one thread writes; others count."""

    actions: list[Action] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)

    def write(self, file: Path) -> None:
        """For people who want to know what happened: one JSON object in a line, in the order of time."""
        rows = [{"time": a.ended, "action": asdict(a)} for a in self.actions]
        rows += [{"time": at, "fault": what} for at, what in self.faults]
        rows.sort(key=lambda row: float(str(row["time"])))
        rows += [{"change": asdict(change)} for change in self.changes]
        with file.open("w") as out:
            out.writelines(json.dumps(_plain(row)) + "\n" for row in rows)

    def check(self) -> None:
        """Everything that can be checked of a history alone."""
        self._check_changes()
        self._check_writes()
        self._check_old_reads()
        check_order(self.actions)

    def _check_changes(self) -> None:
        """One order, and every key's versions in it without a gap."""
        last = 0
        versions: dict[bytes, tuple[int, int]] = {}
        for change in self.changes:
            check(change.revision > last, f"the watch showed {change.revision} after {last}")
            last = change.revision
            for key, (created, version) in change.versions.items():
                first, before = versions.get(key, (change.revision, 0))
                expected = (first, before + 1)
                check(
                    (created, version) == expected,
                    f"{key!r} is {created, version} at {change.revision}, not {expected}: some are missing",
                )
                versions[key] = expected

    def _check_writes(self) -> None:
        """What was answered is there once, whole; and nothing else is."""
        changes = {change.revision: change for change in self.changes}
        answered = Counter(action.revision for action in self.actions if action.writes)
        for action in self.actions:
            if not action.writes:
                continue
            check(answered[action.revision] == 1, f"two transactions have a revision: {action}")
            change = changes.get(action.revision)
            check(change is not None, f"answered, but no watch saw it: {action}")
            assert change is not None
            found = {key: change.values.get(key) for key in action.writes}
            wanted = {key: found[key] if value is None else value for key, value in action.writes.items()}
            check(
                found == wanted and set(change.values) == set(found), f"{action} has become {change.values}"
            )
        for revision, change in changes.items():
            check(answered[revision], f"nobody has asked for {change}, or it was executed twice")

    def _check_old_reads(self) -> None:
        """Reads as of a revision see exactly what was there."""
        written: dict[bytes, list[int]] = defaultdict(list)
        for change in self.changes:
            for key in change.values:
                written[key].append(change.revision)
        for action in self.actions:
            for key, found in action.reads.items() if action.at else ():
                place = bisect_right(written[key], action.at)
                wanted = written[key][place - 1] if place else 0
                check(found == wanted, f"{key!r} was written at {wanted} before {action.at}: {action}")


def check_order(actions: Sequence[Action]) -> None:
    """Strict serializability: what conflicts demand, and real time, make no circle.

    Every key's writers are in the order of their revisions. A writer comes before those who read what it
    wrote, and these before the next writer; and whoever was answered before another began comes first.
    """
    strict = [action for action in actions if action.strict]
    after = _conflicts(strict)
    # Ends are a chain of moments, so that real time costs an edge for each action, not for each pair.
    ends = sorted((action.ended, number) for number, action in enumerate(strict))
    times = [end for end, _ in ends]
    for moment, (_, number) in enumerate(ends):
        after[number].append(len(strict) + moment)
        after[len(strict) + moment].append(len(strict) + moment + 1)
    for number, action in enumerate(strict):
        before = bisect_left(times, action.begun)
        if before:
            after[len(strict) + before - 1].append(number)
    circle = _circle(after)
    story = "\n".join(str(strict[number]) for number in circle if number < len(strict))
    check(not circle, f"no order explains these, each of which must come before the next:\n{story}")


def _conflicts(actions: Sequence[Action]) -> defaultdict[int, list[int]]:
    writers: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for number, action in enumerate(actions):
        for key in action.writes:
            writers[key].append((action.revision, number))
    after: defaultdict[int, list[int]] = defaultdict(list)
    for writes in writers.values():
        writes.sort()
        for (_, one), (_, other) in pairwise(writes):
            after[one].append(other)
    for number, action in enumerate(actions):
        for key, revision in action.reads.items():
            place = bisect_left(writers[key], (revision, -1))
            found = writers[key][place : place + 1]
            if revision:
                check(found and found[0][0] == revision, f"nobody wrote {key!r} at {revision}: {action}")
                after[found[0][1]] += [number] if found[0][1] != number else []
                place += 1
            after[number] += [other for _, other in writers[key][place : place + 1] if other != number]
    return after


def _circle(after: Mapping[int, Sequence[int]]) -> list[int]:
    """Some circle, or nothing."""
    order: TopologicalSorter[int] = TopologicalSorter()
    for node, following in after.items():
        for each in following:
            order.add(each, node)
    try:
        order.prepare()
    except CycleError as error:
        return list(error.args[1][1:])  # the first is the last, too
    return []


def _plain(value: Any) -> Any:
    """Bytes as text."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
