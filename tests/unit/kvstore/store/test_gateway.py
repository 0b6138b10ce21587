"""A gateway, by hand: what it says again, and what it makes of what no correct replica says."""

from __future__ import annotations

import random

import pytest

from kvstore.machine import Limits
from kvstore.machine.codec import decode_request, encode_result
from kvstore.machine.commands import Compact, Tick, is_own
from kvstore.machine.request import Get, Put, Range, Transaction, Unchanged
from kvstore.machine.results import DONE, WRITTEN, Outcome, Refusal, Refused, Result
from kvstore.machine.sessions import WINDOW
from kvstore.store.errors import InvalidRequest, OutcomeUnknown, Overloaded, RequestExpired, Unavailable
from kvstore.store.gateway import DAY, JOINED, RETRY_S, Committed, Gateway, Identity, OnDone, Ordered
from kvstore.store.group_clocks import Verdict
from kvstore.store.messages import Answer, Query, RaiseClock, Results
from kvstore.store.questions import (
    ClockReport,
    ClockWanted,
    Entries,
    Feed,
    ReadAt,
    Response,
    Sampled,
    StrictRead,
    Values,
)
from multicast.client import MulticastRefused
from multicast.errors import PeerViolation
from multicast.membership import Configuration, Membership
from multicast.messages import Multicast
from multicast.topology import Topology
from multicast.types import NO_TIMESTAMP, Ballot, ClientId, MessageId, ReplicaId, Timestamp, timestamp
from tests.unit.kvstore.store.test_partition import GATEWAY, PLACEMENT, A, B, C, members

MID, PLACE = MessageId(ClientId(1), 1, 1), Timestamp(7)


def gateway_of(ticks: int = 0, kind: type[Gateway] = Gateway) -> Gateway:
    topology = Topology({group: members(group) for group in (A, B, C)})
    gateway = kind(
        GATEWAY, topology, PLACEMENT,
        limits=Limits(), local={}, clock=lambda: ticks, rng=random.Random(1),
    )  # fmt: skip
    gateway.clocks._learned = gateway.clocks.informed = True
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


# What time it is

WRITE = Transaction(then=(Put(b"a", b""),))


def multicasts(gateway: Gateway, now: float = 0.0) -> list[Multicast]:
    return [message for _, _, message in gateway.turn(now) if isinstance(message, Multicast)]


def answer_clocks(gateway: Gateway, clock: int, now: float, *, silent: int = 0) -> None:
    """All replicas but those of the last groups answer what their clocks are."""
    (query,) = [message for _, _, message in gateway.turn(now) if isinstance(message, Query)]
    assert isinstance(query.question, ClockWanted)
    for group in (A, B, C)[: 3 - silent]:
        for member in members(group):
            gateway.receive(
                member, [Answer(query.number, ClockReport(clock, clock, leads=False, version=1))], now
            )


def results_of(message: Multicast, position: Timestamp, result: Result) -> Results:
    return Results(A, position, (message.mid,), (position,), (encode_result(result),))


@pytest.mark.parametrize("silent", [0, 1])
def test_a_revision_that_no_group_confirms_raises_nothing_and_the_write_goes_on(silent: int) -> None:
    gateway = gateway_of(ticks=1000)
    outcomes: list[object] = []
    invented = timestamp(1001, A)
    gateway.transact(WRITE, outcomes.append, min_revision=invented)
    assert gateway.in_flight == 1
    answer_clocks(gateway, 1000, 0.1, silent=silent)
    said = [*gateway.turn(0.2), *gateway.turn(0.6)]
    assert not [message for _, _, message in said if isinstance(message, RaiseClock)]
    assert len({message.mid for _, _, message in said if isinstance(message, Multicast)}) == 1
    gateway.transact(WRITE, outcomes.append, min_revision=invented)
    assert {message.mid.sequence for message in multicasts(gateway, 0.7)} == {2}, (
        "it is not asked about again"
    )


def test_a_revision_that_a_group_confirms_raises_the_others() -> None:
    gateway = gateway_of(ticks=1000)
    gateway.transact(WRITE, lambda _: None, min_revision=timestamp(5000, B))
    assert multicasts(gateway, 0.0) == []
    gateway.confirm(timestamp(5000, B), lambda _: None)
    answer_clocks(gateway, 5000, 0.1)
    said = gateway.turn(0.2)
    assert [message.time for _, _, message in said if isinstance(message, RaiseClock)] == [5001]


