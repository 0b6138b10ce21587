"""A gateway, by hand: what it says again, and what it makes of what no correct replica says."""

from __future__ import annotations

import random

import pytest

from kvstore.machine import Limits
from kvstore.machine.codec import decode_request, encode_result
from kvstore.machine.commands import Tick, is_own
from kvstore.machine.request import Get, Put, Transaction
from kvstore.machine.results import DONE, Outcome
from kvstore.machine.sessions import WINDOW
from kvstore.store.errors import OutcomeUnknown
from kvstore.store.gateway import Gateway, Identity, Ordered
from kvstore.store.messages import Answer, RaiseClock, Results
from kvstore.store.questions import Entries, ReadAt, Response, Sampled, Values
from multicast.client import MulticastRefused
from multicast.errors import PeerViolation
from multicast.messages import Multicast
from multicast.topology import Topology
from multicast.types import ClientId, MessageId, ReplicaId, Timestamp, timestamp
from tests.unit.kvstore.store.test_partition import GATEWAY, PLACEMENT, A, B, C, members

MID, PLACE = MessageId(ClientId(1), 1, 1), Timestamp(7)


def gateway_of(ticks: int = 0) -> Gateway:
    topology = Topology({group: members(group) for group in (A, B, C)})
    return Gateway(
        GATEWAY, topology, PLACEMENT,
        limits=Limits(), local={}, ticks=lambda: ticks, rng=random.Random(1),
    )  # fmt: skip


def test_whoever_is_to_order_a_message_hears_above_what() -> None:
    # The first leader that was asked may not lead any more: what it was told is lost with it.
    gateway = gateway_of(ticks=1000)
    write = Transaction(then=(Put(b"a", b""),))
    gateway.transact(write, lambda _: None, min_revision=timestamp(900, A))
    gateway.transact(write, lambda _: None)
    raised = set()
    for turn in range(40):
        said = gateway.turn(turn * 0.1)
        above = {receivers for _, receivers, message in said if isinstance(message, RaiseClock)}
        assert all(message.time == 901 for _, _, message in said if isinstance(message, RaiseClock))
        assert above == {
            receivers
            for _, receivers, message in said
            if isinstance(message, Multicast) and message.mid.sequence == 1
        }
        raised |= {receiver for receivers in above for receiver in receivers}
    assert raised == set(members(A))


def test_a_message_that_is_refused_and_answered_at_once_is_answered() -> None:
    gateway = gateway_of()
    outcomes: list[object] = []
    gateway.command(A, Tick(), outcomes.append)
    ((_, _, message),) = gateway.turn(0.0)
    results = Results(A, PLACE, (message.mid,), (PLACE,), (encode_result(DONE),))
    gateway.receive(
        members(A)[0], [MulticastRefused(message.mid, A, "by a leader that is none"), results], 0.1
    )
    assert outcomes == [Ordered(PLACE)]
    assert gateway.in_flight == 0


def test_requests_without_an_id_can_be_told_from_others() -> None:
    gateway = gateway_of()
    write = Transaction(then=(Put(b"a", b""),))
    gateway.transact(write, lambda _: None, identity=Identity(77, 1, 1, 0))
    gateway.transact(write, lambda _: None)
    gateway.command(A, Tick(), lambda _: None)
    for _ in range(WINDOW):  # nothing is answered: its numbers run out, and it needs another session
        gateway.transact(Transaction(then=(Put(b"z", b""),)), lambda _: None)
    said = [message for _, _, message in gateway.turn(0.0) if isinstance(message, Multicast)]
    whose = [decode_request(message.payload).client for message in sorted(said, key=lambda m: m.mid.sequence)]
    assert [is_own(GATEWAY, client) for client in whose] == [False] + [True] * (WINDOW + 2)
    assert len(set(whose)) == 3


@pytest.mark.parametrize(
    "results",
    [
        Results(A, PLACE, (), (), ()),
        Results(A, PLACE, (MID,), (), (b"",)),
        Results(A, PLACE, (MID,), (PLACE,), ()),
        Results(B, PLACE, (MID,), (PLACE,), (b"",)),
    ],
)
def test_results_that_are_none_are_refused(results: Results) -> None:
    with pytest.raises(PeerViolation):
        gateway_of().receive(members(A)[0], [results], 0.0)


def test_a_result_that_cannot_be_read_is_its_senders_fault() -> None:
    gateway = gateway_of()
    outcomes: list[object] = []
    gateway.command(A, Tick(), outcomes.append)
    ((_, _, message),) = gateway.turn(0.0)
    with pytest.raises(PeerViolation, match="a result of"):
        gateway.receive(
            members(A)[1], [Results(A, PLACE, (message.mid,), (PLACE,), (b"\xc1 not a result",))], 0.1
        )
    assert not outcomes
    gateway.receive(members(A)[0], [Results(A, PLACE, (message.mid,), (PLACE,), (encode_result(DONE),))], 0.2)
    assert outcomes == [Ordered(PLACE)]


def test_results_that_contradict_each_other_leave_the_outcome_unknown() -> None:
    """One of the groups' results is wrong. The call fails; the node goes on."""
    gateway = gateway_of()
    outcomes: list[object] = []
    gateway.transact(Transaction(then=(Put(b"a", b""), Put(b"n", b""))), outcomes.append)
    mid = next(message.mid for _, _, message in gateway.turn(0.0) if isinstance(message, Multicast))
    for group, succeeded in ((A, True), (B, False)):
        result = encode_result(Outcome(succeeded, (), ()))
        gateway.receive(members(group)[0], [Results(group, PLACE, (mid,), (PLACE,), (result,))], 0.1)
    assert isinstance(outcomes[0], OutcomeUnknown)
    assert gateway.in_flight == 0


@pytest.mark.parametrize(
    ("sender", "response"),
    [
        (members(A)[0], Sampled((), 0, None)),
        (members(B)[0], Values(7, ())),
        (members(A)[0], Entries(7, (), more=False)),
    ],
    ids=["another kind", "another group", "a page"],
)
def test_an_answer_to_another_question_is_refused(sender: ReplicaId, response: Response) -> None:
    gateway = gateway_of()
    answers: list[object] = []
    number = gateway.ask(A, ReadAt((Get(b"a"),)), answers.append, of_leader=True)
    with pytest.raises(PeerViolation, match="answered with"):
        gateway.receive(sender, [Answer(number, response)], 0.1)
    assert not answers
    gateway.receive(members(A)[0], [Answer(number, Values(7, ()))], 0.2)
    assert answers == [Values(7, ())]
