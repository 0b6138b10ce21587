"""Section 4, "Discussion of leader recovery": the two subtleties the paper spells out as stories."""

from __future__ import annotations

from multicast.messages import NewLeaderAck
from multicast.types import Phase, timestamp
from tests.paper.bench import BOB, A, B, Bench


def test_clock_of_leaders_may_decrease() -> None:
    """The claim: "the value of the clock at leaders may actually decrease", without harm.

    a0 issues 2 to 6 and replicates none of them; a1's quorum saw nothing, and a1 goes on from 1. It gives the
    local timestamps out again, to other messages. What a0 had issued is ordered later, once multicast again.
    """
    bench = Bench(groups=2)
    a0, a1, a2 = bench.members(A)
    first = bench.multicast(A, pump=True)
    bench.hold(sources=[a0])
    lost = [bench.message(A, B) for _ in range(5)]
    for m in lost:
        bench.send(m, a0)
    bench.pump()
    bench.lose(sources=[a0])
    assert bench[a0].clock == 6
    bench.isolate(a0)

    bench.elect(a1)
    assert bench[a1].clock == 1
    second, third = bench.multicast(A, B, client=BOB), bench.multicast(A, client=BOB)
    bench.pump()
    assert bench.local_ts(a1, second) == timestamp(2, A) == bench.local_ts(a0, lost[0])

    bench.release(pump=True)
    for m in reversed(lost):
        bench.send(m)
    bench.pump()
    bench.check_delivered((a0, a1, a2), first, second, third, *reversed(lost))


def test_clock_does_not_fall_below_what_a_quorum_accepted() -> None:
    """The other half of the claim: Figure *inv* (2c), by line 55 of Figure *protocol*.

    Only a1 and a2 know that B proposed 8 for m; a2 takes over. Whatever it orders next is above 8, although
    m itself is nowhere near being committed.
    """
    bench = Bench(groups=2)
    a0, a1, a2 = bench.members(A)
    bench.raise_clock(B, by=7)
    m = bench.multicast(A, B)
    bench.hold(targets=[a0], sources=bench.members(B))
    bench.hold(sources=[a1, a2], targets=bench.members(B))
    bench.pump()
    assert [bench[member].clock for member in (a0, a1, a2)] == [1, 8, 8]
    bench.crash(a0, lose=True)
    bench.release()
    bench.hold(sources=bench.members(B))

    bench.elect(a2)
    later = bench.multicast(A, pump=True)
    assert bench.local_ts(a2, later) == timestamp(9, A)
    bench.release(pump=True)
    bench.check_delivered((a1, a2), m, later)


def test_three_ballots_no_resurrection() -> None:
    """The story of b1, b2, b3: why a leader synchronises a quorum, and line 52 asks the highest cballot only.

    In b1, a0 gives m the local timestamp 1 and replicates it to a4 alone. In b2, a1 starts from {a1, a2, a3},
    which never saw m, and delivers two others at 1 and 2. In b3, a4 leads, from {a0, a3, a4}: a0 and a4
    remember m at 1, in cballot b1; a3 alone is in b2, and outweighs both. Multicast again, m comes last.
    """
    bench = Bench(groups=1, replicas=5)
    a0, a1, a2, a3, a4 = bench.members(A)
    bench.hold(sources=[a0], targets=[a1, a2, a3])
    bench.hold(sources=[a4])
    m = bench.multicast(A, pump=True)
    b1 = bench[a0].cballot
    assert bench.local_ts(a0, m) == bench.local_ts(a4, m) == timestamp(1, A)
    assert bench.phase(a0, m) is bench.phase(a4, m) is Phase.ACCEPTED
    bench.lose(sources=[a0, a4])

    bench.isolate(a0, a4)
    bench.elect(a1)
    b2 = bench[a1].cballot
    others = [bench.multicast(A, client=BOB), bench.multicast(A, client=BOB)]
    bench.pump()
    assert bench.log(a1) == [other.mid for other in others]
    assert bench.global_ts(others[1]) > bench.local_ts(a4, m)
    bench.lose(targets=[a0, a4])
    bench.crash(a1)
    bench.release()
    bench.isolate(a2)
    bench.traffic.clear()

    bench.elect(a4)
    answers = {(source, ack.cballot) for source, _, ack in bench.sent(NewLeaderAck)}
    assert answers == {(a0, b1), (a3, b2), (a4, b1)}
    for member in (a0, a3, a4):
        assert bench.phase(member, m) is Phase.START, "m is not resurrected"
        assert bench.log(member) == [other.mid for other in others]

    bench.send(m, pump=True)
    bench.check_delivered((a0, a3, a4), *others, m)
    assert bench.global_ts(m) > bench.global_ts(others[1])
