"""Messages that are proposed, accepted and acknowledged together, by replicas worked by hand."""

from __future__ import annotations

import dataclasses

import pytest

from multicast.durable import Accepted
from multicast.errors import PeerViolation
from multicast.messages import Accept, AcceptAck, Multicast
from multicast.numbering import Numbering
from multicast.protocol import Ready, Timing
from multicast.types import Ballot, ClientId, Phase, Process, timestamp
from multicast.whitebox import WhiteBox, normal
from tests.unit.multicast.replicas import BOTH, CLIENT, G0, G1, HERE, THERE, follow, lead, proposal, start

OWN, OLD, NEW = Ballot(1, HERE[0], 0), Ballot(1, THERE[1], 0), Ballot(2, THERE[2], 0)


def leader(timing: Timing | None = None) -> WhiteBox:
    """The leader of group 0."""
    replica = start(WhiteBox, HERE[0], timing=timing or Timing())
    assert lead(replica, HERE[1:2]) == OWN
    return replica


def follower() -> WhiteBox:
    replica = start(WhiteBox, HERE[1])
    follow(replica, OWN)
    return replica


def messages(count: int, size: int = 1) -> list[Multicast]:
    numbers = Numbering(CLIENT)
    return [numbers.next(BOTH, bytes([number]) * size) for number in range(count)]


def accepts(ready: Ready) -> list[tuple[Process, Accept]]:
    sends = [(receivers, message) for receivers, message in ready.send if isinstance(message, Accept)]
    return [(receiver, message) for receivers, message in sends for receiver in receivers]


def acks(ready: Ready) -> list[AcceptAck]:
    return [message for _, message in ready.promise if isinstance(message, AcceptAck)]


def test_what_came_in_one_turn_is_proposed_in_one_message() -> None:
    replica, wanted = leader(), messages(5)
    for m in wanted:
        replica.step(CLIENT, m, 0.0)
    sent = dict(accepts(replica.ready()))
    assert set(sent) == {HERE[1], HERE[2], *THERE}
    for receiver, accept in sent.items():
        assert accept.mids == tuple(m.mid for m in wanted)
        assert list(accept.local_ts) == sorted(set(accept.local_ts))
        assert accept.payloads == (tuple(m.payload for m in wanted) if receiver in HERE else ())


def test_each_group_hears_of_what_is_for_it_whatever_else_came_in_the_turn() -> None:
    replica, numbers = leader(), Numbering(CLIENT)
    wanted = [numbers.next(dest, b"m") for dest in (BOTH, (G0,), BOTH, (G0,))]
    for m in wanted:
        replica.step(CLIENT, m, 0.0)
    sent = dict(accepts(replica.ready()))
    for member in HERE[1:]:
        assert sent[member].dests == tuple(m.dest for m in wanted)
        assert sent[member].mids == tuple(m.mid for m in wanted)
    for member in THERE:
        assert (sent[member].dests, sent[member].mids) == ((BOTH,), (wanted[0].mid, wanted[2].mid))
        assert sent[member].local_ts == sent[HERE[1]].local_ts[::2]


def test_what_is_accepted_together_is_acknowledged_to_each_leader_concerned() -> None:
    replica, numbers = follower(), Numbering(CLIENT)
    both, one = numbers.next(BOTH, b"a"), numbers.next((G0,), b"b")
    replica.step(THERE[1], proposal(OLD, [both], 5), 0.0)
    replica.step(HERE[0], proposal(OWN, [both, one], 1), 0.0)
    ready = replica.ready()
    (record,) = ready.persist
    assert isinstance(record, Accepted)
    assert (record.dests, record.mids) == ((BOTH, (G0,)), (both.mid, one.mid))
    assert dict(ready.promise) == {
        (HERE[0],): AcceptAck((both.mid, one.mid), G0, (OWN, OLD)),
        (THERE[1],): AcceptAck((both.mid,), G0, (OWN, OLD)),
    }


