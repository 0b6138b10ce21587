"""No client's behaviour costs others more than a bound: workloads beside heavy clients of every kind."""

from __future__ import annotations

from typing import Final

import pytest

from tests.campaigns import CAMPAIGN
from wbkv_sim.neighbours import (
    KINDS,
    CostlyApplication,
    Heavy,
    Nothing,
    Payloads,
    Ranges,
    Unread,
    Watches,
    beside,
)

ALL: Final = (Nothing, *KINDS)
QUICK: Final = (Nothing, Payloads, Unread, Watches)
"""Those that are simulated in some seconds; the test without slices runs beside `Ranges`."""
WORKLOADS: Final = ("register", "bank", "counter", "append") if CAMPAIGN else ("register",)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("heavy", ALL if CAMPAIGN else QUICK, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seed", range(10 if CAMPAIGN else 1))
def test_no_call_takes_long_beside_heavy_clients(heavy: type[Heavy], workload: str, seed: int) -> None:
    assert beside(heavy, seed, workload).violation is None


@pytest.mark.parametrize("reads_only", [False, *[True] * CAMPAIGN])
def test_without_slices_it_is_caught(reads_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    monkeypatch.setattr("kvstore.store.share.SLICE_ROWS", 10**9)
    if not reads_only:
        monkeypatch.setattr(CostlyApplication, "slice_rows", 10**9)
    found = [beside(Ranges, seed).violation for seed in range(3)]
    assert any(str(violation).startswith("Neighbour") for violation in found), found
