"""The plan of a run, for Locust's processes: one file, whose path is in their environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from loadtests.errors import LoadTestError
from loadtests.scenario import Scenario, read_scenario
from loadtests.shape import Shape, read_shape

VARIABLE: Final = "WBKV_LOADTEST"
SUMMARY: Final = "summary.json"
TALLY: Final = "tally-"
STOP_S: Final = 5
"""How long Locust waits for operations in flight when a run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The run of one scenario."""

    scenario: str
    """A name or a file, as the user gave it."""
    overrides: list[str]
    shape: str | None
    endpoints: list[str]
    prefix: str
    """The prefix of all keys."""
    folder: str
    """Where processes write their tallies."""
    traces: str | None
    protocol: str | None
    users: int
    seconds: int
    parent: int
    """The process whose end ends the run."""

    def write(self, path: Path) -> None:
        """Write the file that `read_plan` reads."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    def read_scenario(self) -> Scenario:
        """Return the scenario with its overrides."""
        return read_scenario(self.scenario, self.overrides)

    def read_shape(self, scenario: Scenario) -> Shape | None:
        """Return the chosen shape, or the scenario's own, or None."""
        return scenario.shape if self.shape is None else read_shape(self.shape)


def read_plan() -> RunPlan:
    """Return the plan of this process."""
    path = os.environ.get(VARIABLE)
    if not path:
        raise LoadTestError(f"${VARIABLE} is not set: start Locust by `python -m loadtests`")
    return RunPlan(**json.loads(Path(path).read_text()))
