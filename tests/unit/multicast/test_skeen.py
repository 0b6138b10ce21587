"""Bad input to Skeen's family is refused, and changes nothing; and the counters of an entry."""

from __future__ import annotations

import dataclasses
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast import messages as msg
from multicast import types as t
from multicast.errors import InvalidArgument, PeerViolation
from multicast.protocol import Start
from multicast.retries import RETRIES_MIN
from multicast.skeen import Entry, FastCast, FtSkeen, Skeen
from multicast.topology import Topology
from tests.unit.multicast.replicas import BOTH, CLIENT, G0, G1, G2, drain, follow, lead, multicast, start

TOPOLOGY = Topology.uniform(3, 3)
R0, R1, R2 = TOPOLOGY.members(G0)
FAR = TOPOLOGY.preferred_leader(G1)
FAR_BALLOT = t.Ballot(4, FAR, 0)
NINE = t.timestamp(9, G1)
NOW = 1.0


M = multicast(1, BOTH)
OTHER, NEXT = multicast(9), t.timestamp(8, G0)
OTHER_TWO = multicast(8, BOTH)
"""Nothing is wrong with it."""


def leader(protocol: type[FtSkeen] = FtSkeen) -> FtSkeen:
    """R0 leads, with R1's help, and has M under way: its own timestamp is decided."""
    replica = start(protocol, R0, TOPOLOGY)
    ballot = lead(replica, [R1], NOW)
    replica.step(CLIENT, M, NOW)
    drain(replica)
    replica.step(R1, msg.Phase2b(ballot, (M.mid,), msg.ClockUpdates()), NOW)
    drain(replica)
    assert replica.entries[M.mid].decided == 1
    return replica


def follower(protocol: type[FtSkeen] = FtSkeen) -> FtSkeen:
    """R1 follows R0."""
    replica = start(protocol, R1, TOPOLOGY)
    follow(replica, t.Ballot(1, R0, 0), NOW)
    return replica


def picture(replica: FtSkeen) -> bytes:
    """Everything in it, but for the clock on the wall, its handlers, and the topology, which caches."""
    ignored = ("now", "_handlers", "_client_handlers", "topology")
    state = {k: v for k, v in vars(replica).items() if k not in ignored}
    return pickle.dumps(state)


def refused(replica: FtSkeen, sender: t.Process, said: msg.Message, *named: str) -> None:
    before = picture(replica)
    with pytest.raises((PeerViolation, InvalidArgument)) as caught:
        replica.step(sender, said, NOW)
    for word in named:
        assert word in str(caught.value)
    assert picture(replica) == before


def propose(
    mid: t.MessageId = M.mid,
    dest: t.Destinations = M.dest,
    group: t.GroupId = G1,
    ballot: t.Ballot = FAR_BALLOT,
    local_ts: t.Timestamp = NINE,
) -> msg.Propose:
    return msg.Propose(group, ballot, (mid,), (dest,), (local_ts,), (True,))


@pytest.mark.parametrize("protocol", [FtSkeen, FastCast])
@pytest.mark.parametrize("role", [leader, follower])
def test_a_bad_propose_is_refused(protocol: type[FtSkeen], role: type) -> None:
    replica = role(protocol)
    near = t.Ballot(1, R2, 0)
    refused(replica, FAR, propose(group=G2), "group 2")
    refused(replica, R2, propose(group=G0, ballot=near, local_ts=t.timestamp(9, G0)), "group 0")
    refused(replica, FAR, propose(local_ts=t.NO_TIMESTAMP), str(M.mid))
    refused(replica, FAR, propose(local_ts=t.timestamp(9, G2)), str(M.mid))
    refused(replica, TOPOLOGY.members(G1)[0], propose(), str(FAR_BALLOT))
    refused(replica, CLIENT, propose(), "may not send")


def test_a_propose_about_destinations_that_are_not_the_message_s() -> None:
    replica = leader()
    third = TOPOLOGY.preferred_leader(G2)
    alien = propose(group=G2, ballot=t.Ballot(1, third, 0), local_ts=t.timestamp(3, G2))
    refused(replica, third, alien, str(M.mid), "came from")
    unknown = multicast(5, (G1, G2))
    refused(replica, FAR, propose(unknown.mid, unknown.dest), str(unknown.mid))
    refused(replica, FAR, propose(multicast(6).mid, (G1, G0)), "strictly increasing")


def test_one_bad_proposal_in_a_run_changes_nothing() -> None:
    replica = leader()
    mids, dests = (OTHER_TWO.mid, M.mid), (OTHER_TWO.dest, M.dest)
    good = msg.Propose(G1, FAR_BALLOT, mids, dests, (NINE, NINE), (True, True))
    for bad in (
        dataclasses.replace(good, mids=(OTHER_TWO.mid,)),
        dataclasses.replace(good, decided=(True,)),
        dataclasses.replace(good, local_ts=(NINE, t.NO_TIMESTAMP)),
        dataclasses.replace(good, local_ts=(NINE, t.timestamp(9, G0))),
        dataclasses.replace(good, dests=((G0,), M.dest)),
    ):
        refused(replica, FAR, bad, "PROPOSE")
    refused(replica, FAR, msg.Propose(G1, FAR_BALLOT, (), (), (), ()), "0 messages")
    replica.step(FAR, good, NOW)
    assert replica.entries[M.mid].missing == 0
    assert replica.entries[OTHER_TWO.mid].phase is t.Phase.START


