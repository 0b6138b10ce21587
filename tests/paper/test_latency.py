"""Latency: Section 5's theorems, with links that take a time δ = 1 and disks that take none.

C = 2δ until clocks have passed m, D = 3δ until leaders commit m, so the failure-free latency is C + D = 5δ
(Theorem *ffl*); followers need one more for DELIVER.
"""

from __future__ import annotations

import itertools
import random

import pytest

from multicast.messages import Message, Multicast
from multicast.types import GroupId, Process, timestamp
from tests.paper.bench import ANN, BOB, A, B, Bench, C

EPSILON = 0.001


def constant(source: Process, target: Process, message: Message) -> float:
    """Every link takes exactly δ."""
    return 1.0


def ahead_at_b() -> Bench:
    """B's clock is ahead, so that B decides the global timestamp of a message to {A, B}."""
    bench = Bench(groups=2)
    bench.raise_clock(B, by=9)
    bench.delay = constant
    return bench


@pytest.mark.parametrize("dest", [(A,), (A, B), (A, B, C)])
def test_collision_free_latency(dest: tuple[GroupId, ...]) -> None:
    """Figure *flow*; Theorem *cfl*: MULTICAST, ACCEPT, ACCEPT_ACK take leaders 3δ; DELIVER, followers 4δ."""
    bench = Bench(groups=3)
    bench.delay = constant
    m = bench.multicast(*dest, pump=True)
    for member in bench.members(*dest):
        expected = 3.0 if bench[member].is_leader else 4.0
        assert bench.machines[member].delivered_at == {m.mid: expected}


def test_clock_update_latency() -> None:
    """Section 5; Figure *protocol*, line 15: all clocks pass gts[m] after 2δ, before anybody commits m."""
    bench = ahead_at_b()
    m = bench.multicast(A, B)
    bench.pump(until=2.0 - EPSILON)
    assert [bench[member].clock for member in bench.members(A)] == [1, 0, 0]
    bench.pump(until=2.0)
    assert [bench[member].clock for member in bench.members(A)] == [10, 10, 10]
    assert bench.log(bench.leader(A)) == []
    bench.pump()
    assert bench.global_ts(m) == timestamp(10, B)


def convoy(arrival: float) -> tuple[float, float]:
    """Figure *convoy*: a conflicting m' reaches A's leader at this time, at once, but takes δ to B's leader.

    When m, multicast at 0, is delivered at A's leader and at a follower.
    """
    bench = ahead_at_b()
    a0, a1 = bench.members(A)[:2]

    def delay(source: Process, target: Process, message: Message) -> float:
        return 0.0 if (source, target) == (BOB, a0) else 1.0

    bench.delay = delay
    m = bench.multicast(A, B, client=ANN)
    bench.send(bench.message(A, B, client=BOB), at=arrival, pump=True)
    assert len(bench.log(a0)) == 2
    bench.check_order()
    return bench.machines[a0].delivered_at[m.mid], bench.machines[a1].delivered_at[m.mid]


def test_convoy_just_before_the_clock_update() -> None:
    """Figure *convoy* for the white-box protocol; Theorem *ffl*: up to C + D = 5δ, 6δ at followers.

    m' comes just before A's clock passes m, gets a lower local timestamp, and m waits until m' is committed:
    δ to B's leader, δ for its ACCEPT, δ for ACCEPT_ACKs.
    """
    assert convoy(2.0 - EPSILON) == pytest.approx((5.0 - EPSILON, 6.0 - EPSILON))


def test_convoy_just_after_the_clock_update() -> None:
    """Section 5, proof of Theorem *ffl*: a message that arrives after the clock update comes after m."""
    assert convoy(2.0 + EPSILON) == (3.0, 4.0)


def test_convoy_with_constant_delays() -> None:
    """Figure *convoy*, where m' takes δ to both leaders: it is sent δ earlier, and costs m δ less."""
    latencies = []
    for sent_at in (1.0 - EPSILON, 1.0 + EPSILON):
        bench = ahead_at_b()
        m = bench.multicast(A, B, client=ANN)
        bench.send(bench.message(A, B, client=BOB), at=sent_at, pump=True)
        latencies.append(bench.machines[bench.leader(A)].delivered_at[m.mid])
    assert latencies == pytest.approx([4.0 - EPSILON, 3.0])


def test_failure_free_latency_is_bounded() -> None:
    """Theorem *ffl*: with delays of at most δ, no message takes more than 5δ to leaders, 6δ to followers.

    Messages to random groups, sent at random times, whose MULTICASTs often arrive at once at one leader and
    late at another: the search must come close to the bound, and never pass it.
    """
    worst = {True: 0.0, False: 0.0}
    for seed in range(40):
        rng = random.Random(seed)

        def delay(source: Process, target: Process, message: Message, rng: random.Random = rng) -> float:
            return rng.choice((0.0, 1.0)) if isinstance(message, Multicast) else rng.choice((0.9, 1.0))

        bench = Bench(groups=3)
        bench.raise_clock(C, by=20)
        bench.delay = delay
        sent_at = {}
        for number, client in itertools.product(range(12), (ANN, BOB)):
            m = bench.message(*rng.sample((A, B, C), rng.randint(1, 3)), client=client)
            sent_at[m.mid] = 0.5 * (number + rng.random())
            bench.send(m, at=sent_at[m.mid])
        bench.pump()
        for member in bench.members(A, B, C):
            for mid, start in sent_at.items():
                end = bench.machines[member].delivered_at.get(mid, start)
                worst[bench[member].is_leader] = max(worst[bench[member].is_leader], end - start)
        assert {mid for m in bench.members(A, B, C) for mid in bench.log(m)} >= set(sent_at)
    assert 4.5 < worst[True] <= 5.0 + EPSILON
    assert 5.5 < worst[False] <= 6.0 + EPSILON
