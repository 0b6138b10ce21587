"""Histories: the requests of a program and their results, as JSON lines for `wbkv check`.

    with wbkv.History("run.jsonl", model="list-append") as history:
        client = wbkv.connect(history=history)
        client.append("x", b"7,")  # elements end with the separator
        client.txn().then(wbkv.get("x"), wbkv.append("y", b"8,")).commit()
        with client.transaction() as tx:
            tx.append("z", b"9,")

and then `wbkv check run.jsonl` decides whether the store was strictly serializable. In a history of the
model `register`, values are put instead of appended, no value twice to one key.

Recorded is what the model can express: `get`, `entry`, `get_many`, `put` or `append`, `txn` with such
operations (the branch that was executed, without the conditions), and interactive transactions: each of their
reads, which is strict by itself, and their commit, with all reads and writes. Reads that are not strict
(`serializable`, at a revision, snapshots), scans, watches and locks are omitted. Writes that the model cannot
express (`delete`, `add`, `put` to a list, ...) raise `InvalidRequest` before they are sent, since the checker
could not explain a read of their effect.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
import weakref
from base64 import b64encode
from collections.abc import Mapping
from types import TracebackType
from typing import BinaryIO, Final, Literal, Self, TypeAlias

from wbkv.core.lines import Lines
from wbkv.data import Entry
from wbkv.errors import Error, InvalidRequest
from wbkv.operations import Append, Get, Operation, Put, Scan

Model: TypeAlias = Literal["list-append", "register"]
Scalar: TypeAlias = int | str
Step: TypeAlias = tuple[str, str, Scalar | list[Scalar] | None]
"""`("r", key, value)`, `("append", key, element)` or `("w", key, value)`."""

VERSION: Final = 1
BASE64: Final = "base64:"
"""The beginning of bytes that are not text; and of text that begins like that."""

_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,17}")
_json_of: Final = json.JSONEncoder(separators=(",", ":")).encode


class OpenTransaction:
    """A transaction that was sent, and has not ended."""

    __slots__ = ("process", "steps", "writes")

    def __init__(self, process: _Process, steps: list[Step]) -> None:
        self.process = process
        self.steps = steps
        self.writes = any(step[0] != "r" for step in steps)


class _Process:
    """A process of the history: it does one thing at a time."""

    __slots__ = ("free", "number")

    def __init__(self, number: int, free: list[_Process]) -> None:
        self.number = number
        self.free = free
        """The idle processes of the same thread or task."""


class History:
    """A file that clients record into: pass it to `connect` or `open`. Any number of clients may share it.

    `file` is a path, which is overwritten, or a binary file. `model` says what values are: "list-append" for
    lists, whose elements end with the `separator`, or "register". Lines are written in batches; `close`,
    closing a client, and the end of the program write the rest.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | BinaryIO,
        *,
        model: Model = "list-append",
        separator: bytes = b",",
    ) -> None:
        if model not in ("list-append", "register"):
            raise ValueError(f"model must be list-append or register, not {model!r}")
        if not isinstance(separator, bytes) or not separator:
            raise ValueError(f"the separator must be bytes, and not empty, not {separator!r}")
        self.model: Model = model
        self._separator = separator
        self._lock = threading.Lock()
        self._count = 0
        self._free: weakref.WeakKeyDictionary[object, list[_Process]] = weakref.WeakKeyDictionary()
        """Idle processes, by thread or task."""
        self._lines = Lines(file, "history")
        self._close = weakref.finalize(self, self._lines.close)
        self._lines.add(_json_of({"history": model, "version": VERSION}))

    def __repr__(self) -> str:
        return f"<wbkv.History of the model {self.model}{'' if self._close.alive else ', closed'}>"

    def flush(self) -> None:
        """Write all buffered lines."""
        with self._lock:
            self._lines.flush()

    def close(self) -> None:
        """Write the rest, and end the recording. Calls in progress have an unknown outcome."""
        with self._lock:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Operations and results as steps

    def steps_of(self, operation: Operation, raw: bytes) -> list[Step]:
        """Return the steps of an operation with this value; none if it is omitted.

        Raises `InvalidRequest` if the model cannot express it.
        """
        kind = type(operation)
        if kind is Get:
            return [("r", text_of(operation.key), None)]
        if kind is Scan:
            return []
        if kind is Append and self.model == "list-append":
            return self._appended(operation.key, raw)
        if kind is Put and self.model == "register":
            return [("w", text_of(operation.key), scalar_of(raw))]
        raise self.refusal(operation)

    def refusal(self, operation: Operation) -> InvalidRequest:
        """Return the error for an operation that cannot be recorded."""
        return InvalidRequest(f"a history of the model {self.model} cannot express {operation!r}")

    def written(self, write: Operation, reads: Mapping[bytes, Entry[bytes] | None]) -> list[Step]:
        """Return the steps of a write of an interactive transaction that has read `reads`. Its `append` puts
        the value read, and more.
        """
        raw = write.value if isinstance(write, Put) else b""
        assert isinstance(raw, bytes)
        if self.model == "list-append" and isinstance(write, Put) and write.key in reads:
            before = reads[write.key]
            old = b"" if before is None else before.value
            if raw.startswith(old):
                return self._appended(write.key, raw[len(old) :]) if raw != old else []
        return self.steps_of(write, raw)

    def _appended(self, key: bytes, raw: bytes) -> list[Step]:
        *elements, rest = raw.split(self._separator)
        if not elements or rest or not all(elements):
            raise InvalidRequest(
                f"append {raw!r} to {key!r}: in a history, elements must end with the separator "
                f"{self._separator!r}, and not be empty"
            )
        name = text_of(key)
        return [("append", name, scalar_of(element)) for element in elements]

    def shown(self, raw: bytes | None) -> Scalar | list[Scalar] | None:
        """Return the result of a read."""
        if self.model == "register":
            return None if raw is None else scalar_of(raw)
        if raw is None:
            return []
        elements = raw.split(self._separator)
        if not elements[-1]:
            elements.pop()
        return [scalar_of(element) for element in elements]

    # Events

    def begin(self, steps: list[Step]) -> OpenTransaction:
        """Record that a transaction is sent."""
        text = _json_of(steps)
        owner = _owner()
        with self._lock:
            if not self._close.alive:
                raise Error("the history is closed: nothing more can be recorded in it")
            free = self._free.get(owner)
            if free is None:
                free = self._free[owner] = []
            process = free.pop() if free else self._new(free)
            self._event("invoke", process, text)
        return OpenTransaction(process, steps)

    def _new(self, free: list[_Process]) -> _Process:
        self._count += 1
        return _Process(self._count - 1, free)

    def _event(self, kind: str, process: _Process, text: str, more: str = "") -> None:
        """Write an event. Its time is taken under the lock, so the file is in the order of time."""
        self._lines.add(
            f'{{"type":"{kind}","process":{process.number},"time":{time.monotonic_ns()}{more},"txn":{text}}}'
        )

    def end(self, begun: OpenTransaction | None, kind: str) -> None:
        """Record a transaction that was not executed (`fail`), or whose outcome is `unknown`: the two do not
        differ for a transaction that only reads.

        A process whose transaction may still be in progress is not used again.
        """
        if begun is not None:
            self._end(begun, kind if begun.writes else "fail", begun.steps, "")

    def executed(self, begun: OpenTransaction, steps: list[Step], revision: int) -> None:
        """Record that a transaction was executed, with these results; at a revision, if it wrote."""
        self._end(begun, "ok", steps, f',"revision":{revision}' if begun.writes else "")

    def _end(self, begun: OpenTransaction, kind: str, steps: list[Step], more: str) -> None:
        text = _json_of(steps)
        with self._lock:
            if self._close.alive:
                self._event(kind, begun.process, text, more)
            if kind != "unknown":
                begun.process.free.append(begun.process)


def _owner() -> object:
    """Return the current task, or else the current thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.current_thread()


def text_of(raw: bytes) -> str:
    """Return bytes as text, reversibly."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = BASE64
    return BASE64 + b64encode(raw).decode() if text.startswith(BASE64) else text


def scalar_of(value: bytes) -> Scalar:
    """Return a value as a number if it is written as one, else as text."""
    return int(value) if _INTEGER.fullmatch(value) else text_of(value)
