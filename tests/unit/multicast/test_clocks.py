"""Hybrid clocks, raised clocks and their end; what is executed apart from what is delivered; read ballots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvstore.node.snapshots import decode_checkpoint, encode_checkpoint
from kvstore.wire.frames import WireError
from multicast import PROTOCOLS
from multicast.durable import Checkpoint, Durable, Joined
from multicast.errors import InvalidArgument
from multicast.messages import AcceptAck, NewLeader
from multicast.process import Replica
from multicast.protocol import Protocol
from multicast.sim import Scenario, Simulation
from multicast.topology import Topology
from multicast.types import TICKS_PER_S, TIME_MAX, Ballot, Timestamp, time_of, timestamp
from multicast.whitebox import WhiteBox
from tests.unit.multicast.replicas import CLIENT, G0, G1, HERE, drain, follow, multicast, proposal, start

ALONE = Topology.uniform(2, 1)
MANY = [PROTOCOLS[name] for name in PROTOCOLS]


class Wall:
    """A clock on the wall, which a test sets."""

    time_s = 100.0

    def __call__(self) -> float:
        return self.time_s


def alone(protocol: type[Protocol], **options: Any) -> Replica[Any]:
    """The leader of a group of one."""
    replica = start(protocol, ALONE.members(G0)[0], ALONE, **options)
    replica.tick(0.0)
    assert isinstance(replica, Replica)
    drain(replica)
    assert replica.is_leader
    return replica


def order(replica: Replica[Any], sequence: int, now: float) -> int:
    """At what time a message is ordered."""
    replica.step(CLIENT, multicast(sequence), now)
    (delivery,) = drain(replica).deliver
    return time_of(delivery.global_ts)


@pytest.mark.parametrize("protocol", MANY)
def test_a_hybrid_clock_follows_the_time_of_day_and_never_stands_still(protocol: type[Protocol]) -> None:
    wall = Wall()
    replica = alone(protocol, wall=wall)
    wall.time_s = 101.0
    assert order(replica, 1, 1.0) == 101 * TICKS_PER_S
    assert order(replica, 2, 1.0) == 101 * TICKS_PER_S + 1
    wall.time_s = 102.5
    assert order(replica, 3, 2.5) == 102.5 * TICKS_PER_S
    wall.time_s = 1.0
    assert order(replica, 4, 2.6) == 102.5 * TICKS_PER_S + 1


@pytest.mark.parametrize("protocol", MANY)
def test_a_logical_clock_counts(protocol: type[Protocol]) -> None:
    replica = alone(protocol)
    assert [order(replica, number, 5.0 * number) for number in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.parametrize("wall_s", [-1e6, 1e12, float("inf"), float("nan")])
def test_a_time_of_day_that_no_timestamp_can_tell_is_not_used(wall_s: float) -> None:
    replica = alone(WhiteBox, wall=lambda: wall_s)
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
    replica = alone(protocol, wall=lambda: 100.0)
    replica.raise_clock(TIME_MAX - 1)
    assert order(replica, 1, 1.0) == TIME_MAX
    before = list(replica.entries)
    with pytest.raises(InvalidArgument, match="the clock of group 0 has reached its limit"):
        replica.step(CLIENT, multicast(2), 1.0)
    assert list(replica.entries) == before
    replica.step(CLIENT, multicast(1), 1.0)
    assert replica.ready().duplicates == [(CLIENT, multicast(1))]


# Executed, and delivered


def restarted(position: int, executed: int) -> WhiteBox:
    checkpoint = Checkpoint(Timestamp(position), executed=Timestamp(executed))
    return start(WhiteBox, HERE[1], checkpoint=checkpoint)


def test_a_replica_restarts_with_what_was_executed() -> None:
    replica = restarted(2000, 1000)
    assert (replica.last_delivered, replica.executed_ts) == (2000, 1000)
    assert replica.checkpoint().executed == 1000
    with pytest.raises(InvalidArgument, match="executed 2001"):
        restarted(2000, 2001)


def test_a_snapshot_takes_back_nothing_that_was_executed() -> None:
    replica = restarted(2000, 1000)
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


def promise(replica: WhiteBox, ballot: Ballot) -> None:
    replica.step(ballot.leader, NewLeader(ballot), 0.0)


@pytest.mark.parametrize("change", [promise, lambda replica, _: replica.nominate(0.0)])
def test_a_member_stands_in_a_ballot_until_it_promises_another(
    change: Callable[[WhiteBox, Ballot], None],
) -> None:
    first, second = Ballot(3, HERE[0], 0), Ballot(4, HERE[2], 0)
    replica = start(WhiteBox, HERE[1])
    follow(replica, first)
    assert replica.is_in_ballot(first)
    assert not replica.is_in_ballot(second)
    assert replica.reading_ballot is None
    assert replica.readers == (tuple(HERE), 2)
    change(replica, second)
    assert not replica.is_in_ballot(first)
    assert not replica.is_in_ballot(second)


def test_a_leader_reads_when_it_has_delivered_what_it_took_over() -> None:
    (other,) = ALONE.members(G1)
    before = alone(WhiteBox)
    both, theirs, disk = multicast(1, (G0, G1)), Ballot(1, other, 0), Durable()
    before.step(CLIENT, both, 0.0)
    before.step(other, proposal(theirs, [both], 9), 0.0)
    disk.apply([Joined(before.cballot, 0, ())])
    drain(before, disk)
    assert before.reading_ballot == before.cballot, "it took over nothing"
    after = alone(WhiteBox, durable=disk)
    assert after.reading_ballot is None, "what it took over may have been answered"
    after.step(other, proposal(theirs, [both], 9), 1.0)
    after.step(other, AcceptAck((both.mid,), G1, (after.cballot, theirs)), 1.0)
    assert [delivery.global_ts for delivery in drain(after).deliver] == [timestamp(9, G1)]
    assert after.reading_ballot == after.cballot
