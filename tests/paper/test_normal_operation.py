"""Normal operation: the left column of Figure *protocol*, the flow of Figure *flow*, and the text on both.

Line numbers are those that the docstrings of `multicast.whitebox` use.
"""

from __future__ import annotations

from multicast.messages import Accept, AcceptAck, Deliver, Multicast
from multicast.types import Phase, time_of, timestamp
from tests.paper.bench import ANN, BOB, A, B, Bench, C


def test_flow_of_a_global_message() -> None:
    """Figure *flow*; Figure *protocol*, lines 1-2, 9, 16-17, 23-24: the sender and receivers of each message.

    MULTICAST to both leaders; ACCEPT from each leader to all six processes; ACCEPT_ACK from all six to both
    leaders; DELIVER from each leader to its own group. ACCEPT and DELIVER to oneself need no message.
    """
    bench = Bench(groups=2, replicas=3)
    leaders = {bench.leader(A), bench.leader(B)}
    everyone = set(bench.members(A, B))

    m = bench.multicast(A, B, pump=True)

    multicasts = bench.ends(Multicast)
    accepts = bench.ends(Accept)
    acks = bench.ends(AcceptAck)
    delivers = bench.ends(Deliver)
    assert sorted(multicasts) == sorted((ANN, leader) for leader in leaders)
    assert sorted(accepts) == sorted((x, p) for x in leaders for p in everyone - {x})
    assert sorted(acks) == sorted((p, x) for x in leaders for p in everyone)
    assert sorted(delivers) == sorted((x, p) for x in leaders for p in everyone - {x} if p.group == x.group)
    assert (len(multicasts), len(accepts), len(acks), len(delivers)) == (2, 10, 12, 4)
    assert len(bench.traffic) == 28, "and nothing else"
    bench.check_delivered(everyone, m)


def test_single_group_message_follows_paxos() -> None:
    """Section 4, *Discussion of normal operation*: a local message takes exactly the flow of Paxos.

    ACCEPT (2a) to the followers, ACCEPT_ACK (2b) to the leader, then DELIVER. A quorum suffices, the local
    timestamp is the global one, and no process outside the group receives a message about it.
    """
    bench = Bench(groups=2, replicas=3)
    a0, a1, a2 = bench.members(A)
    bench.isolate(a2)

    m = bench.multicast(A, pump=True)

    assert bench.ends(Accept) == [(a0, a1), (a0, a2)]
    assert sorted(bench.ends(AcceptAck)) == [(a0, a0), (a1, a0)]
    assert bench.ends(Deliver) == [(a0, a1), (a0, a2)]
    assert bench.log(a0) == bench.log(a1) == [m.mid]
    assert bench.global_ts(m) == timestamp(1, A)
    bench.release(pump=True)
    assert bench.log(a2) == [m.mid]


def test_only_a_leader_proposes() -> None:
    """Figure *protocol*, lines 3-4: MULTICAST is handled only where status = LEADER."""
    bench = Bench(groups=1)
    _, a1, _ = bench.members(A)

    m = bench.message(A)
    bench.send(m, a1, pump=True)

    assert bench.sent(Accept) == []
    assert bench.phase(a1, m) is Phase.START
    assert bench[a1].clock == 0


def test_accept_waits_for_the_proposals_of_all_destinations() -> None:
    """Figure *protocol*, lines 10-17: ACCEPTs from *every* destination group, then accept and acknowledge.

    Accepting sets the phase, stores the own group's local timestamp and passes the clock over the highest
    proposal; all of this before any process knows a global timestamp.
    """
    bench = Bench(groups=2)
    a0, a1, a2 = bench.members(A)
    b1 = bench.leader(B)
    bench.raise_clock(B, by=4)
    bench.traffic.clear()
    bench.hold(kind=AcceptAck)

    m = bench.message(A, B)
    bench.send(m, a0, pump=True)
    assert bench.phase(a0, m) is Phase.PROPOSED
    assert bench.sent(AcceptAck) == []
    assert bench[a1].clock == 0

    bench.send(m, b1, pump=True)
    for member in (a0, a1, a2):
        assert bench.phase(member, m) is Phase.ACCEPTED
        assert bench.local_ts(member, m) == timestamp(1, A)
        assert bench[member].clock == 5
    assert {source for source, _, _ in bench.sent(AcceptAck)} == set(bench.members(A, B))
    assert bench.sent(Deliver) == []


def test_commit_needs_a_quorum_of_every_destination() -> None:
    """Figure *protocol*, lines 18-21: acknowledgements of one group's quorum do not stand for another's."""
    bench = Bench(groups=2, replicas=3)
    a0, b1 = bench.leader(A), bench.leader(B)
    others = [member for member in bench.members(B) if member != b1]
    bench.hold(sources=others, kind=AcceptAck)

    m = bench.multicast(A, B, pump=True)
    assert bench.phase(a0, m) is bench.phase(b1, m) is Phase.ACCEPTED

    bench.release()
    bench.hold(sources=others[1:], kind=AcceptAck)
    bench.pump()
    assert bench.log(a0) == bench.log(b1) == [m.mid]