def test_an_acknowledgement_counts_for_messages_to_some_of_the_groups_it_names() -> None:
    replica, numbers = leader(), Numbering(CLIENT)
    both, one = numbers.next(BOTH, b"a"), numbers.next((G0,), b"b")
    for m in (one, both):
        replica.step(CLIENT, m, 0.0)
    replica.step(THERE[1], proposal(OLD, [both], 9), 0.0)
    for _, message in replica.ready().promise:
        replica.step(replica.me, message, 0.0)
    ballots = (replica.cballot, OLD)
    replica.step(HERE[1], AcceptAck((one.mid, both.mid), G0, ballots), 0.0)
    assert [delivery.mid for delivery in replica.ready().deliver] == [one.mid]
    for sender in THERE[:2]:
        replica.step(sender, AcceptAck((both.mid,), G1, ballots), 0.0)
    assert [delivery.mid for delivery in replica.ready().deliver] == [both.mid]


def test_a_message_named_twice_with_other_destinations_is_what_it_was_first() -> None:
    replica, numbers = follower(), Numbering(CLIENT)
    m = numbers.next((G0,), b"a")
    accept = proposal(OWN, [m, m], 1)
    replica.step(HERE[0], dataclasses.replace(accept, dests=((G0,), BOTH)), 0.0)
    assert replica.entries[m.mid].dest == (G0,)


def test_a_run_is_no_longer_than_a_piece_of_a_state() -> None:
    replica, wanted = leader(Timing(part_entries=2)), messages(5)
    for m in wanted:
        replica.step(CLIENT, m, 0.0)
    runs = [accept.mids for receiver, accept in accepts(replica.ready()) if receiver == HERE[1]]
    assert [len(run) for run in runs] == [2, 2, 1]
    assert [mid for run in runs for mid in run] == [m.mid for m in wanted]


def test_a_run_is_no_larger_than_a_piece_of_a_state() -> None:
    replica, wanted = leader(Timing(part_bytes=100)), messages(5, size=40)
    wanted.append(Numbering(ClientId(8)).next(BOTH, bytes(1000)))
    for m in wanted:
        replica.step(m.mid.client, m, 0.0)
    runs = [accept.payloads for receiver, accept in accepts(replica.ready()) if receiver == HERE[1]]
    assert [sum(map(len, run)) for run in runs] == [80, 80, 40, 1000]


def test_what_is_accepted_together_is_one_record_and_one_acknowledgement() -> None:
    replica, wanted = follower(), messages(3)
    replica.step(HERE[0], proposal(OWN, wanted, 1), 0.0)
    assert not replica.ready(), "the other group has not proposed"
    replica.step(THERE[1], proposal(OLD, wanted[::-1], 5), 0.0)
    ready = replica.ready()
    (record,) = ready.persist
    assert isinstance(record, Accepted)
    assert dict(zip(record.mids, record.payloads, strict=True)) == {m.mid: m.payload for m in wanted}
    assert dict(zip(record.mids, record.local_ts, strict=True)) == {
        m.mid: timestamp(1 + index, G0) for index, m in enumerate(wanted)
    }
    assert record.clock == replica.clock == 7, "the clock passes every proposal of the run"
    (ack,) = acks(ready)
    assert sorted(ack.mids) == sorted(m.mid for m in wanted)


def test_a_run_that_names_a_message_twice_is_as_good_as_two() -> None:
    replica, numbers = follower(), Numbering(CLIENT)
    m, other = numbers.next((G0,), b"a"), numbers.next((G0,), b"b")
    replica.step(HERE[0], proposal(OWN, [m, m, other], 1), 0.0)
    ready = replica.ready()
    (record,) = ready.persist
    assert isinstance(record, Accepted)
    assert record.mids == (m.mid, other.mid)
    assert {entry.phase for entry in replica.entries.values()} == {Phase.ACCEPTED}
    assert not replica.orphans


def test_a_run_may_complete_messages_of_different_ballots() -> None:
    """Group 1 has changed its leader half-way; each message is acknowledged in the ballots it has."""
    replica, (first, second) = follower(), messages(2)
    replica.step(THERE[1], proposal(OLD, [first], 5), 0.0)
    replica.step(THERE[2], proposal(NEW, [second], 6), 0.0)
    replica.step(HERE[0], proposal(OWN, [first, second], 1), 0.0)
    assert {ack.ballots: ack.mids for ack in acks(replica.ready())} == {
        (OWN, OLD): (first.mid,),
        (OWN, NEW): (second.mid,),
    }


