"""Clients that do not read cost themselves: nodes keep to their budgets, and others are served as before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from wbkv.operations import get, put

from kvstore.api.budget import Budget, Quota, Reservation
from kvstore.machine import Limits
from multicast.sim import Outcome
from tests.campaigns import CAMPAIGN
from wbkv_sim import StoreSimulation, scenario_of
from wbkv_sim.clients import StoreClient
from wbkv_sim.slow_readers import SlowReader
from wbkv_sim.workloads import WORKLOADS, Large


class Plain(Large):
    """Nothing but large writes and a read: the bounds of their replies are small."""

    limits = Limits(key_bytes=64, value_bytes=2048)

    async def step(self, client: StoreClient) -> None:
        keys = client.rng.sample(self.all, 3)
        await client.txn([*[put(key, client.rng.randbytes(2000)) for key in keys], get(keys[0])])


class ManyCalls(SlowReader):
    """Enough to use up the budget of one node."""

    calls = 160

    def address(self) -> str:
        return self.addresses[self.number]


class SmallBudget(StoreSimulation):
    """Nodes with a small budget, and several clients that do not read. There are no other faults, so that all
    calls of the others must succeed, from the beginning.
    """

    api_options: Mapping[str, int] = {
        "response_budget_bytes": 96 << 10, "watches_per_connection": 3, "scans_per_connection": 2,
    }  # fmt: skip

    def _make_clients(self, workload: Any) -> None:
        super()._make_clients(workload)
        self.slow_readers = [ManyCalls(self, number) for number in range(3)]

    reply_bytes = 2100

    def start(self) -> None:
        self.healed_at = 0.0
        super().start()


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "plain", Plain)


def run(seed: int) -> tuple[Outcome, SmallBudget]:
    simulation = SmallBudget(scenario_of("none", operations=32), seed, "plain")
    return simulation.run(), simulation


def test_others_are_served_and_budgets_kept() -> None:
    most = 0
    for seed in range(60 if CAMPAIGN else 5):
        outcome, simulation = run(seed)
        assert outcome.violation is None, f"seed {seed}"
        most = max(most, *(reader.most_unread for reader in simulation.slow_readers))
        if most > 20 << 10 and not CAMPAIGN:
            return
    assert most > 20 << 10, "the budget was not used up"


class NoBudget(Budget):
    """All calls begin at once."""

    def _admit(self, connection: str, size: int, *, may_refuse: bool) -> Reservation | None:
        return Reservation(self, connection, 0)


class OneForAll(Budget):
    """A connection may use up everything."""

    def left(self, connection: str) -> int:
        return max(self.total - self.used, 0)

    def _admit(self, connection: str, size: int, *, may_refuse: bool) -> Reservation | None:
        if size <= self.left(connection):
            self.change(connection, size)
            return Reservation(self, connection, size)
        return None


class NoQuota(Quota):
    """A connection may have any number of streams."""

    def take(self, connection: str) -> None:
        self.open += 1
        self._of[connection] += 1


class Hog(ManyCalls):
    """A client that keeps one connection as long as others have calls to make."""

    async def work(self) -> None:
        await asyncio.sleep(0.5)
        channel = self.channel(self.address())
        channel.stop_reading()
        self._call(channel)
        while not all(client.idle for client in self.simulation.store_clients):
            await asyncio.sleep(0.1)
            self._check()


class OneConnection(SmallBudget):
    """At each node, one connection asks for more than the node's budget, and reads nothing."""

    def _make_clients(self, workload: Any) -> None:
        super()._make_clients(workload)
        self.slow_readers = [Hog(self, number) for number in range(3)]


@pytest.mark.parametrize(
    ("mutant", "where", "simulation"),
    [
        (NoBudget, "kvstore.api.methods.Budget", SmallBudget),
        (OneForAll, "kvstore.api.methods.Budget", OneConnection),
        (NoQuota, "kvstore.api.calls.Quota", SmallBudget),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_it_is_caught(
    mutant: type[Any], where: str, simulation: type[SmallBudget], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = simulation(scenario_of("none", operations=32), 0, "plain").run()
    assert whole.violation is None
    monkeypatch.setattr(where, mutant)
    outcome = simulation(scenario_of("none", operations=32), 0, "plain").run()
    assert outcome.violation is not None
    assert outcome.error is None, "it just breaks down"
