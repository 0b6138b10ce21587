"""Quorum time: which clocks count, for how long, and up to where."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multicast.messages import AcceptAck, Heartbeat, HeartbeatAck
from multicast.process import Replica
from multicast.protocol import Start, Timing
from multicast.quorum_time import ANCHOR, PACE, Anchor, QuorumTime
from multicast.sim import Scenario, Simulation, Workload
from multicast.topology import Topology
from multicast.types import NO_TIMESTAMP, TICKS_PER_S, TIME_MAX, GroupId, ReplicaId, time_of
from multicast.whitebox import WhiteBox

G0 = GroupId(0)
DAY_S = 86_400.0


def members(size: int) -> tuple[ReplicaId, ...]:
    return Topology.uniform(1, size).members(G0)


def quorum_of(size: int, own_s: float) -> tuple[QuorumTime, tuple[ReplicaId, ...]]:
    """A leader of a group of this size, whose clock stands still."""
    quorum = QuorumTime(members(size)[0], lambda: own_s, fresh_s=0.4)
    quorum.lead(Topology.uniform(1, size).membership(G0).current)
    return quorum, members(size)


def test_it_is_the_highest_time_that_a_quorum_has_reached() -> None:
    """A slow and obvious definition gives the same, for any clocks, of groups of any size."""
    rng = random.Random(1)
    for _ in range(500):
        size = rng.choice((1, 3, 5, 7))
        own_s = rng.choice((10.0, rng.uniform(0, 20), DAY_S, 0.0))
        quorum, everyone = quorum_of(size, own_s)
        heard = [m for m in everyone[1:] if rng.random() < 0.8]
        times = {everyone[0]: own_s}
        for member in heard:
            times[member] = rng.choice((10.0, rng.uniform(0, 20), DAY_S, 0.0))
            quorum.report(member, times[member], 1.0, 1.0)
        reached = [t for t in times.values() if sum(other >= t for other in times.values()) > size // 2]
        expected = int(max(reached) * TICKS_PER_S) if reached else None
        found = quorum.now(1.0)
        assert found == expected or abs((found or 0) - (expected or 0)) <= 1, (size, own_s, times)


@pytest.mark.parametrize("ahead_s", [1.0, DAY_S, 20 * 365 * DAY_S, 1e15, float("inf")])
def test_a_minority_ahead_moves_nothing(ahead_s: float) -> None:
    quorum, everyone = quorum_of(5, 100.0 + ahead_s)
    quorum.report(everyone[1], 100.0 + ahead_s, 0.0, 0.0)
    assert quorum.now(0.0) is None, "two of five are no quorum"
    quorum.report(everyone[2], 100.0, 0.0, 0.0)
    assert quorum.now(0.0) == 100 * TICKS_PER_S
    quorum.report(everyone[3], 99.0, 0.0, 0.0)
    quorum.report(everyone[4], 98.0, 0.0, 0.0)
    assert quorum.now(0.0) == 100 * TICKS_PER_S


def test_one_clock_that_is_behind_does_not_hold_it_back() -> None:
    quorum, everyone = quorum_of(3, 100.0)
    quorum.report(everyone[1], 1.0, 0.0, 0.0)
    quorum.report(everyone[2], 100.0, 0.0, 0.0)
    assert quorum.now(0.0) == 100 * TICKS_PER_S


def test_a_leader_that_is_behind_follows_the_others() -> None:
    quorum, everyone = quorum_of(3, 1.0)
    for member in everyone[1:]:
        quorum.report(member, 100.0, 0.0, 0.0)
    assert quorum.now(0.25) == 100.25 * TICKS_PER_S, "reports are moved on"


def test_reports_are_counted_for_an_election_time_out_since_the_question() -> None:
    quorum, everyone = quorum_of(3, 100.0)
    quorum.report(everyone[1], 100.0, 0.0, 0.3)
    assert quorum.now(0.3) is not None
    assert quorum.now(0.41) is None
    quorum.report(everyone[1], 100.0, 0.0, 5.0)
    assert quorum.now(5.0) is None, "it took five seconds"
    quorum.report(everyone[1], 100.0, 6.0, 5.0)
    assert quorum.now(5.0) is None, "it answers what was not asked yet"
    quorum.report(everyone[1], 100.0, 4.9, 5.0)
    assert quorum.now(5.0) is not None


def test_only_members_of_the_configuration_count_and_only_in_the_ballot() -> None:
    quorum, everyone = quorum_of(3, 100.0)
    quorum.report(everyone[1]._replace(incarnation=7), 100.0, 0.0, 0.0)
    quorum.report(everyone[0], 100.0, 0.0, 0.0)
    assert quorum.now(0.0) is None
    quorum.report(everyone[1], 100.0, 0.0, 0.0)
    assert quorum.now(0.0) == 100 * TICKS_PER_S
    quorum.lead(Topology.uniform(1, 3).membership(G0).current)
    assert quorum.now(0.0) is None
    quorum.report(everyone[1], 100.0, 0.0, 0.0)
    quorum.stop()
    assert quorum.now(0.0) is None


def test_the_own_clock_is_read_each_time() -> None:
    times = iter([5.0, 7.0, 3.0])
    quorum = QuorumTime(members(1)[0], lambda: next(times), 0.4)
    quorum.lead(Topology.uniform(1, 1).membership(G0).current)
    assert [quorum.now(now) for now in (0.0, 0.0, 1.0, 2.0)] == [50_000, 50_000, 70_000, 30_000]


def test_wrong_clocks_are_named() -> None:
    quorum, everyone = quorum_of(3, 100.0)
    assert quorum.wrong(0.0) == {}
    quorum.report(everyone[1], 100.2, 0.0, 0.0)
    quorum.report(everyone[2], 100.0 + DAY_S, 0.0, 0.0)
    assert quorum.wrong(0.0) == {everyone[2]: pytest.approx(DAY_S - 0.2)}


# The anchor


def test_a_group_without_an_anchor_takes_any_time_and_then_a_step_more() -> None:
    anchor = Anchor(0, 0.0, step_s=10.0)
    assert not anchor.holds(TIME_MAX, 0.0)
    anchor.deliver(anchor.next(1_000_000, 5.0), 5.0)
    assert (anchor.ticks, anchor.at) == (1_000_000, 5.0)
    assert not anchor.holds(1_000_000 + 10 * TICKS_PER_S, 5.0)
    assert anchor.holds(1_000_001 + 10 * TICKS_PER_S, 5.0)
    assert not anchor.holds(1_000_001 + 10 * TICKS_PER_S, 5.1)


def test_an_anchor_moves_with_the_time_and_never_back() -> None:
    anchor = Anchor(1_000_000, 5.0, step_s=10.0)
    assert anchor.next(TIME_MAX, 7.0) == 1_000_000 + PACE * 2 * TICKS_PER_S
    assert anchor.next(1_000_007, 7.0) == 1_000_007
    anchor.deliver(999_999, 8.0)
    assert (anchor.ticks, anchor.at) == (1_000_000, 5.0)


def test_anchors_at_most_double_the_time_whatever_the_clocks_show() -> None:
    rng = random.Random(2)
    anchor, now = Anchor(1_000_000, 0.0, step_s=10.0), 0.0
    for _ in range(200):
        now += rng.random()
        time = rng.randrange(TIME_MAX)
        if not anchor.holds(time, now):
            anchor.deliver(anchor.next(time, now), now)
    assert anchor.ticks <= 1_000_000 + PACE * now * TICKS_PER_S


# In a group


def run(walls: dict[int, float], **timing: Any) -> tuple[Simulation, Replica[Any]]:
    """A group of three with these errors of its clocks, led by replica 0."""
    scenario = Scenario(
        groups=1, faults="none", clock="hybrid", wall_skew_s=0.0, skew=0.0, timing=Timing(**timing),
        workload=Workload(clients=2, messages=400, window=1, think_s=0.04), checkers=False,
    )  # fmt: skip
    simulation = Simulation(scenario, 1)
    for member in simulation.hosts:
        clock = simulation.wall_clock(member)
        assert clock is not None
        clock.error_s = walls.get(member.number, 0.0)
    simulation.start()
    simulation.run_until(lambda: False, 2.0)
    replica = simulation.hosts[simulation.topology.preferred_leader(G0)].replica
    assert isinstance(replica, Replica)
    assert replica.is_leader
    return simulation, replica


def lead_of(simulation: Simulation, replica: Replica[Any]) -> float:
    """By how many seconds the group's clock is ahead of the true time."""
    return replica.clock / TICKS_PER_S - 1000.0 - simulation.loop.now


