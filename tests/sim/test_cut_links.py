"""Cut links between nodes of the store: relays make up for them, and no partition is silent for long."""

from __future__ import annotations

import random

import pytest

from kvstore.node.loop import Node
from kvstore.simulation.availability import CutLinks, connected
from multicast.sim import Outcome, Simulation
from multicast.sim.faults import CutLink, MendLink, schedule
from multicast.sim.run import Scenario
from multicast.topology import Topology
from tests.campaigns import CAMPAIGN
from wbkv_sim import StoreSimulation, scenario_of


class CutLinksSimulation(CutLinks, StoreSimulation):
    """The SDK's clients, with links that stay cut."""


def run(seed: int, node: type[Node] = Node, replicas: int = 3) -> tuple[Outcome, CutLinksSimulation]:
    simulation = CutLinksSimulation(scenario_of("links", 3, replicas, operations=24), seed, "bank")
    simulation.node_type = node
    return simulation.run(), simulation


@pytest.mark.parametrize("seed", range(40 if CAMPAIGN else 2))
def test_everything_completes_and_all_partitions_serve_while_links_stay_cut(seed: int) -> None:
    outcome, simulation = run(seed)
    assert outcome.violation is None
    assert simulation.cut_links
    assert simulation.probes.answered > 100
    assert sum(machine.node.relays.counts.sent for machine in simulation.machines.values() if machine.node)


@pytest.mark.parametrize("seed", range(10 if CAMPAIGN else 0))
def test_five_nodes_serve_while_links_stay_cut(seed: int) -> None:
    assert run(seed, replicas=5)[0].violation is None


class NeverRelays(Node):
    """A node that sends all frames directly."""

    def turn(self) -> None:
        self.relays._routes.clear()
        super().turn()


class DoesNotPassOn(Node):
    """A node that does not tell others what it is told, so that cuts in both directions are not noticed."""

    def turn(self) -> None:
        for row in self.relays._reach._rows.values():
            row.troubled_at = -1000
        super().turn()


@pytest.mark.parametrize(("node", "first"), [(NeverRelays, 0), (DoesNotPassOn, 1)])
def test_nodes_that_do_not_relay_are_caught(node: type[Node], first: int) -> None:
    for seed in range(first, 20):
        outcome, simulation = run(seed, node)
        if outcome.violation is not None:
            assert outcome.violation.startswith(("Availability", "Termination")), outcome.violation
            assert simulation.cut_links
            return
    pytest.fail(f"{node.__name__} came through")


# What is demanded, and of what


def test_machines_are_connected_directly_or_through_one_other() -> None:
    assert connected([], [0, 1, 2])
    assert connected([(0, 1), (1, 0)], [0, 1, 2])
    assert not connected([(0, 1), (1, 0)], [0, 1])
    assert not connected([(0, 1), (0, 2)], [0, 1, 2]), "nothing that it sends arrives"
    assert not connected([(1, 0), (2, 0)], [0, 1, 2]), "it hears nothing"
    row = [(0, 2), (2, 0), (0, 3), (3, 0), (1, 3), (3, 1)]
    assert not connected(row, [0, 1, 2, 3]), "the ends of a row are two nodes apart"


def test_links_are_cut_in_every_way() -> None:
    """One way, both ways, again and again, all but one that a machine hears; and every cut ends."""
    shapes = set()
    for seed in range(60):
        drawn = schedule("links", Topology.uniform(2, 5), 2, 5.0, random.Random(seed))
        cuts = [(at, fault.source, fault.target) for at, fault in drawn if isinstance(fault, CutLink)]
        ends = [(fault.source, fault.target) for _, fault in drawn if isinstance(fault, MendLink)]
        assert sorted(ends) == sorted(cut[1:] for cut in cuts)
        for at, source, target in cuts:
            same = [cut[1:] for cut in cuts if cut[0] == at]
            if (target, source) in same:
                shapes.add("both ways")
            elif len(same) == 3:
                shapes.add("half deaf")
            elif [cut[1:] for cut in cuts].count((source, target)) > 2:
                shapes.add("flapping")
            else:
                shapes.add("one way")
    assert shapes == {"both ways", "half deaf", "flapping", "one way"}


@pytest.mark.parametrize("seed", range(20 if CAMPAIGN else 2))
def test_without_nodes_everything_completes_when_links_are_mended(seed: int) -> None:
    assert Simulation(Scenario(faults="links"), seed).run().violation is None
