"""Catching up: what deliveries and snapshots from elsewhere do to what a process held."""

from __future__ import annotations

import pytest

from multicast.durable import Checkpoint
from multicast.errors import InvalidArgument, PeerViolation
from multicast.messages import Deliver, Deliveries, Delivery, Heartbeat, Multicast, PreVote
from multicast.protocol import Timing
from multicast.types import NO_TIMESTAMP, Ballot, Phase, timestamp
from multicast.whitebox import WhiteBox
from tests.unit.multicast.replicas import G0, HERE, follow, multicast, proposal, start

LEADER, ME, OTHER = HERE
BALLOT = Ballot(3, LEADER, 0)
FIRST, SECOND = timestamp(1, G0), timestamp(2, G0)


M = multicast(4)
BELOW_3 = multicast(4, ack_below=3)


def follower() -> WhiteBox:
    """A follower of the ballot, with nothing left to drain."""
    replica = start(WhiteBox, ME)
    follow(replica, BALLOT)
    return replica


def catch_up(replica: WhiteBox, now: float, run: Deliveries) -> None:
    """The follower asks another member for what it missed, and gets this."""
    replica.now = now
    replica.asked_until = 0.0
    replica._catch_up(OTHER)
    replica.step(OTHER, run, now)


def delivery(m: Multicast, time: int) -> Delivery:
    at = timestamp(time, G0)
    return Delivery(m.mid, m.dest, m.payload, m.ack_below, at, at, NO_TIMESTAMP, mismatch=False)


def test_a_delivery_brings_its_own_ack_below() -> None:
    """Delivered ids are a function of deliveries, whatever a retry carried when it was accepted here."""
    accepted_older, caught_up = follower(), follower()
    accepted_older.step(LEADER, proposal(BALLOT, [M], 1), 0.1)
    for replica in (accepted_older, caught_up):
        catch_up(replica, 0.2, Deliveries((delivery(BELOW_3, 1),), FIRST))
    assert accepted_older.delivered_ids == caught_up.delivered_ids


def test_deliveries_count_only_if_they_were_asked_for() -> None:
    """A member that is wrong could have others deliver anything."""
    replica = follower()
    replica.step(OTHER, Deliveries((delivery(M, 1),), FIRST), 0.1)
    assert replica.last_delivered == NO_TIMESTAMP
    assert not replica.ready().deliver
    catch_up(replica, 0.2, Deliveries((), NO_TIMESTAMP))
    replica.step(LEADER, Deliveries((delivery(M, 1),), FIRST), 0.2)
    assert replica.last_delivered == NO_TIMESTAMP, "another member was asked"
    replica.step(OTHER, Deliveries((delivery(M, 1),), FIRST), 60.0)
    assert replica.last_delivered == NO_TIMESTAMP, "long ago"
    catch_up(replica, 60.1, Deliveries((delivery(M, 1),), FIRST))
    assert replica.last_delivered == FIRST


def test_a_late_proposal_does_not_touch_what_was_decided() -> None:
    replica = follower()
    catch_up(replica, 0.1, Deliveries((delivery(BELOW_3, 2),), SECOND))
    replica.ready()
    replica.step(LEADER, proposal(BALLOT, [M], 1), 0.2)
    entry = replica.entries[M.mid]
    assert (entry.phase, entry.local_ts, entry.ack_below) == (Phase.COMMITTED, SECOND, 3)
    assert not replica.ready().promise, "it does not acknowledge what was not decided either"


def test_a_proposal_that_was_decided_is_acknowledged_again() -> None:
    replica = follower()
    catch_up(replica, 0.1, Deliveries((delivery(M, 1),), FIRST))
    replica.ready()
    replica.step(LEADER, proposal(BALLOT, [M], 1), 0.2)
    assert [receivers for receivers, _ in replica.ready().promise] == [(LEADER,)]


def test_a_snapshot_contains_what_was_not_drained_yet() -> None:
    replica = follower()
    replica.step(LEADER, proposal(BALLOT, [M], 1), 0.1)
    replica.step(LEADER, Deliver(BALLOT, NO_TIMESTAMP, ((M.mid, FIRST, FIRST),)), 0.1)
    assert replica.install(Checkpoint(position=SECOND), 0.2)
    assert replica.ready().deliver == []
    assert replica.last_delivered == SECOND


def test_nobody_asks_for_pre_votes_in_anothers_name() -> None:
    replica = follower()
    with pytest.raises(PeerViolation, match="b9@g0r0"):
        replica.step(OTHER, PreVote(Ballot(9, LEADER, 0)), 5.0)
    assert not replica.ready()


def test_a_time_out_is_a_number() -> None:
    with pytest.raises(InvalidArgument, match="retry_s"):
        Timing(retry_s=float("nan"))


def test_a_heartbeat_that_overtook_others_does_not_tell_what_the_leader_has() -> None:
    """A replica with nothing would count as current, and serve an empty store."""
    replica = follower()
    assert not replica.is_current
    replica.step(LEADER, Heartbeat(BALLOT, NO_TIMESTAMP, (), alive_only=True), 0.1)
    assert not replica.is_current
    replica.step(LEADER, Heartbeat(BALLOT, FIRST, ()), 0.2)
    assert not replica.is_current
    catch_up(replica, 0.3, Deliveries((delivery(M, 1),), FIRST))
    assert replica.is_current
