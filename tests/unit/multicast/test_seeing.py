"""What a follower that delivers by itself accepts, and from which sender: by replicas driven by hand."""

from __future__ import annotations

import dataclasses
import random

import pytest

from multicast.errors import PeerViolation
from multicast.messages import Accept, AcceptAck, Heartbeat, NewState, StatePart
from multicast.numbering import Numbering
from multicast.protocol import Start
from multicast.topology import Topology
from multicast.types import NO_TIMESTAMP, Ballot, ClientId, GroupId, MessageId, ReplicaId, timestamp
from multicast.whitebox import DeliverEverywhere

G0 = GroupId(0)
CLIENT = ClientId(7)
HERE = [ReplicaId(G0, number, 0) for number in range(3)]
BALLOT = Ballot(1, HERE[0], 0)


def follower() -> DeliverEverywhere:
    """It has joined the ballot, and knows nothing of what its leader has proposed."""
    replica = DeliverEverywhere(Start(HERE[1], Topology({G0: HERE}), random.Random(0), 0.0))
    replica.step(HERE[0], NewState(BALLOT, 0, StatePart(1, 0, 1), ()), 0.0)
    replica.ready()
    return replica


def heartbeat(lowest: int, issued: int) -> Heartbeat:
    return Heartbeat(BALLOT, NO_TIMESTAMP, (), timestamp(lowest, G0), timestamp(issued, G0))


def seeing() -> DeliverEverywhere:
    replica = follower()
    replica.step(HERE[0], Heartbeat(BALLOT, NO_TIMESTAMP, (), timestamp(1, G0), NO_TIMESTAMP), 0.0)
    replica.ready()
    assert replica._sees()
    return replica


def proposal(numbers: Numbering, first: int, count: int = 1) -> Accept:
    wanted = [numbers.next((G0,), b"m") for _ in range(count)]
    times = tuple(timestamp(first + index, G0) for index in range(count))
    after = timestamp(first - 1, G0) if first > 1 else NO_TIMESTAMP
    payloads, below = tuple(m.payload for m in wanted), tuple(m.ack_below for m in wanted)
    return Accept(((G0,),), G0, BALLOT, tuple(m.mid for m in wanted), times, payloads, below, after)


def acknowledge(replica: DeliverEverywhere, accept: Accept) -> None:
    for sender in (HERE[0], HERE[2]):
        replica.step(sender, AcceptAck(accept.mids, G0, (BALLOT,), max(accept.local_ts)), 0.0)


def delivered(replica: DeliverEverywhere) -> list[MessageId]:
    return [delivery.mid for delivery in replica.ready().deliver]


def test_a_follower_that_sees_delivers_by_itself() -> None:
    replica = seeing()
    accept = proposal(Numbering(CLIENT), 1, 2)
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
    accept = proposal(Numbering(CLIENT), 1)
    with pytest.raises(PeerViolation):
        replica.step(HERE[2], heartbeat(1, 4), 0.0)
    for bad in ((), (BALLOT, BALLOT)):
        with pytest.raises(Exception, match="destination"):
            replica.step(HERE[0], AcceptAck(accept.mids, G0, bad, timestamp(9, G0)), 0.0)
    with pytest.raises(PeerViolation):
        replica.step(HERE[0], AcceptAck(accept.mids, GroupId(1), (BALLOT,), timestamp(9, G0)), 0.0)
    assert replica._sees()


def test_a_local_timestamp_is_given_to_one_message() -> None:
    replica, numbers = seeing(), Numbering(CLIENT)
    accept = proposal(numbers, 1, 2)
    with pytest.raises(PeerViolation):
        replica.step(HERE[0], dataclasses.replace(accept, local_ts=accept.local_ts[:1] * 2), 0.0)
    assert not replica.entries
    assert not replica.ready()
    replica.step(HERE[0], accept, 0.0)
    with pytest.raises(PeerViolation):
        replica.step(HERE[0], proposal(numbers, 2), 0.0)
    replica.step(HERE[0], dataclasses.replace(accept, after=max(accept.local_ts)), 0.0)
    acknowledge(replica, accept)
    assert delivered(replica) == list(accept.mids)


def test_a_proposal_whose_number_counts_as_delivered_was_missed() -> None:
    """The follower is ahead of its leader, which may order it all the same."""
    replica, numbers = seeing(), Numbering(CLIENT)
    accept = dataclasses.replace(proposal(numbers, 1), ack_below=(1,))
    replica.step(HERE[0], accept, 0.0)
    acknowledge(replica, accept)
    assert delivered(replica) == list(accept.mids)
    mid = accept.mids[0]
    again = proposal(numbers, 2)
    replica.step(HERE[0], dataclasses.replace(again, mids=(mid._replace(sequence=0, digest=5),)), 0.0)
    assert not replica._sees()
    replica.step(HERE[0], heartbeat(2, 2), 0.0)
    assert not replica._sees(), "the leader has yet to deliver it"
    replica.step(HERE[0], heartbeat(3, 2), 0.0)
    assert replica._sees()


def test_an_acknowledgement_that_overtakes_all_proposals_counts() -> None:
    replica = seeing()
    accept = proposal(Numbering(CLIENT), 1)
    replica.step(HERE[2], AcceptAck(accept.mids, G0, (BALLOT,)), 0.0)
    replica.step(HERE[0], accept, 0.0)
    assert not delivered(replica)
    replica.step(HERE[0], AcceptAck(accept.mids, G0, (BALLOT,), max(accept.local_ts)), 0.0)
    assert delivered(replica) == list(accept.mids)
    acknowledge(replica, accept)
    assert not replica.overtaking


def test_an_acknowledgement_of_another_ballot_does_not_count_when_the_proposal_comes() -> None:
    replica = seeing()
    accept = proposal(Numbering(CLIENT), 1)
    replica.step(HERE[2], AcceptAck(accept.mids, G0, (BALLOT,)), 0.0)
    later = Ballot(2, HERE[0], 0)
    replica.step(HERE[0], NewState(later, 0, StatePart(1, 0, 1), ()), 0.0)
    replica.step(HERE[0], Heartbeat(later, NO_TIMESTAMP, (), timestamp(1, G0), NO_TIMESTAMP), 0.0)
    replica.step(HERE[0], dataclasses.replace(accept, ballot=later), 0.0)
    replica.step(HERE[0], AcceptAck(accept.mids, G0, (later,), max(accept.local_ts)), 0.0)
    assert not delivered(replica)
    replica.step(HERE[2], AcceptAck(accept.mids, G0, (later,)), 0.0)
    assert delivered(replica) == list(accept.mids)
