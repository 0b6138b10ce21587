"""Staged payloads under the simulator: every payload is staged, in tiny pieces, amid all faults."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvstore.config.addresses import NodeId
from kvstore.node.loop import Node
from kvstore.node.staging import Staging, StagingLimits
from kvstore.simulation.nodes import SimMachine
from kvstore.wire.messages import ByName
from tests.campaigns import CAMPAIGN
from wbkv_sim import WORKLOADS, scenario_of
from wbkv_sim.run import StoreSimulation

SEEDS = range(20) if CAMPAIGN else range(1)


class CountingStaging(Staging):
    """Counts messages by name, and those that could not be resolved."""

    counts: Counter[str]

    def resolve(self, node: NodeId | None, message: ByName) -> Any | None:
        """As it is."""
        found = super().resolve(node, message)
        self.counts["lost" if found is None else "resolved"] += 1
        return found


class ResolvesAnything(CountingStaging):
    """A mutant: a name stands for the payload that was staged last."""

    def resolve(self, node: NodeId | None, message: ByName) -> Any | None:
        """Wrong."""
        if self._staged:
            last = next(reversed(self._staged))
            message = ByName(tuple((column, last) for column, _ in message.names), message.frame)
        return super().resolve(node, message)


class StagingSimulation(StoreSimulation):
    """Every payload is staged."""

    stage_bytes = 1
    staging_limits = StagingLimits(piece=16, window=2, held=4096, patience_s=0.3, expire_s=2.0)
    staging_type: type[CountingStaging] = CountingStaging

    def __init__(self, *arguments: Any) -> None:
        self.counts: Counter[str] = Counter()
        super().__init__(*arguments)

    def node_made(self, machine: SimMachine, node: Node) -> None:
        """Count."""
        super().node_made(machine, node)
        node.staging.__class__ = self.staging_type
        node.staging.counts = self.counts  # type: ignore[attr-defined]  # it has become one that counts


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workload", WORKLOADS if CAMPAIGN else ["bank", "append"])
def test_comes_through_all_faults(workload: str, seed: int) -> None:
    simulation = StagingSimulation(scenario_of("all"), seed, workload)
    assert simulation.run().violation is None
    assert simulation.counts["resolved"] > 20


def test_names_travel_instead_of_payloads_without_faults() -> None:
    simulation = StagingSimulation(scenario_of("none"), 0, "register")
    assert simulation.run().violation is None
    assert simulation.counts["resolved"] > 100
    assert simulation.counts["lost"] * 10 < simulation.counts["resolved"]


def test_a_wrong_payload_is_noticed() -> None:
    class Wrong(StagingSimulation):
        staging_type = ResolvesAnything

    assert Wrong(scenario_of("none"), 0, "append").run().violation is not None
