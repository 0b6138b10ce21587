"""An interrupted run continues, and no failure is lost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper.__main__ import EXPERIMENTS, experiments, folder_of, main
from benchmarks.paper.points import Point, Results
from benchmarks.paper.runner import Again, Measure, run


@dataclass
class Counted:
    """Points that count how often they are made, and fail or are interrupted on demand."""

    plans: dict[str, dict[str, Any]]
    name: str = "counted"
    made: list[str] = field(default_factory=list)
    entered: int = 0
    fails: set[str] = field(default_factory=set)
    interrupts: set[str] = field(default_factory=set)

    def points(self) -> list[Point]:
        return [Point(self.name, name, plan, 1.0) for name, plan in self.plans.items()]

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Measure]:
        self.entered += 1

        def measure(point: Point) -> dict[str, Any]:
            if point.name in self.interrupts:
                raise KeyboardInterrupt
            self.made.append(point.name)
            if point.name in self.fails:
                raise RuntimeError("the cluster died")
            return {"value": point.plan["x"], "summary": "fine"}

        yield measure


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path)


def plans() -> dict[str, dict[str, Any]]:
    return {"a": {"x": 1, "pair": (1, 2)}, "b": {"x": 2}, "c": {"x": 3}}


def measured(
    results: Results, changed: dict[str, dict[str, Any]] | None = None, again: Again = "no", **options: Any
) -> tuple[int, Counted]:
    """Run the points, with changed plans. The number of failures, and the points."""
    counted = Counted(plans() | (changed or {}), **options)
    return run([counted], results, again=again, report=lambda _: None), counted


def test_a_point_that_is_there_is_not_made_again(results: Results) -> None:
    failed, first = measured(results)
    assert (failed, first.made) == (0, ["a", "b", "c"])
    failed, second = measured(results)
    assert (failed, second.made, second.entered) == (0, [], 0)  # and no cluster is started for nothing


def test_a_point_whose_plan_has_changed_is_made_again(results: Results) -> None:
    measured(results)
    assert measured(results, {"b": {"x": 5}})[1].made == ["b"]
    assert [found["value"] for found in results.all("counted")] == [1, 5, 3]


def test_again_makes_all_points_or_those_that_failed(results: Results) -> None:
    assert measured(results, fails={"b"})[0] == 1
    failed, kept = measured(results)
    assert (failed, kept.made) == (1, [])  # a failure stays until --again
    failed, mended = measured(results, again="failed")
    assert (failed, mended.made) == (0, ["b"])
    assert measured(results, again="all")[1].made == ["a", "b", "c"]


def test_an_interrupted_run_goes_on(results: Results) -> None:
    with pytest.raises(KeyboardInterrupt):
        measured(results, interrupts={"b"})
    assert measured(results)[1].made == ["b", "c"]


def test_a_failure_is_kept_with_its_reason_and_reported(results: Results) -> None:
    lines: list[str] = []
    run([Counted(plans(), fails={"c"})], results, report=lines.append)
    (found,) = (found for found in results.all("counted") if found["name"] == "c")
    assert found["failed"] == ["RuntimeError: the cluster died"]
    assert found["commit"]
    assert found["load_before"] >= 0
    assert "3 points" in lines[0]
    assert "[3/3] counted c" in lines[3]
    assert "FAILED: RuntimeError: the cluster died" in lines[3]


def test_a_process_killed_while_writing_leaves_no_partial_file(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    (point, *_) = Counted(plans()).points()
    results.write(point, {"value": "old"})

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            results.write(point, {"value": "new"})
    found = results.read(point)
    assert found is not None
    assert found["value"] == "old"
    results.path(point).write_text('{"plan"')  # not a file of ours: then it is not a result
    assert results.read(point) is None
    results.write(point, {"value": "newest"})
    assert json.loads(results.path(point).read_text())["value"] == "newest"


def test_the_time_left_follows_the_pace(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(0, 10_000, 40))
    monkeypatch.setattr("time.monotonic", lambda: float(next(ticks)))
    lines: list[str] = []
    run([Counted(plans())], results, report=lines.append)
    assert lines[0].endswith("about 3 s left")
    took, left = lines[1].partition("(")[2].partition(" s, about ")[::2]
    assert left.startswith(f"{2 * int(took) // 60} min")


def test_points_have_names_and_plans_of_their_own() -> None:
    for quick in (True, False):
        made = experiments(EXPERIMENTS, None, quick=quick)
        points = [point for experiment in made for point in experiment.points()]
        assert len({(point.experiment, point.name) for point in points}) == len(points)
        assert len({json.dumps(point.plan, sort_keys=True) for point in points}) == len(points)
        hours = sum(point.expected_s for point in points) / 3600
        assert hours < (0.11 if quick else 0.85)


def test_partial_results_do_not_replace_whole_ones(tmp_path: Path) -> None:
    whole = folder_of(tmp_path, None, quick=False)
    others = {
        folder_of(tmp_path, None, quick=True),
        folder_of(tmp_path, ["whitebox"], quick=False),
        folder_of(tmp_path, ["whitebox"], quick=True),
    }
    assert len({whole, *others}) == 4


def test_an_unknown_protocol_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lan", "--only", "whitebox,paxos"])
    assert "unknown protocol 'paxos'" in capsys.readouterr().err


def test_no_results_are_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "--folder", str(tmp_path)]) == 0
    assert "there are no results" in capsys.readouterr().out
