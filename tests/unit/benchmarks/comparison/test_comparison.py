"""The comparison with etcd: its messages, its options, its table, and its picture."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from wbkv_pipeline.reporting.style import styled

from benchmarks import etcd
from benchmarks.comparison import etcd_messages as messages
from benchmarks.comparison import plot, systems
from benchmarks.comparison.rows import ETCD_ROWS, FIGURES, ROWS, level_of, name_of
from benchmarks.comparison.table import cells, comparisons, text
from benchmarks.record import Figure, read_all


def test_requests_have_the_fields_of_etcd() -> None:
    put = messages.PutRequest(key=b"k", value=b"v")
    assert put.SerializeToString() == b"\x0a\x01k\x12\x01v"
    assert messages.RangeRequest(key=b"k").SerializeToString() == b"\x0a\x01k"
    txn = messages.TxnRequest(success=[messages.RequestOp(request_put=put)])
    assert txn.SerializeToString() == b"\x12\x08\x12\x06" + put.SerializeToString()


def test_responses_are_read_and_unknown_fields_are_skipped() -> None:
    header = b"\x0a\x04\x08\x07\x10\x05"  # cluster 7, member 5
    status = messages.StatusResponse.FromString(header + b"\x12\x03abc" + b"\x20\x05")
    assert (status.header.member_id, status.leader) == (5, 5)
    assert messages.TxnResponse.FromString(header + b"\x10\x01").succeeded
    found = messages.RangeResponse.FromString(header + b"\x12\x06\x0a\x01k\x2a\x01v" + b"\x20\x01")
    assert [(each.key, each.value) for each in found.kvs] == [(b"k", b"v")]


def sizes(rows: str = "", in_flight: str = "1") -> Any:
    return SimpleNamespace(rows=rows, in_flight=in_flight)


def test_rows_and_levels_can_be_chosen() -> None:
    assert etcd.plan(sizes()) == (list(ROWS), [1])
    assert etcd.plan(sizes("two,put", "100,1,100")) == (["put", "two"], [1, 100])
    with pytest.raises(SystemExit, match="--rows: unknown puts; choose from put, get"):
        etcd.plan(sizes("put,puts"))
    for wrong in ("", "0", "1,x", "-1"):
        with pytest.raises(SystemExit, match="--in-flight: "):
            etcd.plan(sizes(in_flight=wrong))


def test_without_etcd_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="apt-get install etcd-server"):
        next(etcd.measure(sizes()))
    with pytest.raises(SystemExit, match="apt-get install etcd-server"), systems.etcd():
        pass


def figures(system: str, row: str, level: int, *samples: float) -> list[Figure]:
    return [
        Figure.of(name_of(system, row, level, what), unit, samples) for what, (unit, _) in FIGURES.items()
    ]


MADE = [
    *figures("etcd", "two", 10, 100.0, 300.0, 200.0),
    *figures("etcd", "put", 10, 50.0),
    *figures("wbkv", "two", 10, 40.0, 60.0, 50.0),
    *figures("wbkv", "one-session", 10, 400.0),
    *figures("wbkv", "get", 10, 7.0),
]


def test_both_stores_stand_side_by_side() -> None:
    found = comparisons(MADE)
    assert [(each.row, each.level, each.ratio) for each in found] == [
        ("two", 10, 0.25),
        ("one-session", 10, 2.0),
    ]
    heading, two, one = cells(MADE)
    assert heading[:5] == ["", "in flight", "etcd: calls", "wbkv: calls", "ratio"]
    puts = "two puts in two partitions, unary"
    assert two[:5] == [puts, "10", "200 /s (100 - 300)", "50.0 /s (40.0 - 60.0)", "0.25"]
    puts = "two puts in one partition, session (etcd: unary calls)"
    assert one[:5] == [puts, "10", "200 /s (100 - 300)", "400 /s", "2.00"]
    assert {len(row) for row in (heading, two, one)} == {11}


def test_every_row_of_a_session_says_that_calls_of_etcd_are_unary() -> None:
    made = [each for row in ROWS for each in figures("wbkv", row, 1, 1.0)]
    made += [each for row in set(ETCD_ROWS.values()) for each in figures("etcd", row, 1, 1.0)]
    titles = {each.row: each.title for each in comparisons(made)}
    assert titles.keys() == ROWS.keys()
    for row, title in titles.items():
        assert ("session" in ROWS[row]) == title.endswith("(etcd: unary calls)")


def test_columns_of_the_terminal_are_aligned() -> None:
    assert text([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc  d"


def test_names_have_levels() -> None:
    assert level_of(name_of("wbkv", "two-session", 400, "CPU of all nodes")) == 400


def test_the_picture_has_a_line_for_each_kind_of_call() -> None:
    with styled():
        drawn = plot.draw(MADE)
    (above, below) = drawn.axes
    assert above.get_title(loc="left") == "Two puts"
    labels = above.get_legend_handles_labels()[1]
    assert labels == ["etcd, unary", "wbkv, unary, two partitions", "wbkv, session, one partition"]
    assert below.get_xlabel() == "calls in flight"


def test_the_picture_is_made_from_the_committed_results() -> None:
    """If this fails: python -m benchmarks.comparison.plot."""
    assert plot.PICTURE.read_text(encoding="utf-8") == plot.made(read_all()["etcd"])