@pytest.mark.parametrize("error_s", [0.0, 0.4, 2.0, DAY_S, 20 * 365 * DAY_S, -2.0, -DAY_S, -1e9])
def test_a_leader_that_is_wrong_alone_follows_the_true_time(error_s: float) -> None:
    simulation, replica = run({0: error_s})
    assert -0.2 < lead_of(simulation, replica) < 0.3
    wrong = replica.time_of_day()["wrong"]
    assert set(wrong) == ({str(replica.me)} if abs(error_s) > 0.5 else set())


def test_the_first_message_of_a_leader_is_at_quorum_time() -> None:
    """It has heard a quorum before it begins to lead."""
    simulation, _ = run({0: DAY_S})
    first = simulation.hosts[simulation.topology.preferred_leader(G0)].log[0]
    assert abs(time_of(first.global_ts) / TICKS_PER_S - 1000.0) < 1.0
    assert time_of(first.global_ts) > 999 * TICKS_PER_S


def test_clocks_that_step_while_running_change_nothing() -> None:
    simulation, replica = run({})
    for by_s in (DAY_S, -2 * DAY_S, DAY_S + 3600.0):
        clock = simulation.wall_clock(replica.me)
        assert clock is not None
        clock.step(by_s)
        before = replica.clock
        simulation.run_until(lambda: False, simulation.loop.now + 1.0)
        assert before < replica.clock
        assert -0.2 < lead_of(simulation, replica) < 0.3


