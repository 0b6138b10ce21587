"""The sender: its receivers, its retries, and `ack_below`."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast import types as t
from multicast.client import MulticastRefused, Reply, Sender
from multicast.errors import InvalidArgument, MulticastError
from multicast.messages import Hint, Message, Multicast, NewLeader
from multicast.topology import Topology
from tests.unit.multicast.replicas import CLIENT, EXAMPLES, G0, G1, G2

AT = t.Timestamp(1)


def replica(group: int, number: int) -> t.ReplicaId:
    return t.ReplicaId(t.GroupId(group), number, 0)


def members(group: int) -> set[t.Process]:
    return {replica(group, number) for number in range(3)}


def sender(groups: int = 3) -> Sender:
    return Sender(CLIENT, Topology.uniform(groups, 3), retry_s=1.0)


def sent(client: Sender) -> list[tuple[set[t.Process], Message]]:
    return [(set(receivers), message) for receivers, message in client.drain()]


def test_a_message_goes_to_the_preferred_leaders_of_its_destinations_only() -> None:
    client = sender()
    message = client.multicast([G2, G0], b"x", 0.0)
    assert message.dest == (G0, G2)
    assert message.mid == (CLIENT, 1, t.digest_of((G0, G2), b"x"))
    assert message.ack_below == 1
    assert sent(client) == [({replica(0, 0)}, message), ({replica(2, 2)}, message)]
    assert sent(client) == []


@pytest.mark.parametrize(
    ("dest", "named"), [([], "at least one"), ([G0, G0], "0, 0"), ([t.GroupId(5)], "unknown group 5")]
)
def test_bad_destinations_are_refused_and_use_no_number(dest: list[t.GroupId], named: str) -> None:
    client = sender()
    with pytest.raises(InvalidArgument, match=named):
        client.multicast(dest, b"x", 0.0)
    assert client.drain() == []
    assert client.wake_at is None
    assert client.pending == {}
    assert client.multicast([G0], b"x", 0.0).mid.sequence == 1


def test_a_message_is_finished_when_every_destination_has_answered() -> None:
    client = sender()
    mid = client.multicast([G0, G1], b"x", 0.0).mid
    for group in (G0, G0, G2):
        client.step(Reply((mid,), group, (AT,)), 0.1)
    assert client.finished == {}
    assert mid in client.pending
    client.step(Reply((mid,), G1, (AT,)), 0.2)
    assert client.finished == {mid: {G0: AT, G1: AT}}
    assert client.pending == {}
    assert client.wake_at is None
    client.step(Reply((mid,), G1, (AT,)), 0.3)
    assert client.finished == {mid: {G0: AT, G1: AT}}


def test_a_hint_redirects_what_its_group_has_not_answered() -> None:
    client = sender()
    open_message = client.multicast([G0, G1], b"open", 0.0)
    answered = client.multicast([G0, G1], b"answered", 0.0)
    elsewhere = client.multicast([G2], b"elsewhere", 0.0)
    client.drain()
    client.step(Reply((answered.mid,), G1, (AT,)), 0.1)
    client.step(Hint(G1, t.Ballot(4, replica(1, 0), 0)), 0.2)
    assert sent(client) == [({replica(1, 0)}, open_message)]
    later = client.multicast([G0, G1], b"later", 0.3)
    assert sent(client) == [({replica(0, 0)}, later), ({replica(1, 0)}, later)]
    assert elsewhere.mid in client.pending


def test_a_hint_puts_off_the_next_retry() -> None:
    client = sender()
    message = client.multicast([G1], b"x", 0.0)
    client.step(Hint(G1, t.Ballot(4, replica(1, 0), 0)), 0.9)
    client.drain()
    client.tick(1.5)
    assert sent(client) == []
    client.tick(1.9)
    assert sent(client) == [({replica(1, 0)}, message)]


def test_an_older_or_repeated_hint_changes_nothing() -> None:
    client = sender()
    client.multicast([G1], b"x", 0.0)
    newest = t.Ballot(4, replica(1, 0), 0)
    client.step(Hint(G1, newest), 0.1)
    client.drain()
    for ballot in (newest, t.Ballot(3, replica(1, 2), 0), t.NO_BALLOT):
        client.step(Hint(G1, ballot), 0.2)
    assert client.drain() == []
    assert client.leaders == {G1: newest}


@pytest.mark.parametrize(("leader", "named"), [((1, 9), "b4@g1r9"), ((8, 0), "b4@g8r0"), ((0, 0), "b4@g0r0")])
def test_a_hint_to_a_leader_outside_the_group_is_refused(leader: tuple[int, int], named: str) -> None:
    client = sender()
    message = client.multicast([G1], b"x", 0.0)
    client.drain()
    with pytest.raises(MulticastError, match=named):
        client.step(Hint(G1, t.Ballot(4, replica(*leader), 0)), 0.1)
    assert client.leaders == {}
    assert client.drain() == []
    client.tick(1.0)
    assert sent(client) == [({replica(1, 1)}, message)]


def test_a_client_understands_replies_and_hints_only() -> None:
    with pytest.raises(InvalidArgument, match="NewLeader"):
        sender().step(NewLeader(t.NO_BALLOT), 0.0)  # type: ignore[arg-type]  # wrong on purpose


def test_the_first_retry_asks_the_leader_and_later_ones_ask_everyone() -> None:
    client = sender()
    message = client.multicast([G0, G1], b"x", 0.0)
    client.drain()
    client.step(Reply((message.mid,), G0, (AT,)), 0.1)
    rounds = []
    for _ in range(4):
        assert client.wake_at is not None
        now = client.wake_at
        client.tick(now - 0.001)
        assert client.drain() == []
        client.tick(now)
        rounds.append(sent(client))
    assert rounds[0] == [({replica(1, 1)}, message)]
    assert rounds[1:] == 3 * [[(members(1), message)]]


def test_retries_are_spaced_further_and_further_up_to_a_bound() -> None:
    client = sender()
    client.multicast([G0], b"x", 0.0)
    at = [0.0]
    for _ in range(10):
        assert client.wake_at is not None
        at.append(client.wake_at)
        client.tick(client.wake_at)
    gaps = [round(b - a, 6) for a, b in pairwise(at)]
    assert gaps == [1, 1, 2, 3, 4, 5, 6, 7, 8, 8]


def test_a_retry_is_the_same_message() -> None:
    client = sender()
    first = client.multicast([G0], b"first", 0.0)
    second = client.multicast([G0], b"second", 0.0)
    client.step(Reply((first.mid,), G0, (AT,)), 0.1)
    client.drain()
    client.tick(5.0)
    # ack_below as well: what a group remembers must not depend on which copy it ordered.
    assert [message for _, message in client.drain()] == [Multicast(second.mid, (G0,), b"second", 1)]


@EXAMPLES
@given(st.data())
def test_ack_below_never_passes_an_unfinished_number(data: st.DataObject) -> None:
    client = sender()
    unanswered: dict[int, set[t.GroupId]] = {}
    mids = {}
    sequence = 0
    for _ in range(data.draw(st.integers(0, 30))):
        if not unanswered or data.draw(st.booleans()):
            dest = data.draw(st.sets(st.sampled_from([G0, G1, G2]), min_size=1))
            message = client.multicast(sorted(dest), b"x", 0.0)
            sequence += 1
            assert message.mid.sequence == sequence
            expected = min(unanswered, default=sequence)
            assert message.ack_below == expected, "neither beyond the oldest unfinished, nor stuck below it"
            unanswered[sequence] = set(dest)
            mids[sequence] = message.mid
        else:
            number = data.draw(st.sampled_from(sorted(unanswered)))
            group = data.draw(st.sampled_from(sorted(unanswered[number])))
            client.step(Reply((mids[number],), group, (AT,)), 0.0)
            unanswered[number].remove(group)
            if not unanswered[number]:
                del unanswered[number]
    assert {mid.sequence for mid in client.pending} == set(unanswered)
    assert client.numbers.ack_below == min(unanswered, default=sequence + 1)


@pytest.mark.parametrize("payload", ["text", None, 7])
def test_a_payload_that_is_not_bytes_is_refused_and_costs_no_number(payload: object) -> None:
    client = sender()
    with pytest.raises(InvalidArgument, match=type(payload).__name__):
        client.multicast([G0], payload, 0.0)  # type: ignore[arg-type]  # wrong on purpose
    message = client.multicast([G0], b"good", 0.0)
    assert message.mid.sequence == 1
    client.step(Reply((message.mid,), G0, (t.timestamp(1, G0),)), 0.1)
    assert client.numbers.ack_below == 2


def test_what_is_refused_is_repeated_to_new_leaders_only() -> None:
    client = sender()
    message = client.multicast([G0, G1], b"x", 0.0)
    client.drain()
    refused = MulticastRefused(message.mid, G0, "why")
    client.step(refused, 0.5)
    assert client.refused == [refused]
    client.tick(100.0)
    assert sent(client) == []
    client.step(Hint(G0, t.Ballot(1, replica(0, 2), 0)), 100.0)
    assert sent(client) == [({replica(0, 2)}, message)]


def test_what_is_refused_may_be_ordered_all_the_same() -> None:
    client = sender()
    message = client.multicast([G0, G1], b"x", 0.0)
    client.step(MulticastRefused(message.mid, G0, "why"), 0.5)
    client.step(Reply((message.mid,), G0, (AT,)), 0.6)
    assert client.numbers.ack_below == 1
    client.step(Reply((message.mid,), G1, (AT,)), 0.6)
    assert list(client.finished) == [message.mid]
    assert client.numbers.ack_below == 2
    client.refused.clear()
    client.step(MulticastRefused(message.mid, G0, "late"), 0.7)
    assert client.refused == []


def test_a_probe_is_one_message_to_all_members() -> None:
    client = sender()
    client.probe(G0)
    assert sent(client) == []
    client.multicast([G1], b"elsewhere", 0.0)
    first = client.multicast([G0, G1], b"first", 0.0)
    client.multicast([G0], b"second", 0.0)
    client.drain()
    client.probe(G0)
    assert sent(client) == [(members(0), first)]
    client.step(Reply((first.mid,), G0, (AT,)), 0.1)
    client.probe(G0)
    assert [message.payload for _, message in sent(client) if isinstance(message, Multicast)] == [b"second"]


def test_one_reply_answers_many_messages() -> None:
    client = sender()
    first, second = (client.multicast((G0,), payload, 0.0).mid for payload in (b"1", b"2"))
    stranger = t.MessageId(client.client, 99, 0)
    later = t.Timestamp(AT + 1)
    client.step(Reply((first, stranger, second), G0, (AT, AT, later)), 0.1)
    assert client.finished == {first: {G0: AT}, second: {G0: later}}
    assert not client.pending
    assert client.numbers.ack_below == 3


# Which replica leads, without hints


def overdue(client: Sender, now: float) -> list[tuple[set[t.Process], Message]]:
    client.tick(now)
    return sent(client)


def test_a_replica_that_answers_what_all_members_were_sent_leads() -> None:
    """Its followers may be down, so that no hint names it."""
    client = sender()
    first, second = client.multicast([G0], b"x", 0.0), client.multicast([G0], b"y", 0.0)
    client.drain()
    assert not client.answered_by(replica(0, 2), [first.mid])
    assert client.leader(G0) == replica(0, 0), "an answer of a deposed leader may be late"
    overdue(client, 1.0)
    assert client.answered_by(replica(0, 2), [first.mid])
    assert client.leader(G0) == replica(0, 2)
    client.step(Reply((first.mid,), G0, (AT,)), 1.1)
    client.send_again(G0, 1.1)
    assert sent(client) == [({replica(0, 2)}, second)]
    client.step(Reply((second.mid,), G0, (AT,)), 1.2)
    third = client.multicast([G0], b"z", 2.0)
    assert sent(client) == [({replica(0, 2)}, third)]


def test_a_replica_that_says_that_it_does_not_lead_is_not_asked_again() -> None:
    client = sender()
    message = client.multicast([G0], b"x", 0.0)
    overdue(client, 1.0)
    client.answered_by(replica(0, 2), [message.mid])
    client.drain()
    client.does_not_lead(replica(0, 1), 1.2)
    assert client.leader(G0) == replica(0, 2)
    client.does_not_lead(replica(0, 2), 1.2)
    assert client.leader(G0) == replica(0, 0)
    assert sent(client) == [({replica(0, 0)}, message)]


def test_a_hint_of_a_newer_ballot_replaces_a_replica_that_answered() -> None:
    client = sender()
    message = client.multicast([G0], b"x", 0.0)
    overdue(client, 1.0)
    client.answered_by(replica(0, 2), [message.mid])
    client.step(Hint(G0, t.Ballot(7, replica(0, 1), 0)), 1.2)
    assert client.leader(G0) == replica(0, 1)


def test_with_doubts_the_first_retry_asks_everyone_if_the_group_is_silent() -> None:
    client = sender()
    client.doubts = True
    answered, silent = client.multicast([G0], b"x", 0.0), client.multicast([G1], b"y", 0.0)
    other = client.multicast([G0], b"z", 0.0)
    client.drain()
    client.step(Reply((answered.mid,), G0, (AT,)), 0.5)
    client._unanswered.timeout.seconds = 1.0
    assert overdue(client, 1.0) == [(members(1), silent), ({replica(0, 0)}, other)]


def test_with_doubts_a_new_membership_sends_to_everyone_what_the_silent_leader_has() -> None:
    client = sender()
    client.doubts = True
    answered, silent = client.multicast([G0], b"x", 0.0), client.multicast([G1], b"y", 0.0)
    other = client.multicast([G0], b"z", 0.0)
    client.drain()
    client.step(Reply((answered.mid,), G0, (AT,)), 0.5)
    for group, old in ((G0, replica(0, 2)), (G1, replica(1, 2))):
        replaced = client.topology.membership(group).replace(old, old._replace(incarnation=1), "").completed()
        client.learn(replaced, 0.9)
    everyone = {replica(1, 0), replica(1, 1), replica(1, 2)._replace(incarnation=1)}
    assert sent(client) == [({replica(0, 0)}, other), (everyone, silent)], "group 0 has answered since"


def test_with_doubts_everyone_is_asked_if_the_one_that_answered_does_not_lead_any_more() -> None:
    client = sender()
    client.doubts = True
    first = client.multicast([G0], b"x", 0.0)
    client.tick(1.0)
    client.answered_by(replica(0, 2), [first.mid])
    client.step(Reply((first.mid,), G0, (AT,)), 1.1)
    second = client.multicast([G0], b"y", 1.2)
    client.drain()
    client.does_not_lead(replica(0, 2), 1.3)
    assert sent(client) == [(members(0), second)], "the leader by ballots did not answer before"
