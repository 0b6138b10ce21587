"""Plans: an invalid field is named, shares add up, and destinations are random."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from benchmarks.load import Plan, PlanError
from benchmarks.load.plan import COMBINATIONS_MAX, chooser
from multicast import PROTOCOLS, VARIANTS
from multicast.protocol import Timing


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"protocol": "whitebux"}, r"protocol: 'whitebux' is not one of .*did you mean whitebox\?"),
        ({"protocol": "skeen", "replicas": 3}, "replicas: Skeen's protocol has groups of 1, not 3"),
        ({"level": "disk"}, "level: 'disk' is not one of multicast, store"),
        ({"groups": 0}, "groups: 0 is not in 1.."),
        ({"groups": True}, "groups: True is not in 1.."),
        ({"replicas": 4}, "replicas: 4 is even"),
        ({"replicas": -1}, "replicas: -1 is not in 1.."),
        ({"groups": 2, "dest": 3}, "dest: 3 is not in 1..2: there are 2 groups"),
        ({"dest": 0}, "dest: 0 is not in"),
        ({"clients": 0}, "clients: 0 is not in 1.."),
        ({"clients": 2, "processes": 3}, "clients: 2 is not in 3..1000000: 3 processes need one each"),
        ({"clients": None}, "clients: a closed loop needs a number"),
        ({"rate": 0.0}, "rate: 0.0 is not a positive number"),
        ({"rate": float("nan")}, "rate: nan is not a positive number"),
        ({"rate": float("inf")}, "rate: inf is not"),
        ({"payload": -1}, "payload: -1 is not in 0.."),
        ({"processes": 0}, "processes: 0 is not in"),
        ({"warm_up_s": -1.0}, "warm_up_s: -1.0 is not a duration of 0 s or more"),
        ({"seconds": 0.0}, "seconds: 0.0 is not a positive"),
        ({"rounds": 0}, "rounds: 0 is not in"),
        ({"patience_s": 0.0}, "patience_s: 0.0 is not"),
        ({"durability": "none"}, "durability: 'none' is not one of fsync, os"),
        ({"clock": "wall"}, "clock: 'wall' is not one of hybrid, logical"),
        ({"level": "store", "clock": "logical"}, 'clock: "logical" is not valid at the store level'),
        ({"level": "store", "regions": True}, "regions: clients of the store have no region"),
        ({"conditions": True}, "conditions: only transactions have conditions"),
        ({"keys": 100}, "keys: only transactions have keys"),
        ({"level": "store", "keys": -1}, "keys: -1 is not in 0..1000000000"),
    ],
)
def test_an_invalid_field_is_named(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        Plan(**wrong)


@pytest.mark.parametrize("protocol", PROTOCOLS | VARIANTS)
def test_every_protocol_has_its_usual_groups(protocol: str) -> None:
    plan = Plan(protocol=protocol)
    assert plan.replicas == (1 if protocol == "skeen" else 3)
    assert plan.nodes == 3


def test_clocks_are_logical_unless_it_is_the_store() -> None:
    assert (Plan().clock, Plan(clock="hybrid").clock, Plan(level="store").clock) == (
        "logical", "hybrid", "hybrid",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("clients", "processes", "lanes"), [*itertools.product((7, 64, 1000), (1, 3, 7), (1, 3))]
)
def test_shares_are_even_and_add_up(clients: int, processes: int, lanes: int) -> None:
    plan = Plan(clients=clients, processes=processes)
    shares = [plan.share(process, lane, lanes) for process in range(processes) for lane in range(lanes)]
    found = [share for share in shares if share is not None]
    assert sum(found) == clients
    assert max(found) - min(found) <= 1


def test_a_plan_goes_to_another_process_as_it_is() -> None:
    plan = Plan(protocol="skeen", clients=None, rate=5.0, seed=9, timing=Timing(retry_s=3.0))
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


@pytest.mark.parametrize(("groups", "dest"), [(10, 1), (10, 4), (3, 3), (40, 20)])
def test_destinations_are_random_sets(groups: int, dest: int) -> None:
    one, same, other = (chooser(groups, dest, random.Random(seed)) for seed in (1, 1, 2))
    drawn = [one() for _ in range(4000)]
    assert drawn == [same() for _ in range(4000)]
    assert dest == groups or drawn != [other() for _ in range(4000)]
    for each in drawn:
        assert each == tuple(sorted(set(each)))
        assert len(each) == dest
    counts = Counter(group for each in drawn for group in each)
    for group in range(groups):
        assert counts[group] == pytest.approx(4000 * dest / groups, rel=0.2)
    assert len(set(drawn)) > min(COMBINATIONS_MAX, 4000) / 2 or len(set(drawn)) == {1: 10, 4: 210, 3: 1}[dest]
