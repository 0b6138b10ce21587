"""Cut links between nodes of the store: relays make up for them, and no partition is silent for long."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from kvstore.node.handover import HandOvers, _rank
from kvstore.node.loop import Node
from kvstore.simulation import StoreCluster
from kvstore.simulation.availability import CutLinks, connected, core
from kvstore.wire.messages import Hearing
from multicast.protocol import Protocol, Timing
from multicast.sim import Outcome, Simulation, Workload
from multicast.sim.faults import CutLink, MendLink, schedule
from multicast.sim.run import Scenario
from multicast.topology import Topology
from multicast.types import GroupId, ReplicaId
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


FAR = 2
"""A seed whose lasting cuts leave two of five nodes without a neighbour in common."""


@pytest.mark.parametrize("seed", range(40) if CAMPAIGN else [FAR])
def test_five_nodes_serve_while_links_stay_cut(seed: int) -> None:
    outcome, simulation = run(seed, replicas=5)
    assert outcome.violation is None
    if seed == FAR:
        assert not connected(simulation.lasting, range(5))
        assert any(simulation.hand_overs().values())


# Leaders without a common neighbour

APART = {(0, 2), (2, 3), (2, 4), (3, 4), (3, 1)}
"""The links that are left of five nodes. The first two, which lead, have no neighbour in common; the other
three reach all nodes."""


class Apart(StoreCluster):
    """Five nodes without clients, most of whose links are cut after a while."""

    def __init__(
        self,
        seed: int = 0,
        hand_overs: type[HandOvers] = HandOvers,
        *,
        replicas: int = 5,
        election_s: float = 0.4,
    ) -> None:
        timing = Timing(history=6, part_entries=4, give_back_s=8.0, election_s=election_s)
        nothing = Workload(clients=0, messages=0)
        super().__init__(scenario_of("none", 3, replicas, workload=nothing, timing=timing), seed)
        self.node_type = with_hand_overs(hand_overs)
        self.start()
        self.wait(3.0)

    def wait(self, seconds: float) -> None:
        self.run_until(lambda: False, self.loop.now + seconds)

    def cut(self) -> None:
        """Cut a link after the other, so that relays keep all connected up to the last one: no leader loses
        its quorum.
        """
        for one, other in ((0, 1), (0, 4), (1, 2), (1, 4), (0, 3)):
            assert connected(self.cut_links, range(5))
            self.inject(CutLink(one, other))
            self.inject(CutLink(other, one))
            self.wait(1.0 if (one, other) != (0, 3) else 0.0)

    def mend(self) -> None:
        for link in list(self.cut_links):
            self.inject(MendLink(*link))

    def leaders(self) -> dict[int, int]:
        """The machine that leads each group."""
        return {
            replica.group: number
            for number, machine in self.machines.items() if machine.node is not None
            for replica in machine.node.leading()
        }  # fmt: skip

    def moves(self) -> int:
        return sum(m.node.hand_overs.count for m in self.machines.values() if m.node is not None)


def with_hand_overs(hand_overs: type[HandOvers]) -> type[Node]:
    """A node with another rule of when to hand over."""

    class Changed(Node):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            own = self.hand_overs
            self.hand_overs = hand_overs(own._reach, own._node_of, own._behind, own._rng)

    return Changed


def check_hand_over(seed: int, hand_overs: type[HandOvers] = HandOvers) -> None:
    """Leaders that do not reach each other hand over within two seconds, and then stay."""
    run = Apart(seed, hand_overs)
    assert run.leaders() == {0: 0, 1: 1, 2: 2}
    run.cut()
    run.wait(2.0)
    leaders = run.leaders()
    assert sorted(leaders) == [0, 1, 2]
    assert leaders[0] not in (0, 1) or leaders[1] not in (0, 1), "one of them has moved"
    run.wait(3.0)
    assert {0, 1}.isdisjoint(run.leaders().values()), "they do not reach all nodes, and so not all clients"
    settled, moves = run.leaders(), run.moves()
    assert 1 <= moves <= 2, "the other one may have been moved by an election"
    run.wait(20.0)
    assert (run.leaders(), run.moves()) == (settled, moves), "preferred leaders get nothing back meanwhile"
    run.mend()
    run.wait(20.0)
    assert (run.leaders(), run.moves()) == ({0: 0, 1: 1, 2: 2}, moves), "and get it back afterwards"


@pytest.mark.parametrize("seed", range(30 if CAMPAIGN else 2))
def test_a_leader_that_does_not_reach_another_hands_over_within_two_seconds(seed: int) -> None:
    check_hand_over(seed)


@pytest.mark.parametrize("seed", range(20 if CAMPAIGN else 2))
def test_no_leader_hands_over_while_nodes_only_crash(seed: int) -> None:
    run = Apart(seed)
    rng = random.Random(seed)
    for _ in range(6):
        run.crash(rng.choice(list(run.hosts)), rng.choice((0.1, 0.5, 3.0)))
        run.wait(rng.choice((0.3, 2.0)))
        assert run.moves() == 0
    run.wait(10.0)
    assert run.moves() == 0
    assert sorted(run.leaders()) == [0, 1, 2]


def check_pauses(seed: int, hand_overs: type[HandOvers] = HandOvers) -> None:
    """A node that stops for a moment, as for a garbage collection, now and then, keeps its group; and
    nobody gives it another one.
    """
    run = Apart(seed, hand_overs, replicas=3, election_s=1.6)
    run.wait(2.0)
    assert run.leaders() == {0: 0, 1: 1, 2: 2}
    rng = random.Random(seed)
    for _ in range(6):
        pause_s = rng.choice((0.5, 0.8))
        run.machines[0].pause(pause_s)
        run.wait(pause_s + rng.choice((0.5, 1.0, 2.0)))
        assert (run.moves(), run.leaders()) == (0, {0: 0, 1: 1, 2: 2})


@pytest.mark.parametrize("seed", range(20 if CAMPAIGN else 2))
def test_no_leader_hands_over_while_a_node_stops_for_shorter_than_an_election_takes(seed: int) -> None:
    check_pauses(seed)


class HandsOverToTheSilent(HandOvers):
    """A leader hands over to a member by what this has said, also if it does not reach it any more."""

    def _compared(self, replica: Protocol, own: Hearing) -> tuple[list[ReplicaId], frozenset[ReplicaId]]:
        better, worse = super()._compared(replica, own._replace(apart=()))
        return better, worse

    def _is_better(self, one: Hearing, other: Hearing, group: GroupId) -> bool:
        first, second = _rank(one, group), _rank(other, group)
        return first > second


def test_leaders_that_hand_over_to_silent_members_are_caught() -> None:
    with pytest.raises(AssertionError):
        check_pauses(0, HandsOverToTheSilent)


class NeverHandsOver(HandOvers):
    """A leader stays, whatever it does not reach."""

    def _look(self, replica: Protocol, own: Hearing, now: float) -> bool:
        return False


class HandsOverToLess(HandOvers):
    """A leader prefers members that reach less."""

    def _is_better(self, one: Hearing, other: Hearing, group: GroupId) -> bool:
        return super()._is_better(other, one, group)


class HandsOverToEquals(HandOvers):
    """A leader hands over to a member that reaches as much, and so gets the group back, again and again."""

    def _compared(self, replica: Protocol, own: Hearing) -> tuple[list[ReplicaId], frozenset[ReplicaId]]:
        better, worse = super()._compared(replica, own)
        return better or [m for m in replica.readers[0] if m != replica.me and m not in worse], worse


class GivesBackToAnyone(HandOvers):
    """A preferred leader gets its group back although it reaches less."""

    def _look(self, replica: Protocol, own: Hearing, now: float) -> bool:
        asked = super()._look(replica, own, now)
        replica.avoided = ()
        return asked


@pytest.mark.parametrize(
    ("mutant", "found"),
    [
        (HandsOverToLess, ("Availability", "Termination", "Stability")),
        # Many seeds, and a schedule of their own below.
        *([(NeverHandsOver, ("Availability", "Termination"))] if CAMPAIGN else []),
        *([(HandsOverToEquals, ("Stability", "Availability"))] if CAMPAIGN else []),
    ],
)
def test_leaders_that_hand_over_wrongly_are_caught(mutant: type[HandOvers], found: tuple[str, ...]) -> None:
    for seed in range(FAR, 20):
        outcome, _ = run(seed, with_hand_overs(mutant), replicas=5)
        if outcome.violation is not None:
            assert outcome.violation.startswith(found), outcome.violation
            return
    pytest.fail(f"{mutant.__name__} came through")


@pytest.mark.parametrize("mutant", [NeverHandsOver, GivesBackToAnyone, HandsOverToEquals])
def test_groups_that_do_not_stay_where_they_are_served_are_caught(mutant: type[HandOvers]) -> None:
    with pytest.raises(AssertionError):
        check_hand_over(0, mutant)


# Nodes that do not relay


class NeverRelays(Node):
    """A node that sends all frames directly."""

    def turn(self) -> None:
        self.relays._routes.clear()
        super().turn()


class DoesNotPassOn(with_hand_overs(NeverHandsOver)):  # type: ignore[misc]  # made at run time
    """A node that does not tell others what it is told, so that cuts in both directions are not noticed.

    Hand-over would make up for it: among three nodes, one in the middle of two links reaches all.
    """

    def turn(self) -> None:
        for row in self.relays.reach._rows.values():
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


def test_a_core_is_a_majority_that_reaches_all() -> None:
    def cut_but(*whole: tuple[int, int]) -> list[tuple[int, int]]:
        links = itertools.permutations(range(5), 2)
        return [link for link in links if link not in whole and link[::-1] not in whole]

    assert core(cut_but(*APART), range(5)) == (2, 3, 4)
    assert not connected(cut_but(*APART), range(5))
    assert not core(cut_but(*(APART - {(3, 4)})), range(5)), "not all of the three are connected"
    assert not core(cut_but(*(APART - {(3, 1)})), range(5)), "a machine that no other reaches"
    assert not core([*cut_but(*APART), (2, 0)], range(5)), "one direction does not suffice"
    assert core([], range(3)) == (0, 1)


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
