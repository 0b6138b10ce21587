"""Peers that are wrong: absurd ballots, forged memberships, snapshots that were not asked for."""

from __future__ import annotations

import contextlib

import pytest

from multicast import messages as msg
from multicast.durable import Durable
from multicast.errors import PeerViolation
from multicast.membership import Configuration, Membership
from multicast.types import (
    NO_BALLOT,
    NO_TIMESTAMP,
    NUMBER_JUMP,
    NUMBER_STEP,
    TIME_MAX,
    Ballot,
    Phase,
    ReplicaId,
    Status,
    timestamp,
)
from multicast.whitebox import WhiteBox
from tests.unit.multicast.replicas import (
    G0,
    G1,
    HERE,
    THERE,
    WHOLE,
    drain,
    follow,
    lead,
    multicast,
    proposal,
    start,
)

LEADER, ME, OTHER = HERE
BALLOT = Ballot(3, LEADER, 0)
ABSURD = 2**63 - 1
YEAR = 80_000_000
"""Ballots of a year without a leader, at 0.4 s each."""


def follower() -> WhiteBox:
    replica = start(WhiteBox, ME)
    follow(replica, BALLOT)
    drain(replica)
    return replica


def of(number: int, leader: ReplicaId = OTHER) -> Ballot:
    return Ballot(number, leader, 0)


LIES = [
    msg.NewLeader(of(ABSURD)),
    msg.NewState(of(ABSURD), 1, WHOLE, ()),
    msg.Heartbeat(of(ABSURD), NO_TIMESTAMP, ()),
    msg.PreVote(of(ABSURD)),
    msg.HandOver(of(ABSURD)),
    msg.Hint(G0, of(ABSURD)),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: type(lie).__name__)
def test_an_absurd_ballot_is_a_lost_message(lie: msg.Message) -> None:
    """Nothing is promised, persisted or sent; and the group elects leaders as before."""
    replica = follower()
    with pytest.raises(PeerViolation, match="above what can be expected"):
        replica.step(OTHER, lie, 1.0)
    ready = replica.ready()
    assert not [*ready.persist, *ready.promise, *ready.send]
    assert (replica.ballot, replica.cballot, replica.highest_number) == (BALLOT, BALLOT, 3)
    assert replica.status is Status.FOLLOWER
    replica.step(OTHER, msg.NewLeader(of(4)), 1.1)
    assert replica.ballot == of(4)


def test_an_absurd_ballot_in_an_acknowledgement_does_not_move_a_leader() -> None:
    replica = start(WhiteBox, LEADER)
    lead(replica, [ME], 1.0)
    drain(replica)
    with pytest.raises(PeerViolation, match="above what can be expected"):
        replica.step(OTHER, msg.HeartbeatAck(of(ABSURD), NO_BALLOT, NO_TIMESTAMP), 1.1)
    assert replica.highest_number == 1


def test_an_absurd_ballot_of_another_group_does_not_replace_its_leader() -> None:
    replica = follower()
    message = multicast(1, (G0, G1))
    absurd, true = Ballot(ABSURD, THERE[2], 0), Ballot(2, THERE[1], 0)
    with pytest.raises(PeerViolation, match="above what can be expected"):
        replica.step(THERE[2], proposal(absurd, [message], 5), 1.0)
    with pytest.raises(PeerViolation, match="above what can be expected"):
        replica.step(THERE[2], msg.Hint(G1, absurd), 1.0)
    assert message.mid not in replica.entries
    replica.step(THERE[1], msg.Hint(G1, true), 1.0)
    assert replica.leader_of(G1) == THERE[1]


def test_a_member_that_was_away_for_a_year_joins_at_once() -> None:
    replica = follower()
    replica.step(OTHER, msg.PreVote(of(YEAR)), 100.0)
    replica.step(OTHER, msg.NewLeader(of(YEAR)), 100.001)
    assert replica.ballot == of(YEAR)
    replica.step(OTHER, msg.NewState(of(YEAR), 5, WHOLE, ()), 100.002)
    assert (replica.cballot, replica.status) == (of(YEAR), Status.FOLLOWER)
    replica.step(LEADER, msg.NewLeader(Ballot(YEAR + 7, LEADER, 0)), 100.003)
    assert replica.ballot.number == YEAR + 7


def test_ballot_numbers_cannot_be_exhausted_in_many_messages() -> None:
    """A second jump waits for a time-out, so that a peer that lies needs decades."""
    replica = follower()
    number, jumps, now = 3, 0, 1.0
    while now < 11.0:
        now += 0.001
        try:
            replica.step(OTHER, msg.NewLeader(of(number + NUMBER_JUMP)), now)
        except PeerViolation:
            continue
        number = replica.ballot.number
        jumps += 1
    assert 10 <= jumps <= 10.0 / replica.timing.election_s + 2
    lifetimes_s = (2**63 / (NUMBER_JUMP + NUMBER_STEP)) * replica.timing.election_s
    assert lifetimes_s > 20 * 365 * 86400


def test_a_member_that_was_away_while_a_peer_lied_catches_up() -> None:
    """The group's numbers have made several jumps; its own limit follows, one jump in a time-out."""
    replica = follower()
    far = of(5 * NUMBER_JUMP)
    now = 1.0
    while replica.ballot != far:
        now += 0.1
        assert now < 1.0 + 8 * replica.timing.election_s
        with contextlib.suppress(PeerViolation):
            replica.step(OTHER, msg.NewLeader(far), now)
    assert now > 1.0 + 3 * replica.timing.election_s


