"""Traces: a line of JSON for each request of a program, when it has ended, for `wbkv pipeline verify` and
`report`.

    with wbkv.Trace("traces", scenario="transfers") as trace:
        client = wbkv.connect(trace=trace)
        client.put("x", b"1")
        with wbkv.scenario("audit"):
            client.get_many(["x", "y"])

A `wbkv.History` records values; a trace records revisions, so it can contain all requests on keys, ranges and
transactions, and the store need not be empty before it. Recorded are gets, puts, deletes, transactions
(also those that only read), and what is built on these: counters, locks, the reads and the commit of
interactive transactions. Scans, watches, snapshots and compaction are omitted, as they are streams or
housekeeping; a scan inside a transaction is recorded with its results.

`pipeline/wbkv_pipeline/traces.py` has the columns of a line. In detail:

- `outcome`: `ok`; `failed`, if the request was certainly not executed (it may have been ordered, and rejected
  there); `unknown`, also if the caller did not wait for the end.
- `revision` and `exact`: an ordered request (writes, conditions) has its own revision, and its reads are
  exactly as of just before it. `serializable` reads and reads at a revision have that revision, exactly.
  Strict reads have a revision up to which they have seen everything, and perhaps more.
- `reads`: keys that the request itself has written before are omitted. Conditions on a key's `mod_revision`,
  and that the key is absent, are reads if all held; so is the removal of an absent key.
- `writes`: each key once, as the request left it; a key takes precedence over a range that contains it. A
  range without an upper bound has the `end` "". An `unknown` transaction has the writes of both branches.
- `intended_us`: when the request should have begun, if `scenario` says so; `start_us` is when it did begin.
- Keys are text. Bytes that are not UTF-8 are written as "base64:" and their base64 (`history.text_of`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import threading
import time
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Protocol, Self

from wbkv.core.lines import Lines
from wbkv.errors import Error

_json_of: Final = json.JSONEncoder(separators=(",", ":")).encode


class _Block:
    """The scenario of the calls inside a block."""

    __slots__ = ("intended_us", "name")

    def __init__(self, name: str, intended_us: int | None) -> None:
        self.name = name
        self.intended_us = intended_us
        """By the monotonic clock. It applies to the block's first request."""


_SCENARIO: Final[ContextVar[_Block | None]] = ContextVar("wbkv scenario", default=None)


@contextlib.contextmanager
def scenario(name: str, *, intended: float | None = None) -> Iterator[None]:
    """Assign the calls in this block to a scenario, instead of the trace's: those of this thread or task, and
    of the tasks that it starts.

    `intended` is when the block's first request should have begun by a schedule, in seconds of
    `time.monotonic()`. Latency counts from there, so that time spent queueing behind a slow store is not
    hidden.
    """
    if not isinstance(name, str):
        raise TypeError(f"a scenario's name must be a str, not {name!r}")
    intended_us = None
    if intended is not None:
        if not isinstance(intended, int | float) or isinstance(intended, bool) or not math.isfinite(intended):
            raise TypeError(f"an intended start must be a time in seconds, not {intended!r}")
        intended_us = int(intended * 1e6)
    before = _SCENARIO.set(_Block(name, intended_us))
    try:
        yield
    finally:
        _SCENARIO.reset(before)


class TracedRequest(Protocol):
    """A request, as its line shows it."""

    def line_end(self, outcome: str, answer: object) -> str:
        """Return the rest of the line, from the request's id on."""


class OpenRequest:
    """A request that has begun, and not ended."""

    __slots__ = ("asked", "intended_us", "scenario", "start_us")

    def __init__(self, asked: TracedRequest, scenario: str, start_us: int, intended_us: int | None) -> None:
        self.asked = asked
        self.scenario = scenario
        self.start_us = start_us
        self.intended_us = intended_us


