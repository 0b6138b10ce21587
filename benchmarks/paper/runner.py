"""Going through the points of experiments: what is there is not made again; a line tells of each that is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from benchmarks.paper.points import Found, Point, Results, commit

Again = Literal["no", "failed", "all"]
Measure = Callable[[Point], dict[str, Any]]
"""Makes a point. What failed but leaves the rest usable is a list of sentences under "failed"."""


class Experiment(Protocol):
    """Some points, and how they are measured."""

    @property
    def name(self) -> str:
        """What its folder is called."""

    def points(self) -> list[Point]:
        """All of them, in the order in which they are made."""

    def measuring(self) -> AbstractContextManager[Measure]:
        """What measures them, with the clusters that it needs. Entered when a point has to be made."""


def wanted(points: Sequence[Point], results: Results, again: Again) -> list[Point]:
    """Those that have to be made."""

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
    tell: Callable[[str], None] = print,
) -> int:
    """Make what is missing. Returns how many points failed, those found so on the disk included."""
    todo = {each.name: wanted(each.points(), results, again) for each in experiments}
    progress = _Progress([point for points in todo.values() for point in points], tell)
    total = sum(len(each.points()) for each in experiments)
    tell(f"{total} points, {total - progress.count} of them there already; {progress.left()}")
    for experiment in experiments:
        if not todo[experiment.name]:
            continue
        with experiment.measuring() as measure:
            for point in todo[experiment.name]:
                began = time.monotonic()
                found = _made(measure, point)
                results.write(point, found)
                progress.made(point, found, time.monotonic() - began)
    bad = 0
    for experiment in experiments:
        for point in experiment.points():
            bad += bool(failures(results.read(point) or {"failed": "it is not there"}))
    return bad


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
    """How far we are, and how long the rest will take if it goes on like this."""

    def __init__(self, points: Sequence[Point], tell: Callable[[str], None]) -> None:
        self.count = len(points)
        self._tell = tell
        self._done = 0
        self._expected_left_s = sum(point.expected_s for point in points)
        self._expected_s = self._took_s = 0.0

    def left(self) -> str:
        """In words."""
        pace = self._took_s / self._expected_s if self._expected_s else 1.0
        return f"about {_duration(self._expected_left_s * pace)} left"

    def made(self, point: Point, found: Found, took_s: float) -> None:
        """Tell of a point."""
        self._done += 1
        self._took_s += took_s
        self._expected_s += point.expected_s
        self._expected_left_s -= point.expected_s
        failed = failures(found)
        said = f"FAILED: {'; '.join(failed)}" if failed else found.get("summary", "")
        where = f"[{self._done}/{self.count}] {point.experiment} {point.name}"
        self._tell(f"{where} ({took_s:.0f} s, {self.left()}) {said}".rstrip())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
