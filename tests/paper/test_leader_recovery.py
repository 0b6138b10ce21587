"""Leader recovery: the right column of Figure *protocol*, and the text under "Leader recovery".

Line numbers are those that the docstrings of `multicast.whitebox` use. `Bench.nominate` is the leader
selection service, which picks a process and lets it call `recover`.
"""

from __future__ import annotations

import pytest

from multicast import messages as msg
from multicast.types import NO_BALLOT, NO_TIMESTAMP, Ballot, Phase, Status, Timestamp, timestamp
from tests.paper.bench import A, B, Bench


def entry(
    m: msg.Multicast, phase: Phase, local_ts: Timestamp, global_ts: Timestamp = NO_TIMESTAMP
) -> msg.EntryState:
    """What a NEWLEADER_ACK says about m."""
    return msg.EntryState(m.mid, m.dest, m.payload, m.ack_below, phase, local_ts, global_ts)


def test_flow_of_a_leader_change() -> None:
    """Figure *protocol*, lines 36-65: NEWLEADER, NEWLEADER_ACK, NEW_STATE, NEWSTATE_ACK, in this order."""
    bench = Bench(groups=1)
    a0, a1, a2 = bench.members(A)
    bench.elect(a1)

    ballot = bench[a1].ballot
    assert bench.ends(msg.NewLeader) == [(a1, a0), (a1, a2)]
    assert sorted(bench.ends(msg.NewLeaderAck)) == [(a0, a1), (a1, a1), (a2, a1)]
    assert bench.ends(msg.NewState) == [(a1, a0), (a1, a2)]
    assert sorted(bench.ends(msg.NewStateAck)) == [(a0, a1), (a1, a1), (a2, a1)]
    assert [bench.status(m) for m in (a0, a1, a2)] == [Status.FOLLOWER, Status.LEADER, Status.FOLLOWER]
    for member in (a0, a1, a2):
        assert bench[member].ballot == bench[member].cballot == ballot
    assert ballot.leader == a1


def test_newleader_of_a_lower_ballot_is_refused() -> None:
    """Figure *protocol*, lines 38-39, b > ballot: ballots compare by number, then by process."""
    bench = Bench(groups=1)
    a0, a1, a2 = bench.members(A)
    bench.elect(a1)
    assert bench[a0].ballot == Ballot(2, a1, 0)
    bench.traffic.clear()

    bench.inject(a2, a0, msg.NewLeader(Ballot(1, a2, 0)))
    bench.inject(a0, a2, msg.NewLeader(Ballot(2, a0, 0)))
    bench.inject(a0, a1, msg.NewLeader(Ballot(2, a0, 0)))
    assert bench.sent(msg.NewLeaderAck) == []
    for member in (a0, a1, a2):
        assert bench[member].ballot == bench[member].cballot == Ballot(2, a1, 0)
    assert bench[a1].is_leader

    bench.inject(a2, a0, msg.NewLeader(Ballot(2, a2, 0)))
    assert bench.ends(msg.NewLeaderAck) == [(a0, a2)]
    assert bench[a0].ballot == Ballot(2, a2, 0)
    assert bench[a0].cballot == Ballot(2, a1, 0)


def test_newleader_stops_normal_operation() -> None:
    """Figure *protocol*, lines 4, 40: a leader that has joined another's ballot proposes nothing more."""
    bench = Bench(groups=1)
    a0, a1, _ = bench.members(A)
    bench.nominate(a1)
    bench.hold(sources=[a1], kind=msg.NewState)
    bench.pump()
    assert bench.status(a0) is Status.RECOVERING

    m = bench.message(A)
    bench.send(m, a0, pump=True)
    assert bench.sent(msg.Accept) == []
    assert bench.phase(a0, m) is Phase.START


