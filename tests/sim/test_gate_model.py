"""Strictness needs the reply gate: with it no history has a cycle, and without any part of it some have."""

from __future__ import annotations

import pytest

from kvstore.machine.request import Footprint
from kvstore.store.gate import Gate
from multicast.types import GroupId, timestamp
from tests.sim import gate_mutants as mutants
from tests.sim.gate_model import GateType, NotClosed, Transaction, Workload, World, cycle
from tests.sim.gate_schedules import COPIES, OVERWRITES, READS, Links, conflict, falling_path

GATE: GateType = Gate[Transaction]


def test_four_transactions_make_a_cycle_without_the_gate() -> None:
    assert set(cycle(falling_path(None))) == {"Z0", "link0", "T2", "Z1"}


@pytest.mark.parametrize("new_leader", [False, True])
@pytest.mark.parametrize("links", [READS, COPIES, OVERWRITES])
@pytest.mark.parametrize("hops", range(1, 5))
def test_no_path_makes_a_cycle_with_the_gate(hops: int, links: Links, *, new_leader: bool) -> None:
    world = falling_path(GATE, hops, links, new_leader=new_leader)
    assert not cycle(world)
    assert all(transaction.responded is not None for transaction in world.history)
    assert all(not group.gate for group in world.groups)


@pytest.mark.parametrize("hops", range(1, 5))
def test_a_read_that_a_deposed_leader_answers_makes_no_cycle(hops: int) -> None:
    world = falling_path(GATE, hops, OVERWRITES, deposed=True)
    assert not cycle(world)
    assert all(transaction.responded is not None for transaction in world.history)
    assert cycle(falling_path(mutants.NewLeaderInheritsWhatItHasDelivered, hops, OVERWRITES, deposed=True))


@pytest.mark.parametrize("hops", range(1, 5))
def test_a_path_makes_a_cycle_with_fewer_levels_than_it_has_hops(hops: int) -> None:
    assert cycle(falling_path(mutants.with_levels(hops - 1), hops))
    assert not cycle(falling_path(mutants.with_levels(hops), hops))


@pytest.mark.parametrize(
    ("mutant", "hops", "links", "new_leader"),
    [
        (mutants.OneLevelTooFew, 3, READS, False),
        (mutants.ReachOfOneHop, 3, READS, False),
        (mutants.SingleGroupPassesNothingOn, 1, COPIES, False),
        (mutants.ReadsRaiseNothing, 1, OVERWRITES, False),
        (mutants.ReadsDoNotConflict, 1, OVERWRITES, False),
        (mutants.NewLeaderForgets, 1, READS, True),
    ],
)
def test_a_schedule_catches(mutant: GateType, hops: int, links: Links, *, new_leader: bool) -> None:
    assert cycle(falling_path(mutant, hops, links, new_leader=new_leader))


def test_random_histories_have_cycles_without_the_gate() -> None:
    """About one in four, in histories of 80 transactions."""
    cycles = sum(bool(cycle(Workload(seed, None).run())) for seed in range(200))
    assert 25 <= cycles <= 75


def test_random_histories_have_no_cycles_with_the_gate() -> None:
    for seed in range(150):
        assert not cycle(Workload(seed, GATE, check_closed=seed % 4 == 0).run()), seed


def test_contended_histories_have_no_cycles_with_leader_changes_and_lost_announcements() -> None:
    for seed in range(20):
        world = Workload(
            seed, GATE, transactions=20, keys=3, leader_changes=True, loses=True, check_closed=True
        ).run()
        assert not cycle(world), seed


@pytest.mark.parametrize(
    "mutant",
    [
        mutants.with_levels(1),
        mutants.OneLevelTooFew,
        mutants.ReachOfOneHop,
        mutants.AnnouncesAboveDelivered,
    ],
)
def test_what_is_taken_for_closed_too_early_is_noticed(mutant: GateType) -> None:
    with pytest.raises(NotClosed):
        Workload(0, mutant, transactions=20, keys=3, check_closed=True).run()


def rate(gate: GateType | None, clients: int = 512, delays: int = 40) -> float:
    """Transactions per delay, of clients in closed loops on two groups, with keys of their own."""
    world = World(2, lambda what, name, group: 0.0 if what == "execute" else 1.0, gate)

    def invoke(client: str) -> None:
        footprint = Footprint(writes=(client.encode(),))
        world.invoke(client, {GroupId(0): footprint, GroupId(1): footprint})

    world.on_response = lambda transaction: invoke(transaction.name)
    for client in range(clients):
        world.after(client / clients, lambda client=client: invoke(str(client)))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    world.run(until=delays)
    return sum((transaction.responded or 0) > delays / 2 for transaction in world.history) / (delays / 2)


def test_the_gate_is_not_serial(monkeypatch: pytest.MonkeyPatch) -> None:
    # Clients conflict with themselves, and clocks run 180 ticks in a delay: as far ahead as in a second.
    monkeypatch.setattr("kvstore.store.gate.AHEAD", timestamp(10_000, GroupId(0)))
    ungated = rate(None)
    assert rate(GATE) > 0.9 * ungated
    assert rate(mutants.Serial) < 0.05 * ungated


def test_an_answer_that_is_held_waits_for_a_question_and_its_answer() -> None:
    assert conflict(None) == 0.0
    assert conflict(GATE) <= 2.0
    assert conflict(GATE, late=4.0) <= 4.0, "that is when the other group delivers, and announces it at once"
    assert conflict(GATE, web=True) <= 4.0


@pytest.mark.parametrize(
    ("mutant", "late", "web"),
    [
        (mutants.NeverAsks, 0.0, False),
        (mutants.ForgetsTheQuestion, 4.0, False),
        (mutants.KeepsTheQuestionToItself, 0.0, True),
    ],
)
def test_a_schedule_catches_who_does_not_ask_or_answer(mutant: GateType, late: float, *, web: bool) -> None:
    assert conflict(mutant, late=late, web=web) > conflict(GATE, late=late, web=web) + 2.0


def left_open(gate: GateType, *, loses: bool) -> bool:
    """Whether anything is open long after all messages have arrived, in any of some histories."""
    found = 0
    for seed in range(5):
        workload = Workload(seed, gate, keys=3 if loses else 1_000_000, loses=loses)
        workload.world.run(until=20_000.0)
        found += sum(len(group.gate or ()) for group in workload.world.groups)
    return bool(found)


@pytest.mark.parametrize(("mutant", "loses"), [(mutants.AsksOnce, True), (mutants.PutsOffForEver, False)])
def test_without_announcements_something_stays_open(mutant: GateType, *, loses: bool) -> None:
    assert left_open(mutant, loses=loses)
    assert not left_open(GATE, loses=loses)
