"""Counts that members remember of each other, and a replica that may have forgotten promises."""

from __future__ import annotations

from typing import Any

import pytest

from multicast.durable import Accepted, Configured, Counted, Durable, Joined, Promised, Remembered
from multicast.membership import Configuration, Membership
from multicast.messages import (
    HandOver,
    Heartbeat,
    HeartbeatAck,
    Members,
    MembersWanted,
    NewLeader,
    NewState,
    PreVote,
    Recall,
    Recalled,
)
from multicast.process.memories import KEEP_S
from multicast.topology import Topology
from multicast.types import NO_TIMESTAMP, Ballot, ReplicaId, Status, timestamp
from multicast.whitebox import WhiteBox
from tests.unit.multicast.replicas import (
    CLIENT,
    G0,
    HERE,
    WHOLE,
    drain,
    follow,
    lead,
    multicast,
    proposal,
    replica_ids,
    start,
)

LEADER, ME, OTHER = HERE
BALLOT = Ballot(3, LEADER, 0)
COUNT = 5
FIVE = replica_ids(G0, 5)


def durable() -> Durable:
    found = Durable()
    found.apply([Joined(BALLOT, 5, ()), Counted(COUNT), Remembered(OTHER, 7)])
    return found


def doubting(topology: Topology | None = None) -> WhiteBox:
    """A replica that has been restarted, and has asked the others."""
    where = Topology({G0: HERE}) if topology is None else topology
    replica = start(WhiteBox, ME, where, durable=durable(), trusts_log=False)
    replica.tick(0.0)
    return replica


def answer(replica: WhiteBox, member: Any, count: int, version: int = 1) -> None:
    replica.step(member, Recalled(replica.life, count, version), 0.1)


# Counting


def heartbeat(counts: tuple[int, ...] = ()) -> Heartbeat:
    return Heartbeat(BALLOT, NO_TIMESTAMP, (), counts=counts)


def test_a_count_rises_with_what_is_durable_and_is_told_when_it_is_durable() -> None:
    replica = start(WhiteBox, ME)
    replica.step(LEADER, NewState(BALLOT, 0, WHOLE, ()), 0.0)
    replica.step(LEADER, heartbeat(), 0.0)
    ready = replica.ready()
    assert ready.persist[-1] == Counted(1)
    assert [m.count for _, m in ready.promise if isinstance(m, HeartbeatAck)] == [0]
    replica.step(OTHER, NewLeader(Ballot(4, OTHER, 0)), 0.01)
    assert replica.ready().persist == [Promised(Ballot(4, OTHER, 0))], "not more than once in a heartbeat"
    told = []
    for time in range(1, 9):
        replica.step(LEADER, heartbeat((0, 0, time)), time / 2)
        replica.tick(time / 2)
        ready = replica.ready()
        told += [m.count for _, m in ready.promise if isinstance(m, HeartbeatAck)]
        assert (Counted(2) in ready.persist) == (time == 3), "the last ones are counted, too"
    assert told == [1, 1, 2, 2, 2, 2, 2, 2], "what is remembered is not counted, or all would count for ever"


def test_a_leader_passes_on_what_it_is_told_and_its_own_count_once_that_is_durable() -> None:
    replica = start(WhiteBox, LEADER)
    ballot = lead(replica, [ME, OTHER])
    replica.step(OTHER, HeartbeatAck(ballot, ballot, NO_TIMESTAMP, count=9), 0.1)
    replica.tick(0.1)
    own = replica.count
    drain(replica)
    replica.step(CLIENT, multicast(1), 0.2)
    replica.tick(0.2)
    ready = replica.ready()
    assert Counted(own + 1) in ready.persist
    assert [m.counts for _, m in ready.send if isinstance(m, Heartbeat)] == [(own, 0, 9)]


def test_what_others_have_counted_is_kept_now_and_then() -> None:
    replica, disk = start(WhiteBox, ME), Durable()
    follow(replica, BALLOT)
    for step in range(1, 40):
        replica.step(LEADER, heartbeat((step, step + 1, 0)), step / 10)
        replica.tick(step / 10)
        ready = replica.ready()
        disk.apply(ready.persist)
        assert len([record for record in ready.persist if isinstance(record, Remembered)]) <= 1
        assert step - disk.memories[LEADER] <= 10 * KEEP_S
    assert ME not in disk.memories
    assert start(WhiteBox, ME, durable=disk).memories == disk.memories