def test_a_request_after_its_deadline_is_refused_before_it_is_multicast() -> None:
    gateway = gateway_of(ticks=1000)  # only the node's own replicas know the time
    gateway.turn(0.0)
    with pytest.raises(RequestExpired) as refused:
        gateway.transact(WRITE, lambda _: None, identity=Identity(7, 1, 1, timestamp(999, A)))
    assert refused.value.revision == timestamp(1000, A)
    assert multicasts(gateway) == []
    gateway.transact(WRITE, lambda _: None, identity=Identity(7, 1, 1, timestamp(1001, A)))
    assert len(multicasts(gateway)) == 1


def test_a_gateway_that_does_not_know_the_time_does_not_judge_by_it() -> None:
    """Neither client nor gateway of a new cluster knows the time: a first id that is over is not ordered."""
    gateway = gateway_of()
    gateway.clocks.informed = False
    outcomes: list[object] = []
    for number, ticks in enumerate((999, 1001), 1):
        gateway.transact(WRITE, outcomes.append, identity=Identity(7, number, 1, timestamp(ticks, A)))
    said = gateway.turn(0.0)
    (query,) = [message for _, _, message in said if isinstance(message, Query)]
    assert not [message for _, _, message in said if isinstance(message, Multicast)]
    assert gateway.in_flight == 2
    gateway.receive(members(B)[0], [Answer(query.number, ClockReport(3, 1000, leads=True, version=1))], 0.1)
    (refused,) = outcomes
    assert isinstance(refused, RequestExpired)
    assert refused.revision == timestamp(1000, A)
    (message,) = multicasts(gateway, 0.2)
    assert decode_request(message.payload).sequence == 2


def test_what_waits_for_the_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.store.gateway.IN_FLIGHT_BYTES", 4000)
    gateway = gateway_of()
    gateway.clocks.informed = False
    large = Transaction(then=(Put(b"a", bytes(1800)),))
    for sequence, deadline in ((1, timestamp(1000, A)), (2, 0)):
        gateway.transact(large, lambda _: None, identity=Identity(7, sequence, 1, deadline))
    with pytest.raises(Overloaded, match="4000"):
        gateway.transact(large, lambda _: None, identity=Identity(7, 3, 1, timestamp(1000, A)))
    gateway.turn(0.0)
    gateway.clocks.inform(1000, 0.1)
    assert len(multicasts(gateway, 0.2)) == 2
    gateway.transact(large, lambda _: None, identity=Identity(7, 3, 1, timestamp(1000, A)))


@pytest.mark.parametrize(("clock", "error"), [(1000, InvalidRequest), (10**9, None)])
def test_a_deadline_is_too_late_only_if_all_groups_say_so(clock: int, error: type[Exception] | None) -> None:
    gateway = gateway_of(ticks=1000)
    outcomes: list[object] = []
    late = timestamp(10**9 + 5, A)
    gateway.transact(WRITE, outcomes.append, identity=Identity(7, 1, 1, late))
    answer_clocks(gateway, clock, 0.1)
    assert [type(outcome) for outcome in outcomes] == ([] if error is None else [error])
    assert len(multicasts(gateway, 0.2)) == (error is None)


def a_time_of_a_silent_group(gateway: Gateway) -> None:
    """A client knows a time that is days ahead, from a group that does not answer any more."""
    outcomes: list[object] = []
    seen = timestamp(10**10, C)
    deadline = seen + timestamp(6_000_000, A)
    gateway.transact(WRITE, outcomes.append, identity=Identity(7, 1, 1, deadline), min_revision=seen)
    answer_clocks(gateway, 1000, 0.1, silent=1)
    assert multicasts(gateway, 0.2) == []
    said = gateway.turn(0.6)
    gateway.transact(WRITE, outcomes.append, identity=Identity(7, 2, 1, deadline), min_revision=seen)
    said += gateway.turn(0.6)  # the second one does not wait
    assert outcomes == []
    assert not [message for _, _, message in said if isinstance(message, RaiseClock)]
    sent = [decode_request(message.payload) for _, _, message in said if isinstance(message, Multicast)]
    assert [request.sequence for request in sent] == [1, 2]


class LocksOut(Gateway):
    """A deadline that no group confirms is rejected."""

    def _transact_judged(
        self, transaction: Transaction, done: OnDone, identity: Identity | None, at_least: int,
        verdict: Verdict,
    ) -> None:  # fmt: skip
        if identity is not None and self._is_ahead(identity.deadline, DAY):
            raise Unavailable("some partitions do not answer what time it is")
        super()._transact_judged(transaction, done, identity, at_least, verdict)


def test_a_client_with_the_time_of_a_silent_group_is_not_locked_out() -> None:
    a_time_of_a_silent_group(gateway_of(ticks=1000))
    with pytest.raises((AssertionError, Unavailable)):
        a_time_of_a_silent_group(gateway_of(ticks=1000, kind=LocksOut))


