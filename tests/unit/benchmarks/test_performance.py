"""The page of figures is what the committed results make, and the suite survives its benchmarks."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page, record, suite
from benchmarks.record import PAGE, RESULTS, Benchmark, Figure, Machine, Result, number, read_all
from benchmarks.suite import SUITE, Entry

SHORT = [entry.name for entry in SUITE if not entry.long]


def test_the_page_is_made_from_the_committed_results() -> None:
    """If this fails: python -m benchmarks.page."""
    text = PAGE.read_text(encoding="utf-8")
    assert page.made(text, read_all()) == text


def test_every_result_is_of_a_benchmark_and_names_no_folder() -> None:
    results = read_all()
    assert results.keys() <= {entry.name for entry in SUITE}
    assert results.keys() >= set(SHORT)
    for result in results.values():
        assert result.layer in page.LAYERS
        assert result.figures
        assert str(record.ROOT) not in (RESULTS / f"{result.name}.json").read_text()


@pytest.mark.parametrize("name", SHORT)
def test_every_benchmark_can_be_run(name: str) -> None:
    """Those of Spark are left out: their imports take seconds."""
    found: Benchmark = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    assert found.name == name
    assert found.layer in page.LAYERS
    for full, quick in found.sizes.values():
        assert type(full) is type(quick)
        assert isinstance(full, str) or isinstance(quick, str) or quick <= full


def test_every_module_is_of_the_suite_or_has_another_target_of_make() -> None:
    makefile = (record.ROOT / "Makefile").read_text()
    # The frame itself, `wbkv bench`, and the hostile clients of a benchmark.
    frame = {"__init__", "__main__", "command", "convoy_command", "record", "page", "attackers"}
    modules = {path.stem for path in (record.ROOT / "benchmarks").glob("*.py")} - frame
    made = {name for name in modules if f"benchmarks.{name}" in makefile}
    assert modules - made == {entry.name for entry in SUITE}


def a_result(name: str, figures: list[Figure]) -> Result:
    machine, command = Machine(2, "CPython 3.11.2", "Linux 6.1.0"), f"python -m benchmarks.{name}"
    return Result(name, "node", command, "abc", machine, 0.2, "2026-01-02", figures)


def test_a_table_has_the_source_beside_the_first_figure_of_a_benchmark() -> None:
    figures = [Figure.of("a message", "µs", [3.0, 1.0, 2.00004]), Figure.of("bytes", "", [1234.5])]
    made = a_result("core_cost", figures)
    *_, first, second = page.table({"core_cost": made}, "node")
    assert first == (
        "| a message | 2.00 µs | 1.00 - 3.00 (3) | `python -m benchmarks.core_cost` | abc "
        "| 2 cores, CPython 3.11.2, Linux 6.1.0; load average 0.2; 2026-01-02 |"
    )
    assert second == "| bytes | 1,234 | one round | | | |"
    assert len([*page.table({"core_cost": made}, "store")]) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.01234, "0.0123"), (1.234, "1.23"), (56.78, "56.8"), (12345.6, "12,346")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_result_says_which_command_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(sizes: Any) -> Iterator[Figure]:
        yield Figure.of("sum", "s", [sizes.big_rounds + sizes.seconds])

    made = Benchmark("made_up", "tools", "about", measure, {"big_rounds": (9, 1), "seconds": (2.0, 0.5)})
    monkeypatch.setattr(Result.write, "__defaults__", (tmp_path,))
    for arguments, command, total in (
        ([], "", 11.0),
        (["--quick"], " --quick", 1.5),
        (["--quick", "--big-rounds", "3"], " --quick --big-rounds 3", 3.5),
    ):
        made.main([*arguments, "--write"])
        found = read_all(tmp_path)["made_up"]
        assert found.command == f"python -m benchmarks.made_up{command}"
        assert found.figures == [Figure("sum", "s", [total])]
    assert "sum: 3.50 s, one round" in capsys.readouterr().out


# The suite


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(page, "write", lambda: found.append("page"))
    return found


def test_a_benchmark_that_fails_does_not_end_the_rest(
    written: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    slow = Entry("checker_speed", 0.01)
    monkeypatch.setattr(suite, "SUITE", (Entry("not_there", 60.0), slow, Entry("long_one", 60.0, long=True)))
    assert suite.main(["--again"]) == 1
    out = capfd.readouterr().out
    assert "FAILED: not_there ended with status 1" in out
    assert "FAILED: checker_speed took longer than 0.01 s" in out
    assert "long_one" not in out
    assert written == ["page"]


def test_what_this_commit_has_measured_is_not_measured_again(
    written: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run: list[str] = []
    monkeypatch.setattr(suite, "run", lambda entry, **_: run.append(entry.name))
    done = a_result("wire_cost", [])
    monkeypatch.setattr(suite, "read_all", lambda: {done.name: done})
    monkeypatch.setattr(Machine, "here", lambda: done.machine)
    monkeypatch.setattr(suite, "commit", lambda: "abc")
    assert suite.main(["wire_cost", "core_cost"]) == 0
    assert run == ["core_cost"]
    assert suite.main(["wire_cost", "--quick"]) == suite.main(["wire_cost", "--again"]) == 0
    assert run == ["core_cost", "wire_cost", "wire_cost"]
    with pytest.raises(SystemExit):
        suite.main(["core_costs"])
    assert "unknown benchmark core_costs; choose from cluster" in capsys.readouterr().err
