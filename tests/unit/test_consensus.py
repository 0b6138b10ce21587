"""Multi-Paxos as a black box: what it may decide, and what it says when."""

from __future__ import annotations

from multicast.consensus import Consensus
from multicast.durable import Durable, Joined, Promised, Voted
from multicast.messages import ClockUpdate, Delivery, LocalTimestamp, Phase2a, Phase2b, Value
from multicast.protocol import Ready
from multicast.topology import Topology
from multicast.types import (
    NO_TIMESTAMP,
    Ballot,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    ReplicaId,
    timestamp,
)

G = GroupId(0)
CONFIGURATION = Topology.uniform(1, 3).configuration(G, 0)
A, B, C = CONFIGURATION.members
FIRST, SECOND = Ballot(1, A, 0), Ballot(2, B, 0)
DEST: Destinations = (G, GroupId(1))


def mid(sequence: int) -> MessageId:
    return MessageId(ClientId(1), sequence, 7)


def local(sequence: int, time: int) -> LocalTimestamp:
    return LocalTimestamp(mid(sequence), DEST, b"x", 1, timestamp(time, G))


def clock(sequence: int, time: int) -> ClockUpdate:
    return ClockUpdate(mid(sequence), timestamp(time, G))


def member(me: ReplicaId) -> Consensus:
    return Consensus(me, CONFIGURATION)


def drain(box: Consensus) -> Ready:
    box.flush()
    ready, box.ready = box.ready, Ready()
    return ready


def leader() -> Consensus:
    box = member(A)
    box.lead(FIRST, CONFIGURATION)
    return box


def votes_of(sender: ReplicaId, *values: Value, ballot: Ballot = FIRST) -> tuple[ReplicaId, Phase2b]:
    return sender, Phase2b(ballot, tuple((value.mid, value.at) for value in values))


def test_a_quorum_of_votes_decides_once() -> None:
    box = leader()
    box.propose(local(1, 1))
    assert box.on_2b(*votes_of(A, local(1, 1))) == []
    assert box.on_2b(*votes_of(A, local(1, 1))) == []
    assert box.on_2b(*votes_of(C, local(1, 1))) == [local(1, 1)]
    assert box.on_2b(*votes_of(B, local(1, 1))) == []


def test_instances_are_independent() -> None:
    box = leader()
    for value in (local(1, 1), clock(1, 9), local(2, 2)):
        box.propose(value)
    assert box.on_2b(*votes_of(B, clock(1, 9), local(2, 2))) == []
    assert box.on_2b(*votes_of(C, local(2, 2), local(1, 1))) == [local(2, 2)]
    assert box.on_2b(*votes_of(C, clock(1, 9))) == [clock(1, 9)]


def test_votes_of_another_ballot_do_not_count() -> None:
    box = leader()
    box.propose(local(1, 1))
    assert box.on_2b(*votes_of(B, local(1, 1), ballot=SECOND)) == []
    assert box.on_2b(*votes_of(C, local(1, 1))) == []


def test_what_is_asked_and_answered_together_goes_out_together() -> None:
    box = leader()
    box.propose(local(1, 1))
    box.propose(clock(2, 5))
    ready = drain(box)
    assert ready.send == [((B, C), Phase2a(FIRST, (local(1, 1), clock(2, 5))))]
    assert ready.promise == [((A,), votes_of(A, local(1, 1), clock(2, 5))[1])]
    assert ready.persist == [Voted(local(1, 1)), Voted(clock(2, 5))]


def test_a_vote_leaves_only_as_a_promise() -> None:
    box = member(B)
    box.vote(FIRST, local(1, 1))
    ready = drain(box)
    assert not ready.send
    assert ready.promise == [((A,), votes_of(B, local(1, 1))[1])]
    assert ready.persist == [Voted(local(1, 1))]


def test_a_repeated_vote_is_answered_but_not_written_again() -> None:
    box = member(B)
    box.vote(FIRST, local(1, 1))
    drain(box)
    box.vote(FIRST, local(1, 1), again=True)
    ready = drain(box)
    assert ready.promise
    assert not ready.persist


def test_votes_of_two_ballots_are_answered_to_their_leaders() -> None:
    box = member(C)
    box.vote(FIRST, local(1, 1))
    box.vote(SECOND, local(1, 1))
    assert [receivers for receivers, _ in drain(box).promise] == [(A,), (B,)]


def test_repeating_asks_only_the_silent() -> None:
    box = leader()
    box.propose(local(1, 1))
    box.propose(local(2, 2))
    drain(box)
    box.on_2b(*votes_of(B, local(1, 1)))
    for sequence in (1, 2, 3):
        box.repeat(mid(sequence), NO_TIMESTAMP)
    assert [receivers for receivers, _ in drain(box).send] == [(C,), (B, C)]


def test_who_leads_no_more_decides_nothing_more() -> None:
    box = leader()
    box.propose(local(1, 1))
    box.on_2b(*votes_of(A, local(1, 1)))
    box.leave()
    assert box.on_2b(*votes_of(B, local(1, 1))) == []


def test_what_is_withdrawn_is_neither_decided_nor_repeated() -> None:
    box = leader()
    box.propose(clock(1, 9))
    drain(box)
    box.withdraw(mid(1), timestamp(9, G))
    box.repeat(mid(1), timestamp(9, G))
    assert not drain(box)
    box.on_2b(*votes_of(A, clock(1, 9)))
    assert box.on_2b(*votes_of(B, clock(1, 9))) == []


def test_a_group_of_one_asks_nobody() -> None:
    configuration = Topology.uniform(1, 1).configuration(G, 0)
    box = Consensus(configuration.members[0], configuration)
    box.lead(Ballot(1, configuration.members[0], 0), configuration)
    box.propose(local(1, 1))
    box.repeat(mid(1), NO_TIMESTAMP)
    ready = drain(box)
    assert not ready.send
    ((_, vote),) = ready.promise
    assert isinstance(vote, Phase2b)
    assert box.on_2b(configuration.members[0], vote) == [local(1, 1)]


def test_disks_fold_votes() -> None:
    durable = Durable()
    durable.apply([Promised(FIRST), Voted(local(1, 1)), Voted(clock(2, 9))])
    assert durable.clock == 9
    assert {entry.mid: (entry.phase, entry.local_ts) for entry in durable.entries.values()} == {
        mid(1): (Phase.ACCEPTED, timestamp(1, G))
    }
    durable.apply([Joined(SECOND, 3, ())])
    assert (durable.clock, durable.entries) == (9, {})


def test_a_vote_does_not_undo_a_decision_on_disk() -> None:
    durable = Durable()
    decided = Delivery(mid(1), DEST, b"x", 1, timestamp(1, G), timestamp(5, G), NO_TIMESTAMP, mismatch=False)
    durable.apply([decided, Voted(local(1, 1))])
    assert durable.entries[mid(1)].phase is Phase.COMMITTED
