"""Points of experiments, and files that keep what was found: one for each, there as a whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "build" / "figures"

Found = dict[str, Any]
"""What a file has: the point's name and plan, when it was made from which commit, and what was found."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement that is made or not made as a whole."""

    experiment: str
    name: str
    plan: Mapping[str, Any]
    """All that decides what comes out. A result of another plan is not a result of this point."""
    expected_s: float
    """About how long it takes, for the estimate of the time left."""


class Results:
    """The files below a folder."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder

    def path(self, point: Point) -> Path:
        """Where the point's file is, or will be."""
        return self.folder / point.experiment / f"{point.name}.json"

    def read(self, point: Point) -> Found | None:
        """What was found for this very plan; None if nothing was, or if the plan was another one."""
        found = _load(self.path(point))
        return found if found is not None and found.get("plan") == _as_read(point.plan) else None

    def write(self, point: Point, found: Mapping[str, Any]) -> None:
        """Keep it. A reader finds the old file or the new one, however this ends."""
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
        """Everything found in an experiment, by the names of the files."""
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
    """As it comes back from a file: tuples are lists there, and keys are strings."""
    return json.loads(json.dumps(plan))


def commit() -> str:
    """What is checked out, and whether it was changed since."""
    try:
        here = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],  # noqa: S607 - the user's own git
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return here.stdout.strip()
