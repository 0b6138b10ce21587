"""Damaged logs of single groups among the simulator's faults, and sabotages of what nodes do about them."""

from __future__ import annotations

from typing import Final

import pytest

from kvstore.simulation import NodeSimulation
from multicast import PROTOCOLS
from multicast.protocol import Protocol
from multicast.sim import Scenario
from multicast.sim.faults import DamageLog
from multicast.types import DISK_BITS, ReplicaId
from tests.campaigns import CAMPAIGN
from tests.sim.mutants import IgnoresMemories, of
from wbkv_sim import scenario_of, simulate_store

SEEDS: Final = range(200 if CAMPAIGN else 2)
PATIENCE: Final = range(40)
"""Seeds within which a sabotage must be seen."""


@pytest.mark.parametrize("protocol", ["whitebox", "ftskeen", "fastcast"])
def test_comes_through_damaged_logs(protocol: str) -> None:
    begun = 0
    for seed in SEEDS if protocol == "whitebox" else SEEDS[: len(SEEDS) // 2]:
        simulation = NodeSimulation(Scenario(faults="logs", protocol=PROTOCOLS[protocol]), seed)
        outcome = simulation.run()
        assert outcome.violation is None, outcome
        begun += sum(replica.incarnation >> DISK_BITS for replica in simulation.views)
    assert begun


def test_the_store_comes_through_damaged_logs() -> None:
    for seed in SEEDS[: 1 + len(SEEDS) // 4]:
        outcome = simulate_store(scenario_of("logs", operations=60), seed, "register")
        assert outcome.violation is None, outcome


def test_a_bad_log_of_one_group_leaves_the_others_of_its_node_alone() -> None:
    simulation = NodeSimulation(Scenario(faults="none"), 1)
    (bad,) = [replica for replica in simulation.views if (replica.group, replica.number) == (1, 2)]
    simulation.loop.at(0.5, simulation.inject, DamageLog(bad, 0.2))
    assert simulation.run().violation is None
    changed = {
        group: simulation.topology.membership(group).current.number for group in simulation.first.groups
    }
    assert changed == {0: 0, 1: 1, 2: 0}
    assert {replica.incarnation for replica in simulation.machines[2].replicas} == {0, 1 << DISK_BITS}


class KeepsItsIncarnation(NodeSimulation):
    """A replica without its log goes on as the same replica, and asks no other what it has forgotten."""

    def _observe(self, protocol: type[Protocol]) -> type[Protocol]:
        return super()._observe(of(IgnoresMemories, protocol))

    def begin_anew(self, replica: ReplicaId) -> ReplicaId:
        self.views[replica].machine.log.groups.pop(replica.group, None)
        return replica


def test_random_seeds_catch_it() -> None:
    for seed in PATIENCE:
        if KeepsItsIncarnation(Scenario(faults="logs"), seed).run().violation is not None:
            return
    pytest.fail(f"it came through {len(PATIENCE)} seeds")