def test_recovering_process_ignores_accept_and_deliver() -> None:
    """Figure *protocol*, lines 11 and 26: status must be FOLLOWER or LEADER, even for the old cballot.

    a2 has promised a1's ballot but is not in it yet, so its cballot is still a0's. Then a0's DELIVER(m), for
    an m that a2 has accepted, and ACCEPT(n) arrive: a2 may neither deliver nor acknowledge now.
    """
    bench = Bench(groups=1)
    a0, a1, a2 = bench.members(A)
    slow = bench.hold(sources=[a0], targets=[a2], kind=msg.Deliver)
    m, n = bench.multicast(A), bench.message(A)
    bench.pump()
    bench.send(n, pump=True)
    assert (bench.log(a0), bench.phase(a2, m)) == ([m.mid, n.mid], Phase.ACCEPTED)
    bench.nominate(a1)
    bench.hold(sources=[a1], targets=[a0])
    bench.hold(sources=[a2])
    bench.pump()
    assert (bench.status(a2), bench[a2].cballot) == (Status.RECOVERING, bench[a0].cballot)

    bench.release(slow, pump=True)
    assert bench.log(a2) == []
    assert (bench.phase(a2, m), bench.phase(a2, n)) == (Phase.ACCEPTED, Phase.START)
    assert a2 not in [source for source, _, _ in bench.sent(msg.AcceptAck, n)]

    bench.release(pump=True)
    assert bench.log(a2) == [m.mid, n.mid], "but they are not lost"
    bench.check_order()


def test_deliver_of_another_ballot_is_ignored() -> None:
    """Figure *protocol*, line 26, cballot = b: no process is in the ballot of an old leader's DELIVER."""
    bench = Bench(groups=1)
    a0, a1, a2 = bench.members(A)
    old = bench[a0].cballot
    m = bench.multicast(A)
    bench.hold(kind=msg.AcceptAck)
    bench.pump()
    bench.elect(a1)
    assert bench.phase(a2, m) is Phase.ACCEPTED

    late = msg.Deliver(old, NO_TIMESTAMP, ((m.mid, timestamp(1, A), timestamp(1, A)),))
    bench.inject(a0, a2, late)
    assert bench.log(a2) == []


def test_leader_synchronises_a_quorum_before_it_leads() -> None:
    """Section 4, *Leader recovery*; Figure *protocol*, lines 64-65: first NEWSTATE_ACKs, then multicast.

    The candidate has its state and its cballot, but no follower has them: a MULTICAST waits, and nothing is
    proposed. With one follower in sync, which makes a quorum of three, it goes on at once.
    """
    bench = Bench(groups=1)
    _, a1, a2 = bench.members(A)
    bench.hold(kind=msg.NewStateAck)
    bench.nominate(a1)
    bench.pump()
    assert bench[a1].cballot == bench[a1].ballot == bench[a2].cballot

    m = bench.message(A)
    bench.send(m, a1, pump=True)
    assert bench.status(a1) is Status.RECOVERING
    assert (bench.sent(msg.Accept), bench.phase(a1, m)) == ([], Phase.START)

    bench.release()
    bench.hold(sources=[a2])
    bench.pump()
    assert bench.status(a1) is Status.LEADER
    assert bench.log(a1) == [m.mid]


def test_acknowledgements_of_another_ballot_do_not_count() -> None:
    """Figure *protocol*, lines 44 and 64, ballot = b: what answers a candidate's earlier ballot is void."""
    bench = Bench(groups=1)
    a0, a1, a2 = bench.members(A)
    slow = bench.hold(sources=[a0, a2])
    bench.nominate(a1)
    bench.pump()
    first = bench[a1].ballot
    bench.hold(sources=[a1])
    bench.nominate(a1)
    assert bench[a1].ballot > first

    bench.release(slow, pump=True)
    assert {ack.ballot for s, _, ack in bench.sent(msg.NewLeaderAck) if s != a1} == {first}
    assert bench.sent(msg.NewState) == []

    bench.release()
    bench.hold(kind=msg.NewStateAck)
    bench.pump()
    for member in (a0, a2):
        bench.inject(member, a1, msg.NewStateAck(first))
    assert bench.status(a1) is Status.RECOVERING
    bench.release(pump=True)
    assert bench.status(a1) is Status.LEADER


