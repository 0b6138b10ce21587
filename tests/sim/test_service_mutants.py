"""Every sabotage of the service and the SDK is caught by random seeds; without it, both come through them."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.sim import service_mutants as mutants
from wbkv_sim import scenario_of, simulate_store

SEEDS: Final = range(24)
"""Random seeds within which a mutant must be caught."""

SERVICE = "kvstore.simulation.store.StoreCluster.service_type"
CALLS, HOLDING, ATTEMPT = "wbkv_sim.clients.Calls", "wbkv.aio.lock.Holding", "wbkv.aio.client.Attempt"

MUTANTS: Final[list[tuple[Any, str, str]]] = [
    (mutants.PagesOfNow, SERVICE, "recipes"),
    (mutants.IgnoresMinRevision, SERVICE, "register"),
    (mutants.RetriesUnderANewId, CALLS, "counter"),
    (mutants.ForgetsWhatItSent, CALLS, "counter"),
    (mutants.RenewsWhatIsLost, HOLDING, "recipes"),
    (mutants.SeesNoPhantoms, ATTEMPT, "recipes"),
    (mutants.CountsOnlyOnce, ATTEMPT, "recipes"),
    (mutants.resumes_from_now, "wbkv.core.streams.watch", "register"),
    (mutants.resumes_at_another_revision, "wbkv.core.streams.scan", "recipes"),
]


@pytest.mark.parametrize(
    ("mutant", "where", "workload"), MUTANTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_random_seeds_catch_it(
    mutant: Any, where: str, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, mutant)
    for seed in SEEDS:
        outcome = simulate_store(scenario_of("all"), seed, workload)
        if outcome.violation is not None:
            assert outcome.error is None, "it just breaks down"
            monkeypatch.undo()
            assert simulate_store(scenario_of("all"), seed, workload).violation is None
            return
    pytest.fail(f"{mutant.__name__} came through {len(SEEDS)} seeds")