def test_a_deadline_a_year_ahead_is_not_accepted_while_a_group_is_silent() -> None:
    gateway = gateway_of(ticks=1000)
    outcomes: list[object] = []
    gateway.transact(WRITE, outcomes.append, identity=Identity(7, 1, 1, timestamp(4 * 10**11, A)))
    answer_clocks(gateway, 1000, 0.1, silent=1)
    gateway.turn(0.7)
    assert [type(outcome) for outcome in outcomes] == [Unavailable]


@pytest.mark.parametrize("silent", [0, 1])
def test_a_condition_on_a_revision_that_is_not_known_to_exist(silent: int) -> None:
    """It is not evaluated below that revision, unless no client can have seen it."""
    gateway = gateway_of(ticks=1000)
    outcomes: list[object] = []
    unchanged = Unchanged(Range(b"a", b"b"), timestamp(1001, C))
    gateway.transact(Transaction((unchanged,), WRITE.then), outcomes.append)
    answer_clocks(gateway, 1000, 0.1, silent=silent)
    assert bool(multicasts(gateway, 0.6)) == (not silent)
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * silent
    gateway.clocks.tell(1001, 0.7)
    gateway.transact(Transaction((unchanged,), WRITE.then), outcomes.append)
    said = gateway.turn(0.8)
    assert [message.time for _, _, message in said if isinstance(message, RaiseClock)] == [1002]


@pytest.mark.parametrize("returns", [False, True])
def test_housekeeping_at_a_revision_that_its_group_has_not_reached(
    returns: bool,  # noqa: FBT001 - a case
) -> None:
    """The group that has issued it was silent when the message was sent."""
    gateway = gateway_of(ticks=1000)
    outcomes: list[object] = []
    gateway.command(A, Compact(timestamp(1001, C)), outcomes.append, at_least=timestamp(1001, C))
    (message,) = multicasts(gateway)
    if returns:
        gateway.clocks.tell(1001, 0.1)
    refused = Refused(Refusal.FUTURE_REVISION, "not reached")
    gateway.receive(members(A)[0], [results_of(message, timestamp(1000, A), refused)], 0.1)
    said = gateway.turn(0.2)
    assert [message.time for _, _, message in said if isinstance(message, RaiseClock)] == [1002] * returns
    assert [type(outcome) for outcome in outcomes] == ([] if returns else [Unavailable])


@pytest.mark.parametrize("identity", [None, Identity(7, 1, 1, 0)])
def test_a_deadline_of_the_gateways_own_that_was_too_early_is_corrected(identity: Identity | None) -> None:
    """Its clocks were wrong: the request was not executed, and the client does not hear of it."""
    gateway = gateway_of()
    outcomes: list[object] = []
    gateway.transact(WRITE, outcomes.append, identity=identity)
    (first,) = multicasts(gateway)
    position = timestamp(10**9, A)
    expired = Refused(Refusal.EXPIRED, "too late")
    gateway.receive(members(A)[0], [results_of(first, position, expired)], 0.1)
    assert outcomes == []
    (second,) = multicasts(gateway, 0.2)
    assert decode_request(second.payload).deadline > position
    written = Outcome(succeeded=True, unmet=(), results=((0, WRITTEN),))
    gateway.receive(members(A)[0], [results_of(second, Timestamp(position + 1024), written)], 0.3)
    (outcome,) = outcomes
    assert isinstance(outcome, Committed)
    assert outcome.revision == position + 1024


@pytest.mark.parametrize(("position", "definite"), [(timestamp(2001, A), True), (NO_TIMESTAMP, False)])
def test_a_clients_deadline_stays_and_the_error_says_if_it_is_definite(
    position: Timestamp, definite: bool,  # noqa: FBT001 - a parameter of the test
) -> None:  # fmt: skip
    """Above the deadline it is never executed. Without a position, it may have been, and be forgotten."""
    gateway = gateway_of()
    outcomes: list[object] = []
    gateway.transact(WRITE, outcomes.append, identity=Identity(7, 1, 1, timestamp(2000, A)))
    (message,) = multicasts(gateway)
    expired = Refused(Refusal.EXPIRED, "too late")
    gateway.receive(members(A)[0], [results_of(message, position, expired)], 0.1)
    (outcome,) = outcomes
    assert isinstance(outcome, RequestExpired if definite else OutcomeUnknown)
    if isinstance(outcome, RequestExpired):
        assert outcome.revision == position


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
        (members(A)[0], Entries(7, ())),
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


def test_only_replicas_answer_a_gateway() -> None:
    with pytest.raises(PeerViolation, match="is not a replica"):
        gateway_of().receive(ClientId(8), [Results(A, PLACE, (MID,), (PLACE,), (b"",))], 0.0)


