"""Explain dependencies in sentences."""

from __future__ import annotations

from wbkv.checker.cycles import Edge
from wbkv.checker.dependencies import (
    BY_REVISION,
    BY_TIME,
    KIND_NAMES,
    PROCESS,
    REALTIME,
    REVISION,
    RW,
    WR,
    WW,
)
from wbkv.checker.history import NOTHING, ODD, READ, UNSEEN, HistoryColumns, called, show
from wbkv.checker.model import Model
from wbkv.checker.verdict import Description, Step

OUTCOMES = ("ok", "fail", "unknown")


class Explainer:
    """Converts numbers of transactions, keys and values back to what they stand for."""

    def __init__(self, history: HistoryColumns, model: Model) -> None:
        self._history = history
        self._model = model

    def value(self, number: int) -> object:
        """Return the value of a number."""
        return None if number == NOTHING else self._history.values[number]

    def describe(self, transaction: int) -> Description:
        """Describe a transaction with its operations."""
        history = self._history
        revision = history.revision[transaction]
        return Description(
            transaction + 1, history.process[transaction], history.line[transaction],
            OUTCOMES[history.status[transaction]],
            tuple(self._operation(index) for index in history.operations(transaction)),
            None if revision == NOTHING else revision,
        )  # fmt: skip

    def _operation(self, index: int) -> str:
        history = self._history
        key, value = history.op_key[index], history.op_value[index]
        name = show(history.keys[key])
        if history.op_kind[index] != READ:
            return f"{self._model.write} {name} {show(history.values[value])}"
        if value == UNSEEN:
            return f"r {name} ?"
        return f"r {name} {show(history.odd[index] if value == ODD else self._model.shown(key, value))}"

    def step(self, edge: Edge) -> Step:
        """Describe a dependency, with the sentence that explains it."""
        key = None if edge.key == NOTHING else self._history.keys[edge.key]
        return Step(
            edge.source + 1, edge.target + 1, KIND_NAMES[edge.kind], self._sentence(edge), key,
            self.value(edge.before), self.value(edge.after),
        )  # fmt: skip

    def _sentence(self, edge: Edge) -> str:
        history = self._history
        one, other = called(edge.source), called(edge.target)
        if edge.kind == PROCESS:
            return f"{one} was done before {other} began, in process {history.process[edge.source]}"
        if edge.kind == REALTIME:
            pause = history.start[edge.target] - history.end[edge.source]
            return f"{one} was done {pause} ns before {other} began"
        if edge.kind == REVISION:
            revisions = history.revision
            return (
                f"{one} has revision {revisions[edge.source]}, {other} has the later {revisions[edge.target]}"
            )
        key, before, after = (show(history.keys[edge.key]), self.value(edge.before), self.value(edge.after))
        known = {BY_TIME: " (as real time tells)", BY_REVISION: " (as revisions tell)"}.get(edge.basis, "")
        lists = self._model.write == "append"
        if edge.kind == WR:
            verb = f"appended {show(before)} to" if lists else f"wrote {show(before)} to"
            return f"{one} {verb} {key}, which {other} {'saw' if lists else 'read'}"
        if edge.kind == WW and lists:
            return f"{one} appended {show(before)} to {key}, and {other} appended {show(after)} after it"
        if edge.kind == WW:
            return f"{one} wrote {show(before)} to {key}, and {other} wrote {show(after)} after it{known}"
        if edge.kind == RW and lists:
            seen = f"up to {show(before)}" if edge.before != NOTHING else "empty"
            return f"{one} saw {key} {seen}, without {show(after)}, which {other} appended"
        seen = show(before) if edge.before != NOTHING else "nothing"
        return f"{one} read {seen} from {key}, and {other} wrote {show(after)} after that{known}"
