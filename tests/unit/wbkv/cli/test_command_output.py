"""How the command shows bytes, tables and hints."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wbkv.cli import status, tables
from wbkv.cli.hints import did_you_mean
from wbkv.cli.text import argument, escape, from_json, shown, to_json, unescape
from wbkv.data import NodeStatus, Partition, PartitionStatus, Topology

EXAMPLES = settings(deadline=None, derandomize=True)


@EXAMPLES
@given(st.binary())
def test_escapes_are_on_one_line_and_reversible(data: bytes) -> None:
    text = escape(data)
    assert text.isprintable()
    assert unescape(text) == data


@EXAMPLES
@given(st.binary())
def test_json_is_reversible(data: bytes) -> None:
    assert from_json(json.loads(json.dumps(to_json(data)))) == data


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"alice", "alice"), ("grüße".encode(), "grüße"), (b"a\0b\n", r"a\x00b\n"),
        (b"C:\\dir", r"C:\\dir"), (b"\xff\xfe", r"\xff\xfe"), ("\u202e".encode(), r"\xe2\x80\xae"),
    ],
)  # fmt: skip
def test_escapes(data: bytes, text: str) -> None:
    assert escape(data) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b'{"a": "b\\n"}\n\tnext', '{"a": "b\\n"}\n\tnext'), (b"\x1b[31mred", r"\x1b[31mred"),
        (b"half \xc3", r"half \xc3"), (b"", ""),
    ],
)  # fmt: skip
def test_a_value_is_shown_as_it_is_if_it_is_text(value: bytes, text: str) -> None:
    assert shown(value) == text


def test_arguments_are_the_shells_bytes_unless_they_have_escapes() -> None:
    assert argument(r"a\x00") == rb"a\x00"
    assert argument(r"a\x00", escaped=True) == b"a\0"
    assert argument(os.fsdecode(b"\xff")) == b"\xff"
    assert argument(os.fsdecode(b"\xff"), escaped=True) == b"\xff"


@pytest.mark.parametrize("text", ["\\", "a\\q", "\\x1", "\\xg0"])
def test_what_is_no_escape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"column \d: \\.* is not an escape; there are"):
        unescape(text)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("scna", ": did you mean scan?"), ("GET", ": did you mean get?"), ("ls", ": did you mean scan?"),
        ("set", ": did you mean put?"), ("xyzzy", ""),
    ],
)  # fmt: skip
def test_hints(word: str, hint: str) -> None:
    assert did_you_mean(word, {"get", "put", "scan", "status"}) == hint


def test_habits_are_only_hints_where_they_are_known() -> None:
    assert did_you_mean("set", ["get", "scan"]) == ": did you mean get?"


def test_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.show(("KEY", "N"), [("a", 1), ("longer", None)]) == 2
    assert capsys.readouterr().out == "KEY     N\na       1\nlonger  -\n"


def test_a_table_without_rows_is_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.show(("KEY", "VALUE"), []) == 0
    assert capsys.readouterr().out == "KEY  VALUE\n"


def test_a_long_table_is_printed_page_by_page(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[int] = []

    def rows() -> Iterator[tuple[str, int]]:
        yield from (("a", 1) for _ in range(tables.PAGE_ROWS))
        printed.append(len(capsys.readouterr().out.splitlines()))
        yield from (("wider", 1) for _ in range(3))

    assert tables.show(("KEY", "N"), rows()) == tables.PAGE_ROWS + 3
    assert printed == [tables.PAGE_ROWS + 1]  # the first page was out before more was asked for
    assert capsys.readouterr().out == "wider  1\n" * 3


RICH = """
from wbkv.cli import tables
tables.show(("KEY", "VALUE"), [("alice", "[bold]not markup[/bold]"), ("bob", "x" * 100)])
"""


def on_terminal(code: str, **environment: str) -> str:
    """What a program prints on a terminal of 60 columns."""
    master, slave = pty.openpty()
    try:
        subprocess.run(  # noqa: S603 - our own code
            [sys.executable, "-c", code], stdout=slave, timeout=60, check=True,
            env={**os.environ, "COLUMNS": "60", "TERM": "xterm", **environment},
        )  # fmt: skip
        return os.read(master, 65536).decode()
    finally:
        os.close(master)
        os.close(slave)


def test_terminals_get_a_drawn_table() -> None:
    said = on_terminal(RICH)
    assert "\x1b[1;36m" in said
    assert "[bold]not markup[/bold]" in said
    assert "─" in said
    assert said.count("x") >= 100
    assert all(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= 60 for line in said.splitlines())


def test_no_color_is_respected() -> None:
    said = on_terminal(RICH, NO_COLOR="1")
    assert "─" in said
    assert "36m" not in said


def test_without_rich_terminals_get_columns() -> None:
    hide = "import sys; sys.modules['rich'] = None; sys.modules['rich.box'] = None\n"
    said = on_terminal(hide + RICH)
    assert said.splitlines()[0] == "KEY    VALUE"


def test_a_node_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    topology = Topology(
        "c1", {"n1": "h:1", "n2": "h:2"}, (Partition(0, None, ("n1", "n2")),), {"key_bytes": 9}
    )
    own = PartitionStatus(0, serving=True, leads=False, revision=7)
    nodes = [
        NodeStatus("n1", "h:1", (own,), '{"pid": 3}'),
        NodeStatus("n2", "h:2", None, "no answer in time"),
    ]
    found = status.report(topology, nodes)
    assert found["nodes"] == [
        {"name": "n1", "address": "h:1", "up": True, "details": {"pid": 3}, "problem": None},
        {"name": "n2", "address": "h:2", "up": False, "details": None, "problem": "no answer in time"},
    ]
    members = [{"node": "n1", "serving": True, "leads": False, "revision": 7}]
    assert found["partitions"] == [{"id": 0, "leader": None, "members": members}]
    status.show(topology, nodes)
    assert capsys.readouterr().out.splitlines() == [
        "cluster c1: 1 of 2 nodes answer",
        "",
        "NODE  ADDRESS  ANSWERS  LEADS",
        "n1    h:1      yes      -",
        "n2    h:2      NO       -",
        "",
        "PARTITION  LEADER  NODE  SERVES  REVISION",
        "0          -       n1    yes     7",
    ]
