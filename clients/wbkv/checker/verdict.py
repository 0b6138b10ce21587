"""Verdicts: anomalies as data, and whether the model holds."""

from __future__ import annotations

from dataclasses import dataclass, field

MODELS = ("strict-serializable", "sequential", "serializable")
"""Consistency models, each weaker than the one before: without real time, then without process order."""

PLAIN = (
    "internal", "duplicate-elements", "incompatible-order", "unwritten", "G1a", "G1b", "G0", "G1c",
    "lost-update", "G-single", "G-nonadjacent", "write-skew", "G2-item",
)  # fmt: skip
CYCLES = ("G0", "G1c", "G-single", "G-nonadjacent", "G2-item")
NAMES = (
    *PLAIN,
    *(f"{name}-process" for name in CYCLES),
    *(f"{name}-realtime" for name in CYCLES),
    "revision-order",
)
"""All anomalies, the strongest evidence first."""

MEANINGS = {
    "internal": "a transaction that contradicts itself",
    "duplicate-elements": "an element that is in a list more than once",
    "incompatible-order": "reads of one key that no single order of its versions explains",
    "unwritten": "a read of what nobody wrote",
    "G1a": "aborted read: a read of what a failed transaction wrote",
    "G1b": "intermediate read: a read of what its writer had not finished",
    "G0": "write cycle: writes of transactions that are interleaved",
    "G1c": "circular information flow: transactions that each saw or overwrote the other",
    "lost-update": "transactions that read the same version of a key and both replaced it",
    "G-single": "read skew: a transaction that saw one part of another's effects and missed another part",
    "G-nonadjacent": "a cycle with several missed writes, no two in a row: snapshot isolation forbids it too",
    "write-skew": "two transactions that each missed what the other wrote",
    "G2-item": "a cycle of transactions with several missed writes",
    "revision-order": "revisions that are not an order which explains the history",
}


AGAINST = {
    "G0": "writes in an order", "G1c": "reads and writes in an order",
    "G-single": "stale read: a missed write", "G-nonadjacent": "several missed writes, no two in a row,",
    "G2-item": "several missed writes",
}  # fmt: skip


def meaning(name: str) -> str:
    """Return the meaning of an anomaly's name."""
    for suffix, words in (("-process", "the order of a process"), ("-realtime", "real time")):
        if name.endswith(suffix):
            return f"{AGAINST[name.removesuffix(suffix)]} against {words}"
    return MEANINGS[name]


@dataclass(frozen=True, slots=True)
class Step:
    """One dependency of a cycle: `source` must come before `target`."""

    source: int
    target: int
    kind: str
    """ww, wr, rw, process, realtime or revision."""
    text: str
    key: str | int | None = None
    before: object = None
    """The value that the source wrote or read; None is also the absent value."""
    after: object = None
    """The value that the target wrote."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One reason why the model does not hold. Transactions count from 1, as they begin in the history."""

    name: str
    text: str
    transactions: tuple[int, ...]
    cycle: tuple[Step, ...] = ()
    others: int = 0
    """How many more transactions of the same component begin a similar cycle."""


@dataclass(frozen=True, slots=True)
class Description:
    """A transaction, described for a verdict."""

    number: int
    process: int
    line: int
    outcome: str
    operations: tuple[str, ...]
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check."""

    model: str
    history: str
    """list-append or register."""
    counts: dict[str, int]
    anomalies: tuple[Anomaly, ...]
    transactions: dict[int, Description] = field(repr=False)
    """The transactions of the anomalies."""
    warnings: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether an order of all transactions explains the history, as far as the checker can decide."""
        return not self.anomalies

    def names(self) -> dict[str, int]:
        """Count the anomalies by name, the strongest evidence first."""
        found: dict[str, int] = {}
        for anomaly in self.anomalies:
            found[anomaly.name] = found.get(anomaly.name, 0) + 1
        return found