def test_the_limits_hold_across_a_restart() -> None:
    disk = Durable()
    replica = start(WhiteBox, ME)
    follow(replica, BALLOT)
    drain(replica, disk)
    replica.step(OTHER, msg.NewLeader(of(YEAR)), 1.0)
    drain(replica, disk)
    again = start(WhiteBox, ME, life=2, durable=disk)
    again.step(OTHER, msg.NewLeader(of(YEAR + 1)), 0.1)
    assert again.ballot == of(YEAR + 1)
    with pytest.raises(PeerViolation, match="above what can be expected"):
        again.step(OTHER, msg.NewLeader(of(ABSURD)), 50.0)


def test_only_the_leader_of_the_known_ballot_hands_over() -> None:
    for sender, ballot in (
        (OTHER, BALLOT),
        (OTHER, of(3)),
        (OTHER, of(4)),
        (LEADER, Ballot(2, LEADER, 0)),
        (LEADER, Ballot(4, LEADER, 0)),
        (THERE[0], BALLOT),
    ):
        replica = follower()
        with contextlib.suppress(PeerViolation):
            replica.step(sender, msg.HandOver(ballot), 1.0)
        assert replica.ballot == BALLOT, (sender, ballot)
    replica = follower()
    replica.step(LEADER, msg.HandOver(BALLOT), 1.0)
    assert replica.ballot.leader == ME


# Memberships

OUTSIDERS = Membership(Configuration(G0, 1, [ReplicaId(G0, n, 0xBAD + n) for n in range(3)]))
NEXT = Membership(Configuration(G0, 0, HERE)).replace(OTHER, ReplicaId(G0, 2, 0xA), "n4@127.0.0.1:1")


@pytest.mark.parametrize("teller", [OTHER, THERE[0], ReplicaId(G0, 0, 0xBAD)], ids=str)
def test_a_forged_membership_is_not_believed(teller: ReplicaId) -> None:
    """Of a member of the group, of another group, and of an outsider that it names."""
    replica = follower()
    replica.step(teller, msg.Members(OUTSIDERS), 1.0)
    ready = replica.ready()
    assert not ready.persist
    assert not ready.learned
    assert replica.membership.version == 1
    asked = {receiver for receivers, message in ready.send for receiver in receivers}
    assert asked == {LEADER, OTHER, *OUTSIDERS.current.members}, "it asks what the others know"


def test_the_next_membership_is_believed_from_a_member_only() -> None:
    replica = follower()
    for teller in (THERE[0], ReplicaId(G0, 2, 0xA)):
        replica.step(teller, msg.Members(NEXT), 1.0)
        assert replica.membership.version == 1
    replica.step(OTHER, msg.Members(NEXT), 1.0)
    assert replica.membership == NEXT
    assert NEXT in replica.ready().learned


def test_a_replica_that_was_away_for_several_changes_learns_the_last() -> None:
    replica = follower()
    last = NEXT.completed().replace(LEADER, ReplicaId(G0, 0, 0xB), "").completed()
    replica.step(ReplicaId(G0, 2, 0xA), msg.Members(last), 1.0)
    assert replica.membership.version == 1
    replica.step(ReplicaId(G0, 0, 0xB), msg.Members(last), 1.1)
    assert replica.membership == last


# States and snapshots


def entry(phase: Phase, local: int, decided: int) -> msg.EntryState:
    at = timestamp(decided, G0) if decided else NO_TIMESTAMP
    return msg.EntryState(multicast(1).mid, (G0,), b"", 1, phase, timestamp(local, G0), at)


@pytest.mark.parametrize(
    "wrong",
    [
        {"part": msg.StatePart(1, 1, 1)},
        {"part": msg.StatePart(1, 0, 0)},
        {"clock": TIME_MAX + 1},
        {"entries": (entry(Phase.PROPOSED, 1, 0),)},
        {"entries": (entry(Phase.COMMITTED, 2, 1),)},
    ],
    ids=["no such piece", "no pieces", "clock", "proposed", "decided below its proposal"],
)
def test_a_state_that_no_process_is_in_is_refused(wrong: dict[str, object]) -> None:
    replica = follower()
    usual: dict[str, object] = {"clock": 1, "part": WHOLE, "entries": ()}
    with pytest.raises(PeerViolation):
        replica.step(OTHER, msg.NewState(of(4), **(usual | wrong)), 1.0)  # type: ignore[arg-type]
    assert replica.ballot == BALLOT


def test_a_promise_from_above_its_own_ballot_does_not_count() -> None:
    """Its state would win over what was accepted."""
    replica = start(WhiteBox, LEADER)
    replica.tick(1.0)
    drain(replica)
    ballot = replica.pre_vote_for
    assert ballot is not None
    replica.step(ME, msg.PreVoteAck(ballot), 1.0)
    drain(replica)
    with pytest.raises(PeerViolation, match="above it"):
        replica.step(ME, msg.NewLeaderAck(ballot, of(9), 1, NO_TIMESTAMP, WHOLE, ()), 1.0)
    assert replica.campaign is not None
    assert ME not in replica.campaign.promises


def test_a_snapshot_is_awaited_only_when_asked_for() -> None:
    replica = follower()
    assert not replica.awaits(LEADER, 0, 1.0)
    replica.step(LEADER, msg.Heartbeat(BALLOT, timestamp(9, G0), ()), 1.0)
    ((asked, number),) = [
        (receiver, message.number)
        for receiver, message in drain(replica).messages
        if isinstance(message, msg.CatchUp)
    ]
    assert asked == LEADER
    assert replica.awaits(LEADER, number, 1.1)
    assert not replica.awaits(OTHER, number, 1.1), "another member"
    assert not replica.awaits(LEADER, number + 1, 1.1), "another transfer"
    assert not replica.awaits(LEADER, number, 60.0), "long ago"