class Trace:
    """A file that clients record into: pass it to `connect` or `open`. Any number of clients may share it.

    `file` is a folder, which is created if necessary, and gets a file with a unique name; or a path that ends
    with `.jsonl`, which is overwritten; or a binary file. In a folder of traces, the file's name begins with
    `requests-`. `scenario` is what is measured, unless `wbkv.scenario` says otherwise; `protocol` orders the
    messages; `clients` is how many are active at once. Reports compare requests that differ in these.

    Whole lines are written in batches; `close`, closing a client, and the end of the program write the rest.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | BinaryIO,
        *,
        scenario: str = "",
        protocol: str | None = None,
        clients: int | None = None,
    ) -> None:
        for name, value, kind in (
            ("scenario", scenario, str),
            ("protocol", protocol, str | None),
            ("clients", clients, int | None),
        ):
            if not isinstance(value, kind) or isinstance(value, bool):
                raise TypeError(f"the trace's {name} cannot be {value!r}")
        self.run: Final = f"{os.getpid()}-{secrets.token_hex(8)}"
        """The id of this file's lines."""
        self.scenario: Final = scenario
        self._folder: Path | None = None
        if isinstance(file, str | os.PathLike):
            path = Path(file)
            if path.suffix != ".jsonl":
                path.mkdir(parents=True, exist_ok=True)
                path /= f"requests-{self.run}.jsonl"
            self._folder = path.parent
            file = path
        about: dict[str, str | int | None] = {"protocol": protocol, "clients": clients}
        self._about = {name: value for name, value in about.items() if value is not None}
        self._heads: dict[str, str] = {}
        self._base_us = time.time_ns() // 1000 - time.monotonic_ns() // 1000
        """Times are the wall clock when the trace began, plus the monotonic time since: they do not jump when
        the wall clock is set."""
        self._lock = threading.Lock()
        self._under_way: set[OpenRequest] = set()
        self._open = True
        self._lines = Lines(file, "trace")
        self._close = weakref.finalize(self, self._lines.close)

    def __repr__(self) -> str:
        return f"<wbkv.Trace of run {self.run}{'' if self._close.alive else ', closed'}>"

    def flush(self) -> None:
        """Write all buffered lines."""
        if not self._lines.foreign:
            with self._lock:
                self._lines.flush()

    def close(self) -> None:
        """Write the rest, and end the recording. Calls in progress get an unknown outcome."""
        if self._lines.foreign:
            return
        with self._lock:
            self._open = False
        for begun in list(self._under_way):
            self.end(begun, "unknown", "TraceClosed", None)
        with self._lock:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def mark(self, name: str, *, node: str | None = None, group: int | None = None) -> None:
        """Record an event of the cluster ("crash", "leader", ...) now, in a file `marks-*` beside the trace's
        own. It is written at once.
        """
        if self._folder is None:
            raise ValueError("marks are written beside the trace's file, but this trace has no path")
        current = _SCENARIO.get()
        found = {
            "at_us": self._now_us(), "name": name, "node": node, "group": group,
            "scenario": self.scenario if current is None else current.name,
        }  # fmt: skip
        self._lines.check()
        with self._lock:
            self._check()
            with open(self._folder / f"marks-{self.run}.jsonl", "ab") as file:
                file.write(_json_of(found).encode() + b"\n")

    # For clients

    def _now_us(self) -> int:
        return self._base_us + time.monotonic_ns() // 1000

    def _check(self) -> None:
        if not self._open:
            raise Error("the trace is closed: nothing more can be recorded in it")

    def begin(self, asked: TracedRequest) -> OpenRequest:
        """Record the beginning of a request. `end` must follow."""
        self._lines.check()
        now_us = self._now_us()
        block = _SCENARIO.get()
        if block is None:
            begun = OpenRequest(asked, self.scenario, now_us, None)
        else:
            begun = OpenRequest(asked, block.name, now_us, self._intended_us(block, now_us))
        with self._lock:
            self._check()
            self._under_way.add(begun)
        return begun

    def _intended_us(self, block: _Block, now_us: int) -> int | None:
        """Return the intended start of the block's first request; None for the others, and if it is early."""
        intended_us, block.intended_us = block.intended_us, None
        if intended_us is None:
            return None
        intended_us += self._base_us
        return intended_us if intended_us < now_us else None

    def end(self, begun: OpenRequest, outcome: str, error: str | None, answer: object) -> None:
        """Record the end of a request, with its response if the outcome is ok."""
        end_us = self._now_us()
        rest = begun.asked.line_end(outcome, answer)
        why = "" if error is None else f',"error":"{error}"'
        head = self._heads.get(begun.scenario) or self._head(begun.scenario)
        late = "" if begun.intended_us is None else f',"intended_us":{begun.intended_us}'
        line = f'{head}{begun.start_us}{late},"end_us":{end_us},"outcome":"{outcome}"{why}{rest}}}'
        with self._lock:
            if begun in self._under_way:  # else the trace was closed meanwhile
                self._under_way.remove(begun)
                self._lines.add(line)

    def _head(self, scenario: str) -> str:
        """Return the beginning of lines, cached: many lines share few scenarios."""
        about = {"run": self.run, "scenario": scenario, **self._about}
        head = self._heads[scenario] = f'{_json_of(about)[:-1]},"start_us":'
        return head
