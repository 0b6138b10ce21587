"""The whole store under the simulator: every workload, every kind of fault, every checker."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from multicast.sim import FAULTS
from wbkv_sim import WORKLOADS, scenario_of, simulate_store


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("seed", range(2))
def test_comes_through_all_faults(workload: str, seed: int) -> None:
    assert simulate_store(scenario_of("all"), seed, workload).violation is None


@pytest.mark.parametrize("faults", [faults for faults in FAULTS if faults != "all"])
def test_comes_through_one_kind_of_faults(faults: str) -> None:
    assert simulate_store(scenario_of(faults), 0, "register").violation is None


@pytest.mark.parametrize(("groups", "replicas"), [(1, 3), (2, 1), (2, 5), (4, 3)])
def test_any_number_of_groups_and_replicas(groups: int, replicas: int) -> None:
    scenario = scenario_of("all", groups, replicas, operations=80)
    assert simulate_store(scenario, 1, "append").violation is None


def test_one_seed_is_one_run_whatever_python_hashes() -> None:
    script = "from wbkv_sim import *; print(simulate_store(scenario_of('all'), 5, 'bank').trace)"
    traces = {
        subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True,
            check=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(traces) == 1
