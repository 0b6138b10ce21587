"""Hybrid clocks, raised clocks and their end; what is executed apart from what is delivered; read ballots."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kvstore.node.snapshots import decode_checkpoint, encode_checkpoint
from kvstore.wire.frames import WireError
from multicast import PROTOCOLS
from multicast.durable import Checkpoint, Joined, Record
from multicast.errors import InvalidArgument
from multicast.messages import Accept, AcceptAck, HeartbeatAck, Multicast, NewLeader, NewState, StatePart
from multicast.process import Replica
from multicast.protocol import Protocol, Start
from multicast.sim import Scenario, Simulation
from multicast.topology import Topology
from multicast.types import (
    NO_TIMESTAMP,
    TICKS_PER_S,
    TIME_MAX,
    Ballot,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Timestamp,
    digest_of,
    time_of,
    timestamp,
)
from multicast.whitebox import WhiteBox

G0, G1 = GroupId(0), GroupId(1)
ALONE = Topology.uniform(2, 1)
THREE = Topology.uniform(1, 3)
MANY = [PROTOCOLS[name] for name in PROTOCOLS]


def message(sequence: int, dest: Destinations = (G0,)) -> Multicast:
    return Multicast(MessageId(ClientId(7), sequence, digest_of(dest, b"x")), dest, b"x", 1)


def drain(replica: Protocol, now: float) -> list[Timestamp]:
    """Do what a host would with a replica that is alone. Where it has delivered something."""
    found: list[Timestamp] = []
    while ready := replica.ready():
        found += [delivery.global_ts for delivery in ready.deliver]
        for receivers, own in [*ready.send, *ready.promise]:
            if replica.me in receivers:
                replica.step(replica.me, own, now)
    return found


def alone(protocol: type[Protocol], wall_s: float | None = None) -> Replica:  # type: ignore[type-arg]  # of any protocol
    """The leader of a group of one."""
    replica = protocol(Start(ALONE.members(G0)[0], ALONE, random.Random(1), 0.0, wall_s=wall_s))
    replica.tick(0.0)
    drain(replica, 0.0)
    assert isinstance(replica, Replica)
    assert replica.is_leader
    return replica


def order(replica: Protocol, sequence: int, now: float) -> int:
    """At what time a message is ordered."""
    replica.step(ClientId(7), message(sequence), now)
    (place,) = drain(replica, now)
    return time_of(place)


@pytest.mark.parametrize("protocol", MANY)
def test_a_hybrid_clock_follows_the_time_of_day_and_never_stands_still(protocol: type[Protocol]) -> None:
    replica = alone(protocol, wall_s=100.0)
    assert order(replica, 1, 1.0) == 101 * TICKS_PER_S
    assert order(replica, 2, 1.0) == 101 * TICKS_PER_S + 1
    assert order(replica, 3, 2.5) == 102.5 * TICKS_PER_S
    assert order(replica, 4, 2.0) == 102.5 * TICKS_PER_S + 1


@pytest.mark.parametrize("protocol", MANY)
def test_a_logical_clock_counts(protocol: type[Protocol]) -> None:
    replica = alone(protocol)
    assert [order(replica, number, 5.0 * number) for number in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.parametrize("wall_s", [-1e6, 1e12])
def test_a_time_of_day_that_no_timestamp_can_tell_is_not_used(wall_s: float) -> None:
    replica = alone(WhiteBox, wall_s)
    assert [order(replica, number, 1.0) for number in (1, 2)] == [1, 2]


def test_a_raised_clock_stays_above_and_never_falls() -> None:
    replica = alone(WhiteBox)
    replica.raise_clock(500)
    assert order(replica, 1, 1.0) == 501
    replica.raise_clock(20)
    assert order(replica, 2, 1.0) == 502


@pytest.mark.parametrize("time", [-1, TIME_MAX + 1])
def test_a_clock_is_not_raised_beyond_its_end(time: int) -> None:
    replica = alone(WhiteBox)
    with pytest.raises(InvalidArgument, match=str(time)):
        replica.raise_clock(time)
    assert order(replica, 1, 1.0) == 1


@pytest.mark.parametrize("protocol", MANY)
def test_at_the_end_of_its_clock_a_group_refuses_what_is_new(protocol: type[Protocol]) -> None:
    replica = alone(protocol, wall_s=100.0)
    replica.raise_clock(TIME_MAX - 1)
    assert order(replica, 1, 1.0) == TIME_MAX
    before = list(replica.entries)
    with pytest.raises(InvalidArgument, match="the clock of group 0 has reached its limit"):
        replica.step(ClientId(7), message(2), 1.0)
    assert list(replica.entries) == before
    replica.step(ClientId(7), message(1), 1.0)
    ((asker, repeated),) = replica.ready().duplicates
    assert (asker, repeated) == (ClientId(7), message(1))


def leading(wall_s: float) -> tuple[Simulation, Replica]:  # type: ignore[type-arg]  # of any protocol
    """A group of three, whose leader's time of day is given while that of the others is 1000 s."""
    simulation = Simulation(Scenario(groups=1, faults="none", clock="hybrid", wall_skew_s=0.0, skew=0.0), 1)
    leader = simulation.topology.preferred_leader(G0)
    simulation.hosts[leader]._wall_s = wall_s
    simulation.start()
    simulation.run_until(lambda: len(simulation.hosts[leader].log) > 20, 20.0)
    replica = simulation.hosts[leader].replica
    assert isinstance(replica, Replica)
    return simulation, replica