def test_a_gateway_follows_the_leader_that_a_replica_of_its_node_follows() -> None:
    """Messages and strict reads that wait for a dead leader go to the next one at once."""
    gateway = gateway_of()
    gateway.command(A, Tick(), lambda _: None)
    gateway.ask(A, StrictRead((Get(b"a"),)), lambda _: None, of_leader=True)
    gateway.ask(B, StrictRead((Get(b"m"),)), lambda _: None, of_leader=True)
    gateway.turn(0.0)
    follower = members(A)[1]
    gateway.follow(A, Ballot(2, follower, 0), Membership(Configuration(A, 0, members(A))), 0.1)
    assert gateway.leader(A) == follower
    assert [(receivers, type(message)) for _, receivers, message in gateway.turn(0.1)] == [
        ((follower,), Query),
        ((follower,), Multicast),
    ]
    gateway.follow(A, Ballot(2, follower, 0), Membership(Configuration(A, 0, members(A))), 0.2)
    assert gateway.turn(0.2) == []


def test_a_strict_read_is_asked_of_all_members_when_the_leader_is_silent() -> None:
    gateway = gateway_of()
    gateway.ask(A, StrictRead((Get(b"a"),)), lambda _: None, of_leader=True)
    asked = [receivers for turn in range(8) for _, receivers, _ in gateway.turn(turn * 0.1)]
    assert asked == [members(A)[:1], tuple(members(A))]


def test_a_call_is_made_at_the_time_of_the_clock() -> None:
    """After a pause, the time of the last turn is long ago: the next answer would seem slow, and retries
    would wait for as long.
    """
    gateway = gateway_of()
    gateway.turn(0.0)
    gateway._monotonic = lambda: 60.0
    gateway.command(A, Tick(), lambda _: None)
    ((_, _, message),) = gateway.turn(60.0)
    results = Results(A, PLACE, (message.mid,), (PLACE,), (encode_result(DONE),))
    gateway.receive(members(A)[0], [results], 60.01)
    assert gateway._sender._unanswered.timeout.seconds == RETRY_S


def test_copies_of_a_large_request_wait_for_one_message_and_are_bounded() -> None:
    """Each copy was a level of a recursion, which stopped the node when the outcome came."""
    gateway = gateway_of()
    large = Transaction(then=(Put(b"a", bytes(1 << 20)),))
    outcomes: list[object] = []
    for _ in range(1 + JOINED):
        gateway.transact(large, outcomes.append, identity=Identity(7, 1, 1, timestamp(2000, A)))
    with pytest.raises(Overloaded, match="copies"):
        gateway.transact(large, outcomes.append, identity=Identity(7, 1, 1, timestamp(2000, A)))
    messages = multicasts(gateway)
    assert len({message.mid for message in messages}) == 1
    written = Outcome(succeeded=True, unmet=(), results=((0, WRITTEN),))
    gateway.receive(members(A)[0], [results_of(messages[0], PLACE, written)], 0.1)
    assert len(outcomes) == 1 + JOINED
    assert gateway.in_flight == 0


def test_what_waits_for_a_partition_that_answers_is_under_way() -> None:
    gateway = gateway_of()
    for key in (b"a", b"b", b"c", b"z"):
        gateway.transact(Transaction(then=(Put(key, b""),)), lambda _: None)
    assert gateway.under_way(0.0) == 0, "no partition has answered yet: it may be down"
    first = next(message for _, _, message in gateway.turn(0.0) if isinstance(message, Multicast))
    assert first.dest == (A,)
    done = encode_result(Outcome(succeeded=True, unmet=(), results=((0, WRITTEN),)))
    gateway.receive(members(A)[0], [Results(A, PLACE, (first.mid,), (PLACE,), (done,))], 1.0)
    assert gateway.under_way(1.0) == 2, "the others to this partition"
    assert gateway.under_way(2.0) == 0, "it does not answer any more"
    silent = gateway.ask(C, StrictRead((Get(b"z"),)), lambda _: None, of_leader=True)
    assert gateway.under_way(1.0) == 2, "nor does that one"
    gateway.forget(silent)
    gateway.ask(A, StrictRead((Get(b"a"),)), lambda _: None, of_leader=True)
    assert gateway.under_way(1.0) == 3
    feed = gateway.ask(A, Feed(0, (Range(b"", None),), 100, 1.0), lambda _: None, of_leader=False)
    assert gateway.under_way(1.0) == 3, "a feed waits for changes"
    gateway.forget(feed)
    assert gateway.under_way(1.0) == 3
