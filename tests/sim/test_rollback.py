"""Disks that are restored from old copies, among the simulator's faults, and a sabotage of what is done."""

from __future__ import annotations

from typing import Final

import pytest

from kvstore.simulation import NodeSimulation
from multicast import PROTOCOLS, VARIANTS
from multicast.protocol import Protocol
from multicast.sim import Scenario
from multicast.sim.faults import CopyDisk, RollBack
from tests.campaigns import CAMPAIGN
from tests.sim.mutants import IgnoresMemories, of
from wbkv_sim import scenario_of, simulate_store

SEEDS: Final = range(200 if CAMPAIGN else 3)
PATIENCE: Final = range(20)
"""Seeds within which a sabotage must be seen."""

ALL: Final = {**PROTOCOLS, **VARIANTS}


@pytest.mark.parametrize("protocol", ["whitebox", "ftskeen", "whitebox-everywhere"])
def test_nodes_come_through_rollbacks(protocol: str) -> None:
    rolled_back = 0
    for seed in SEEDS:
        simulation = NodeSimulation(Scenario(faults="rollback", protocol=ALL[protocol]), seed)
        outcome = simulation.run()
        assert outcome.violation is None, outcome
        found = [view for view in simulation.views.values() if view.rolled_back]
        assert all(view.gone for view in found), "its machine has a new disk"
        rolled_back += len(found)
    assert rolled_back


def test_the_store_comes_through_rollbacks() -> None:
    for seed in SEEDS[: 1 + len(SEEDS) // 4]:
        outcome = simulate_store(scenario_of("rollback", operations=60), seed, "register")
        assert outcome.violation is None, outcome


def test_a_node_whose_disk_is_rolled_back_returns_with_a_new_one_for_all_its_groups() -> None:
    simulation = NodeSimulation(Scenario(faults="none"), 1)
    old = [replica for replica in simulation.views if replica.number == 2]
    simulation.loop.at(0.3, simulation.inject, CopyDisk(old[0]))
    simulation.loop.at(4.0, simulation.inject, RollBack(old[0], 0.2))
    assert simulation.run().violation is None
    assert all(simulation.views[replica].rolled_back for replica in old)
    for group in simulation.first.groups:
        membership = simulation.topology.membership(group)
        assert membership.is_complete
        assert membership.current.number == 1
        assert not {*old} & {*membership.current.members}


class IgnoresThem(NodeSimulation):
    """Nodes that ask no other what they have forgotten."""

    def _observe(self, protocol: type[Protocol]) -> type[Protocol]:
        return super()._observe(of(IgnoresMemories, protocol))


def test_random_seeds_catch_it() -> None:
    for seed in PATIENCE:
        if IgnoresThem(Scenario(faults="rollback"), seed).run().violation is not None:
            return
    pytest.fail(f"it came through {len(PATIENCE)} seeds")