@pytest.mark.parametrize(
    ("wall_s", "fast"), [(1000.0, False), (1000.4, False), (1002.0, True), (900.0, False)]
)
def test_a_leader_far_ahead_of_most_others_counts_on(wall_s: float, fast: bool) -> None:  # noqa: FBT001 - a parameter of the test
    simulation, replica = leading(wall_s)
    assert replica.is_fast is fast
    clock = replica.clock
    simulation.run_until(lambda: False, simulation.loop.now + 1.0)
    assert (replica.clock - clock < 200) is fast


def test_one_member_that_is_behind_does_not_stop_the_clock() -> None:
    simulation, replica = leading(1000.0)
    ballot, found = replica.cballot, []
    for late in replica.others:
        replica.step(late, HeartbeatAck(ballot, ballot, NO_TIMESTAMP, 1), replica.now)
        found.append(replica.is_fast)
    simulation.run_until(lambda: False, simulation.loop.now + 0.5)
    assert [*found, replica.is_fast] == [False, True, False]


# Executed, and delivered


def start(position: int, executed: int) -> WhiteBox:
    checkpoint = Checkpoint(Timestamp(position), executed=Timestamp(executed))
    return WhiteBox(Start(THREE.members(G0)[1], THREE, random.Random(1), 0.0, checkpoint=checkpoint))


def test_a_replica_restarts_with_what_was_executed() -> None:
    replica = start(2000, 1000)
    assert (replica.last_delivered, replica.executed_ts) == (2000, 1000)
    assert replica.checkpoint().executed == 1000
    with pytest.raises(InvalidArgument, match="executed 2001"):
        start(2000, 2001)


def test_a_snapshot_takes_back_nothing_that_was_executed() -> None:
    replica = start(2000, 1000)
    behind = Checkpoint(Timestamp(3000), executed=Timestamp(999))
    assert not replica.takes(behind)
    assert not replica.install(behind, 0.0)
    assert replica.last_delivered == 2000
    ahead = Checkpoint(Timestamp(3000), executed=Timestamp(2500))
    assert replica.takes(ahead)
    assert replica.install(ahead, 0.0)
    assert (replica.last_delivered, replica.executed_ts) == (3000, 1000), "it is not durable yet"
    replica.executed(Timestamp(2500))
    assert replica.executed_ts == 2500


def test_snapshots_carry_what_was_executed() -> None:
    checkpoint = Checkpoint(Timestamp(3000), executed=Timestamp(2500))
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint
    bad = encode_checkpoint(Checkpoint(Timestamp(3000), executed=Timestamp(3001)))
    with pytest.raises(WireError, match="executed 3001"):
        decode_checkpoint(bad)


def test_what_several_groups_may_still_ask_for() -> None:
    simulation = Simulation(Scenario(groups=3, faults="none"), 2)
    simulation.start()
    simulation.run_until(lambda: False, 1.0)
    host = simulation.hosts[simulation.topology.preferred_leader(G1)]
    replica = host.replica
    assert isinstance(replica, WhiteBox)
    kept = replica.retained_groups()
    expected = [(d.global_ts, d.dest) for d in host.log if d.mid in replica.entries and len(d.dest) > 1]
    assert kept == expected
    assert len({dest for _, dest in kept}) > 1
    assert replica.oldest_retained() == kept[0][0]
    replica.retained.clear()
    assert replica.oldest_retained() is None


# Reads


def follower(ballot: Ballot) -> WhiteBox:
    replica = WhiteBox(Start(THREE.members(G0)[1], THREE, random.Random(1), 0.0))
    replica.step(ballot.leader, NewState(ballot, 0, StatePart(1, 0, 1), ()), 0.0)
    return replica


def promise(replica: WhiteBox, ballot: Ballot) -> None:
    replica.step(ballot.leader, NewLeader(ballot), 0.0)


@pytest.mark.parametrize("change", [promise, lambda replica, _: replica.nominate(0.0)])
def test_a_member_stands_in_a_ballot_until_it_promises_another(
    change: Callable[[WhiteBox, Ballot], None],
) -> None:
    first, second = Ballot(3, THREE.members(G0)[0], 0), Ballot(4, THREE.members(G0)[2], 0)
    replica = follower(first)
    assert replica.is_in_ballot(first)
    assert not replica.is_in_ballot(second)
    assert replica.reading_ballot is None
    assert replica.readers == (THREE.members(G0), 2)
    change(replica, second)
    assert not replica.is_in_ballot(first)
    assert not replica.is_in_ballot(second)


def test_a_leader_reads_when_it_has_delivered_what_it_took_over() -> None:
    me, (other,) = ALONE.members(G0)[0], ALONE.members(G1)
    before = alone(WhiteBox)
    both = message(1, (G0, G1))
    before.step(ClientId(7), both, 0.0)
    theirs = Ballot(1, other, 0)
    proposal = Accept((both.dest,), G1, theirs, (both.mid,), (timestamp(9, G1),), (), ())
    before.step(other, proposal, 0.0)
    records: list[Record] = []
    while ready := before.ready():
        records += ready.persist
        for receivers, own in ready.promise:
            if receivers == (me,):
                before.step(me, own, 0.0)
    assert before.reading_ballot == before.cballot, "it took over nothing"
    start = Start(me, ALONE, random.Random(2), 1.0)
    start.durable.apply([Joined(before.cballot, 0, ()), *records])
    after = WhiteBox(start)
    after.tick(1.0)
    drain(after, 1.0)
    assert after.is_leader
    assert after.reading_ballot is None, "what it took over may have been answered"
    after.step(other, proposal, 1.0)
    after.step(other, AcceptAck((both.mid,), G1, (after.cballot, theirs)), 1.0)
    assert drain(after, 1.0) == [timestamp(9, G1)]
    assert after.reading_ballot == after.cballot
