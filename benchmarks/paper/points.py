"""Points of experiments, and their results: a file each, written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.record import ROOT

RESULTS: Final = ROOT / "build" / "figures"

Found = dict[str, Any]
"""The content of a file: the point's name and plan, date and commit, and what was measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement, made as a whole or not at all."""

    experiment: str
    name: str
    plan: Mapping[str, Any]
    """All that decides the result. A result of another plan is not a result of this point."""
    expected_s: float
    """About how long it takes, for the estimate of the time left."""


class Results:
    """The results in a folder."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder

    def path(self, point: Point) -> Path:
        """The path of the point's file."""
        return self.folder / point.experiment / f"{point.name}.json"

    def read(self, point: Point) -> Found | None:
        """The result of a point; None if there is none, or if it is of another plan."""
        found = _load(self.path(point))
        return found if found is not None and found.get("plan") == _as_read(point.plan) else None

    def write(self, point: Point, found: Mapping[str, Any]) -> None:
        """Write a result. A reader finds the old file or the new one."""
        path = self.path(point)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        content = {"experiment": point.experiment, "name": point.name, "plan": point.plan, **found}
        with new.open("w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def all(self, experiment: str) -> Iterator[Found]:
        """All results of an experiment, sorted by the names of the files."""
        for path in sorted((self.folder / experiment).glob("*.json")):
            if (found := _load(path)) is not None:
                yield found


def _load(path: Path) -> Found | None:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None  # not made yet, or not by us
    return found if isinstance(found, dict) else None


def _as_read(plan: Mapping[str, Any]) -> Any:
    """The plan as JSON returns it: tuples become lists, and keys become strings."""
    return json.loads(json.dumps(plan))
