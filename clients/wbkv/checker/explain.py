"""A verdict in sentences."""

from __future__ import annotations

from wbkv.checker.cycles import Link
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
from wbkv.checker.history import NOTHING, ODD, READ, UNSEEN, History, called, show
from wbkv.checker.model import Model
from wbkv.checker.verdict import Description, Step

OUTCOMES = ("ok", "fail", "unknown")


class Explainer:
    """Turns numbers back into what they stand for."""

    def __init__(self, history: History, model: Model) -> None:
        self._history = history
        self._model = model

    def value(self, number: int) -> object:
        """What a number stands for."""
        return None if number == NOTHING else self._history.values[number]

    def describe(self, transaction: int) -> Description:
        """A transaction with its operations."""
        history = self._history
        revision = history.revision[transaction]
        return Description(
            transaction + 1,
            history.process[transaction],
            history.line[transaction],
            OUTCOMES[history.status[transaction]],
            tuple(self._operation(place) for place in history.operations(transaction)),
            None if revision == NOTHING else revision,
        )

    def _operation(self, place: int) -> str:
        history = self._history
        key, value = history.op_key[place], history.op_value[place]
        name = show(history.keys[key])
        if history.op_kind[place] != READ:
            return f"{self._model.write} {name} {show(history.values[value])}"
        if value == UNSEEN:
            return f"r {name} ?"
        return f"r {name} {show(history.odd[place] if value == ODD else self._model.shown(key, value))}"

    def step(self, link: Link) -> Step:
        """A dependency, and the sentence that says why."""
        key = None if link.key == NOTHING else self._history.keys[link.key]
        return Step(
            link.source + 1,
            link.target + 1,
            KIND_NAMES[link.kind],
            self._sentence(link),
            key,
            self.value(link.before),
            self.value(link.after),
        )

    def _sentence(self, link: Link) -> str:
        history = self._history
        one, other = called(link.source), called(link.target)
        if link.kind == PROCESS:
            return f"{one} was done before {other} began, in process {history.process[link.source]}"
        if link.kind == REALTIME:
            pause = history.start[link.target] - history.end[link.source]
            return f"{one} was done {pause} ns before {other} began"
        if link.kind == REVISION:
            revisions = history.revision
            return (
                f"{one} has revision {revisions[link.source]}, {other} has the later {revisions[link.target]}"
            )
        key, before, after = (show(history.keys[link.key]), self.value(link.before), self.value(link.after))
        known = {BY_TIME: " (as real time tells)", BY_REVISION: " (as revisions tell)"}.get(link.basis, "")
        lists = self._model.write == "append"
        if link.kind == WR:
            verb = f"appended {show(before)} to" if lists else f"wrote {show(before)} to"
            return f"{one} {verb} {key}, which {other} {'saw' if lists else 'read'}"
        if link.kind == WW and lists:
            return f"{one} appended {show(before)} to {key}, and {other} appended {show(after)} after it"
        if link.kind == WW:
            return f"{one} wrote {show(before)} to {key}, and {other} wrote {show(after)} after it{known}"
        if link.kind == RW and lists:
            seen = f"up to {show(before)}" if link.before != NOTHING else "empty"
            return f"{one} saw {key} {seen}, without {show(after)}, which {other} appended"
        seen = show(before) if link.before != NOTHING else "nothing"
        return f"{one} read {seen} from {key}, and {other} wrote {show(after)} after that{known}"
