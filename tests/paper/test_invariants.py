"""The key invariants of Figure *inv*, and those of appendix A that one process shows by itself.

Line numbers are those of Figure *protocol*, as the docstrings of `multicast.whitebox` use them.
"""

from __future__ import annotations

import random

import pytest

from multicast.messages import Accept, AcceptAck, Deliver, Multicast, NewLeader
from multicast.types import Ballot, MessageId, Phase, ReplicaId, Timestamp, group_of, time_of, timestamp
from tests.paper.bench import BOB, A, B, Bench


def test_invariant_1_one_local_timestamp_per_ballot() -> None:
    """Figure *inv* (1); Figure *protocol*, lines 6-9: a repeated MULTICAST repeats the stored proposal.

    At every stage of m: proposed, accepted, committed; and although the clock has moved on in between.
    """
    bench = Bench(groups=2)
    a0, b1 = bench.leader(A), bench.leader(B)
    m = bench.message(A, B)

    for targets in ((a0,), (a0,), (a0, b1), (a0, b1), (a0, b1)):
        bench.send(m, *targets, pump=True)
        bench.multicast(A, client=BOB, pump=True)

    proposed = [accept for source, _, accept in bench.sent(Accept, m) if source == a0]
    assert len(proposed) == 5 * 5
    assert {accept.ballot for accept in proposed} == {bench[a0].cballot}
    assert {accept.local_ts for accept in proposed} == {(timestamp(1, A),)}
    assert bench.phase(a0, m) is Phase.COMMITTED
    bench.check_order()


def accepted_by_a_quorum() -> tuple[Bench, Multicast]:
    """A quorum {a0, a1} of A has acknowledged m, proposed at 1 by A and at 5 by B. a2 saw nothing of it."""
    bench = Bench(groups=2)
    a0, a1, a2 = bench.members(A)
    bench.raise_clock(B, by=4)
    bench.isolate(a2)
    bench.hold(sources=[a0, a1], kind=AcceptAck)
    m = bench.multicast(A, B, pump=True)
    assert {source for source, _, _ in bench.sent(AcceptAck, m) if source in (a0, a1, a2)} == {a0, a1}
    return bench, m


@pytest.mark.parametrize("candidate", [1, 2])
def test_invariant_2_what_a_quorum_accepted_survives_a_leader_change(candidate: int) -> None:
    """Figure *inv* (2a-c); Figure *protocol*, lines 45-55: entry, local timestamp and clock persist.

    a0 dies before it commits. Whether a1 takes over, which accepted m, or a2, which never received it, every
    process in the new ballot has m (a), its local timestamp (b), and a clock not below its global one (c).
    """
    bench, m = accepted_by_a_quorum()
    a0, a1, a2 = bench.members(A)
    old = bench[a0].cballot
    bench.crash(a0)
    bench.release()
    bench.hold(sources=bench.members(B))  # The other group does not help.
    bench.lose(sources=[a0])

    bench.elect((a0, a1, a2)[candidate])

    for member in (a1, a2):
        entry = bench[member].entries[m.mid]
        assert bench[member].cballot > old
        assert entry.phase in (Phase.ACCEPTED, Phase.COMMITTED), "(a)"
        assert entry.local_ts == timestamp(1, A), "(b)"
        assert bench[member].clock >= 5, "(c)"


def test_invariant_2_survives_the_restart_of_the_whole_group() -> None:
    """Figure *inv* (2a-c), where processes come back: what was acknowledged is durable, ballots included."""
    bench, m = accepted_by_a_quorum()
    a0, a1, a2 = bench.members(A)
    old = bench[a0].cballot
    bench.crash(a0, a1, a2)
    bench.restart(a0, a1, a2)
    bench.release()
    bench.lose()
    bench.hold(sources=bench.members(B))

    assert bench[a1].cballot == old
    bench.elect(a2)

    for member in (a0, a1, a2):
        entry = bench[member].entries[m.mid]
        assert (entry.phase, entry.local_ts) == (Phase.ACCEPTED, timestamp(1, A))
        assert bench[member].clock >= 5


def test_acknowledgements_wait_until_they_are_durable() -> None:
    """Figure *inv* (2), its premise: a process that has sent ACCEPT_ACK has accepted, crash or no crash.

    a1's disk is slow. As long as it is, a1's acknowledgement stays inside; when a1 dies, m dies with it.
    """
    bench = Bench(groups=1)
    a0, a1, a2 = bench.members(A)
    bench.isolate(a2)
    bench.hold_disk(a1)
    m = bench.multicast(A, pump=True)
    assert bench.phase(a1, m) is Phase.ACCEPTED
    assert [source for source, _, _ in bench.sent(AcceptAck, m)] == [a0]
    assert bench.log(a0) == []

    bench.crash(a1)
    bench.restart(a1)
    assert bench.phase(a1, m) is Phase.START


