"""What a follower that delivers by itself accepts, and from which sender: by replicas driven by hand."""

from __future__ import annotations

import dataclasses

import pytest

from multicast.errors import PeerViolation
from multicast.messages import Accept, AcceptAck, Heartbeat
from multicast.topology import Topology
from multicast.types import NO_TIMESTAMP, Ballot, MessageId, timestamp
from multicast.whitebox import DeliverEverywhere
from tests.unit.multicast.replicas import G0, G1, HERE, follow, multicast, proposal, start

BALLOT = Ballot(1, HERE[0], 0)


def follower() -> DeliverEverywhere:
    """It has joined the ballot, and knows nothing of what its leader has proposed."""
    replica = start(DeliverEverywhere, HERE[1], Topology({G0: HERE}))
    follow(replica, BALLOT)
    return replica


def heartbeat(lowest: int, issued: int) -> Heartbeat:
    return Heartbeat(BALLOT, NO_TIMESTAMP, (), timestamp(lowest, G0), timestamp(issued, G0))


def seeing() -> DeliverEverywhere:
    replica = follower()
    replica.step(HERE[0], Heartbeat(BALLOT, NO_TIMESTAMP, (), timestamp(1, G0), NO_TIMESTAMP), 0.0)
    replica.ready()
    assert replica._sees()
    return replica


def proposed(first: int, count: int = 1) -> Accept:
    """The leader's ACCEPT of messages whose numbers are their local timestamps."""
    after = timestamp(first - 1, G0) if first > 1 else NO_TIMESTAMP
    return proposal(BALLOT, [multicast(number) for number in range(first, first + count)], first, after)


def acknowledge(replica: DeliverEverywhere, accept: Accept) -> None:
    for sender in (HERE[0], HERE[2]):
        replica.step(sender, AcceptAck(accept.mids, G0, (BALLOT,), max(accept.local_ts)), 0.0)


def delivered(replica: DeliverEverywhere) -> list[MessageId]:
    return [delivery.mid for delivery in replica.ready().deliver]


def test_a_follower_that_sees_delivers_by_itself() -> None:
    replica = seeing()
    accept = proposed(1, 2)
    replica.step(HERE[0], accept, 0.0)
    acknowledge(replica, accept)
    assert delivered(replica) == list(accept.mids)


def test_only_the_leader_says_what_it_has_proposed() -> None:
    """A message about its ballot from any other sender is rejected, and nothing changes."""
    replica = follower()
    with pytest.raises(PeerViolation):
        replica.step(HERE[2], heartbeat(5, 4), 0.0)
    assert (replica.heard, replica.missed, replica.sees_from) == (NO_TIMESTAMP, NO_TIMESTAMP, None)
    replica = seeing()
    accept = proposed(1)
    with pytest.raises(PeerViolation):
        replica.step(HERE[2], heartbeat(1, 4), 0.0)
    for bad in ((), (BALLOT, BALLOT)):
        with pytest.raises(Exception, match="destination"):
            replica.step(HERE[0], AcceptAck(accept.mids, G0, bad, timestamp(9, G0)), 0.0)
    with pytest.raises(PeerViolation):
        replica.step(HERE[0], AcceptAck(accept.mids, G1, (BALLOT,), timestamp(9, G0)), 0.0)
    assert replica._sees()


def test_a_local_timestamp_is_given_to_one_message() -> None:
    replica = seeing()
    accept = proposed(1, 2)
    with pytest.raises(PeerViolation):
        replica.step(HERE[0], dataclasses.replace(accept, local_ts=accept.local_ts[:1] * 2), 0.0)
    assert not replica.entries
    assert not replica.ready()
    replica.step(HERE[0], accept, 0.0)
    with pytest.raises(PeerViolation):
        replica.step(HERE[0], proposal(BALLOT, [multicast(3)], 2, timestamp(1, G0)), 0.0)
    replica.step(HERE[0], dataclasses.replace(accept, after=max(accept.local_ts)), 0.0)
    acknowledge(replica, accept)
    assert delivered(replica) == list(accept.mids)


def test_a_proposal_whose_number_counts_as_delivered_was_missed() -> None:
    """The follower is ahead of its leader, which may order it all the same."""
    replica = seeing()
    accept = proposed(1)
    replica.step(HERE[0], accept, 0.0)
    acknowledge(replica, accept)
    assert delivered(replica) == list(accept.mids)
    mid = accept.mids[0]
    again = proposed(2)
    replica.step(HERE[0], dataclasses.replace(again, mids=(mid._replace(sequence=0, digest=5),)), 0.0)
    assert not replica._sees()
    replica.step(HERE[0], heartbeat(2, 2), 0.0)
    assert not replica._sees(), "the leader has yet to deliver it"
    replica.step(HERE[0], heartbeat(3, 2), 0.0)
    assert replica._sees()


def test_an_acknowledgement_that_overtakes_all_proposals_counts() -> None:
    replica = seeing()
    accept = proposed(1)
    replica.step(HERE[2], AcceptAck(accept.mids, G0, (BALLOT,)), 0.0)
    replica.step(HERE[0], accept, 0.0)
    assert not delivered(replica)
    replica.step(HERE[0], AcceptAck(accept.mids, G0, (BALLOT,), max(accept.local_ts)), 0.0)
    assert delivered(replica) == list(accept.mids)
    acknowledge(replica, accept)
    assert not replica.overtaking


def test_an_acknowledgement_of_another_ballot_does_not_count_when_the_proposal_comes() -> None:
    replica = seeing()
    accept = proposed(1)
    replica.step(HERE[2], AcceptAck(accept.mids, G0, (BALLOT,)), 0.0)
    later = Ballot(2, HERE[0], 0)
    follow(replica, later)
    replica.step(HERE[0], Heartbeat(later, NO_TIMESTAMP, (), timestamp(1, G0), NO_TIMESTAMP), 0.0)
    replica.step(HERE[0], dataclasses.replace(accept, ballot=later), 0.0)
    replica.step(HERE[0], AcceptAck(accept.mids, G0, (later,), max(accept.local_ts)), 0.0)
    assert not delivered(replica)
    replica.step(HERE[2], AcceptAck(accept.mids, G0, (later,)), 0.0)
    assert delivered(replica) == list(accept.mids)