def test_commit_needs_the_leaders_own_acknowledgement() -> None:
    """Figure *protocol*, line 18, "including myself": Invariant 5 speaks of quorums with the leader in them.

    All processes but a0 have acknowledged; a0's disk is slow, so a0 has not. Then a0 may not commit, however
    many others have; b1, whose quorums need not contain a0, may.
    """
    bench = Bench(groups=2, replicas=3)
    a0, b1 = bench.leader(A), bench.leader(B)
    bench.hold_disk(a0)

    m = bench.multicast(A, B, pump=True)
    senders = {source for source, target, _ in bench.sent(AcceptAck) if target == a0}
    assert senders == set(bench.members(A, B)) - {a0}
    assert bench.log(a0) == []
    assert bench.log(b1) == [m.mid]

    bench.release_disk(a0)
    bench.pump()
    bench.check_delivered(bench.members(A, B), m)


def test_acknowledgements_with_different_ballot_vectors_do_not_commit() -> None:
    """Figure *protocol*, lines 18-21: a quorum in each group must acknowledge *one* vector Bal.

    A acknowledges m with b1's proposal. Then b0 takes B over, having seen nothing of m, and proposes anew. B
    acknowledges b0's proposal, and so does a0; but a1 and a2 do not hear b0. So a0 has a quorum of A for the
    old vector and one of B for the new vector: not a commit.
    """
    bench = Bench(groups=2, replicas=3)
    a0, a1, a2 = bench.members(A)
    b0, b1, b2 = bench.members(B)
    m = bench.message(A, B)
    bench.hold(sources=bench.members(A), targets=bench.members(B))
    bench.hold(sources=[b1], targets=[b0, b2])
    bench.send(m, pump=True)
    old = bench[a0].cballot, bench[b1].cballot
    assert {s for s, t, ack in bench.sent(AcceptAck, m) if t == a0 and ack.ballots == old} == {a0, a1, a2}

    bench.lose(sources=[b1])
    bench.elect(b0)
    bench.release()
    bench.hold(sources=[b0], targets=[a1, a2])
    bench.send(m, a0, b0, pump=True)
    new = bench[a0].cballot, bench[b0].cballot
    voters = {s for s, t, ack in bench.sent(AcceptAck, m) if t == a0 and ack.ballots == new}
    assert {a0, b0, b2} <= voters
    assert not {a1, a2} & voters
    assert bench.phase(a0, m) is Phase.ACCEPTED
    assert bench.log(a0) == []

    bench.release(pump=True)
    bench.check_delivered(bench.members(A, B), m)


def test_accept_of_an_older_ballot_of_the_own_group_is_ignored() -> None:
    """Figure *protocol*, line 11, cballot = Bal(g0): like in Paxos, only the supported leader is obeyed."""
    bench = Bench(groups=1)
    a0, a1, a2 = bench.members(A)
    bench.hold(sources=[a0])
    m = bench.multicast(A, pump=True)
    bench.isolate(a0)
    bench.elect(a1)

    bench.release()
    bench.pump()  # a0's ACCEPT(m) in its old ballot arrives at last.

    assert {target for _, target, _ in bench.sent(Accept, m)} == {a1, a2}
    for member in (a1, a2):
        assert bench.phase(member, m) is Phase.START
    assert not [ack for source, _, ack in bench.sent(AcceptAck, m) if source != a0]
    assert bench.log(a0) == []


def test_remote_ballots_are_not_checked() -> None:
    """Section 4, *Discussion of normal operation*: no check on ballots in ACCEPTs of remote groups.

    b1 has been deposed and does not know it. A knows b0's ballot from an earlier message; but for m it hears
    b1's proposal, accepts, and acknowledges it to b1. B's own followers do not.
    """
    bench = Bench(groups=2)
    b0, b1, b2 = bench.members(B)
    bench.hold(sources=bench.members(B), targets=[b1])
    bench.hold(sources=[b1], targets=bench.members(B))
    bench.elect(b0)
    earlier = bench.message(A, B)
    bench.send(earlier, bench.leader(A), b0, pump=True)
    assert bench.log(bench.leader(A)) == [earlier.mid]

    m = bench.message(A, B)
    bench.send(m, bench.leader(A), b1, pump=True)

    stale = bench[bench.leader(A)].cballot, bench[b1].cballot
    acks = [(source, target) for source, target, ack in bench.sent(AcceptAck, m) if ack.ballots == stale]
    for member in bench.members(A):
        assert bench.phase(member, m) is Phase.ACCEPTED
        assert (member, b1) in acks
    assert not [source for source, _ in acks if source in (b0, b2)]
    assert all(m.mid not in bench.log(member) for member in bench.members(A, B))


