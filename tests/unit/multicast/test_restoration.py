"""A replica whose state is lost, while its log is sound: it promises nothing before it is restored."""

from __future__ import annotations

from typing import Any

import pytest

from multicast.durable import Checkpoint, Durable, Joined, Reported
from multicast.messages import (
    CatchUp,
    HandOver,
    Heartbeat,
    HeartbeatAck,
    Hint,
    NewLeader,
    NewState,
    PreVote,
)
from multicast.types import NO_TIMESTAMP, Ballot, Status, timestamp
from multicast.whitebox import WhiteBox
from tests.unit.multicast.replicas import CLIENT, G0, HERE, WHOLE, multicast, proposal, start

LEADER, ME, OTHER = HERE
BALLOT = Ballot(3, LEADER, 0)
FIRST, SECOND, THIRD = (timestamp(time, G0) for time in (1, 2, 3))


def durable(executed: Any = SECOND) -> Durable:
    found = Durable()
    found.apply([Joined(BALLOT, 5, ()), Reported(executed)])
    return found


def without_state(executed: Any = NO_TIMESTAMP) -> WhiteBox:
    return start(WhiteBox, ME, durable=durable(), checkpoint=Checkpoint(position=executed, executed=executed))


def test_what_is_reported_is_written_before() -> None:
    replica = start(WhiteBox, ME, durable=durable(FIRST), checkpoint=Checkpoint(THIRD, executed=FIRST))
    assert not replica.is_restoring
    replica.executed(SECOND)
    replica.step(LEADER, Heartbeat(BALLOT, THIRD, ()), 0.1)
    ready = replica.ready()
    assert Reported(SECOND) in ready.persist
    assert [message.executed for _, message in ready.promise if isinstance(message, HeartbeatAck)] == [SECOND]
    assert not any(isinstance(message, HeartbeatAck) for _, message in ready.send)


def test_what_a_restarted_replica_will_report_is_written_before() -> None:
    """The state was durable, but the log had not been told so before the crash."""
    replica = start(WhiteBox, ME, durable=durable(FIRST), checkpoint=Checkpoint(THIRD, executed=SECOND))
    assert replica.ready().persist[0] == Reported(SECOND)


def test_what_was_reported_outlives_the_state() -> None:
    folded = Durable()
    folded.apply(durable().records())
    assert folded == durable()
    assert folded.executed == SECOND
    assert without_state().is_restoring
    assert without_state(FIRST).is_restoring
    assert not without_state(SECOND).is_restoring


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (OTHER, NewLeader(Ballot(4, OTHER, 0))),
        (OTHER, PreVote(Ballot(4, OTHER, 0))),
        (LEADER, Heartbeat(BALLOT, THIRD, ())),
        (LEADER, HandOver(BALLOT)),
        (LEADER, NewState(Ballot(4, LEADER, 0), 9, WHOLE, ())),
        (LEADER, proposal(BALLOT, [multicast(1)], 1)),
    ],
)
def test_it_promises_nothing(sender: Any, message: Any) -> None:
    replica = without_state()
    replica.ready()
    replica.step(sender, message, 5.0)
    replica.nominate(5.0)
    for time in range(6, 30):
        replica.tick(float(time))
        ready = replica.ready()
        assert not ready.promise
        assert not ready.persist
        assert {type(sent) for _, sent in ready.send} <= {CatchUp}
    assert replica.status is Status.RECOVERING
    assert replica.status_of()["status"] == "restoring"
    assert not replica.is_current


def test_it_asks_every_member_in_turn_and_shows_clients_the_leader() -> None:
    replica = without_state()
    asked = set()
    for time in range(10):
        replica.tick(float(time))
        asked |= {to for receivers, message in replica.ready().send for to in receivers}
    assert asked == {LEADER, OTHER}
    replica.step(LEADER, Heartbeat(BALLOT, THIRD, ()), 10.0)
    replica.ready()
    replica.step(CLIENT, multicast(1), 10.1)
    assert replica.ready().send == [((CLIENT,), Hint(G0, BALLOT))]


def test_it_takes_no_snapshot_below_what_it_had_reported() -> None:
    replica = without_state()
    assert not replica.install(Checkpoint(position=THIRD, executed=FIRST), 0.1)
    assert replica.install(Checkpoint(position=THIRD, executed=SECOND), 0.1)


def test_it_takes_part_again_when_enough_is_durable() -> None:
    replica = without_state()
    replica.install(Checkpoint(position=THIRD, executed=SECOND), 0.1)
    assert replica.is_restoring, "the snapshot is not durable yet"
    replica.executed(FIRST)
    assert replica.is_restoring
    replica.executed(SECOND)
    assert replica.status_of()["status"] == "follower"
    replica.ready()
    replica.step(LEADER, Heartbeat(BALLOT, THIRD, ()), 0.2)
    assert [type(message) for _, message in replica.ready().promise] == [HeartbeatAck]
