"""Measure the points of experiments: skip those that have a result, and report each one in a line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from benchmarks.paper.points import Found, Point, Results
from benchmarks.record import commit

Again = Literal["no", "failed", "all"]
Measure = Callable[[Point], dict[str, Any]]
"""Measures a point. Failures that leave the rest usable are a list of sentences under "failed"."""


class Experiment(Protocol):
    """Some points, and how they are measured."""

    @property
    def name(self) -> str:
        """The name of its folder."""

    def points(self) -> list[Point]:
        """All points, in the order in which they are measured."""

    def measuring(self) -> AbstractContextManager[Measure]:
        """A context that measures points on its clusters. Entered only if a point has to be measured."""


def wanted(points: Sequence[Point], results: Results, again: Again) -> list[Point]:
    """The points that have to be measured."""

    def done(point: Point) -> bool:
        found = results.read(point)
        return found is not None and not (again == "all" or (again == "failed" and failures(found)))

    return [point for point in points if not done(point)]


def failures(found: Found) -> list[str]:
    """Why a point failed, or parts of it."""
    failed = found.get("failed", [])
    return [str(each) for each in failed] if isinstance(failed, list) else [str(failed)]


def run(
    experiments: Sequence[Experiment],
    results: Results,
    *,
    again: Again = "no",
    report: Callable[[str], None] = print,
) -> int:
    """Measure the missing points. Returns how many points failed, earlier failures included."""
    todo = {each.name: wanted(each.points(), results, again) for each in experiments}
    progress = _Progress([point for points in todo.values() for point in points], report)
    total = sum(len(each.points()) for each in experiments)
    report(f"{total} points, {total - progress.count} of them measured already; {progress.left()}")
    for experiment in experiments:
        if not todo[experiment.name]:
            continue
        with experiment.measuring() as measure:
            for point in todo[experiment.name]:
                began = time.monotonic()
                found = _made(measure, point)
                results.write(point, found)
                progress.made(point, found, time.monotonic() - began)
    ends = [results.read(point) for experiment in experiments for point in experiment.points()]
    return sum(bool(failures(each or {"failed": "it has no result"})) for each in ends)


def _made(measure: Measure, point: Point) -> Found:
    about = {
        "commit": commit(),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_before": round(os.getloadavg()[0], 2),
    }
    began = time.monotonic()
    try:
        found = measure(point)
    except Exception as error:  # noqa: BLE001 - a point that fails is a result, and the others go on
        found = {"failed": [f"{type(error).__name__}: {error}"]}
    return about | {"took_s": round(time.monotonic() - began, 2)} | found


class _Progress:
    """Progress, and how long the rest will take at the same pace."""

    def __init__(self, points: Sequence[Point], report: Callable[[str], None]) -> None:
        self.count = len(points)
        self._report = report
        self._done = 0
        self._expected_left_s = sum(point.expected_s for point in points)
        self._expected_s = self._took_s = 0.0

    def left(self) -> str:
        """The time left, in words."""
        pace = self._took_s / self._expected_s if self._expected_s else 1.0
        return f"about {_duration(self._expected_left_s * pace)} left"

    def made(self, point: Point, found: Found, took_s: float) -> None:
        """Report a point."""
        self._done += 1
        self._took_s += took_s
        self._expected_s += point.expected_s
        self._expected_left_s -= point.expected_s
        failed = failures(found)
        said = f"FAILED: {'; '.join(failed)}" if failed else found.get("summary", "")
        where = f"[{self._done}/{self.count}] {point.experiment} {point.name}"
        self._report(f"{where} ({took_s:.0f} s, {self.left()}) {said}".rstrip())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
