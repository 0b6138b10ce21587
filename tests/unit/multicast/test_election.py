"""Leader selection: pre-votes, stability, randomised time-outs, and stepping down without a quorum."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast import messages as msg
from multicast.election import LeaderSelection
from multicast.membership import Configuration, Membership
from multicast.protocol import Timing
from multicast.sim.clients import Workload
from multicast.sim.faults import Cut
from multicast.sim.run import Scenario, Simulation
from multicast.topology import Topology
from multicast.types import NO_BALLOT, NO_TIMESTAMP, Ballot, Status
from multicast.whitebox import WhiteBox
from tests.unit.multicast.replicas import EXAMPLES, G0, drain, follow, lead, replica_ids, start

TIMING = Timing()
R = replica_ids(G0, 5)
HIGHER = Ballot(5, R[2], 0)


def selection(size: int = 3, me: int = 0, seed: int = 0) -> LeaderSelection:
    return LeaderSelection(R[me], members(size), TIMING, random.Random(seed))


def members(size: int) -> Membership:
    return Membership(Configuration(G0, 0, R[:size]))


@EXAMPLES
@given(st.integers(), st.floats(0, 1e6))
def test_time_outs_are_between_one_and_two_election_times(seed: int, now: float) -> None:
    chosen = selection(seed=seed)
    chosen.expect_leader(now)
    assert now + TIMING.election_s <= chosen.stand_at <= now + 2 * TIMING.election_s


def test_time_outs_are_spread() -> None:
    waits = []
    chosen = selection()
    for _ in range(200):
        chosen.expect_leader(0.0)
        waits.append(chosen.stand_at)
    assert min(waits) < 1.1 * TIMING.election_s
    assert max(waits) > 1.9 * TIMING.election_s
    assert len(set(waits)) == 200


def test_who_is_to_lead_first_stands_at_once() -> None:
    chosen = selection()
    chosen.expect_leader(3.0, at_once=True)
    assert chosen.stand_at == 3.0


def test_members_that_have_just_started_stand_in_turn_after_a_heartbeat() -> None:
    turns = []
    for me in range(3):
        chosen = selection(me=me)
        chosen.expect_leader(3.0)
        chosen.stand_early(members(3), 3.0)
        turns.append(chosen.stand_at)
    assert turns == [3.0 + turn * TIMING.heartbeat_s for turn in (1, 2, 3)]


def test_a_member_that_has_just_started_and_hears_a_leader_does_not_stand_early() -> None:
    chosen = selection()
    chosen.heard_leader(3.0)
    chosen.stand_early(members(3), 3.0 + TIMING.heartbeat_s)
    assert chosen.stand_at >= 3.0 + TIMING.election_s
    chosen = selection()
    chosen.expect_leader(3.0)
    chosen.stand_early(members(3), 3.0)
    chosen.heard_leader(3.05)
    assert chosen.stand_at >= 3.05 + TIMING.election_s


def test_a_heartbeat_puts_off_standing_and_denies_others_for_one_election_time() -> None:
    chosen = selection()
    chosen.heard_leader(10.0)
    assert chosen.stand_at >= 10.0 + TIMING.election_s
    assert not chosen.grants(10.0)
    assert not chosen.grants(10.0 + 0.99 * TIMING.election_s)
    assert chosen.grants(10.0 + 1.01 * TIMING.election_s)


def test_a_member_that_never_heard_a_leader_grants() -> None:
    assert selection().grants(0.0)


def test_a_leader_that_was_replaced_is_forgotten() -> None:
    chosen = selection()
    chosen.heard_leader(10.0)
    chosen.forget_leader()
    assert chosen.grants(10.0)


@pytest.mark.parametrize(("size", "needed"), [(1, 1), (3, 2), (5, 3)])
def test_pre_votes_make_a_quorum_once(size: int, needed: int) -> None:
    chosen = selection(size)
    verdicts = [chosen.begin_pre_vote(members(size), 0.0)]
    verdicts += [chosen.pre_vote(member) for member in R[1:size]]
    assert verdicts == [number == needed for number in range(1, size + 1)]


def test_one_member_has_one_pre_vote() -> None:
    chosen = selection(5)
    assert not chosen.begin_pre_vote(members(5), 0.0)
    assert not any(chosen.pre_vote(R[1]) for _ in range(5))
    assert chosen.pre_vote(R[2])


def test_a_new_pre_vote_starts_from_nothing() -> None:
    chosen = selection(5)
    chosen.begin_pre_vote(members(5), 0.0)
    chosen.pre_vote(R[1])
    chosen.begin_pre_vote(members(5), 1.0)
    assert not chosen.pre_vote(R[2])
    assert chosen.pre_vote(R[1])


def test_a_leader_keeps_its_quorum_while_a_quorum_answers() -> None:
    chosen = selection(5)
    chosen.lead(members(5).current, 0.0)
    assert chosen.stand_at == math.inf
    limit = 2 * TIMING.election_s
    assert chosen.keeps_quorum(0.99 * limit)
    assert not chosen.keeps_quorum(1.01 * limit)
    chosen.heard_member(R[3], limit)
    assert not chosen.keeps_quorum(1.01 * limit)
    chosen.heard_member(R[4], limit)
    chosen.heard_member(R[0], limit)
    assert chosen.keeps_quorum(1.01 * limit)
    assert not chosen.keeps_quorum(2.01 * limit)


def test_a_leader_must_answer_itself() -> None:
    """Its own acknowledgements wait for its disk: a replica whose disk hangs should not lead."""
    chosen = selection(3)
    chosen.lead(members(3).current, 0.0)
    limit = 2 * TIMING.election_s
    for other in R[1:3]:
        chosen.heard_member(other, limit)
    assert not chosen.keeps_quorum(1.01 * limit)
    chosen.heard_member(R[0], limit)
    assert chosen.keeps_quorum(1.01 * limit)


def test_alone_a_leader_is_its_own_quorum() -> None:
    chosen = selection(1)
    chosen.lead(members(1).current, 0.0)
    chosen.heard_member(R[0], 1e9)
    assert chosen.keeps_quorum(1e9)


def test_vain_attempts_make_a_leader_patient() -> None:
    chosen = selection(3)
    for attempt in range(3):
        chosen.begin_pre_vote(members(3), float(attempt))
    chosen.lead(members(3).current, 10.0)
    assert chosen.keeps_quorum(10.0 + 7.9 * TIMING.election_s)
    assert not chosen.keeps_quorum(10.0 + 8.1 * TIMING.election_s)


# The same, in the process that acts on the verdicts


def process(me: int, size: int = 3) -> WhiteBox:
    return start(WhiteBox, R[me], Topology.uniform(1, size))


def test_nobody_spends_a_ballot_before_a_quorum_of_pre_votes() -> None:
    replica = process(0, 5)
    replica.tick(0.0)
    expected = Ballot(1, R[0], 0)
    assert drain(replica).messages == [(other, msg.PreVote(expected)) for other in R[1:]]
    assert replica.ballot == NO_BALLOT
    replica.step(R[1], msg.PreVoteAck(expected), 0.0)
    replica.step(R[1], msg.PreVoteAck(expected), 0.0)
    assert replica.ballot == NO_BALLOT
    replica.step(R[2], msg.PreVoteAck(Ballot(1, R[3], 0)), 0.0)
    assert replica.ballot == NO_BALLOT
    replica.step(R[2], msg.PreVoteAck(expected), 0.0)
    assert replica.ballot == expected
    said = drain(replica).messages
    assert [m for _, m in said if isinstance(m, msg.NewLeader)] == 4 * [msg.NewLeader(expected)]


def test_who_is_not_first_waits_for_its_time_out() -> None:
    replica = process(1)
    replica.tick(0.99 * TIMING.election_s)
    assert drain(replica).messages == []
    replica.tick(2 * TIMING.election_s)
    assert (R[0], msg.PreVote(Ballot(1, R[1], 0))) in drain(replica).messages


def test_a_member_that_hears_a_leader_grants_no_pre_vote() -> None:
    replica = process(1)
    ballot = Ballot(1, R[0], 0)
    follow(replica, ballot, 1.0)
    replica.step(R[0], msg.Heartbeat(ballot, NO_TIMESTAMP, ()), 2.0)
    drain(replica)
    asked = msg.PreVote(Ballot(2, R[2], 0))
    replica.step(R[2], asked, 2.0 + 0.9 * TIMING.election_s)
    assert drain(replica).messages == []
    replica.step(R[2], asked, 2.0 + 1.1 * TIMING.election_s)
    assert drain(replica).messages == [(R[2], msg.PreVoteAck(asked.ballot))]


def test_a_pre_vote_changes_no_ballot() -> None:
    replica = process(1)
    ballot = Ballot(1, R[0], 0)
    follow(replica, ballot, 1.0)
    replica.step(R[2], msg.PreVote(Ballot(7, R[2], 0)), 9.0)
    assert (replica.ballot, replica.cballot, replica.status) == (ballot, ballot, Status.FOLLOWER)


def test_a_leader_grants_no_pre_vote() -> None:
    replica = process(0)
    lead(replica, [R[1]])
    replica.step(R[2], msg.PreVote(Ballot(2, R[2], 0)), 100.0)
    assert [m for _, m in drain(replica).messages if isinstance(m, msg.PreVoteAck)] == []


def test_who_stands_in_an_old_ballot_is_told_the_newer_one() -> None:
    replica = process(1)
    ballot = Ballot(4, R[0], 0)
    follow(replica, ballot, 1.0)
    replica.step(R[2], msg.PreVote(Ballot(2, R[2], 0)), 9.0)
    assert drain(replica).messages == [(R[2], msg.Hint(G0, ballot))]
    behind = process(2)
    behind.step(R[1], msg.Hint(G0, ballot), 9.0)
    behind.tick(20.0)
    assert (R[0], msg.PreVote(Ballot(5, R[2], 0))) in drain(behind).messages


def test_a_leader_steps_down_when_no_quorum_answers() -> None:
    replica = process(0)
    ballot = lead(replica, [R[1]])
    now = 0.0
    while now < 1.9 * TIMING.election_s:
        now += TIMING.heartbeat_s
        replica.tick(now)
        drain(replica)
    assert replica.is_leader
    while now < 2.5 * TIMING.election_s:
        now += TIMING.heartbeat_s
        replica.tick(now)
    assert replica.status is Status.RECOVERING
    assert (replica.ballot, replica.cballot) == (ballot, ballot)
    assert replica.ready().wake_at < math.inf


def test_a_leader_stays_while_a_quorum_answers_in_its_ballot() -> None:
    replica = process(0)
    ballot = lead(replica, [R[1]])
    now = 0.0
    while now < 20 * TIMING.election_s:
        now += TIMING.heartbeat_s
        replica.tick(now)
        heartbeats = [to for to, m in drain(replica).messages if isinstance(m, msg.Heartbeat)]
        assert heartbeats == [R[1], R[2]]
        replica.step(R[1], msg.HeartbeatAck(ballot, ballot, NO_TIMESTAMP), now)
    assert replica.status is Status.LEADER


def test_answers_from_another_ballot_do_not_keep_a_leader() -> None:
    replica = process(0)
    ballot = lead(replica, [R[1]])
    now = 0.0
    while now < 3 * TIMING.election_s:
        now += TIMING.heartbeat_s
        replica.tick(now)
        drain(replica)
        if replica.status is Status.LEADER:
            replica.step(R[1], msg.HeartbeatAck(ballot, NO_BALLOT, NO_TIMESTAMP), now)
    assert replica.status is Status.RECOVERING


def test_a_leader_that_stepped_down_leads_again_only_in_a_higher_ballot() -> None:
    replica = process(0)
    old = lead(replica, [R[1]])
    replica.tick(10.0)
    assert not replica.is_leader
    replica.step(R[1], msg.NewStateAck(old), 10.0)
    assert not replica.is_leader
    new = lead(replica, [R[1]], 12.0)
    assert new.number > old.number


@pytest.mark.parametrize("message", [msg.Heartbeat(HIGHER, NO_TIMESTAMP, ()), msg.NewLeader(HIGHER)])
def test_a_leader_gives_way_to_a_higher_ballot(message: msg.Message) -> None:
    replica = process(0)
    lead(replica, [R[1]])
    replica.step(R[2], message, 0.1)
    assert replica.status is Status.RECOVERING
    assert replica.ballot == (HIGHER if isinstance(message, msg.NewLeader) else Ballot(1, R[0], 0))


@pytest.mark.parametrize("seed", range(5))
def test_groups_whose_members_all_start_again_do_not_wait_for_a_time_out(seed: int) -> None:
    """And their preferred leaders lead, so that leaders are spread over nodes."""
    simulation = Simulation(Scenario(groups=3, faults="none", workload=Workload(messages=0)), seed)

    def preferred_lead() -> bool:
        leaders = map(simulation.topology.preferred_leader, simulation.topology.groups)
        found = [simulation.hosts[leader].replica for leader in leaders]
        return all(replica is not None and replica.is_leader for replica in found)

    simulation.start()
    assert simulation.run_until(preferred_lead, 5.0)
    for replica in simulation.hosts:
        simulation.crash(replica, 1.0)
    assert not preferred_lead()
    assert simulation.run_until(preferred_lead, simulation.loop.now + 1.0 + TIMING.election_s)


def test_a_member_that_can_send_but_not_hear_deposes_nobody() -> None:
    """Without pre-votes, a one-way cut means elections for ever."""
    simulation = Simulation(Scenario(groups=1, faults="none", workload=Workload(messages=0)), 3)
    simulation.start()
    leader = simulation.hosts[R[0]]
    assert simulation.run_until(lambda: leader.replica is not None and leader.replica.is_leader, 5.0)
    assert isinstance(leader.replica, WhiteBox)
    ballot = leader.replica.ballot
    simulation.inject(Cut((R[0], R[1]), (R[2],)))
    simulation.run_until(lambda: False, simulation.loop.now + 30.0)
    assert leader.replica.is_leader
    assert leader.replica.ballot == ballot
    deaf = simulation.hosts[R[2]].replica
    assert isinstance(deaf, WhiteBox)
    assert deaf.ballot.number <= ballot.number
