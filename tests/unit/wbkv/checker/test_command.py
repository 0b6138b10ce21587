"""`wbkv check`, as people and programs use it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from wbkv.cli.main import main

from benchmarks.checker_speed import Shape, write
from tests.unit.wbkv.checker.brute import Transaction, events
from tests.unit.wbkv.checker.planted import LISTS, REGISTERS, at_once


def record(path: Path, transactions: list[Transaction], header: dict[str, Any] | None = None) -> Path:
    lines = [*([header] if header else []), *events(transactions)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_a_clean_history_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Shape("register", 200), 1, tmp_path / "clean.jsonl")
    assert main(["check", str(tmp_path / "clean.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "register: 200 transactions" in out
    assert "strict-serializable: yes" in out


def test_a_history_as_the_sdk_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(
        '{"history": "list-append", "version": 1, "recorder": "wbkv 0.1.0"}\n'
        '{"type": "invoke", "process": 3, "time": 100, "txn": [["r", "x", null], ["append", "y", 7]]}\n'
        '{"type": "invoke", "process": 4, "time": 110, "txn": [["append", "x", 1]]}\n'
        '{"type": "ok", "process": 3, "time": 200, "revision": 81, '
        '"txn": [["r", "x", null], ["append", "y", 7]]}\n'
        '{"type": "fail", "process": 4, "time": 210, "txn": [["append", "x", 1]]}\n'
        '{"type": "invoke", "process": 4, "time": 220, "txn": [["append", "x", 2]]}\n'
        '{"type": "unknown", "process": 4, "time": 230, "txn": [["append", "x", 2]]}\n'
        '{"type": "invoke", "process": 5, "time": 240, "txn": [["r", "x", null], ["r", "y", null]]}\n'
        '{"type": "ok", "process": 5, "time": 250, "txn": [["r", "x", [2]], ["r", "y", [7]]]}\n'
        '{"type": "invoke", "process": 5, "ti'
    )
    assert main(["check", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["holds"] is True
    assert found["warnings"] == ["line 10, the last, is cut off and ignored"]
    assert [found["counts"][name] for name in ("ok", "fail", "unknown")] == [2, 1, 1]


def test_an_anomaly_is_told_drawn_and_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "bad.jsonl", LISTS["write-skew"], {"history": "list-append", "version": 1})
    svg, dot = tmp_path / "cycle.svg", tmp_path / "cycle.dot"
    assert main(["check", str(path), "--draw", str(svg)]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "strict-serializable: NO",
        "  write-skew      1  two transactions that each missed what the other wrote",
        "",
        "write-skew",
        '  +-> T1  r "x" [], append "y" 1',
        '  |    |  rw "x"',
        "  |    v",
        '  |   T2  r "y" [], append "x" 1',
        '  |    |  rw "y"',
        "  +----+",
        '  T1 saw "x" empty, without 1, which T2 appended',
        '  T2 saw "y" empty, without 1, which T1 appended',
        "  (T1 is line 2, T2 is line 3)",
    ]
    drawn = "".join(ElementTree.parse(svg).getroot().itertext())  # noqa: S314 - we have written it
    assert all(text in drawn for text in ("write-skew", "T1", "T2", 'rw "x"', 'rw "y"'))
    assert main(["check", str(path), "--draw", str(dot)]) == 1
    assert 'a0_1 -> a0_2 [label="rw \\"x\\""' in dot.read_text()


@pytest.mark.parametrize("name", [*LISTS, *(f"register {name}" for name in REGISTERS)])
def test_every_anomaly_can_be_told_and_drawn(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = REGISTERS[name.split()[1]] if name.startswith("register") else LISTS[name]
    path = record(tmp_path / "bad.jsonl", history)
    for suffix in (".svg", ".dot"):
        assert main(["check", str(path), "--draw", str(tmp_path / f"drawn{suffix}")]) == 1
    ElementTree.parse(tmp_path / "drawn.svg")  # noqa: S314 - we have written it
    assert f"\n{name.split()[-1]}\n" in capsys.readouterr().out
    assert main(["check", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert list(found["names"]) == [name.split()[-1]]
    assert {one["number"] for one in found["transactions"]} == set(found["anomalies"][0]["transactions"])


def test_names_that_would_break_a_picture_or_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = '<&"\\\x1b[31m\ud800\n'
    history = [
        t._replace(operations=[[f, evil, v] if k == "x" else [f, k, v] for f, k, v in t.operations])
        for t in at_once("r x []; a y 1", "r y []; a x 1")
    ]
    path = record(tmp_path / "bad.jsonl", history)
    for drawn in (tmp_path / "a.svg", tmp_path / "a.dot"):
        assert main(["check", str(path), "--draw", str(drawn)]) == 1
    ElementTree.parse(tmp_path / "a.svg")  # noqa: S314 - we have written it
    assert "\x1b" not in capsys.readouterr().out


def test_bad_input_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "bad.jsonl", [], {"type": "ok", "process": 1, "time": 1, "txn": []})
    drawn = tmp_path / "drawn.svg"
    assert main(["check", str(path), "--draw", str(drawn)]) == 2
    assert capsys.readouterr().err == "wbkv check: line 1: process 1 has nothing under way that could be ok\n"
    assert not drawn.exists()
    assert main(["check", str(path), "--draw", "picture.png"]) == 2
    assert "only .svg and .dot" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "missing")]) == 2
    assert "missing" in capsys.readouterr().err


def test_standard_input_and_a_weaker_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"{json.dumps(event)}\n" for event in events(LISTS["G-single-realtime"]))
    for model, status in (("strict-serializable", 1), ("sequential", 0), ("serializable", 0)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["check", "-", "--model", model]) == status
    assert "serializable: yes" in capsys.readouterr().out


def test_other_commands_do_not_wait_for_its_packages() -> None:
    code = "import sys, wbkv.checker.command; sys.exit(bool({'numpy', 'rustworkx'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)  # noqa: S603 - our own command


@pytest.mark.parametrize("package", ["numpy", "rustworkx"])
def test_it_is_not_offered_without_its_packages(package: str) -> None:
    code = (
        "import importlib.util as u, sys\n"
        "real = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == {package!r} else real(name, *rest)\n"
        "from wbkv.cli.main import main\n"
        "sys.exit(main(['check', 'history.jsonl']))\n"
    )
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True
    )
    assert (done.returncode, package in done.stderr) == (2, True), done.stderr
