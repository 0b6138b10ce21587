"""Multi-Paxos as a black box: what it may decide, and what it says when."""

from __future__ import annotations

import pytest

from multicast import messages as msg
from multicast import types as t
from multicast.consensus import Consensus
from multicast.durable import Durable, Joined, Promised, Voted
from multicast.protocol import Ready, Timing
from multicast.topology import Topology

G = t.GroupId(0)
CONFIGURATION = Topology.uniform(1, 3).configuration(G, 0)
A, B, C = CONFIGURATION.members
FIRST, SECOND = t.Ballot(1, A, 0), t.Ballot(2, B, 0)
DEST: t.Destinations = (G, t.GroupId(1))


def mid(sequence: int) -> t.MessageId:
    return t.MessageId(t.ClientId(1), sequence, 7)


def local(sequence: int, time: int) -> msg.LocalTimestamp:
    return mid(sequence), DEST, b"x", 1, t.timestamp(time, G)


def clock(sequence: int, time: int) -> msg.Instance:
    return mid(sequence), t.timestamp(time, G)


def locals_of(*rows: msg.LocalTimestamp) -> msg.LocalTimestamps:
    return msg.LocalTimestamps.of(rows)


def clocks_of(*rows: msg.Instance) -> msg.ClockUpdates:
    return msg.ClockUpdates.of(rows)


NOTHING = [], []  # type: ignore[var-annotated]  # decided


def member(me: t.ReplicaId, timing: Timing | None = None) -> Consensus:
    return Consensus(me, CONFIGURATION, timing or Timing())


def drain(box: Consensus) -> Ready:
    box.flush()
    ready, box.ready = box.ready, Ready()
    return ready


def leader(timing: Timing | None = None) -> Consensus:
    box = member(A, timing)
    box.lead(FIRST, CONFIGURATION)
    return box


def votes_of(
    sender: t.ReplicaId, *values: msg.LocalTimestamp | msg.Instance, ballot: t.Ballot = FIRST
) -> tuple[t.ReplicaId, msg.Phase2b]:
    local = tuple(value[0] for value in values if len(value) == 5)
    return sender, msg.Phase2b(ballot, local, clocks_of(*(value for value in values if len(value) == 2)))


def test_a_quorum_of_votes_decides_once() -> None:
    box = leader()
    box.propose(local(1, 1))
    assert box.on_2b(*votes_of(A, local(1, 1))) == NOTHING
    assert box.on_2b(*votes_of(A, local(1, 1))) == NOTHING
    assert box.on_2b(*votes_of(C, local(1, 1))) == ([mid(1)], [])
    assert box.on_2b(*votes_of(B, local(1, 1))) == NOTHING


def test_instances_are_independent() -> None:
    box = leader()
    box.propose(local(1, 1))
    box.propose_clock(*clock(1, 9))
    box.propose(local(2, 2))
    assert box.on_2b(*votes_of(B, clock(1, 9), local(2, 2))) == NOTHING
    assert box.on_2b(*votes_of(C, local(2, 2), local(1, 1))) == ([mid(2)], [])
    assert box.on_2b(*votes_of(C, clock(1, 8))) == NOTHING
    assert box.on_2b(*votes_of(C, clock(1, 9))) == ([], [clock(1, 9)])


def test_votes_of_another_ballot_do_not_count() -> None:
    box = leader()
    box.propose(local(1, 1))
    assert box.on_2b(*votes_of(B, local(1, 1), ballot=SECOND)) == NOTHING
    assert box.on_2b(*votes_of(C, local(1, 1))) == NOTHING


def test_what_is_asked_and_answered_together_goes_out_together() -> None:
    box = leader()
    box.propose(local(1, 1))
    box.propose_clock(*clock(2, 5))
    box.propose(local(3, 2))
    ready = drain(box)
    run = locals_of(local(1, 1), local(3, 2))
    assert ready.send == [((B, C), msg.Phase2a(FIRST, run, clocks_of(clock(2, 5))))]
    assert ready.promise == [((A,), votes_of(A, local(1, 1), local(3, 2), clock(2, 5))[1])]
    assert ready.persist == [Voted(run, 5)]
    assert not drain(box)


@pytest.mark.parametrize("timing", [Timing(part_entries=2), Timing(part_bytes=2)])
def test_what_is_asked_together_goes_out_in_pieces_that_fit_a_frame(timing: Timing) -> None:
    box = leader(timing)
    rows = [local(number, number) for number in range(1, 6)]
    for number, row in enumerate(rows, 1):
        box.propose(row)
        box.propose_clock(*clock(number, 9 + number))
    ready = drain(box)
    asked = [message for _, message in ready.send if isinstance(message, msg.Phase2a)]
    assert [len(message.local.mids) for message in asked][:3] == [2, 2, 1]
    assert [row for message in asked for row in zip(*message.local, strict=True)] == rows
    assert [ts for message in asked for ts in message.clocks.global_ts] == [
        t.timestamp(9 + number, G) for number in range(1, 6)
    ]
    written = [record for record in ready.persist if isinstance(record, Voted)]
    assert [record.local for record in written] == [message.local for message in asked]
    assert max(record.clock for record in written) == 14
    ((_, vote),) = ready.promise
    assert vote == votes_of(A, *rows, *(clock(number, 9 + number) for number in range(1, 6)))[1]


