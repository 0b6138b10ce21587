"""Followers that deliver by themselves, worked by hand: what they wait for, and what makes them blind."""

from __future__ import annotations

import pytest

from multicast import messages as msg
from multicast.numbering import Numbering
from multicast.types import NO_TIMESTAMP, Ballot, Destinations, MessageId, ReplicaId, Timestamp, timestamp
from multicast.whitebox import DeliverEverywhere
from tests.unit.multicast.replicas import BOTH, CLIENT, G0, HERE, THERE, follow, multicast, proposal, start

OWN, FAR = Ballot(1, HERE[0], 0), Ballot(1, THERE[1], 0)


def ts(time: int) -> Timestamp:
    return timestamp(time, G0) if time else NO_TIMESTAMP


class Follower:
    """The second member of group 0, and what its leader and the other group say to it."""

    def __init__(self) -> None:
        self.replica = start(DeliverEverywhere, HERE[1])
        follow(self.replica, OWN)
        self.numbers = Numbering(CLIENT)
        self.issued = NO_TIMESTAMP

    def heartbeat(self, delivered: Timestamp, lowest: Timestamp) -> None:
        self.replica.step(HERE[0], msg.Heartbeat(OWN, delivered, (), lowest, self.issued), 0.0)

    def proposed(self, time: int, dest: Destinations = BOTH, *, lost: bool = False) -> msg.Multicast:
        """The leader proposes a message."""
        m = self.numbers.next(dest, b"m")
        accept = proposal(OWN, [m], time, self.issued)
        self.issued = ts(time)
        if not lost:
            self.replica.step(HERE[0], accept, 0.0)
        return m

    def far(self, m: msg.Multicast, time: int) -> None:
        """So does the other group's leader."""
        self.replica.step(THERE[1], proposal(FAR, [m], time), 0.0)

    def acknowledged(self, m: msg.Multicast, *senders: ReplicaId) -> None:
        for sender in senders:
            issued = self.issued if sender == OWN.leader else NO_TIMESTAMP
            ballots = tuple(ballot for ballot in (OWN, FAR) if ballot.leader.group in m.dest)
            self.replica.step(sender, msg.AcceptAck((m.mid,), sender.group, ballots, issued), 0.0)

    def delivered(self) -> list[MessageId]:
        """What it delivers now; what it says to itself it has heard."""
        ready = self.replica.ready()
        for receivers, message in ready.promise:
            if self.replica.me in receivers:
                self.replica.step(self.replica.me, message, 0.0)
        return [d.mid for d in [*ready.deliver, *self.replica.ready().deliver]]


@pytest.fixture
def follower() -> Follower:
    found = Follower()
    found.heartbeat(NO_TIMESTAMP, ts(1))
    return found


def test_a_follower_delivers_when_its_leader_and_quorums_have_accepted(follower: Follower) -> None:
    m = follower.proposed(1)
    follower.far(m, 5)
    follower.acknowledged(m, HERE[2], THERE[0], THERE[1])
    assert follower.delivered() == [], "its leader may propose something below this still"
    follower.acknowledged(m, HERE[0])
    assert follower.delivered() == [m.mid]


def test_what_a_follower_delivers_tells_nothing_about_how_long_leaders_wait(follower: Follower) -> None:
    timeout = follower.replica.unanswered.timeout
    before = timeout.seconds
    m = follower.proposed(1, (G0,))
    for sender in (HERE[0], HERE[2]):
        follower.replica.step(sender, msg.AcceptAck((m.mid,), G0, (OWN,), follower.issued), 100.0)
    assert follower.delivered() == [m.mid]
    assert timeout.seconds == before


def test_its_acknowledgement_goes_to_every_process_of_all_destinations(follower: Follower) -> None:
    m = follower.proposed(1)
    follower.far(m, 5)
    sent = follower.replica.ready().promise
    told = [to for receivers, message in sent if isinstance(message, msg.AcceptAck) for to in receivers]
    assert sorted(told) == sorted([*HERE, *THERE])
    assert follower.replica.answers_clients


def test_what_its_leader_has_proposed_lower_comes_first(follower: Follower) -> None:
    first = follower.proposed(1)
    second = follower.proposed(2, (G0,))
    follower.acknowledged(second, HERE[0], HERE[2])
    assert follower.delivered() == []
    follower.far(first, 1)
    follower.acknowledged(first, HERE[0], THERE[0], THERE[1])
    assert follower.delivered() == [first.mid, second.mid]


def test_before_the_first_heartbeat_of_a_ballot_it_delivers_nothing() -> None:
    follower = Follower()
    m = follower.proposed(1, (G0,))
    follower.acknowledged(m, HERE[0], HERE[2])
    assert follower.delivered() == []
    follower.heartbeat(NO_TIMESTAMP, ts(1))
    assert follower.delivered() == [m.mid]


@pytest.mark.parametrize("heard_by", ["the next ACCEPT", "an acknowledgement", "a heartbeat"])
def test_a_follower_that_has_missed_a_proposal_is_blind(follower: Follower, heard_by: str) -> None:
    known = follower.proposed(1, (G0,))
    lost = follower.proposed(2, (G0,), lost=True)
    if heard_by == "the next ACCEPT":
        follower.proposed(3, (G0,))
    elif heard_by == "a heartbeat":
        follower.heartbeat(NO_TIMESTAMP, ts(1))
    follower.acknowledged(known, HERE[0], HERE[2])
    assert follower.delivered() == []
    follower.heartbeat(ts(1), ts(2))
    assert follower.delivered() == [], "what it lacks is not delivered at the leader either"
    found = [
        msg.Delivery(m.mid, m.dest, m.payload, 1, ts(time), ts(time), ts(time - 1), mismatch=False)
        for time, m in ((1, known), (2, lost))
    ]
    follower.heartbeat(ts(2), ts(3))
    follower.replica.step(HERE[0], msg.Deliveries(tuple(found), ts(2)), 0.0)
    assert follower.delivered() == [known.mid, lost.mid]
    m = follower.proposed(4, (G0,))
    follower.acknowledged(m, HERE[0], HERE[2])
    assert follower.delivered() == ([] if heard_by == "the next ACCEPT" else [m.mid]), "3 comes first"


def test_what_a_follower_forgets_it_has_missed(follower: Follower) -> None:
    m = follower.proposed(1)
    follower.replica.tick(100.0)  # no other group has proposed it for long
    assert m.mid not in follower.replica.entries
    follower.replica.step(HERE[0], msg.Deliveries((), NO_TIMESTAMP), 0.0)  # its queue is made anew
    later = follower.proposed(2, (G0,))
    follower.acknowledged(later, HERE[0], HERE[2])
    assert follower.delivered() == []


def test_a_leader_sends_no_deliver(follower: Follower) -> None:
    pair = {me: start(DeliverEverywhere, me) for me in HERE[:2]}
    pair[HERE[0]].nominate(0.0)
    said: list[object] = []

    def run_until_quiet() -> int:
        delivered, busy = 0, True
        while busy:
            busy = False
            for me, process in pair.items():
                ready = process.ready()
                delivered += len(ready.deliver)
                for receivers, message in [*ready.send, *ready.promise]:
                    said.append(message)
                    for receiver in receivers:
                        if isinstance(receiver, ReplicaId) and receiver in pair:
                            pair[receiver].step(me, message, 0.0)
                            busy = True
        return delivered

    run_until_quiet()
    pair[HERE[0]].step(CLIENT, multicast(1), 0.0)
    assert run_until_quiet() == 2
    assert not [message for message in said if isinstance(message, msg.Deliver)]
