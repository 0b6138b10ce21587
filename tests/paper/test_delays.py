"""The paper's comparison of protocols, in message delays and in messages, as the simulator measures it."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from multicast import PROTOCOLS, VARIANTS
from multicast.errors import InvalidArgument
from multicast.sim import Scenario, Simulation
from multicast.sim.delays import Experiment, Latency, Measured, cost, measure
from multicast.skeen import FtSkeen, Skeen
from multicast.topology import Topology
from multicast.types import ReplicaId
from multicast.whitebox import Entry, WhiteBox
from tests.paper.bench import A, B

ALL = PROTOCOLS | VARIANTS


@cache
def measured(name: str) -> Measured:
    return measure(ALL[name], grid=2)


@pytest.mark.parametrize(
    ("name", "collision_free", "failure_free"),
    [
        ("skeen", (2, None), (4, None)),
        ("ftskeen", (6, 7), (12, 13)),
        ("fastcast", (4, 5), (8, 9)),
        ("whitebox", (3, 4), (5, 6)),
        ("whitebox-everywhere", (3, 3), (5, 5)),
    ],
)
def test_latencies(
    name: str, collision_free: tuple[int, int | None], failure_free: tuple[int, int | None]
) -> None:
    """At leader and follower: alone, and the worst that a conflicting message on the grid can do."""
    assert measured(name).collision_free == Latency(*collision_free)
    assert measured(name).failure_free == Latency(*failure_free)


@pytest.mark.parametrize(("name", "leader"), [("ftskeen-eager", 10), ("fastcast-eager", 6)])
def test_clocks_that_do_not_wait_shorten_the_convoy(name: str, leader: int) -> None:
    paper = measured(name.removesuffix("-eager"))
    assert measured(name).collision_free == paper.collision_free
    assert measured(name).failure_free.leader == leader < paper.failure_free.leader


@pytest.mark.parametrize("name", ALL)
def test_theorem_4(name: str) -> None:
    """FFL = C + CFL, where C is measured at the clocks and FFL is what the search found."""
    it = measured(name)
    assert it.theorem_holds
    assert it.failure_free.leader == it.clock_update + it.collision_free.leader


@pytest.mark.parametrize(
    ("name", "clock", "commit"), [("skeen", 2, 2), ("ftskeen", 6, 6), ("fastcast", 4, 4), ("whitebox", 2, 3)]
)
def test_clock_update_and_commit_latency(name: str, clock: int, commit: int) -> None:
    assert (measured(name).clock_update, measured(name).commit) == (clock, commit)


def test_the_worst_case_arrives_when_the_clock_is_about_to_pass() -> None:
    for it in map(measured, ALL):
        assert it.worst_arrivals == (it.clock_update, it.clock_update + 1)


def test_with_exactly_one_delay_on_every_link_the_convoy_is_shorter() -> None:
    """If m' reaches both leaders at once, its ordering takes a delay less from then on."""
    worst = 0.0
    for eighth in range(8 * 5):
        experiment = Experiment(WhiteBox, 2, 3)
        experiment.conflict((eighth / 8, eighth / 8))
        experiment.multicast()
        experiment.rest()
        worst = max(worst, experiment.latency(at_leaders=True) or 0.0)
    assert worst == 4


class SlowWhiteBox(WhiteBox):
    """A leader proposes only when it is asked a second time, by the retry of another group's leader."""

    def _send_proposal(self, entry: Entry) -> None:
        if entry.dest[0] == self.group:
            super()._send_proposal(entry)


def test_a_protocol_that_does_not_deliver_is_found_out() -> None:
    with pytest.raises(InvalidArgument, match="not delivered at every replica"):
        measure(SlowWhiteBox, grid=1)


def messages(name: str, k: int, n: int) -> Counter[str]:
    """What k groups of n say about one message, by kind, from the protocols' descriptions."""
    whitebox = {"Multicast": k, "Accept": k * (k * n - 1), "AcceptAck": k * k * n - k, "Deliver": k * (n - 1)}
    everywhere = {"Multicast": k, "Accept": k * (k * n - 1), "AcceptAck": k * n * (k * n - 1)}
    if name == "whitebox-everywhere":
        return Counter(everywhere)
    rounds = 1 if k == 1 else 2
    votes = rounds * k * (n - 1)
    ftskeen = {
        "Multicast": k,
        "Phase2a": votes,
        "Phase2b": votes,
        "Propose": k * (k - 1),
        "Deliver": k * (n - 1),
    }
    fastcast = ftskeen | {"Propose": 2 * k * (k - 1)}
    return Counter({"whitebox": whitebox, "ftskeen": ftskeen, "fastcast": fastcast, "skeen": ftskeen}[name])


@pytest.mark.parametrize("groups", [1, 2, 4, 6, 8, 10])
@pytest.mark.parametrize("name", [*PROTOCOLS, "whitebox-everywhere"])
def test_messages_per_multicast(name: str, groups: int) -> None:
    size = 1 if name == "skeen" else 3
    said = Counter(type(message).__name__ for _, _, message in cost(ALL[name], groups))
    assert +said == +messages(name, groups, size)


@pytest.mark.parametrize("name", ALL)
def test_only_the_own_leader_sends_the_payload(name: str) -> None:
    """The same payload rule for all: MULTICAST carries it, and what a leader says to its own group."""
    told = 0
    for source, target, message in cost(ALL[name], 2, payload=999):
        if repr(bytes(999)) in repr(message) and isinstance(source, ReplicaId):
            told += 1
            assert isinstance(target, ReplicaId)
            assert source.group == target.group
    assert told == (0 if name == "skeen" else 4), "to two followers in each group"


def test_skeen_is_for_groups_of_one() -> None:
    with pytest.raises(InvalidArgument, match="groups of one process, but group 0 has 3"):
        Simulation(Scenario(Skeen, replicas=3), seed=0)
    with pytest.raises(InvalidArgument, match="group 1 has 5"):
        Skeen.check_topology(
            Topology({A: Topology.uniform(2, 1).members(A), B: Topology.uniform(2, 5).members(B)})
        )
    FtSkeen.check_topology(Topology.uniform(2, 3))