def test_invariant_3_timestamps_of_a_message_never_change() -> None:
    """Figure *inv* (3a, 3b): all DELIVERs of m, of any ballot and group, carry the same timestamps.

    a0 commits and tells only a1. It dies; a2 takes over, delivers m again; then a1 does.
    """
    bench = Bench(groups=2)
    a0, a1, a2 = bench.members(A)
    bench.raise_clock(B, by=3)
    bench.hold(sources=[a0], targets=[a2], kind=Deliver)
    m = bench.multicast(A, B, pump=True)
    assert (bench.log(a1), bench.log(a2)) == ([m.mid], [])

    bench.crash(a0, lose=True)
    bench.elect(a2)
    bench.crash(a1)
    bench.restart(a1)
    bench.elect(a1)

    decisions = [
        (source, local_ts, global_ts)
        for source, _, deliver in bench.sent(Deliver, m)
        for mid, local_ts, global_ts in deliver.run
        if mid == m.mid
    ]
    assert {source for source, _, _ in decisions} == {a0, a1, a2, bench.leader(B)}
    assert {local_ts for source, local_ts, _ in decisions if source in (a0, a1, a2)} == {timestamp(1, A)}
    assert {global_ts for _, _, global_ts in decisions} == {timestamp(4, B)}, "3b"
    assert bench.log(a1) == bench.log(a2) == [m.mid]


def test_invariant_3_a_recommitted_message_gets_the_same_global_timestamp() -> None:
    """Figure *inv* (3b): a group that commits m only after its leader changed computes the same maximum.

    B has delivered m. A had accepted it when its leader died, and knows no global timestamp: it goes through
    ACCEPT and ACCEPT_ACK again, in another ballot.
    """
    bench, m = accepted_by_a_quorum()
    a0, a1, a2 = bench.members(A)
    bench.crash(a0)
    bench.release()
    bench.isolate(a2)
    bench.pump()
    assert bench.log(bench.leader(B))[-1] == m.mid, "B has its quorums: a0 acknowledged before it died"
    assert (bench.log(a1), bench.log(a2)) == ([], [])

    bench.release()
    bench.nominate(a2)
    later = bench.message(A, client=BOB)
    bench.send(later, a2, pump=True)

    bench.check_delivered((a1, a2), m, later)
    assert bench.global_ts(m) == timestamp(5, B)


def test_invariant_4_global_timestamps_are_unique() -> None:
    """Figure *inv* (4): two messages never share a global timestamp, leader changes included.

    a0 gives 1, 2, 3 to messages that it cannot replicate; a1, which knows nothing of them, gives the same
    local timestamps to others. What a0 proposed comes back only under new timestamps.
    """
    bench = Bench(groups=2)
    a0, a1, _ = bench.members(A)
    bench.hold(sources=[a0])
    lost = [bench.message(A), bench.message(A, B), bench.message(A)]
    for m in lost:
        bench.send(m, a0)
    bench.pump()
    old = {bench.local_ts(a0, m) for m in lost}
    bench.lose(sources=[a0])
    bench.isolate(a0)
    bench.elect(a1)
    fresh = [bench.multicast(*dest, client=BOB) for dest in ((A,), (A, B), (A,))]
    bench.pump()
    assert {bench.local_ts(a1, m) for m in fresh} == old, "the story: the same local timestamps again"

    bench.release()
    for m in lost:
        bench.send(m)
    bench.pump()

    everything = [delivery for machine in bench.machines.values() for delivery in machine.log]
    assert len({delivery.mid for delivery in everything}) == 6
    assert len({delivery.global_ts for delivery in everything}) == 6
    bench.check_order()


def test_invariant_5_later_ballots_add_nothing_below_an_accepted_message() -> None:
    """Figure *inv* (5), by (2c): after a quorum with its leader accepted m, nothing new comes before m.

    Of the messages with local timestamps below gts(m) = 5, a later leader has those that a0 had when it
    accepted m (here: early), with the same timestamps; all that come later are above 5.
    """
    bench = Bench(groups=2)
    a0, a1, a2 = bench.members(A)
    bench.raise_clock(B, by=4)
    bench.isolate(a2)
    bench.hold(kind=AcceptAck)
    early, m = bench.multicast(A), bench.multicast(A, B)
    bench.pump()
    before = {mid: entry.local_ts for mid, entry in bench[a0].entries.items()}
    assert before == {early.mid: timestamp(1, A), m.mid: timestamp(2, A)}

    bench.release()
    bench.crash(a0, lose=True)
    bench.hold(sources=bench.members(B))
    bench.elect(a2)
    late = bench.multicast(A, client=BOB, pump=True)

    below = {mid: e.local_ts for mid, e in bench[a2].entries.items() if time_of(e.local_ts) <= 5}
    assert below == before
    assert bench.local_ts(a2, late) == timestamp(6, A)

    bench.release(pump=True)
    bench.check_delivered((a1, a2), early, m, late)


