"""Shapes: how the number of users changes over time, in stages, from `shapes/*.toml`.

A file has a list of stages. `time` is a stage's share of the run, in any unit; `level` is the number of users
at its end, as a share of all. The number changes linearly over the stage, or at once if `jump = true`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtests.checking import bounded, filled, reject_unknown, toml_file
from loadtests.errors import LoadTestError

FOLDER: Final = Path(__file__).parent / "shapes"


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageFields:
    time: float = bounded(1.0, 0.001)
    level: float = bounded(1.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a run."""

    time: float
    level: float
    jump: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """The stages of a run."""

    name: str
    stages: tuple[Stage, ...]

    def users_at(self, at_s: float, users: int, seconds: float) -> int | None:
        """Return the number of users at a time of a run with these `seconds`; None after its end."""
        unit_s = seconds / sum(stage.time for stage in self.stages)
        level, begin_s = 0.0, 0.0
        for stage in self.stages:
            end_s = begin_s + stage.time * unit_s
            if at_s < end_s:
                share = 1.0 if stage.jump else (at_s - begin_s) / (end_s - begin_s)
                return max(round(users * (level + share * (stage.level - level))), 1)
            level, begin_s = stage.level, end_s
        return None


def read_shape(name: str) -> Shape:
    """Read a shape by its name in this folder, or by its path."""
    path = path_of(name, FOLDER)
    found = toml_file(path)
    reject_unknown(str(path), found, ("about", "stages"))
    stages = found.get("stages")
    if not isinstance(stages, list) or not stages or not all(isinstance(each, dict) for each in stages):
        raise LoadTestError(f"{path}: stages must be [[stages]], at least one")
    return Shape(
        path.stem, tuple(_stage(f"{path}: stage {number}", each) for number, each in enumerate(stages, 1))
    )


def _stage(where: str, values: dict[str, Any]) -> Stage:
    jump = values.get("jump", False)
    if not isinstance(jump, bool):
        raise LoadTestError(f"{where}: jump must be true or false, not {jump!r}")
    reject_unknown(where, values, ("time", "level", "jump"))
    written = filled(_StageFields, {name: value for name, value in values.items() if name != "jump"}, where)
    return Stage(written.time, written.level, jump)


def path_of(name: str, folder: Path) -> Path:
    """Return the path of a file by its name in a folder, or by its path."""
    if name.endswith(".toml"):
        return Path(name)
    path = folder / f"{name}.toml"
    if not path.is_file():
        known = sorted(each.stem for each in folder.glob("*.toml"))
        raise LoadTestError(
            f"there is no {name!r} in {folder.name}, only {', '.join(known)}; or name a .toml file"
        )
    return path