def test_new_state_of_a_lower_ballot_is_ignored() -> None:
    """Figure *protocol*, lines 58-59, ballot = b: after promising b3, a process does not follow b2."""
    bench = Bench(groups=1)
    _, a1, a2 = bench.members(A)
    bench.hold(kind=msg.NewState)
    bench.nominate(a1)
    bench.pump()
    bench.nominate(a2)
    late = next(state for _, target, state in bench.sent(msg.NewState) if target == a2)
    assert late.ballot < bench[a2].ballot

    bench.inject(a1, a2, late)
    assert bench.status(a2) is Status.RECOVERING
    assert bench[a2].cballot < late.ballot
    assert a2 not in [source for source, _, _ in bench.sent(msg.NewStateAck)]


def test_recovery_merges_the_states_of_a_quorum() -> None:
    """Figure *protocol*, lines 45-55: committed anywhere; accepted in the highest cballot; the highest clock.

    a1 is in the highest cballot and has *accepted*. a2 stayed behind: what it has as committed counts, what
    it has as accepted does not, its clock does.
    """
    bench = Bench(groups=1, replicas=5)
    a0, a1, a2, a3, a4 = bench.members(A)
    accepted, outdated, committed, both = (bench.message(A) for _ in range(4))
    bench.hold(sources=[a1, a2, a3, a4])
    bench.nominate(a0)
    ballot, cballot = bench[a0].ballot, bench[a0].cballot
    newer = (entry(accepted, Phase.ACCEPTED, timestamp(3, A)), entry(both, Phase.ACCEPTED, timestamp(1, A)))
    older = (
        entry(outdated, Phase.ACCEPTED, timestamp(3, A)),
        entry(committed, Phase.COMMITTED, timestamp(2, A), timestamp(2, A)),
        entry(both, Phase.COMMITTED, timestamp(1, A), timestamp(1, A)),
    )
    bench.inject(a2, a0, msg.NewLeaderAck(ballot, NO_BALLOT, 9, NO_TIMESTAMP, msg.StatePart(1, 0, 1), older))
    assert bench.sent(msg.NewState) == [], "two of five are no quorum"
    bench.inject(a1, a0, msg.NewLeaderAck(ballot, cballot, 3, NO_TIMESTAMP, msg.StatePart(1, 0, 1), newer))

    assert {target for _, target, _ in bench.sent(msg.NewState)} == {a1, a2, a3, a4}
    state = bench.sent(msg.NewState)[0][2]
    assert state.clock == 9
    assert {e.mid: (e.phase, e.local_ts, e.global_ts) for e in state.entries} == {
        accepted.mid: (Phase.ACCEPTED, timestamp(3, A), NO_TIMESTAMP),
        committed.mid: (Phase.COMMITTED, timestamp(2, A), timestamp(2, A)),
        both.mid: (Phase.COMMITTED, timestamp(1, A), timestamp(1, A)),
    }


def test_committed_is_taken_from_an_older_ballot() -> None:
    """Figure *protocol*, lines 48-51: a global timestamp known to any process is kept, whatever its cballot.

    Only a4 has heard DELIVER(m), in b1; then it was away, while in b2 m was merely accepted. In b3 the leader
    hears of a4's global timestamp, and delivers m without asking group B again.
    """
    bench = Bench(groups=2, replicas=5)
    a0, a1, _, a3, a4 = bench.members(A)
    m = bench.multicast(A, B)
    bench.hold(sources=[a0], targets=bench.members(A)[1:4], kind=msg.Deliver)
    bench.pump()
    assert [len(bench.log(member)) for member in bench.members(A)] == [1, 0, 0, 0, 1]
    bench.crash(a0, lose=True)
    bench.isolate(*bench.members(B))
    bench.isolate(a4)
    bench.elect(a1)
    assert bench.phase(a3, m) is Phase.ACCEPTED

    bench.crash(a1)
    bench.release()
    bench.lose(targets=[a4])
    bench.isolate(*bench.members(B))
    assert bench[a4].cballot < bench[a3].cballot
    bench.elect(a3)

    assert bench.phase(a3, m) is Phase.COMMITTED
    bench.check_delivered((a3, a4), m)


