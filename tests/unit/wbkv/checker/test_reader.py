"""What is no history is refused, with the line; what is one is read whatever its order of lines."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from wbkv import checker

ASKED = [["r", "x", None], ["append", "x", 1]]
DONE = [["r", "x", []], ["append", "x", 1]]


def invoke(process: int = 0, time: int = 1, **fields: Any) -> dict[str, Any]:
    return {"type": "invoke", "process": process, "time": time, "txn": ASKED, **fields}


def ok(process: int = 0, time: int = 2, **fields: Any) -> dict[str, Any]:
    return {"type": "ok", "process": process, "time": time, "txn": DONE, **fields}


def written(function: str, value: object) -> list[list[object]]:
    return [[function, "x", value]]


BAD: dict[str, list[Any]] = {
    "line 2: process 0 has not finished what it began on line 1": [invoke(), invoke(time=3)],
    "line 1: process 0 has nothing under way that could be ok": [ok()],
    "line 3: process 0 has nothing under way that could be fail": [invoke(), ok(), ok(type="fail")],
    "line 2: time goes back in process 0, from 5 to 4": [invoke(time=5), ok(time=4)],
    "line 3: time goes back in process 0": [invoke(), ok(time=9), invoke(time=8)],
    "line 1: type 'commit' is not known": [invoke(type="commit")],
    "line 1: type ['ok'] is not known": [invoke(type=["ok"])],
    "line 1: process '0' is not a number": [{**invoke(), "process": "0"}],
    "line 1: process True is not a number": [{**invoke(), "process": True}],
    "line 1: time 1.5 is not a number of nanoseconds": [{**invoke(), "time": 1.5}],
    "line 1: time None is not": [{"type": "invoke", "process": 1, "txn": []}],
    "line 1: time 9223372036854775808 is not": [invoke(time=2**63)],
    "line 1: txn None is not a list of operations": [invoke(txn=None)],
    "line 1: operation ['r', 'x'] is not [function, key, value]": [invoke(txn=[["r", "x"]])],
    "line 1: operation 7 is not": [invoke(txn=[7])],
    "line 1: function 'inc' is not known": [invoke(txn=written("inc", 1))],
    "line 1: function ['r'] is not known": [invoke(txn=[[["r"], "x", 1]])],
    "line 2: function 'w' does not belong in a list-append history": [
        invoke(), invoke(1, txn=written("w", 1)),
    ],
    "line 2: 1 operations are answered, but 2 were asked for": [invoke(), ok(txn=DONE[:1])],
    "line 2: ['append', 'x', 2] is answered, but ['append', 'x', 1]": [
        invoke(), ok(txn=[DONE[0], *written("append", 2)]),
    ],
    "line 2: revision 'r1' is not a number": [invoke(), ok(revision="r1")],
    "line 2: revision -1 is not a number": [invoke(), ok(revision=-1)],
    "line 2: the result of a read must be a list, not 7": [invoke(), ok(txn=[["r", "x", 7], DONE[1]])],
    "line 2: an element must be a string or a number, not [1]": [
        invoke(), ok(txn=[["r", "x", [[1]]], DONE[1]]),
    ],
    "line 2: a value must be a string or a number, not None": [
        invoke(txn=written("w", None)), ok(txn=written("w", None)),
    ],
    "line 2: key None is neither": [invoke(txn=[["r", None, None]]), ok(txn=[["r", None, [1]]])],
    "line 2: 1 is appended to key \"x\" twice": [invoke(txn=DONE + DONE), ok(txn=DONE + DONE)],
    "line 4: 1 is written to key \"x\" again (first by the transaction of line 1)": [
        invoke(), ok(), invoke(1), ok(1),
    ],
    "line 2: 1 is written to key \"x\" again": [invoke(), invoke(1)],
    "line 1: version 2 is not known, only 1": [{"history": "register", "version": 2}],
    "line 1: history 'queue' is not known": [{"history": "queue", "version": 1}],
    'line 2: an object with a "type" was expected': [invoke(), {"history": "list-append", "version": 1}],
    'line 1: an object with a "type" was expected, not [1]': [[1]],
    "the file has no history: it has no transactions": [],
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused(message: str) -> None:
    text = "".join(f"{json.dumps(event)}\n" for event in BAD[message])
    with pytest.raises(checker.HistoryError) as raised:
        checker.read(io.BytesIO(text.encode()))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2: not JSON"), (b"\xff", "line 2: not JSON"),
        (b'{"type": "ok", "time": NaN}', "line 2: not JSON: NaN is not a number of JSON"),
        (b"[" * 100_000, "line 2: not JSON"), (b"9" * 10_000, "line 2: not JSON"),
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused_unless_it_is_the_end(line: bytes, message: str) -> None:
    good = json.dumps(invoke()).encode() + b"\n"
    with pytest.raises(checker.HistoryError, match=message):
        checker.read(io.BytesIO(good + line + b"\n" + good))
    warning = "line 2, the last, is cut off and ignored"
    recording = checker.read(io.BytesIO(good + line))
    assert recording.history.warnings == [warning]
    verdict = checker.check(recording)
    assert (verdict.holds, verdict.counts["unknown"], verdict.warnings) == (True, 1, (warning,))


def test_a_last_line_without_its_end_counts_if_it_is_whole() -> None:
    text = json.dumps(invoke()) + "\n\n" + json.dumps(ok())
    verdict = checker.check(checker.read(io.BytesIO(text.encode())))
    assert (verdict.counts["ok"], verdict.warnings) == (1, ())


def test_a_long_line_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wbkv.checker.reader.LINE_BYTES", 200)
    with pytest.raises(checker.HistoryError, match="line 1: longer than 200 bytes"):
        checker.read(io.BytesIO(json.dumps(invoke(note="x" * 200)).encode()))


@pytest.mark.parametrize(
    ("value", "kind"), [([], "list-append"), ([1], "list-append"), (1, "register"), (None, "register")]
)
def test_the_kind_follows_from_reads_where_nothing_is_written(value: object, kind: str) -> None:
    asked = [["r", "x", None]]
    events = [
        invoke(txn=asked), ok(txn=asked), invoke(time=3, txn=asked), ok(time=4, txn=[["r", "x", value]]),
    ]  # fmt: skip
    verdict = checker.check(checker.of_events(events))
    assert (verdict.history, verdict.counts["ok"]) == (kind, 2)
    assert verdict.holds == (value in ([], None))


def test_a_header_alone_is_a_history_of_nothing() -> None:
    verdict = checker.check(checker.of_events([{"history": "register", "version": 1, "by": "a test"}]))
    assert verdict.holds
    assert verdict.warnings == ("there is nothing to judge: no transaction was recorded",)


def test_info_is_another_word_for_unknown() -> None:
    for word in ("info", "unknown"):
        events = [invoke(), {"type": word, "process": 0, "time": 9}]
        assert checker.check(checker.of_events(events)).counts["unknown"] == 1


def test_what_is_unknown_may_happen_after_the_same_process_has_gone_on() -> None:
    append, read = [["append", "x", 1]], [["r", "x", None]]
    events = [
        invoke(txn=append), {"type": "unknown", "process": 0, "time": 2}, invoke(time=3, txn=read),
        ok(time=4, txn=[["r", "x", []]]), invoke(time=5, txn=read), ok(time=6, txn=[["r", "x", [1]]]),
    ]  # fmt: skip
    assert checker.check(checker.of_events(events)).holds


def test_lines_need_not_be_in_the_order_of_time() -> None:
    """What counts is the time that each process has noted."""
    read = [["r", "x", None]]
    early = [invoke(1, time=50, txn=read), ok(1, time=60, txn=[["r", "x", []]])]
    late = [invoke(0, time=10), ok(0, time=20)]
    assert checker.check(checker.of_events(early + late)).names() == {"G-single-realtime": 1}
    assert checker.check(checker.of_events([late[0], *early, late[1] | {"time": 50}])).holds


def test_keys_and_values_of_all_kinds() -> None:
    values: list[object] = ["", "1", 1, 2.5, -3, "ü", "\ud800\x1b[0m"]
    keys: list[object] = ["x", "1", 1, "\ud800"]
    asked: list[list[object]] = [["append", key, value] for key in keys for value in values]
    asked += [["r", key, None] for key in keys]
    done = [[f, key, values if f == "r" else value] for f, key, value in asked]
    assert checker.check(checker.of_events([invoke(txn=asked), ok(txn=done)])).holds