def test_an_acknowledgement_that_overtakes_a_proposal_counts() -> None:
    replica, (m,) = leader(), messages(1)
    replica.step(CLIENT, m, 0.0)
    replica.ready()
    vector = (replica.cballot, OLD)
    for sender in (HERE[1], THERE[1], THERE[2]):
        replica.step(sender, AcceptAck((m.mid,), sender.group, vector), 0.0)
    assert not replica.ready().deliver
    replica.step(THERE[1], proposal(OLD, [m], 9), 0.0)
    ready = replica.ready()
    assert not ready.deliver, "our own acknowledgement is not durable yet"
    (ack,) = acks(ready)
    replica.step(replica.me, ack, 0.0)
    assert [delivery.global_ts for delivery in replica.ready().deliver] == [timestamp(9, G1)]


def test_early_acknowledgements_of_other_ballots_do_not_count() -> None:
    replica, (m,) = leader(), messages(1)
    replica.step(CLIENT, m, 0.0)
    replica.ready()
    for sender in (HERE[1], THERE[1], THERE[2]):
        replica.step(sender, AcceptAck((m.mid,), sender.group, (replica.cballot, OLD)), 0.0)
    replica.step(THERE[2], proposal(NEW, [m], 9), 0.0)
    (ack,) = acks(replica.ready())
    replica.step(replica.me, ack, 0.0)
    assert not replica.ready().deliver
    for sender in (HERE[2], THERE[0], THERE[2]):
        replica.step(sender, AcceptAck((m.mid,), sender.group, (replica.cballot, NEW)), 0.0)
    assert [delivery.global_ts for delivery in replica.ready().deliver] == [timestamp(9, G1)]


def test_acknowledgements_count_although_the_caches_have_started_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caches of ballots are cleared between all steps: no message has to be repeated for that."""
    monkeypatch.setattr(normal, "CACHED_MAX", 1)
    replica, numbers = leader(), Numbering(CLIENT)
    both = numbers.next(BOTH, b"a")
    replica.step(CLIENT, both, 0.0)
    vector = (replica.cballot, OLD)

    def start_over() -> None:
        replica.step(CLIENT, numbers.next((G0,), b"b"), 0.0)
        for ack in acks(replica.ready()):
            replica.step(replica.me, ack, 0.0)
        assert vector not in replica.bals

    replica.step(HERE[1], AcceptAck((both.mid,), G0, vector), 0.0)
    start_over()
    replica.step(THERE[1], proposal(OLD, [both], 9), 0.0)
    for ack in acks(replica.ready()):
        replica.step(replica.me, ack, 0.0)
    for sender in THERE[:2]:
        start_over()
        assert replica.entries[both.mid].phase is Phase.ACCEPTED
        replica.step(sender, AcceptAck((both.mid,), G1, vector), 0.0)
    assert replica.entries[both.mid].phase is Phase.COMMITTED


def test_what_was_accepted_before_the_caches_started_over_is_not_accepted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(normal, "CACHED_MAX", 1)
    replica, numbers = follower(), Numbering(CLIENT)
    both, one = numbers.next(BOTH, b"a"), numbers.next((G0,), b"b")
    replica.step(HERE[0], proposal(OWN, [both], 1), 0.0)
    replica.step(THERE[1], proposal(OLD, [both], 5), 0.0)
    replica.step(HERE[0], proposal(OWN, [one], 2), 0.0)
    replica.ready()
    replica.step(THERE[1], proposal(OLD, [both], 5), 0.0)
    ready = replica.ready()
    assert not ready.persist
    assert ready.promise == [((THERE[1],), AcceptAck((both.mid,), G0, (OWN, OLD)))]


def test_an_acknowledgement_names_a_ballot_of_its_own_group_the_first_time_too() -> None:
    replica, numbers = leader(), Numbering(CLIENT)
    m = numbers.next((G0,), b"a")
    for _ in range(2):
        with pytest.raises(PeerViolation):
            replica.step(THERE[1], AcceptAck((m.mid,), G1, (replica.cballot,)), 0.0)