def test_new_state_replaces_what_was_there() -> None:
    """Figure *protocol*, line 62: a process that joins a ballot has that ballot's state, and nothing else.

    Only a4 accepted m. The new leader's quorum has not seen it, so a4 forgets it.
    """
    bench = Bench(groups=1, replicas=5)
    a0, a1, a2, a3, a4 = bench.members(A)
    bench.hold(sources=[a0], targets=[a1, a2, a3])
    bench.hold_disk(a0)
    m = bench.multicast(A, pump=True)
    assert bench.phase(a4, m) is Phase.ACCEPTED
    bench.crash(a0, lose=True)
    bench.hold(targets=[a4])
    bench.elect(a1)

    bench.release(pump=True)
    assert bench.status(a4) is Status.FOLLOWER
    for member in (a1, a2, a3, a4):
        assert bench[member].cballot == bench[a1].ballot
        assert bench.phase(member, m) is Phase.START


@pytest.mark.parametrize("successor", [1, 2])
def test_delivery_after_recovery_starts_from_the_beginning(successor: int) -> None:
    """Section 4, *Leader recovery*; Figure *protocol*, lines 66-69 and 26: all that is committed, once each.

    a0 died between DELIVERs: a1 has got two of three, a2 none. Whichever takes over, the one that is behind
    gets everything from its own beginning, and the other ignores what it has: max_delivered_gts.
    """
    bench = Bench(groups=1)
    a0, a1, a2 = members = bench.members(A)
    bench.hold(sources=[a0], targets=[a2], kind=msg.Deliver)
    messages = [bench.multicast(A), bench.multicast(A)]
    bench.pump()
    bench.hold(sources=[a0], kind=msg.Deliver)
    messages.append(bench.multicast(A))
    bench.pump()
    expected = [m.mid for m in messages]
    assert [bench.log(member) for member in members] == [expected, expected[:2], []]
    bench.crash(a0, lose=True)

    bench.elect(members[successor])

    assert bench.log(a1) == bench.log(a2) == expected
    if successor == 2:
        again = [mid for s, t, d in bench.sent(msg.Deliver) if (s, t) == (a2, a1) for mid, _, _ in d.run]
        assert again == expected, "a1 received again what it had, and ignored it"
    bench.check_order()


def test_duplicate_delivers_are_ignored() -> None:
    """Figure *protocol*, line 26, max_delivered_gts < gts: a DELIVER repeated in its ballot does nothing."""
    bench = Bench(groups=1)
    a0, a1, _ = bench.members(A)
    messages = [bench.multicast(A) for _ in range(3)]
    bench.pump()
    delivers = [deliver for _, target, deliver in bench.sent(msg.Deliver) if target == a1]
    bench.traffic.clear()

    for deliver in delivers:
        bench.inject(a0, a1, deliver)

    assert bench.log(a1) == [m.mid for m in messages]
    assert bench.traffic == []


def test_leader_without_a_quorum_recovers_with_a_higher_ballot() -> None:
    """Section 4, *Leader recovery*, its end: a candidate without a quorum starts over in a higher ballot."""
    bench = Bench(groups=1)
    a0 = bench.leader(A)
    old = bench[a0].cballot
    bench.isolate(a0)
    m = bench.multicast(A)
    bench.tick(a0, after=2 * bench.timing.election_s)
    assert bench.status(a0) is Status.RECOVERING

    bench.release()
    bench.lose(sources=[a0])
    bench.tick(a0, after=2 * bench.timing.election_s)
    bench.pump()
    assert bench.leader(A) == a0
    assert bench[a0].cballot > old
    bench.check_delivered(bench.members(A), m)


def test_groups_of_five_survive_two_failures() -> None:
    """Section 2, 2f+1 processes of which f may fail: f = 2, a leader and a follower.

    m is accepted by exactly the quorum {a0, a1, a4}; a0 and a4 are gone for good. The others take over, m is
    delivered, and so is what comes after it.
    """
    bench = Bench(groups=2, replicas=5)
    a0, a1, a2, a3, a4 = bench.members(A)
    bench.hold(sources=[a0], targets=[a2, a3])
    bench.hold(sources=bench.members(A), kind=msg.AcceptAck)
    m = bench.multicast(A, B, pump=True)
    bench.crash(a0, a4, lose=True)
    bench.release()

    bench.elect(a3)
    n = bench.multicast(A, B, pump=True)

    bench.check_delivered((a1, a2, a3, *bench.members(B)), m, n)