def test_former_members_are_forgotten() -> None:
    disk = durable()
    new = OTHER._replace(incarnation=1)
    change = Membership(Configuration(G0, 0, HERE)).replace(OTHER, new, "")
    disk.apply([Configured(change)])
    assert disk.memories == {OTHER: 7}, "it still counts"
    replica = start(WhiteBox, ME, Topology({G0: HERE}), durable=disk)
    disk.apply([Configured(change.completed())])
    assert not disk.memories
    replica.step(LEADER, Members(change.completed()), 0.0)
    assert not replica.memories


# Doubt


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (OTHER, NewLeader(Ballot(4, OTHER, 0))),
        (OTHER, PreVote(Ballot(4, OTHER, 0))),
        (LEADER, heartbeat()),
        (LEADER, HandOver(BALLOT)),
        (LEADER, NewState(Ballot(4, LEADER, 0), 9, WHOLE, ())),
        (LEADER, proposal(BALLOT, [multicast(1)], 1)),
    ],
)
def test_a_replica_in_doubt_promises_nothing_and_asks(sender: Any, message: Any) -> None:
    replica = doubting()
    replica.step(sender, message, 0.1)
    replica.nominate(0.1)
    for time in range(1, 9):
        replica.tick(float(time))
        ready = replica.ready()
        assert not ready.promise
        assert not ready.persist
        assert ready.send[-1] == ((LEADER, OTHER), Recall(replica.life))
    assert replica.status_of()["status"] == "doubting"
    assert not replica.is_in_ballot(BALLOT)


def test_it_takes_part_when_a_quorum_remembers_no_more() -> None:
    replica = doubting()
    answer(replica, OTHER, COUNT)
    assert replica.status is Status.FOLLOWER
    drain(replica)
    replica.step(OTHER, NewLeader(Ballot(4, OTHER, 0)), 0.2)
    assert Promised(Ballot(4, OTHER, 0)) in replica.ready().persist


def test_a_quorum_of_five_needs_two_others() -> None:
    replica = start(WhiteBox, FIVE[1], Topology({G0: FIVE}), durable=durable(), trusts_log=False)
    for _ in range(2):
        answer(replica, FIVE[4], 0)
        assert replica.is_doubting
    answer(replica, FIVE[3], 0)
    assert not replica.is_doubting


def test_it_never_takes_part_if_any_member_remembers_more() -> None:
    replica = doubting()
    answer(replica, OTHER, COUNT + 1)
    answer(replica, LEADER, COUNT)
    assert "ends at count 5, but g0r2 remembers 6" in replica.forgot
    assert replica.is_silent
    replica.executed(NO_TIMESTAMP)
    assert replica.status is Status.RECOVERING


def test_what_it_catches_up_with_is_not_counted() -> None:
    """Otherwise its count would pass what the others remember."""
    replica = doubting()
    change = Membership(Configuration(G0, 0, HERE)).replace(OTHER, OTHER._replace(incarnation=1), "")
    replica.step(LEADER, Members(change), 5.0)
    assert any(isinstance(record, Configured) for record in replica.ready().persist)
    assert replica.count == COUNT


def test_an_answer_to_an_earlier_life_is_not_one() -> None:
    replica = doubting()
    replica.step(OTHER, Recalled(replica.life + 1, COUNT, 1), 0.1)
    assert replica.is_doubting


def test_a_member_that_knows_a_newer_membership_is_asked_for_it_and_does_not_count() -> None:
    """Those that this replica asks may have been replaced, and remember too little."""
    replica = doubting()
    drain(replica)
    answer(replica, OTHER, 0, version=3)
    assert replica.is_doubting
    assert drain(replica).to(OTHER) == [MembersWanted(G0)]


def test_members_answer_what_they_remember_and_ask_in_turn() -> None:
    replica = doubting()
    drain(replica)
    replica.step(OTHER, Recall(1), 0.1)
    assert drain(replica).to(OTHER) == [Recalled(1, 7, 1), Recall(replica.life)]
    answer(replica, OTHER, COUNT)
    replica.step(OTHER, Recall(2), 0.2)
    assert drain(replica).to(OTHER) == [Recalled(2, 7, 1)]