def test_invariants_8_to_12_what_only_rises_at_a_process() -> None:
    """Appendix A (8-12): ballots only rise; within a ballot so do clock and phases, and timestamps stay.

    Checked after every single message, while messages take random times and leaders keep changing. (A leader
    that leaves its ballot forgets what it had merely proposed, so phases count from ACCEPTED.)
    """
    bench = Bench(groups=2)
    rng = random.Random(8)
    bench.delay = lambda source, target, message: rng.random()
    before: dict[ReplicaId, tuple[Ballot, Ballot, int, dict[MessageId, tuple[Phase, Timestamp]]]] = {}
    opened = set()

    def watch(member: ReplicaId) -> None:
        p = bench[member]
        held = {m: (e.phase, e.local_ts) for m, e in p.entries.items() if e.phase >= Phase.ACCEPTED}
        ballot, cballot, clock, known = before.get(member, (p.ballot, p.cballot, p.clock, held))
        assert ballot <= p.ballot, "8"
        assert cballot <= p.cballot <= p.ballot, "8 and 9"
        if cballot == p.cballot:
            for mid, (phase, local_ts) in known.items():
                assert phase <= held[mid][0], "10"
                assert local_ts == held[mid][1], "12"
            assert clock <= p.clock, "11"
        before[member] = p.ballot, p.cballot, p.clock, held
        opened.add(p.cballot)

    bench.watch = watch
    for number in range(20):
        m = bench.message(A, B)
        bench.send(m, *bench.members(A, B))
        for group in (A, B):
            bench.nominate(bench.members(group)[(number + rng.randrange(2)) % 3])
        bench.pump(until=bench.now + 5 * rng.random())
    bench.pump()
    assert len(opened) > 15
    assert sum(map(len, map(bench.log, bench.members(A, B)))) > 20
    bench.check_order()


def test_invariant_8_ballots_survive_a_restart() -> None:
    """Appendix A (8, 9), where processes come back: a promise holds after a crash.

    a2 has acknowledged to a1 that it is in b2, and restarts. It is not a0's follower again: a0's ACCEPT, and
    a NEWLEADER between b1 and b2, find it in b2.
    """
    bench = Bench(groups=1)
    a0, a1, a2 = bench.members(A)
    b1 = bench[a0].cballot
    bench.nominate(a1)
    bench.hold(sources=[a1], targets=[a0])
    bench.hold(sources=[a2])
    bench.pump()
    b2 = bench[a1].ballot
    bench.crash(a2)
    bench.restart(a2)
    assert (bench[a2].ballot, bench[a2].cballot) == (b2, b1)

    m = bench.message(A)
    bench.send(m, a0, pump=True)
    bench.inject(a0, a2, NewLeader(Ballot(b2.number, a0, 0)))
    assert (a0, a2) in bench.ends(Accept, m)
    assert bench.phase(a2, m) is Phase.START
    assert bench[a2].ballot == b2


def test_invariants_13_and_14_a_clock_passes_what_is_committed() -> None:
    """Appendix A (13, 14): wherever m is committed, local_ts ≤ global_ts, and the clock has passed it."""
    bench = Bench(groups=2)
    for _ in range(5):
        bench.multicast(B, client=BOB)
        bench.multicast(A, B)
    bench.pump()
    for member in bench.members(A, B):
        entries = [e for e in bench[member].entries.values() if e.phase is Phase.COMMITTED]
        assert len(entries) >= 5
        for entry in entries:
            assert entry.local_ts <= entry.global_ts
            assert group_of(entry.local_ts) == member.group
            assert bench[member].clock >= time_of(entry.global_ts)


def test_invariant_20_local_timestamps_are_distinct() -> None:
    """Appendix A (20): at any process, no two messages hold the same local timestamp."""
    bench = Bench(groups=2)
    a0, a1, _ = bench.members(A)
    held = [bench.message(A, B) for _ in range(4)]
    for m in held:
        bench.send(m, a0)
        bench.multicast(A, client=BOB)
    bench.pump()
    bench.elect(a1)
    for m in held:
        bench.send(m)
    bench.pump()
    for member in bench.members(A, B):
        stamps = [entry.local_ts for entry in bench[member].entries.values()]
        assert len(stamps) == len(set(stamps)) >= 4
    bench.check_order()
