"""What a history's file says, line by line; `wbkv.History` without a store."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import wbkv
from wbkv.core.lines import BUFFER_BYTES
from wbkv.data import Entry
from wbkv.operations import Append, Get, Put
from wbkv.record.history import History, scalar_of, text_of


def lines_of(file: io.BytesIO | Path) -> list[dict[str, Any]]:
    raw = file.read_bytes() if isinstance(file, Path) else file.getvalue()
    assert raw.endswith(b"\n")
    return [json.loads(line) for line in raw.splitlines()]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"7", 7), (b"-12", -12), (b"0", 0), (b"-0", "-0"), (b"07", "07"), (b"+7", "+7"), (b"", ""),
        (b"9" * 18, 10**18 - 1), (b"9" * 19, "9" * 19), ("\u0663".encode(), "\u0663"),
        (b"\xff", "base64:/w=="), (b"base64:/w==", "base64:YmFzZTY0Oi93PT0="), (b"text", "text"),
    ],
)  # fmt: skip
def test_values_are_numbers_or_text_and_each_has_its_own(raw: bytes, shown: int | str) -> None:
    assert scalar_of(raw) == shown
    assert type(scalar_of(raw)) is type(shown)
    assert text_of(raw) == (shown if isinstance(shown, str) else raw.decode())


def test_an_event_is_a_line_in_the_order_of_time() -> None:
    file = io.BytesIO()
    with History(file, model="register") as history:
        first = history.begin([("r", "x", None), ("w", "y", 7)])
        history.executed(first, [("r", "x", None), ("w", "y", 7)], 81)
        history.end(history.begin([("w", "y", 8)]), "fail")
        history.end(history.begin([("w", "y", 9)]), "unknown")
        history.end(history.begin([("r", "y", None)]), "unknown")
    header, *events = lines_of(file)
    assert header == {"history": "register", "version": 1}
    times = [event.pop("time") for event in events]
    assert times == sorted(times)
    assert events == [
        {"type": "invoke", "process": 0, "txn": [["r", "x", None], ["w", "y", 7]]},
        {"type": "ok", "process": 0, "revision": 81, "txn": [["r", "x", None], ["w", "y", 7]]},
        {"type": "invoke", "process": 0, "txn": [["w", "y", 8]]},
        {"type": "fail", "process": 0, "txn": [["w", "y", 8]]},
        {"type": "invoke", "process": 0, "txn": [["w", "y", 9]]},
        {"type": "unknown", "process": 0, "txn": [["w", "y", 9]]},
        # A process of which nobody knows what it has done does nothing more; a read is just not known.
        {"type": "invoke", "process": 1, "txn": [["r", "y", None]]},
        {"type": "fail", "process": 1, "txn": [["r", "y", None]]},
    ]


def test_threads_and_tasks_are_processes_of_their_own() -> None:
    file = io.BytesIO()
    with History(file) as history:

        def work() -> None:
            for _ in range(3):
                history.executed(history.begin([("r", "x", None)]), [("r", "x", [])], 0)

        async def task() -> None:
            work()
            await asyncio.sleep(0)
            work()

        async def tasks() -> None:
            await asyncio.gather(task(), task())

        work()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        asyncio.run(tasks())
        work()
    processes = [event["process"] for event in lines_of(file)[1:] if event["type"] == "invoke"]
    assert processes == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [2] * 3 + [3] * 3 + [0] * 3


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    history = History(path)

    def work() -> None:
        for _ in range(300):
            history.executed(history.begin([("append", "x", "y" * 50)]), [("append", "x", "y" * 50)], 1)

    with ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(work)
    assert path.stat().st_size > 0
    assert path.read_bytes().endswith(b"\n")
    history.flush()
    assert len(lines_of(path)) == 1 + 2 * 8 * 300
    assert path.stat().st_size > 2 * BUFFER_BYTES
    history.close()
    history.close()
    last: dict[int, str] = {}
    for event in lines_of(path)[1:]:
        assert (last.get(event["process"], "ok") == "ok") == (event["type"] == "invoke")
        last[event["process"]] = event["type"]


def test_elements_end_with_the_separator() -> None:
    history = History(io.BytesIO(), separator=b";")
    assert history.steps_of(Append(b"x", b""), b"7;a b;") == [("append", "x", 7), ("append", "x", "a b")]
    assert history.shown(b"7;a b;") == [7, "a b"]
    assert history.shown(b"7;cut") == [7, "cut"]
    assert history.shown(b"") == history.shown(None) == []
    for wrong in (b"7", b"", b";", b"7;;", b"7;8"):
        with pytest.raises(wbkv.InvalidRequest, match="separator"):
            history.steps_of(Append(b"x", b""), wrong)


@pytest.mark.parametrize(
    ("model", "operation"),
    [
        ("list-append", wbkv.put("x", b"")), ("list-append", wbkv.delete("x")),
        ("list-append", wbkv.add("x")), ("register", wbkv.append("x", b"7,")),
        ("register", wbkv.delete(wbkv.prefix("x"))), ("register", wbkv.maximum("x", 1)),
    ],
)  # fmt: skip
def test_what_a_model_cannot_say_is_refused(model: Any, operation: wbkv.Operation) -> None:
    history = History(io.BytesIO(), model=model)
    with pytest.raises(wbkv.InvalidRequest, match=f"{model} cannot express"):
        history.steps_of(operation, b"")


def test_reads_and_left_out_scans() -> None:
    history = History(io.BytesIO(), model="register")
    assert history.steps_of(Get(b"\xff"), b"") == [("r", "base64:/w==", None)]
    assert history.steps_of(wbkv.scan("x"), b"") == []
    assert (history.shown(None), history.shown(b"7")) == (None, 7)


def test_a_transaction_appends_to_what_it_has_read() -> None:
    history = History(io.BytesIO())
    reads = {b"x": Entry(b"x", b"1,", 1, 1, 1), b"y": None}
    assert history.written(Put(b"x", b"1,2,3,"), reads) == [("append", "x", 2), ("append", "x", 3)]
    assert history.written(Put(b"y", b"4,"), reads) == [("append", "y", 4)]
    assert history.written(Put(b"x", b"1,"), reads) == []
    for replaced in (Put(b"x", b"2,"), Put(b"z", b"4,"), wbkv.delete("x")):
        with pytest.raises(wbkv.InvalidRequest, match="cannot express"):
            history.written(replaced, reads)


def test_a_closed_history_takes_no_more() -> None:
    file = io.BytesIO()
    history = History(file)
    begun = history.begin([("append", "x", 7)])
    history.close()
    history.executed(begun, begun.steps, 1)
    with pytest.raises(wbkv.Error, match="closed"):
        history.begin([("append", "x", 8)])
    assert [line.get("type") for line in lines_of(file)] == [None, "invoke"]
    assert not file.closed


@pytest.mark.parametrize(
    "wrong",
    [{"model": "queue"}, {"separator": b""}, {"separator": ","}],
)
def test_nonsense_is_refused_and_makes_no_file(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        History(tmp_path / "file", **wrong)
    assert not (tmp_path / "file").exists()
    with pytest.raises(TypeError, match="binary"):
        History(io.StringIO())  # type: ignore[arg-type]  # that is the point
    with pytest.raises(TypeError, match="History"):
        wbkv.connect("127.0.0.1:1", history="file")  # type: ignore[call-overload]  # likewise


def test_the_end_of_the_program_writes_the_rest_and_a_fork_nothing(tmp_path: Path) -> None:
    program = """
import os, sys, wbkv
history = wbkv.History(sys.argv[1])
history.begin([("append", "x", 7)])
if os.fork() == 0:
    try:
        history.begin([("append", "x", 8)])
    except wbkv.Forked:
        sys.exit(0)
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program, str(path)]
    subprocess.run(command, check=True, timeout=60)  # noqa: S603 - it is the program above
    assert [line.get("txn") for line in lines_of(path)] == [None, [["append", "x", 7]]]
    assert os.listdir(tmp_path) == ["run.jsonl"]
