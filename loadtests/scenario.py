"""Scenarios as data: a workload, its parameters, and its mix of operations.

A file `scenarios/NAME.toml` has `about`, `workload`, an optional `shape`, and the tables `[parameters]` and
`[mix]`: the weight of each operation. Every parameter has a default; `--set NAME=VALUE` and
`--set mix.NAME=WEIGHT` override both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtests.checking import filled, override, reject_unknown, toml_file
from loadtests.errors import LoadTestError
from loadtests.shape import Shape, path_of, read_shape
from loadtests.workloads import WORKLOADS
from loadtests.workloads.base import Parameters, Workload

FOLDER: Final = Path(__file__).parent / "scenarios"
_PARTS: Final = ("about", "workload", "shape", "parameters", "mix")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload with its parameters and its mix of operations."""

    name: str
    about: str
    workload: type[Workload[Any]]
    parameters: Parameters
    mix: Mapping[str, float]
    """Weights by operation."""
    shape: Shape | None


def known() -> list[str]:
    """Return the names of the scenarios of this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_scenario(name: str, overrides: Iterable[str] = ()) -> Scenario:
    """Read a scenario by its name in this folder, or by its path. `KEY=VALUE` overrides its values."""
    path = path_of(name, FOLDER)
    found = toml_file(path)
    where = str(path)
    reject_unknown(where, found, _PARTS)
    workload = str(found.get("workload"))
    if workload not in WORKLOADS:
        raise LoadTestError(f"{where}: workload must be one of {', '.join(WORKLOADS)}, not {workload!r}")
    for part, kind in (("about", str), ("shape", str), ("parameters", dict), ("mix", dict)):
        if not isinstance(found.get(part, kind()), kind):
            raise LoadTestError(f"{where}: {part} must be a {'table' if kind is dict else 'text'}")
    parameters, mix = dict(found.get("parameters", {})), dict(found.get("mix", {}))
    made = WORKLOADS[workload]
    _check(where, made, parameters, mix)
    for text in overrides:
        key, value = override(text)
        if key.startswith("mix."):
            mix[key.removeprefix("mix.")] = value
        else:
            parameters[key] = value
        _check(f"--set {text}", made, parameters, mix)
    if not any(mix.values()):
        raise LoadTestError(
            f"{where}: [mix] needs some of {', '.join(made.OPERATIONS)}, with weights above 0"
        )
    shape = found.get("shape")
    return Scenario(
        name=path.stem,
        about=found.get("about", ""),
        workload=made,
        parameters=filled(made.PARAMETERS, parameters, where),
        mix={operation: float(weight) for operation, weight in mix.items()},
        shape=None if shape is None else read_shape(shape),
    )


def _check(where: str, made: type[Workload[Any]], parameters: dict[str, Any], mix: dict[str, Any]) -> None:
    filled(made.PARAMETERS, parameters, where)
    reject_unknown(f"{where}: [mix]", mix, made.OPERATIONS)
    for operation, weight in mix.items():
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 <= weight < 1e9:
            raise LoadTestError(f"{where}: [mix]: {operation} must be a weight from 0 on, not {weight!r}")