def test_a_wrong_majority_gets_no_further_than_the_step() -> None:
    simulation, replica = run({}, clock_step_s=10.0, anchor_s=0.5)
    for member in simulation.hosts:
        clock = simulation.wall_clock(member)
        assert clock is not None
        clock.step(DAY_S)
    simulation.run_until(lambda: False, simulation.loop.now + 0.5)
    assert replica.time_of_day()["held"]
    assert replica.quorum_time() == 0
    before, delivered = replica.clock, len(simulation.hosts[replica.me].log)
    simulation.run_until(lambda: False, simulation.loop.now + 1.0)
    new = len(simulation.hosts[replica.me].log) - delivered
    assert new > 0
    assert before < replica.clock <= before + 2 * new + 4, "it counts on"
    assert replica.accept_time(simulation.loop.now)
    simulation.run_until(lambda: not replica.time_of_day()["held"], simulation.loop.now + 2.0)
    simulation.run_until(lambda: False, simulation.loop.now + 1.0)
    assert DAY_S - 1 < lead_of(simulation, replica) < DAY_S + 1
    logs = [host.log for host in simulation.hosts.values()]
    anchors = [[d.mid.sequence for d in log if d.mid.client == ANCHOR] for log in logs]
    assert len(anchors[0]) > 2
    assert all(each == sorted(each) for each in anchors)
    assert {host.replica.anchor.ticks for host in simulation.hosts.values()} == {anchors[0][-1]}  # type: ignore[union-attr]


def test_an_anchor_outlives_a_restart() -> None:
    simulation, replica = run({}, anchor_s=0.5)
    simulation.run_until(lambda: False, simulation.loop.now + 1.0)
    anchor = replica.anchor.ticks
    assert anchor
    for host in simulation.hosts.values():
        host.crash()
    for host in simulation.hosts.values():
        host.start()
        found: Any = host.replica
        assert anchor - 2 * TICKS_PER_S < found.anchor.ticks <= anchor


def test_an_answer_to_a_heartbeat_of_long_ago_does_not_count() -> None:
    _, replica = run({})
    for other in replica.others:
        assert replica.quorum is not None
        before = replica.quorum.now(replica.now)
        stale = HeartbeatAck(replica.cballot, replica.cballot, NO_TIMESTAMP, int(9e15), 0)
        replica.step(other, stale, replica.now)
        assert replica.quorum.now(replica.now) == before


def test_followers_report_their_time_of_day() -> None:
    simulation, replica = run({1: 3.0, 2: -3.0})
    follower = next(h.replica for h in simulation.hosts.values() if h.me.number == 1)
    assert isinstance(follower, Replica)
    follower.ready()
    beat = Heartbeat(follower.cballot, follower.last_delivered, (), sent_us=1234)
    follower.step(replica.me, beat, follower.now)
    (ack,) = [message for _, message in follower.ready().promise if isinstance(message, HeartbeatAck)]
    assert ack.sent_us == 1234
    assert ack.wall_us / 1e6 == pytest.approx(1003.0 + simulation.loop.now, abs=1e-3)


def test_a_lower_anchor_does_not_follow_a_pending_one() -> None:
    """A delivered anchor acknowledges all below it: a lower one behind it would never be accepted, and block
    its group; or be delivered by some replicas only.
    """
    everyone = members(3)
    topology = Topology.uniform(1, 3)
    wall_s = 1e6
    replicas = {
        me: WhiteBox(Start(me, topology, random.Random(str(me)), 0.0, wall=lambda: wall_s)) for me in everyone
    }
    leader = replicas[everyone[0]]
    waiting: list[tuple[ReplicaId, ReplicaId, Any]] = []

    def drain(me: ReplicaId) -> None:
        while ready := replicas[me].ready():
            for receivers, message in (*ready.send, *ready.promise):
                waiting.extend((me, to, message) for to in receivers if isinstance(to, ReplicaId))

    def pass_on(now: float) -> None:
        while waiting:
            sender, to, message = waiting.pop(0)
            if not isinstance(message, AcceptAck) or sender == to:
                replicas[to].receive(sender, (message,), now)
                drain(to)

    now = 0.0
    while not leader.is_leader:
        now += 0.01
        leader.tick(now)
        drain(leader.me)
        pass_on(now)
    assert leader.accept_time(now)
    drain(leader.me)
    pass_on(now)

    def pending() -> list[int]:
        return [entry.mid.sequence for entry in leader.entries.values() if entry.mid.client == ANCHOR]

    (first,) = pending()
    for step_s in (-60.0, 0.0, 60.0):
        wall_s = 1e6 + step_s
        for _ in range(4):  # the leader hears its members' new time
            now += 0.05
            leader.tick(now)
            drain(leader.me)
            pass_on(now)
        leader.accept_time(now)
        drain(leader.me)
        pass_on(now)
        assert min(pending()) == first
    assert sorted(pending()) == pending(), "higher ones may follow"
    assert len(pending()) > 1
