"""Simulated time and links: FIFO inside a connection, lossy between connections."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast.sim.network import Delays, Loop, Network
from multicast.types import ClientId, GroupId, Process, ReplicaId
from tests.unit.multicast.replicas import EXAMPLES

A, B, C = (ReplicaId(GroupId(0), number, 0) for number in range(3))
D = ClientId(1)


class Wire:
    """A network, and what arrived."""

    def __init__(self, seed: int = 0, delays: Delays | None = None) -> None:
        self.loop = Loop()
        self.arrived: list[tuple[Process, Process, object]] = []
        self.at: list[float] = []
        self.network = Network(
            self.loop, random.Random(seed), delays or Delays(0.001, 0.5, tail=0.3), self.receive
        )

    def receive(self, source: Process, target: Process, message: object) -> None:
        self.arrived.append((source, target, message))
        self.at.append(self.loop.now)

    def run(self, until: float = float("inf")) -> None:
        while (at := self.loop.peek()) is not None and at <= until:
            self.loop.step()

    def between(self, source: Process, target: Process) -> list[object]:
        return [m for s, t, m in self.arrived if (s, t) == (source, target)]


@EXAMPLES
@given(st.lists(st.tuples(st.floats(0, 10), st.integers()), max_size=20))
def test_events_happen_in_the_order_of_time_then_of_setting(events: list[tuple[float, int]]) -> None:
    loop, happened = Loop(), list[tuple[float, int]]()

    def happen(time: float, number: int) -> None:
        assert loop.now == time
        happened.append((time, number))

    for time, number in events:
        loop.at(time, happen, time, number)
    while loop.step():
        pass
    assert happened == sorted(events, key=lambda event: event[0])
    assert not loop.step()
    assert loop.peek() is None


def test_time_never_goes_back() -> None:
    loop, times = Loop(), list[float]()
    loop.at(5.0, lambda: loop.at(1.0, lambda: times.append(loop.now)))
    loop.step()
    assert loop.peek() == 5.0
    loop.step()
    assert times == [5.0]


@EXAMPLES
@given(st.integers(0, 1000), st.lists(st.floats(0, 0.2), min_size=1, max_size=30))
def test_a_link_is_fifo_however_long_each_message_takes(seed: int, gaps: list[float]) -> None:
    wire = Wire(seed)
    for number, gap in enumerate(gaps):
        wire.run(wire.loop.now + gap)
        wire.network.send(A, B, number)
    wire.run()
    assert wire.between(A, B) == list(range(len(gaps)))
    assert wire.at == sorted(wire.at)


def test_other_links_are_not_held_up() -> None:
    wires = [Wire(seed) for seed in range(40)]
    overtaken = 0
    for wire in wires:
        wire.network.send(A, B, "first")
        wire.network.send(C, B, "second")
        wire.run()
        assert len(wire.arrived) == 2
        overtaken += wire.arrived[0][2] == "second"
    assert 0 < overtaken < 40


def test_equal_bounds_take_exactly_that_long() -> None:
    wire = Wire(delays=Delays(0.25, 0.25, tail=1.0))
    wire.network.send(A, B, "x")
    wire.run()
    assert wire.at == [0.25]


def test_a_reset_loses_what_is_in_flight_and_nothing_else() -> None:
    wire = Wire(delays=Delays(0.1, 0.1))
    wire.network.send(A, B, "arrived before")
    wire.run()
    wire.network.send(A, B, "in flight")
    wire.network.send(B, A, "the other way")
    wire.network.send(A, C, "another link")
    wire.network.reset(A, B)
    wire.network.send(A, B, "on the new connection")
    wire.run()
    assert wire.between(A, B) == ["arrived before", "on the new connection"]
    assert wire.between(B, A) == ["the other way"]
    assert wire.between(A, C) == ["another link"]
    assert (wire.network.sent, wire.network.delivered) == (5, 4)


def test_a_new_connection_does_not_wait_for_the_old_one() -> None:
    waited = 0
    for seed in range(40):
        wire = Wire(seed, Delays(0.001, 10.0, tail=0.0))
        for _ in range(20):
            wire.network.send(A, B, "slow")
        wire.network.reset(A, B)
        wire.network.send(A, B, "new")
        wire.run()
        assert wire.between(A, B) == ["new"]
        # The slowest of twenty takes longer than this, in all but a few of the runs.
        waited += wire.at[0] > 7.0
    assert waited < 30


@pytest.mark.parametrize("resets", range(1, 6))
def test_what_an_old_connection_carried_never_arrives_later(resets: int) -> None:
    wire = Wire()
    for number in range(resets):
        wire.network.send(A, B, number)
        wire.network.reset(A, B)
    wire.run()
    assert wire.arrived == []


def test_a_cut_is_one_way_and_loses_what_is_in_flight() -> None:
    wire = Wire(delays=Delays(0.1, 0.1))
    wire.network.send(A, B, "in flight")
    wire.network.cut(A, B)
    wire.network.send(A, B, "cut")
    wire.network.send(B, A, "the other way")
    wire.network.send(C, B, "another link")
    wire.run()
    assert wire.between(A, B) == []
    assert wire.between(B, A) == ["the other way"]
    assert wire.between(C, B) == ["another link"]


def test_healing_lets_new_messages_pass_and_brings_no_old_ones_back() -> None:
    wire = Wire(delays=Delays(0.1, 0.1))
    wire.network.cut(A, B)
    wire.network.cut(D, C)
    wire.network.send(A, B, "cut")
    wire.network.heal()
    wire.network.send(A, B, "healed")
    wire.network.send(D, C, "healed too")
    wire.run()
    assert wire.arrived == [(A, B, "healed"), (D, C, "healed too")]


def test_a_restart_loses_what_is_in_flight_on_all_its_links() -> None:
    wire = Wire(delays=Delays(0.1, 0.1))
    links: list[tuple[Process, Process]] = [(A, B), (B, A), (B, D), (A, C), (D, B)]
    for source, target in links:
        wire.network.send(source, target, "x")
    wire.network.supersede(B)
    wire.run()
    assert wire.arrived == [(A, C, "x")]


def test_a_restart_does_not_heal_a_cut() -> None:
    wire = Wire()
    wire.network.cut(A, B)
    wire.network.supersede(B)
    wire.network.send(A, B, "x")
    wire.run()
    assert wire.arrived == []


@EXAMPLES
@given(st.integers(0, 10**6))
def test_delays_keep_their_bounds(seed: int) -> None:
    delays, rng = Delays(0.001, 0.01, tail=0.5), random.Random(seed)
    for _ in range(20):
        assert 0.001 <= delays.sample(rng) <= 0.2


def test_the_same_seed_gives_the_same_run() -> None:
    def times(seed: int) -> list[float]:
        wire = Wire(seed)
        for number in range(10):
            wire.network.send(A, B, number)
            wire.network.send(B, A, number)
        wire.run()
        return wire.at

    assert times(1) == times(1)
    assert times(1) != times(2)
