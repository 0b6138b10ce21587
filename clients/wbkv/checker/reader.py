"""Read histories from JSON lines. They are validated on the way; the text is not kept.

    {"history": "list-append", "version": 1}
    {"type": "invoke", "process": 3, "time": 123456789, "txn": [["r", "x", null], ["append", "y", 7]]}
    {"type": "ok", "process": 3, "time": 123457000, "revision": 8123,
     "txn": [["r", "x", [1, 2]], ["append", "y", 7]]}

(each on one line). The first line is optional. `docs/checker.md` describes the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import BinaryIO

from wbkv.checker.history import FAIL, OK, UNKNOWN, HistoryColumns, HistoryError, Operation
from wbkv.checker.lists import Lists
from wbkv.checker.model import Model, Recording
from wbkv.checker.registers import Registers

VERSION = 1
LINE_BYTES = 64 << 20
"""The maximum length of a line; a longer one is rejected before it is read."""
MODELS: dict[str, type[Model]] = {"list-append": Lists, "register": Registers}
WRITES = {"append": "list-append", "w": "register"}
OUTCOMES = {"ok": OK, "fail": FAIL, "unknown": UNKNOWN, "info": UNKNOWN}
TIME_MAX = 2**62


def read(file: BinaryIO) -> Recording:
    """Read a history from a file of JSON lines."""
    reader = _Reader()
    decode = json.JSONDecoder(parse_constant=_refuse).decode
    number = 0
    while line := file.readline(LINE_BYTES + 1):
        number += 1
        if len(line) > LINE_BYTES:
            raise HistoryError(f"line {number}: longer than {LINE_BYTES} bytes")
        if line.isspace():
            continue
        try:
            event = decode(line.decode())
        except (ValueError, RecursionError) as error:
            if not line.endswith(b"\n"):
                reader.history.warnings.append(f"line {number}, the last, is cut off and ignored")
                break
            raise HistoryError(f"line {number}: not JSON: {error}") from None
        reader.add(number, event)
    return reader.end()


def of_events(events: Iterable[object]) -> Recording:
    """Read a history from events, as the lines of a file have them; the first has number 1."""
    reader = _Reader()
    for number, event in enumerate(events, 1):
        reader.add(number, event)
    return reader.end()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")


class _Reader:
    """Matches invocations with outcomes, and determines the kind of the history."""

    def __init__(self) -> None:
        self.history = HistoryColumns()
        self._model: Model | None = None
        self._open: dict[int, tuple[int, list[Operation]]] = {}
        """By process: the transaction in progress."""
        self._times: dict[int, int] = {}
        self._undecided: list[tuple[int, int, list[Operation]]] = []
        """Transactions that fit both kinds of history."""

    def add(self, line: int, event: object) -> None:
        """Read one event."""
        try:
            if isinstance(event, dict) and "history" in event and line == 1:
                self._header(event)
            else:
                self._event(line, event)
        except HistoryError as error:
            raise HistoryError(f"line {line}: {error}") from None

    def end(self) -> Recording:
        """Return the recording. Transactions in progress have an unknown outcome."""
        if self._model is None and not len(self.history):
            raise HistoryError("the file has no history: it has no transactions")
        if not len(self.history):
            self.history.warnings.append("there is nothing to judge: no transaction was recorded")
        if self._model is None:
            self._decide("register")
        for number, operations in list(self._open.values()):
            try:
                self._outcome(number, UNKNOWN, operations)
            except HistoryError as error:
                raise HistoryError(f"line {self.history.line[number]}: {error}") from None
        assert self._model is not None
        return Recording(self.history, self._model)

    def _header(self, event: dict[str, object]) -> None:
        if event.get("version") != VERSION:
            raise HistoryError(f"version {event.get('version')!r} is not known, only {VERSION}")
        if event["history"] not in MODELS:
            raise HistoryError(f"history {event['history']!r} is not known, only {' and '.join(MODELS)}")
        self._decide(str(event["history"]))

    def _event(self, line: int, event: object) -> None:
        if not isinstance(event, dict) or "type" not in event:
            raise HistoryError(f'an object with a "type" was expected, not {str(event)[:80]}')
        kind, process, time = event["type"], event.get("process"), event.get("time")
        if type(process) is not int or not 0 <= process < TIME_MAX:
            raise HistoryError(f"process {process!r} is not a number")
        if type(time) is not int or not -TIME_MAX < time < TIME_MAX:
            raise HistoryError(f"time {time!r} is not a number of nanoseconds")
        if time < self._times.get(process, time):
            raise HistoryError(f"time goes back in process {process}, from {self._times[process]} to {time}")
        self._times[process] = time
        if kind == "invoke":
            if process in self._open:
                first = self.history.line[self._open[process][0]]
                raise HistoryError(f"process {process} has not finished what it began on line {first}")
            operations = self._operations(event.get("txn"))
            self._open[process] = self.history.begin(process, time, line), operations
            return
        status = OUTCOMES.get(kind) if isinstance(kind, str) else None
        if status is None:
            raise HistoryError(f"type {kind!r} is not known, only invoke, {', '.join(OUTCOMES)}")
        if process not in self._open:
            raise HistoryError(f"process {process} has nothing under way that could be {kind}")
        number, operations = self._open.pop(process)
        if status == OK:
            operations = _answered(operations, self._operations(event.get("txn")))
            self.history.end[number] = time
            revision = event.get("revision")
            if revision is not None:
                if type(revision) is not int or not 0 <= revision < TIME_MAX:
                    raise HistoryError(f"revision {revision!r} is not a number")
                self.history.revision[number] = revision
        self._outcome(number, status, operations)

    def _operations(self, transaction: object) -> list[Operation]:
        """Validate the operations. The first write determines the kind of history."""
        if not isinstance(transaction, list):
            raise HistoryError(f"txn {str(transaction)[:80]} is not a list of operations")
        for operation in transaction:
            if not isinstance(operation, list) or len(operation) != 3:
                raise HistoryError(f"operation {str(operation)[:80]} is not [function, key, value]")
            function = operation[0]
            if function == "r":
                continue
            kind = WRITES.get(function) if isinstance(function, str) else None
            if kind is None:
                raise HistoryError(f"function {function!r} is not known, only r, {', '.join(WRITES)}")
            if self._model is None:
                self._decide(kind)
            elif self._model.write != function:
                raise HistoryError(f"function {function!r} does not belong in a {self._model.name} history")
        return transaction

    def _decide(self, kind: str) -> None:
        self._model = MODELS[kind](self.history)
        for number, status, operations in self._undecided:
            self._outcome(number, status, operations)
        self._undecided.clear()

    def _outcome(self, number: int, status: int, operations: list[Operation]) -> None:
        if self._model is None and status == OK:
            shown = next((value for _, _, value in operations if value is not None), None)
            if shown is not None:
                self._decide("list-append" if isinstance(shown, list) else "register")
        if self._model is None:
            self._undecided.append((number, status, operations))
            return
        history = self.history
        history.status[number] = status
        history.first[number], history.count[number] = len(history.op_kind), len(operations)
        if status == OK:
            self._model.observe(number, operations)
        else:
            self._model.note(number, operations)


def _answered(asked: list[Operation], answered: list[Operation]) -> list[Operation]:
    """Return the operations with their results. Raises if they are not those that were invoked."""
    if len(asked) != len(answered):
        raise HistoryError(f"{len(answered)} operations are answered, but {len(asked)} were asked for")
    for before, after in zip(asked, answered, strict=True):
        if before[:2] != after[:2] or (before[0] != "r" and before[2] != after[2]):
            raise HistoryError(f"{after} is answered, but {before} was asked for")
    return answered
