"""Histories: what a program asked of the store and what it was told, as JSON lines for `wbkv check`.

    with wbkv.History("run.jsonl", model="list-append") as history:
        client = wbkv.connect(history=history)
        client.append("x", b"7,")  # elements end with the separator
        client.txn().then(wbkv.get("x"), wbkv.append("y", b"8,")).commit()
        with client.transaction() as tx:
            tx.append("z", b"9,")

and then `wbkv check run.jsonl` decides whether the store was strictly serializable. In a history of the
model `register`, values are put instead of appended, no value twice to one key.

Recorded is what the model can say: `get`, `entry`, `get_many`, `put` or `append`, `txn` with such operations
(of its two branches the one that was taken; the conditions are not in it), and interactive transactions: each
read of theirs, which is strict by itself, and their commit, with everything they read and wrote. Left out are
reads that are not strict (`serializable`, at a revision, snapshots), scans, watches and locks. Writes that
the model cannot say (`delete`, `add`, `put` to a list, ...) are refused with `InvalidRequest` before they are
sent, since whoever reads their effect could not be explained.
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
"""What bytes that are no text begin with; and text that begins like that."""

_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,17}")
_json_of: Final = json.JSONEncoder(separators=(",", ":")).encode


class OpenTransaction:
    """A transaction that was sent."""

    __slots__ = ("process", "steps", "writes")

    def __init__(self, process: _Process, steps: list[Step]) -> None:
        self.process = process
        self.steps = steps
        self.writes = any(step[0] != "r" for step in steps)


class _Process:
    """Who does one thing at a time."""

    __slots__ = ("free", "number")

    def __init__(self, number: int, free: list[_Process]) -> None:
        self.number = number
        self.free = free
        """The processes of the same thread or task that do nothing now."""


class History:
    """A file that clients record into: give it to `connect` or `open`. Any number of clients may share it.

    `file` is a path, which is overwritten, or a binary file. `model` says what values are: lists, of elements
    that end with the `separator`, or registers. Lines are written whole, some at a time; `close` writes the
    rest, and so do closing a client and the end of the program.
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
            raise ValueError(f"the separator must be some bytes, not {separator!r}")
        self.model: Model = model
        self._separator = separator
        self._lock = threading.Lock()
        self._count = 0
        self._free: weakref.WeakKeyDictionary[object, list[_Process]] = weakref.WeakKeyDictionary()
        """By thread or task."""
        self._lines = Lines(file, "history")
        self._close = weakref.finalize(self, self._lines.close)
        self._lines.add(_json_of({"history": model, "version": VERSION}))

    def flush(self) -> None:
        """Write what is not written yet."""
        with self._lock:
            self._lines.flush()

    def close(self) -> None:
        """Write the rest, and record no more. Calls that are under way have an unknown outcome."""
        with self._lock:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What is sent, and shown

    def steps_of(self, operation: Operation, raw: bytes) -> list[Step]:
        """What an operation, with this value, is in a history; nothing, if it is left out.

        Raises `InvalidRequest` if it cannot be in one.
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
        """Why an operation cannot be recorded."""
        return InvalidRequest(f"a history of the model {self.model} cannot say what {operation!r} does")

    def written(self, write: Operation, reads: Mapping[bytes, Entry[bytes] | None]) -> list[Step]:
        """What a write of an interactive transaction is, which has read this before. Its `append` puts what
        it has read, and more.
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
        """What was read."""
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
        """A transaction is sent."""
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
        """The time is taken where lines are put in order, so the file is in the order of time."""
        self._lines.add(
            f'{{"type":"{kind}","process":{process.number},"time":{time.monotonic_ns()}{more},"txn":{text}}}'
        )

    def end(self, begun: OpenTransaction | None, kind: str) -> None:
        """It was not executed (`fail`), or nobody knows (`unknown`): which does not matter if it only reads.

        A process whose transaction may still be under way does nothing more.
        """
        if begun is not None:
            self._end(begun, kind if begun.writes else "fail", begun.steps, "")

    def executed(self, begun: OpenTransaction, steps: list[Step], revision: int) -> None:
        """It was executed, with these results; at a revision, if it wrote."""
        self._end(begun, "ok", steps, f',"revision":{revision}' if begun.writes else "")

    def _end(self, begun: OpenTransaction, kind: str, steps: list[Step], more: str) -> None:
        text = _json_of(steps)
        with self._lock:
            if self._close.alive:
                self._event(kind, begun.process, text, more)
            if kind != "unknown":
                begun.process.free.append(begun.process)


def _owner() -> object:
    """The task, or else the thread, that runs."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.current_thread()


def text_of(raw: bytes) -> str:
    """Bytes as text, each in a way of its own."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = BASE64
    return BASE64 + b64encode(raw).decode() if text.startswith(BASE64) else text


def scalar_of(value: bytes) -> Scalar:
    """A value: a number if it is written as one."""
    return int(value) if _INTEGER.fullmatch(value) else text_of(value)