def test_clock_raised_by_a_deposed_remote_leader_is_harmless() -> None:
    """Section 4, *Discussion of normal operation*: "the clock can always be safely increased".

    b1, deposed, proposes m at time 11, which B will never agree to. A's clocks jump to 11 all the same. Then
    m is committed with what b0 proposes, far below 11; later messages of A are ordered after it, above 11.
    """
    bench = Bench(groups=2)
    a0, a1, a2 = bench.members(A)
    b0, b1, _ = bench.members(B)
    bench.isolate(b1)
    bench.elect(b0)
    bench.release()
    bench.hold(sources=[b1], targets=bench.members(B))
    bench.hold(targets=[b1], sources=bench.members(B))
    for _ in range(10):
        bench.send(bench.message(B, client=BOB), b1)
    m = bench.message(A, B)
    bench.send(m, a0, b1, pump=True)
    assert [bench[member].clock for member in (a0, a1, a2)] == [11, 11, 11]
    assert bench.log(a0) == []

    bench.send(m, a0, b0, pump=True)
    later = bench.multicast(A)
    also = bench.multicast(A, B, pump=True)

    assert bench.global_ts(m) == timestamp(1, B)
    assert bench.global_ts(later) == timestamp(12, A)
    assert time_of(bench.global_ts(also)) == 13
    bench.check_delivered((a0, a1, a2), m, later, also)
    bench.check_delivered((b0,), m, also)


def test_delivery_waits_for_lower_local_timestamps() -> None:
    """Figure *protocol*, lines 22-24: m' may go only when every uncommitted m'' is above it, in order.

    At A, first is proposed at 1 and waits for B; second is committed at 2, and so waits too.
    """
    bench = Bench(groups=2)
    a0 = bench.leader(A)
    first = bench.message(A, B)
    bench.send(first, a0)
    second = bench.multicast(A, pump=True)
    assert bench.phase(a0, second) is Phase.COMMITTED
    assert bench.log(a0) == []

    bench.send(first, bench.leader(B), pump=True)
    bench.check_delivered(bench.members(A), first, second)


def test_commit_does_not_wait_for_higher_local_timestamps() -> None:
    """Figure *protocol*, line 22: only uncommitted messages with *lower* local timestamps are in the way."""
    bench = Bench(groups=2)
    a0 = bench.leader(A)
    first = bench.multicast(A)
    bench.hold(kind=AcceptAck)
    bench.pump()
    second = bench.message(A, B)
    bench.send(second, a0, pump=True)
    bench.release(pump=True)
    assert bench.phase(a0, second) is Phase.PROPOSED
    assert bench.log(a0) == [first.mid]


def test_delivers_reach_followers_in_the_leaders_order() -> None:
    """Figure *protocol*, lines 22-32: the leader decides the order; FIFO links carry it to followers."""
    bench = Bench(groups=2)
    for number in range(12):
        bench.multicast(*((A, B), (A,), (B,))[number % 3], client=(ANN, BOB)[number % 2])
    bench.pump()
    for group in (A, B):
        leader = bench.leader(group)
        assert len(bench.log(leader)) == 8
        for member in bench.members(group):
            assert bench.log(member) == bench.log(leader)
    bench.check_order()


def test_deliver_brings_timestamps_and_clock() -> None:
    """Figure *protocol*, lines 27-32: a follower that could not accept m learns all from DELIVER.

    a2 does not hear B, so it has only its own leader's proposal when m is delivered.
    """
    bench = Bench(groups=2)
    a2 = bench.members(A)[2]
    bench.raise_clock(B, by=6)
    bench.hold(sources=bench.members(B), targets=[a2])

    m = bench.multicast(A, B, pump=True)

    assert a2 not in [source for source, _, _ in bench.sent(AcceptAck, m)]
    assert bench.log(a2) == [m.mid]
    assert (bench.phase(a2, m), bench.local_ts(a2, m)) == (Phase.COMMITTED, timestamp(1, A))
    assert bench[a2].entries[m.mid].global_ts == bench[a2].last_delivered == timestamp(7, B)
    assert bench[a2].clock == 7


def test_genuine() -> None:
    """Section 2, Minimality; Theorem *correctness*: only m's sender and its destinations take part in m.

    Even when leaders change and messages are repeated, group C neither hears nor says a word.
    """
    bench = Bench(groups=3)
    a1 = bench.members(A)[1]
    outside = set(bench.members(C))
    m = bench.multicast(A, B)
    n = bench.message(A, B)
    bench.send(n, bench.leader(A), pump=True)
    bench.elect(a1)
    bench.tick(bench.leader(A), bench.leader(B), after=bench.timing.retry_s)
    bench.send(n, pump=True)

    assert bench.traffic
    assert not [sent for sent in bench.traffic if outside & {sent.source, sent.target}]
    bench.check_delivered(bench.members(A, B), m, n)
    for member in bench.members(C):
        assert (bench.log(member), bench[member].clock) == ([], 0)
