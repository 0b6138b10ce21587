"""Message recovery: Section 4 under that heading, and `retry`, lines 33-35 of Figure *protocol*.

Line numbers are those that the docstrings of `multicast.whitebox` use.
"""

from __future__ import annotations

from multicast.messages import Accept, AcceptAck, Deliver, Multicast
from multicast.types import Phase, timestamp
from tests.paper.bench import BOB, A, B, Bench


def test_client_dies_between_two_multicasts() -> None:
    """Figure *protocol*, lines 33-35: the leader that got m multicasts it again to all destinations.

    Only a0 has heard of m, so m is stuck in PROPOSED there, and everything after it. a0 retries.
    """
    bench = Bench(groups=2)
    a0, b1 = bench.leader(A), bench.leader(B)
    m = bench.message(A, B)
    bench.send(m, a0)
    behind = bench.multicast(A, client=BOB, pump=True)
    assert (bench.phase(a0, m), bench.phase(b1, m)) == (Phase.PROPOSED, Phase.START)
    assert bench.log(a0) == []
    bench.traffic.clear()

    bench.tick(a0, after=bench.timing.retry_s)
    bench.pump()

    assert bench.ends(Multicast) == [(a0, b1)]
    bench.check_delivered(bench.members(A), m, behind)
    bench.check_delivered(bench.members(B), m)


def test_retry_only_what_is_not_committed() -> None:
    """Figure *protocol*, line 34, phase[m] in {PROPOSED, ACCEPTED}: and only after a while."""
    bench = Bench(groups=2)
    a0 = bench.leader(A)
    done = bench.multicast(A, B, pump=True)
    stuck = bench.message(A, B)
    bench.send(stuck, a0, pump=True)
    bench.traffic.clear()

    bench.tick(a0, after=bench.timing.retry_s * 0.9)
    assert bench.sent(Multicast) == []
    bench.tick(a0, after=bench.timing.retry_s)
    assert {message.mid for _, _, message in bench.sent(Multicast)} == {stuck.mid}
    assert bench.log(a0) == [done.mid]


def test_message_lost_at_a_group_is_multicast_again() -> None:
    """Section 4, *Message recovery*: the client resends; a leader that lost m starts over, one that has m
    repeats its part.

    Both leaders proposed m, and B's proposal is known everywhere; but a0 died with its own. The same order
    must come out everywhere, with messages before and after, and m once.
    """
    bench = Bench(groups=2)
    a0, a1, a2 = bench.members(A)
    b1 = bench.leader(B)
    before = bench.multicast(A, B, client=BOB, pump=True)
    bench.hold(sources=[a0])
    m = bench.multicast(A, B, pump=True)
    assert bench.phase(b1, m) is Phase.PROPOSED
    bench.crash(a0, lose=True)
    bench.release()
    bench.elect(a1)
    assert bench.phase(a1, m) is bench.phase(a2, m) is Phase.START, "A has lost m"
    after = bench.multicast(A, B, client=BOB, pump=True)
    assert bench.log(a1) == [before.mid, after.mid]
    assert bench.log(b1) == [before.mid], "B waits for m, which has the lower local timestamp there"

    bench.send(m)
    bench.send(m, pump=True)

    assert {accept.local_ts for source, _, accept in bench.sent(Accept, m) if source == b1} == {
        (timestamp(2, B),)
    }
    bench.check_delivered((a1, a2, *bench.members(B)), before, after, m)


def test_accepted_message_is_resumed_after_a_leader_change() -> None:
    """Section 4, *Message recovery*, its end: `retry` resumes an accepted message; no client is needed.

    A's quorum has accepted m, B's leader holds it too, all acknowledgements are lost, and a0 dies.
    """
    bench = Bench(groups=2)
    a0, _, a2 = bench.members(A)
    m = bench.multicast(A, B)
    bench.hold(kind=AcceptAck)
    bench.pump()
    bench.lose()
    bench.crash(a0)
    bench.release()
    bench.traffic.clear()

    bench.elect(a2)

    assert (a2, bench.leader(B)) in bench.ends(Multicast, m)
    bench.check_delivered((*bench.members(A)[1:], *bench.members(B)), m)


def test_a_group_that_is_done_helps_one_that_is_not() -> None:
    """Section 4, *Message recovery*: groups that have processed m "just resend", lines 9 and 16-17.

    B has delivered m. A has accepted it, and lost its leader before it could commit. A new leader of A asks
    again; B's leader repeats its proposal, B acknowledges the new ballots, and B does not deliver twice.
    """
    bench = Bench(groups=2)
    a0, a1, a2 = bench.members(A)
    b1 = bench.leader(B)
    bench.hold(targets=[a0], kind=AcceptAck)
    m = bench.multicast(A, B, pump=True)
    bench.check_delivered(bench.members(B), m)
    bench.check_delivered(bench.members(A))
    bench.crash(a0)
    bench.traffic.clear()

    bench.elect(a1)

    repeated = [accept for source, target, accept in bench.sent(Accept, m) if (source, target) == (b1, a1)]
    assert [accept.local_ts for accept in repeated] == [(timestamp(1, B),)]
    assert {s for s, t, _ in bench.sent(AcceptAck, m) if t == a1} >= set(bench.members(B))
    bench.check_delivered((a1, a2, *bench.members(B)), m)
    assert not [source for source, _ in bench.ends(Deliver, m) if source == b1]


def test_lost_messages_of_normal_operation_are_repeated() -> None:
    """Section 4, *Message recovery*, lines 9 and 16-17: repeated ACCEPTs and ACCEPT_ACKs unblock m.

    Every acknowledgement is lost with the connections. Each leader retries; no leader needs another
    timestamp.
    """
    bench = Bench(groups=2)
    leaders = bench.leader(A), bench.leader(B)
    m = bench.multicast(A, B)
    bench.hold(kind=AcceptAck)
    bench.pump()
    bench.lose()
    bench.release()

    bench.tick(*leaders, after=bench.timing.retry_s)
    bench.pump()
    bench.check_delivered(bench.members(A, B), m)
    assert {a.local_ts for _, _, a in bench.sent(Accept, m)} == {(timestamp(1, A),), (timestamp(1, B),)}


def test_wrong_guess_of_a_leader() -> None:
    """Section 4, *Normal operation*: cur_leader is only a guess; a process that guesses wrong can ask the
    whole group.

    b1 led B and is gone; b2 leads now, which A has not heard. a0 retries to b1, and in the end to all of B.
    """
    bench = Bench(groups=2)
    a0, b1, b2 = bench.leader(A), bench.leader(B), bench.members(B)[2]
    bench.crash(b1)
    bench.elect(b2)
    m = bench.message(A, B)
    bench.send(m, a0, pump=True)
    assert bench[a0].leader_of(B) == b1

    for _ in range(6):
        bench.tick(a0, bench.leader(B), after=bench.timing.retry_s)
        bench.pump()
    assert bench[a0].leader_of(B) == b2
    bench.check_delivered((*bench.members(A), bench.members(B)[0], b2), m)


def test_multicast_of_a_delivered_message_delivers_nothing() -> None:
    """Section 2, Integrity: m is delivered once, however often it is multicast again."""
    bench = Bench(groups=2)
    m = bench.multicast(A, B, pump=True)
    bench.elect(bench.members(A)[1])
    for _ in range(3):
        bench.send(m, *bench.members(A, B), pump=True)
    n = bench.multicast(A, B, pump=True)
    bench.check_delivered(bench.members(A, B), m, n)
