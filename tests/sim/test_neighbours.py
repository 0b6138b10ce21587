"""No client's behaviour costs another more than a bound: the same seed, with and without a hostile client."""

from __future__ import annotations

from typing import Final

import pytest

from tests.campaigns import CAMPAIGN
from wbkv_sim import scenario_of
from wbkv_sim.neighbours import CostlyApplication, cost_of_a_neighbour

BOUND_S: Final = 0.4
"""What the innocent client's worst call may take longer, in virtual time: a slice takes a node 10 ms, and one
transaction of the hostile client up to 0.36 s."""


def cost_s(seed: int) -> float:
    alone, beside = cost_of_a_neighbour(scenario_of("none", operations=4), seed)
    return beside - alone


@pytest.mark.parametrize("seed", range(1, 60 if CAMPAIGN else 3))
def test_a_hostile_client_costs_another_little(seed: int) -> None:
    assert cost_s(seed) < BOUND_S


@pytest.mark.parametrize("reads_only", [False, *[True] * CAMPAIGN])
def test_without_slices_it_is_caught(reads_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    monkeypatch.setattr("kvstore.store.share.SLICE_ROWS", 10**9)
    if not reads_only:
        monkeypatch.setattr(CostlyApplication, "slice_rows", 10**9)
    assert any(cost_s(seed) > BOUND_S for seed in range(1, 5))