def test_a_large_payload_is_asked_about_alone() -> None:
    box = leader(Timing(part_bytes=4))
    large = (mid(2), DEST, b"larger than that", 1, t.timestamp(2, G))
    for row in (local(1, 1), large, local(3, 3)):
        box.propose(row)
    asked = [message.local.mids for _, message in drain(box).send if isinstance(message, msg.Phase2a)]
    assert asked == [(mid(1),), (mid(2),), (mid(3),)]


def test_a_vote_leaves_only_as_a_promise() -> None:
    box = member(B)
    box.vote(FIRST, locals_of(local(1, 1)), clocks_of(clock(2, 9)))
    ready = drain(box)
    assert not ready.send
    assert ready.promise == [((A,), votes_of(B, local(1, 1), clock(2, 9))[1])]
    assert ready.persist == [Voted(locals_of(local(1, 1)), 9)]


def test_a_repeated_vote_is_answered_but_not_written_again() -> None:
    box = member(B)
    box.vote(FIRST, locals_of(local(1, 1)), clocks_of())
    drain(box)
    box.vote(FIRST, locals_of(), clocks_of(), [mid(1)])
    ready = drain(box)
    assert ready.promise == [((A,), votes_of(B, local(1, 1))[1])]
    assert not ready.persist


def test_votes_of_two_ballots_are_answered_to_their_leaders() -> None:
    box = member(C)
    box.vote(FIRST, locals_of(local(1, 1)), clocks_of())
    box.vote(SECOND, locals_of(local(1, 1)), clocks_of())
    assert [receivers for receivers, _ in drain(box).promise] == [(A,), (B,)]


def test_repeating_asks_only_the_silent() -> None:
    box = leader()
    box.propose(local(1, 1))
    box.propose(local(2, 2))
    drain(box)
    box.on_2b(*votes_of(B, local(1, 1)))
    box.propose_clock(*clock(2, 9))
    drain(box)
    for sequence in (1, 2, 3):
        box.repeat(local(sequence, sequence))
        box.repeat_clock(*clock(sequence, 9))
    ready = drain(box)
    assert ready.send == [
        ((C,), msg.Phase2a(FIRST, locals_of(local(1, 1)), clocks_of())),
        ((B, C), msg.Phase2a(FIRST, locals_of(local(2, 2)), clocks_of(clock(2, 9)))),
    ]
    assert not ready.persist


def test_who_leads_no_more_decides_nothing_more() -> None:
    box = leader()
    box.propose(local(1, 1))
    box.on_2b(*votes_of(A, local(1, 1)))
    box.leave()
    assert box.on_2b(*votes_of(B, local(1, 1))) == NOTHING


def test_who_leads_no_more_has_written_what_it_asked() -> None:
    box = leader()
    box.propose(local(1, 1))
    box.leave()
    assert box.ready.persist == [Voted(locals_of(local(1, 1)), 1)]
    assert not box.asked_about()


def test_what_is_withdrawn_is_neither_decided_nor_repeated() -> None:
    box = leader()
    box.propose_clock(*clock(1, 9))
    drain(box)
    box.withdraw(*clock(1, 9))
    box.repeat_clock(*clock(1, 9))
    assert not drain(box)
    box.on_2b(*votes_of(A, clock(1, 9)))
    assert box.on_2b(*votes_of(B, clock(1, 9))) == NOTHING


def test_a_group_of_one_asks_nobody() -> None:
    configuration = Topology.uniform(1, 1).configuration(G, 0)
    box = Consensus(configuration.members[0], configuration, Timing())
    box.lead(t.Ballot(1, configuration.members[0], 0), configuration)
    box.propose(local(1, 1))
    box.repeat(local(1, 1))
    ready = drain(box)
    assert not ready.send
    ((_, vote),) = ready.promise
    assert isinstance(vote, msg.Phase2b)
    assert box.on_2b(configuration.members[0], vote) == ([mid(1)], [])


def test_disks_fold_votes() -> None:
    durable = Durable()
    durable.apply([Promised(FIRST), Voted(locals_of(local(1, 1)), 9)])
    assert durable.clock == 9
    assert {entry.mid: (entry.phase, entry.local_ts) for entry in durable.entries.values()} == {
        mid(1): (t.Phase.ACCEPTED, t.timestamp(1, G))
    }
    durable.apply([Joined(SECOND, 3, ())])
    assert (durable.clock, durable.entries) == (9, {})


def test_a_vote_does_not_undo_a_decision_on_disk() -> None:
    durable = Durable()
    decided = msg.Delivery(
        mid(1), DEST, b"x", 1, t.timestamp(1, G), t.timestamp(5, G), t.NO_TIMESTAMP, mismatch=False
    )
    durable.apply([decided, Voted(locals_of(local(1, 1)), 1)])
    assert durable.entries[mid(1)].phase is t.Phase.COMMITTED