def test_a_group_of_one_is_not_in_doubt_and_a_new_group_starts_at_once() -> None:
    alone = start(WhiteBox, LEADER, Topology({G0: [LEADER]}), trusts_log=False)
    assert not alone.is_doubting
    first = start(WhiteBox, LEADER, Topology({G0: HERE}), trusts_log=False)
    first.tick(0.0)
    drain(first)
    answer(first, OTHER, 0)
    first.tick(0.1)
    assert any(isinstance(message, PreVote) for message in drain(first).to(OTHER))


def test_a_replica_that_its_own_node_has_replaced_is_an_old_copy() -> None:
    new = ME._replace(incarnation=1)
    change = Membership(Configuration(G0, 0, HERE, ["a", "b", "c"])).replace(ME, new, "b").completed()
    for address in ("b", "elsewhere"):
        replica = start(WhiteBox, ME, Topology({G0: HERE}), address=address, trusts_log=False)
        replica.step(LEADER, Members(change), 0.0)
        replica.step(OTHER, Members(change), 0.0)
        replica.tick(0.1)
        assert bool(replica.forgot) == (address == "b")


def test_a_member_that_remembers_more_is_believed_also_after_the_doubt_is_over() -> None:
    """The first answer may come from a member that was away, and remembers little."""
    for proof in (lambda life: Recalled(life, 900, 1), lambda _: heartbeat((0, 900, 0))):
        replica = doubting()
        answer(replica, OTHER, 0)
        assert not replica.is_doubting
        replica.step(LEADER, proof(replica.life), 0.2)
        assert "but g0r0 remembers 900" in replica.forgot


def test_a_replica_that_was_never_in_doubt_hears_no_answers() -> None:
    replica = start(WhiteBox, ME, Topology({G0: HERE}), durable=durable())
    answer(replica, OTHER, 900)
    assert not replica.forgot


def changed(members: list[ReplicaId], old: ReplicaId) -> tuple[ReplicaId, Membership]:
    """A new member, and the membership while it replaces the old one."""
    new = old._replace(incarnation=1)
    return new, Membership(Configuration(G0, 0, members)).replace(old, new, "")


def test_answers_suffice_as_soon_as_the_membership_that_needs_them_is_known() -> None:
    me, a, old, *_ = FIVE
    new, change = changed(FIVE, old)
    disk = Durable()
    disk.apply([Configured(change), Joined(Ballot(4, a, 1), 5, ()), Counted(COUNT)])
    replica = start(WhiteBox, me, Topology({G0: FIVE}), durable=disk, trusts_log=False)
    replica.tick(0.0)
    answer(replica, a, COUNT, version=2)
    answer(replica, new, 0, version=2)
    assert replica.is_doubting, "one more of the previous members is needed"
    replica.step(a, Members(change.completed()), 0.2)
    replica.tick(1.0)
    assert not replica.is_doubting


def test_a_new_member_needs_no_answers_of_previous_members() -> None:
    """It has promised nothing as one of them; and they may be gone."""
    new, change = changed(HERE, OTHER)
    replica = start(WhiteBox, new, Topology({G0: HERE}), trusts_log=False)
    replica.step(LEADER, Members(change), 0.0)
    replica.tick(0.0)
    answer(replica, LEADER, 0, version=2)
    assert not replica.is_doubting


def test_what_a_ballot_needs_suffices() -> None:
    """A member that has accepted that a change is complete need not ask the previous members: departure 8."""
    new, change = changed(HERE, OTHER)
    done = change.completed()
    disk = Durable()
    accepted = Accepted(((G0,),), (done.mid,), (timestamp(6, G0),), (done.encode(),), (done.version,), 6)
    disk.apply([Configured(change), Joined(Ballot(4, ME, 1), 5, ()), Counted(COUNT), accepted])
    replica = start(WhiteBox, ME, Topology({G0: HERE}), durable=disk, trusts_log=False)
    replica.tick(0.0)
    answer(replica, new, 0, version=2)
    assert not replica.is_doubting