@pytest.mark.parametrize(("protocol", "decided"), [(FtSkeen, (True,)), (FastCast, (False, True))])
def test_what_a_leader_tells_another_in_a_turn_is_one_message(
    protocol: type[FtSkeen], decided: tuple[bool, ...]
) -> None:
    replica = leader(protocol)
    messages = [multicast(2, BOTH), multicast(3, (G0, G1, G2)), multicast(4)]
    said: list[tuple[t.Process, msg.Propose]] = []
    replica.receive(CLIENT, messages, NOW)
    for _ in range(2):
        ready = replica.ready()
        # Each goes to one leader, which the type of a send does not say.
        said += [(*to, what) for to, what in ready.send if isinstance(what, msg.Propose)]  # type: ignore[misc]
        asked = [what for _, what in ready.send if isinstance(what, msg.Phase2a)]
        for what in asked:
            vote = msg.Phase2b(what.ballot, what.local.mids, what.clocks)
            for member in (R0, R1):
                replica.step(member, vote, NOW)
    told = {to: [(what.mids, what.decided) for whom, what in said if whom == to] for to, _ in said}
    one, two = messages[0].mid, messages[1].mid
    assert told == {
        TOPOLOGY.preferred_leader(G1): [((one, two), (fact, fact)) for fact in decided],
        TOPOLOGY.preferred_leader(G2): [((two,), (fact,)) for fact in decided],
    }


def test_a_leader_repeats_few_of_many_at_a_time_oldest_first() -> None:
    replica = leader()
    count = 3 * RETRIES_MIN
    messages = [multicast(number, BOTH) for number in range(2, 2 + count)]
    replica.receive(CLIENT, messages, NOW)
    replica.ready()
    for turn in range(3):
        replica.tick(NOW + 0.3 + turn * 0.11)
        for member in (R0, R1):
            ack = msg.HeartbeatAck(replica.cballot, replica.cballot, t.NO_TIMESTAMP)
            replica.step(member, ack, NOW + 0.3 + turn * 0.11)
        again = [what.mid for _, what in replica.ready().send if isinstance(what, msg.Multicast)]
        first = turn * RETRIES_MIN
        expected = [M.mid, *(each.mid for each in messages)][first : first + RETRIES_MIN]
        assert again[: len(expected)] == expected
        assert len(again) == RETRIES_MIN


def test_a_group_that_decided_twice_is_refused() -> None:
    replica = leader()
    replica.step(FAR, propose(local_ts=t.timestamp(2, G1)), NOW)
    refused(replica, FAR, propose(local_ts=t.timestamp(8, G1)), "decided another timestamp")
    replica.step(FAR, propose(local_ts=t.timestamp(2, G1)), NOW)


@pytest.mark.parametrize("role", [leader, follower])
def test_a_bad_2a_is_refused(role: type) -> None:
    replica = role(FtSkeen)
    ballot = replica.cballot

    def ask(dest: t.Destinations, local_ts: t.Timestamp, by: t.Ballot = ballot) -> msg.Phase2a:
        local = msg.LocalTimestamps(
            (OTHER.mid, M.mid), (OTHER.dest, dest), (b"", b""), (1, 1), (NEXT, local_ts)
        )
        return msg.Phase2a(by, local, msg.ClockUpdates((M.mid,), (t.timestamp(1, G0),)))

    other = R1 if replica.me == R0 else R0
    honest = t.Ballot(ballot.number, other, 0)
    refused(replica, R2, ask(M.dest, t.timestamp(3, G0)), "speaks for ballot")
    refused(replica, FAR, ask(M.dest, t.timestamp(3, G0), FAR_BALLOT), "not a member")
    refused(replica, other, ask((G1, G2), t.timestamp(3, G0), honest), "proposes")
    refused(replica, other, ask(M.dest, t.timestamp(3, G1), honest), "3.1")
    refused(replica, other, ask(M.dest, t.NO_TIMESTAMP, honest), "proposes -")
    refused(replica, other, ask((G1, G0), t.timestamp(3, G0), honest), "strictly increasing")
    refused(replica, CLIENT, ask(M.dest, t.timestamp(3, G0)), "may not send")


def test_votes_of_strangers_are_refused() -> None:
    replica = leader()
    vote = msg.Phase2b(replica.cballot, (M.mid,), msg.ClockUpdates())
    refused(replica, FAR, vote, "not a member")
    refused(replica, CLIENT, vote, "may not send")


def test_skeen_refuses_larger_groups_when_it_starts() -> None:
    with pytest.raises(InvalidArgument, match="groups of one process, but group 0 has 3"):
        Skeen(Start(R0, TOPOLOGY, random.Random(0), 0.0))


@given(
    st.lists(
        st.tuples(st.sampled_from([G0, G1, G2]), st.integers(1, 4), st.booleans(), st.booleans()), max_size=30
    )
)
def test_the_counters_of_an_entry_never_drift(steps: list[tuple[t.GroupId, int, bool, bool]]) -> None:
    entry = Entry(M.mid, (G0, G1, G2), b"", 1)
    entry.phase = t.Phase.ACCEPTED
    for group, time, decided, leave in steps:
        if leave:
            entry.leave_ballot(G0)
        else:
            known = entry.proposals[entry.dest.index(group)]
            was = bool(entry.decided >> entry.dest.index(group) & 1)
            contradicts = entry.contradicts(group, t.timestamp(time, group))
            assert contradicts == (was and known != t.timestamp(time, group))
            fits = entry.note(group, t.timestamp(time, group), decided=decided)
            assert fits == (not (was and decided and known != t.timestamp(time, group)))
        assert entry.missing == sum(not ts for ts in entry.proposals)
        assert entry.undecided == 3 - entry.decided.bit_count()
        assert all(ts or not entry.decided >> at & 1 for at, ts in enumerate(entry.proposals))
