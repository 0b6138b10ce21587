"""A gateway, by hand: what it says again, and what it makes of what no correct replica says."""

from __future__ import annotations

import random

import pytest

from kvstore.machine import Limits
from kvstore.machine.codec import decode_request, encode_result
from kvstore.machine.commands import Tick, is_own
from kvstore.machine.request import Put, Transaction
from kvstore.machine.results import DONE
from kvstore.machine.sessions import WINDOW
from kvstore.store.gateway import Gateway, Identity, Ordered
from kvstore.store.messages import RaiseClock, Results
from multicast.client import MulticastRefused
from multicast.errors import PeerViolation
from multicast.messages import Multicast
from multicast.topology import Topology
from multicast.types import ClientId, MessageId, Timestamp, timestamp
from tests.unit.kvstore.store.test_partition import GATEWAY, PLACEMENT, A, B, C, members

MID, PLACE = MessageId(ClientId(1), 1, 1), Timestamp(7)


def gateway_of(ticks: int = 0) -> Gateway:
    topology = Topology({group: members(group) for group in (A, B, C)})
    gateway = Gateway(
        GATEWAY, topology, PLACEMENT,
        limits=Limits(), local={}, clock=lambda: ticks, rng=random.Random(1),
    )  # fmt: skip
    gateway.clocks._learned = True
    return gateway


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
