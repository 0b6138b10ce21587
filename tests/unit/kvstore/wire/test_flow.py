"""Flow control without a network: order within pairs, slices, references, epochs and bounds.

`Pipe` is the transport: it passes frames on as a test says, and nothing else.
"""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.wire import flow
from kvstore.wire.flow import FlowLimits
from kvstore.wire.frames import ORDERING_CODEC, WireError
from kvstore.wire.inflow import Inflow
from kvstore.wire.outflow import Outflow
from multicast.errors import InvalidArgument
from multicast.messages import (
    Accept,
    CatchUp,
    ClockUpdates,
    Deliveries,
    Delivery,
    EntryState,
    Heartbeat,
    LocalTimestamps,
    Multicast,
    NewLeaderAck,
    NewState,
    Phase2a,
    StatePart,
)
from multicast.types import (
    NO_TIMESTAMP,
    Ballot,
    ClientId,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Timestamp,
)
from tests.campaigns import CAMPAIGN

LIMITS = FlowLimits(inline=200, payload=100, whole=600, slice=128, message=20_000, queue=40_000, kept=5_000)
A0, A1 = ReplicaId(GroupId(0), 1, 0), ReplicaId(GroupId(1), 1, 0)
B0, B1 = ReplicaId(GroupId(0), 2, 0), ReplicaId(GroupId(1), 2, 0)
BALLOT = Ballot(1, A0, 0)
BIG = random.Random(1).randbytes(3_000)


class Pipe:
    """Both ends of a direction. `arrived` has the messages of each pair, in order."""

    def __init__(self, limits: FlowLimits = LIMITS) -> None:
        self.out = Outflow(ORDERING_CODEC, limits)
        self.into = Inflow(ORDERING_CODEC, limits)
        self.arrived: dict[tuple[Process, Process], list[Any]] = defaultdict(list)
        self.frames = 0
        self.bytes = 0

    def send(self, *messages: Any, sender: Process = A0, receiver: Process = B0) -> None:
        self.out.send([(sender, receiver, messages)])

    def step(self) -> bool:
        """Pass one frame on."""
        frame = self.out.next()
        if frame is None:
            return False
        self.frames += 1
        self.bytes += len(frame)
        for sender, receiver, messages in self.into.receive(frame):
            self.arrived[sender, receiver] += messages
        return True

    def drain(self) -> None:
        while self.step():
            pass


def mid(number: int) -> MessageId:
    return MessageId(ClientId(7), number, 0)


def multicast(number: int, payload: bytes) -> Multicast:
    return Multicast(mid(number), (GroupId(0),), payload, 1)


def accept(number: int, *payloads: bytes) -> Accept:
    count = len(payloads)
    mids = tuple(mid(number + i) for i in range(count))
    stamps = tuple(Timestamp(number + i) for i in range(count))
    return Accept(((GroupId(0),),), GroupId(0), BALLOT, mids, stamps, payloads, (1,) * count)


def small(number: int) -> CatchUp:
    return CatchUp(Timestamp(number))


ENTRY = EntryState(mid(1), (GroupId(0),), BIG, 1, Phase.ACCEPTED, Timestamp(3), NO_TIMESTAMP)
EVERY_KIND = [
    multicast(1, BIG),
    accept(1, b"", BIG, b"x"),
    Phase2a(
        BALLOT,
        LocalTimestamps((mid(1),), ((GroupId(0),),), (BIG,), (1,), (Timestamp(3),)),
        ClockUpdates(),
    ),
    NewLeaderAck(BALLOT, BALLOT, 1, NO_TIMESTAMP, StatePart(1, 0, 1), (ENTRY, ENTRY._replace(payload=b"y"))),
    NewState(BALLOT, 1, StatePart(1, 0, 1), (ENTRY,)),
    Deliveries(
        (Delivery(mid(1), (GroupId(0),), BIG, 1, Timestamp(3), Timestamp(3), NO_TIMESTAMP, mismatch=False),),
        Timestamp(3),
    ),
]


@pytest.mark.parametrize("message", EVERY_KIND, ids=lambda message: type(message).__name__)
def test_a_payload_travels_once_whatever_message_has_it(message: Any) -> None:
    pipe = Pipe()
    for other in EVERY_KIND:
        pipe.send(other)
    pipe.drain()
    before = pipe.bytes
    assert before < 2 * len(BIG)
    pipe.send(message, sender=A1, receiver=B1)
    pipe.drain()
    assert pipe.arrived[A0, B0] == EVERY_KIND
    assert pipe.arrived[A1, B1] == [message]
    assert pipe.bytes - before < 400


def test_a_small_frame_is_sent_as_it_is() -> None:
    pipe = Pipe()
    pipe.send(small(1), multicast(1, bytes(120)))
    assert pipe.out.next() == ORDERING_CODEC.encode([(A0, B0, [small(1), multicast(1, bytes(120))])])
    assert pipe.out.next() is None


def test_many_small_messages_are_frames_of_bounded_size() -> None:
    pipe = Pipe()
    messages = [small(1_000_000 + n) for n in range(500)]
    pipe.out.send([(A0, B0, messages), (A1, B1, messages)])
    while (frame := pipe.out.next()) is not None:
        assert len(frame) <= LIMITS.whole
        for sender, receiver, found in pipe.into.receive(frame):
            pipe.arrived[sender, receiver] += found
    assert pipe.arrived == {(A0, B0): messages, (A1, B1): messages}


def test_messages_of_a_pair_wait_for_a_large_one_and_others_pass() -> None:
    pipe = Pipe()
    pipe.send(accept(1, BIG))
    pipe.send(small(1))
    for number in range(5):
        pipe.send(small(number), sender=A1, receiver=B1)
    for _ in range(6):
        assert pipe.step()
    assert pipe.arrived == {(A1, B1): [small(n) for n in range(5)]}
    pipe.drain()
    assert pipe.arrived[A0, B0] == [accept(1, BIG), small(1)]


def test_a_large_message_without_payloads_is_sent_in_slices_and_in_order() -> None:
    pipe = Pipe()
    long = accept(1, *([b"y" * 90] * 40))
    pipe.send(small(1), long, small(2))
    pipe.send(small(3))
    pipe.drain()
    assert pipe.arrived[A0, B0] == [small(1), long, small(2), small(3)]
    assert pipe.frames > 20
    assert pipe.into.held == 0


def test_sources_and_small_frames_take_turns() -> None:
    pipe = Pipe()
    pipe.send(multicast(1, BIG * 4))
    pipe.send(multicast(2, BIG[::-1]), sender=A1, receiver=B1)
    steps = 0
    while not pipe.arrived[A1, B1]:
        pipe.send(small(steps), sender=A1, receiver=B0)
        assert pipe.step()
        steps += 1
    assert not pipe.arrived[A0, B0]
    assert pipe.bytes < 6 * len(BIG)
    pipe.drain()
    assert pipe.arrived[A0, B0] == [multicast(1, BIG * 4)]
    assert pipe.arrived[A1, B0] == [small(n) for n in range(steps)]


def test_a_repeated_multicast_is_not_queued_again() -> None:
    pipe = Pipe()
    for _ in range(10):
        pipe.send(multicast(1, BIG))
    assert pipe.out.merged == 9
    assert pipe.out.queued < len(BIG) + 200
    pipe.drain()
    assert pipe.arrived[A0, B0] == [multicast(1, BIG)]
    pipe.send(multicast(1, BIG))  # the first may have been lost behind the link
    pipe.drain()
    assert len(pipe.arrived[A0, B0]) == 2


def test_a_leader_stays_alive_behind_a_large_message() -> None:
    beat = Heartbeat(BALLOT, Timestamp(9), ((GroupId(0), Timestamp(5)),), Timestamp(2), Timestamp(3))
    pipe = Pipe()
    pipe.send(accept(1, BIG))
    pipe.send(beat)
    assert pipe.step()
    assert pipe.arrived[A0, B0] == [Heartbeat(BALLOT, NO_TIMESTAMP, (), alive_only=True)]
    pipe.drain()
    assert pipe.arrived[A0, B0][1:] == [accept(1, BIG), beat]


def test_no_heartbeat_overtakes_the_state_of_its_ballot() -> None:
    beat = Heartbeat(BALLOT, Timestamp(9), ())
    state = NewState(BALLOT, 1, StatePart(1, 0, 1), (ENTRY,))
    pipe = Pipe()
    pipe.send(state)
    pipe.send(beat)
    pipe.drain()
    assert pipe.arrived[A0, B0] == [state, beat]


def state(kind: Any, transfer: int, *payloads: bytes, ballot: Ballot = BALLOT) -> list[Any]:
    """A state with a piece for each payload."""
    pieces = []
    for index, payload in enumerate(payloads):
        part = StatePart(transfer, index, len(payloads))
        entries = (ENTRY._replace(mid=mid(index), payload=payload),)
        piece: Any = NewState(ballot, 1, part, entries)
        if kind is NewLeaderAck:
            piece = NewLeaderAck(ballot, BALLOT, 1, NO_TIMESTAMP, part, entries)
        pieces.append(piece)
    return pieces


def payloads(size: int, count: int) -> list[bytes]:
    return [random.Random(number).randbytes(size) for number in range(count)]


STATE_KINDS = pytest.mark.parametrize("kind", [NewState, NewLeaderAck])
SIZES = pytest.mark.parametrize(("size", "count"), [(15_000, 10), (90, 2_000)], ids=["large", "small"])


@STATE_KINDS
@SIZES
def test_a_state_does_not_count_and_arrives_whatever_its_size(kind: Any, size: int, count: int) -> None:
    pipe = Pipe()
    pieces = state(kind, 1, *payloads(size, count))
    pipe.send(small(1), *pieces, small(2))
    assert pipe.out.queued > 2 * LIMITS.held
    assert pipe.out.queued - pipe.out.free < 1_000
    for number in range(3, 30):
        pipe.send(small(number))
        pipe.send(small(number), sender=A1, receiver=B1)
        for _ in range(5):
            assert pipe.step()
            assert 0 <= pipe.out.free <= pipe.out.queued
            assert pipe.into.held <= LIMITS.held
    assert len(pipe.arrived[A1, B1]) > 20
    pipe.drain()
    assert (pipe.out.queued, pipe.out.free, pipe.out.merged, pipe.out.behind) == (0, 0, 0, False)
    assert pipe.arrived[A0, B0] == [small(1), *pieces, *map(small, range(2, 30))]


def test_messages_behind_a_state_may_refer_to_more_than_the_peer_holds() -> None:
    pipe = Pipe()
    its = payloads(5_000, 40)
    pieces: list[Any] = state(NewState, 1, *its)
    pipe.send(*pieces)
    accepts = [accept(number, payload) for number, payload in enumerate(its)]
    pipe.send(*accepts)
    for number, payload in enumerate(its):
        pipe.send(multicast(number, payload), sender=A1, receiver=B1)
    while pipe.step():
        assert pipe.into.held <= LIMITS.held
        assert 0 <= pipe.out.queued - pipe.out.free < LIMITS.queue
    assert not pipe.out.behind
    assert pipe.arrived[A0, B0] == pieces + accepts
    assert pipe.arrived[A1, B1] == [multicast(*each) for each in enumerate(its)]
    assert pipe.bytes < 4 * 5_000 * 40


@STATE_KINDS
@SIZES
def test_a_state_that_is_queued_is_not_queued_again(kind: Any, size: int, count: int) -> None:
    pipe = Pipe()
    pieces = state(kind, 1, *payloads(size, count))
    pipe.send(*pieces)
    before = pipe.out.queued
    for transfer in range(2, 10):
        pipe.step()
        pipe.send(*state(kind, transfer, *payloads(size, count)))
    assert pipe.out.queued < before
    assert pipe.out.merged == 8 * count
    pipe.drain()
    assert pipe.arrived[A0, B0] == pieces
    again = state(kind, 10, *payloads(size, count))
    pipe.send(*again)
    pipe.drain()
    assert pipe.arrived[A0, B0] == pieces + again
    assert not pipe.out._states


def test_a_state_behind_one_of_another_ballot_counts() -> None:
    """Else the queue would grow with each ballot. The first is no longer wanted."""
    pipe = Pipe()
    pipe.send(*state(NewState, 1, *payloads(90, 2_000)))
    pipe.send(*state(NewState, 2, *payloads(91, 2_000), ballot=Ballot(2, A0, 0)))
    assert pipe.out.queued - pipe.out.free > LIMITS.queue
    pipe.out.fall_behind()
    pipe.out.resume()
    pieces = state(NewState, 3, *payloads(91, 2_000), ballot=Ballot(2, A0, 0))
    pipe.send(*pieces)
    assert pipe.out.queued - pipe.out.free < 100
    pipe.drain()
    assert pipe.arrived[A0, B0] == pieces


def test_the_oldest_payloads_are_forgotten_at_both_ends() -> None:
    pipe = Pipe()
    for number in range(30):
        pipe.send(multicast(number, random.Random(number).randbytes(1_000)))
        pipe.drain()
        assert pipe.into.held <= LIMITS.kept + 1_000
    before = pipe.bytes
    pipe.send(multicast(99, random.Random(29).randbytes(1_000)))
    pipe.drain()
    assert pipe.bytes - before < 300  # the newest is still known
    pipe.send(multicast(100, random.Random(0).randbytes(1_000)))
    pipe.drain()
    assert pipe.bytes - before > 1_000  # the oldest is not
    assert len(pipe.arrived[A0, B0]) == 32


def test_idle_payloads_are_forgotten() -> None:
    pipe = Pipe()
    pipe.send(multicast(1, BIG))
    pipe.drain()
    pipe.out.sweep()
    pipe.drain()
    assert pipe.into.held == len(BIG)
    pipe.out.sweep()
    pipe.drain()
    assert pipe.into.held == 0
    pipe.send(multicast(2, BIG))
    pipe.drain()
    assert pipe.arrived[A0, B0] == [multicast(1, BIG), multicast(2, BIG)]


def test_a_dropped_queue_leaves_nothing_half_delivered() -> None:
    pipe = Pipe()
    pipe.send(multicast(1, BIG))
    for _ in range(5):
        pipe.step()
    pipe.out.fall_behind()
    pipe.send(small(1))
    assert (pipe.out.queued, pipe.out.next()) == (0, None)
    pipe.out.resume()
    pipe.send(multicast(1, BIG))
    pipe.send(small(2))
    pipe.drain()
    assert pipe.arrived[A0, B0] == [multicast(1, BIG), small(2)]
    assert pipe.into.epoch == pipe.out.epoch == 1
    assert pipe.into.held == len(BIG)
    assert not pipe.into._parts


def test_a_payload_that_a_waiting_message_needs_is_not_forgotten() -> None:
    pipe = Pipe()
    pipe.send(multicast(0, BIG[:1_000]))
    pipe.drain()
    pipe.send(multicast(1, BIG * 4))
    pipe.send(multicast(2, BIG[:1_000]))
    pipe.send(multicast(3, BIG[::-1] * 2), sender=A1, receiver=B1)
    pipe.drain()
    assert pipe.arrived[A0, B0] == [
        multicast(0, BIG[:1_000]),
        multicast(1, BIG * 4),
        multicast(2, BIG[:1_000]),
    ]
    assert pipe.arrived[A1, B1] == [multicast(3, BIG[::-1] * 2)]


def test_a_message_beyond_the_limit_ends_the_epoch() -> None:
    for message in (multicast(1, bytes(20_001)), accept(1, *([b"y" * 99] * 300))):
        pipe = Pipe()
        pipe.out.send([(A1, B1, [small(1)]), (A0, B0, [small(2), message, small(3)]), (A1, B1, [small(4)])])
        assert pipe.out.too_large == 1
        assert pipe.out.behind
        assert pipe.out.next() is None
        pipe.out.resume()
        pipe.send(small(5))
        pipe.drain()
        assert pipe.arrived == {(A0, B0): [small(5)]}


@pytest.mark.parametrize(
    "too_large", [multicast(1, bytes(20_001)), accept(1, *([b"y" * 99] * 300))], ids=["payload", "whole"]
)
def test_nothing_that_follows_a_message_beyond_the_limit_is_queued(too_large: Any) -> None:
    """A blob of the old epoch that leaves in front of the new one would be referred to in vain."""
    pipe = Pipe()
    later = multicast(2, BIG), accept(3, BIG[::-1])
    pipe.out.send([(A0, B0, [too_large, *later]), (A1, B1, later), (A1, B0, [small(4)])])
    assert pipe.out.behind
    assert (pipe.out.queued, pipe.out.next()) == (0, None)
    pipe.out.resume()
    pipe.send(*later)
    pipe.drain()
    assert pipe.arrived == {(A0, B0): list(later)}


@pytest.mark.parametrize("wrong", [{"slice": 0}, {"kept": -1}, {"queue": 10}])
def test_limits_must_make_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        FlowLimits(**wrong)


def blob(number: int, size: int, data: bytes) -> bytes:
    return struct.pack(">BQQ", flow.SLICE, number, size) + data


EMPTY = multicast(1, b"")


def referring(*references: tuple[int, int, int], messages: Any = (EMPTY,), pairs: int = 1) -> bytes:
    frame = ORDERING_CODEC.encode([(A0, B0, messages)] * pairs)
    return bytes([flow.REFERRING]) + msgspec.msgpack.encode((references, frame))


GOOD = blob(1, 3, b"abc")
WRONG = {
    "an unknown kind": b"\x07",
    "a slice without bytes": blob(2, 3, b""),
    "a slice of nothing": blob(2, 0, b"a"),
    "a slice that is too long": blob(2, 3, b"abcd"),
    "a blob that is complete": GOOD,
    "a blob that is too large": blob(2, LIMITS.message + 1, b"a"),
    "a reference to nothing": referring((0, 0, 9)),
    "a reference to half a blob": blob(3, 9, b"a") + b"|" + referring((0, 0, 3)),
    "two references for one payload": referring((0, 0, 1), (0, 0, 1)),
    "a reference for no message": referring((1, 0, 1)),
    "a reference for no payload": referring((0, 1, 1)),
    "a reference of a message without payloads": referring((0, 0, 1), messages=(small(1),)),
    "a negative reference": referring((-1, 0, 1)),
    "references for two pairs": referring((0, 0, 1), pairs=2),
    "references without a frame": bytes([flow.REFERRING]) + b"\x90",
    "a whole message that is none": struct.pack(">BQ", flow.WHOLE, 1),
    "a whole message that is not here": struct.pack(">BQ", flow.WHOLE, 2),
    "a blob to forget that is not here": struct.pack(">BQQ", flow.FORGET, 1, 2),
    "nothing to forget": bytes([flow.FORGET]),
    "half a number": bytes([flow.FORGET, 1]),
    "two epochs": struct.pack(">BQQ", flow.EPOCH, 1, 2),
    "an old epoch": struct.pack(">BQ", flow.EPOCH, 0),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_no_correct_node_sends_is_an_error(case: str) -> None:
    into = Inflow(ORDERING_CODEC, LIMITS)
    into.receive(GOOD)
    *before, wrong = WRONG[case].split(b"|") if "half a blob" in case else [WRONG[case]]
    for frame in before:
        into.receive(frame)
    with pytest.raises(WireError):
        into.receive(wrong)


def test_a_peer_cannot_make_this_side_hold_more_than_its_bound() -> None:
    into = Inflow(ORDERING_CODEC, LIMITS)
    for number in range(LIMITS.held // LIMITS.message):
        into.receive(blob(number, LIMITS.message, b"a"))
    assert into.held <= LIMITS.held
    with pytest.raises(WireError, match="held already"):
        into.receive(blob(999, LIMITS.message, b"a"))


def test_large_messages_of_many_senders_stay_within_the_bound_of_the_peer() -> None:
    """A blob counts there with its whole length from its first slice, and every sender has one under way."""
    pipe = Pipe()
    senders = [ReplicaId(GroupId(g), 1, 0) for g in range(16)]
    sent: dict[tuple[Process, Process], list[Any]] = defaultdict(list)
    for number in range(64):
        sender = senders[number % 16]
        message = multicast(number, random.Random(number).randbytes(8_000))
        while pipe.out.queued + 8_200 > LIMITS.queue:
            assert pipe.step()
            assert pipe.into.held <= LIMITS.held
        pipe.send(message, sender=sender)
        sent[sender, B0].append(message)
    pipe.drain()
    assert not pipe.out.behind
    assert pipe.arrived == sent


def test_messages_that_wait_for_the_blob_of_another_sender_leave_room_for_it() -> None:
    """What is behind them in their lane is with the peer already, and cannot be forgotten."""
    pipe = Pipe()
    shared = payloads(9_000, 4)
    for number, payload in enumerate(shared):
        pipe.send(multicast(number, payload))
    senders = [ReplicaId(GroupId(g), 1, 0) for g in range(1, 5)]
    sent: dict[tuple[Process, Process], list[Any]] = defaultdict(list)
    for number in range(100, 200):
        while pipe.out.queued + 2_200 > LIMITS.queue:
            assert pipe.step()
        sender = senders[number % 4]
        payload = random.Random(number).randbytes(2_000) if sent[sender, B0] else shared[-1]
        sent[sender, B0].append(multicast(number, payload))
        pipe.send(sent[sender, B0][-1], sender=sender)
    pipe.drain()
    assert not pipe.out.behind
    assert pipe.arrived.pop((A0, B0)) == [multicast(*each) for each in enumerate(shared)]
    assert pipe.arrived == sent


@given(st.binary(min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_messages_or_an_error(data: bytes) -> None:
    into = Inflow(ORDERING_CODEC, LIMITS)
    into.receive(GOOD)
    for frame in (data, bytes([data[0] % 6]) + data):
        try:
            into.receive(frame)
        except WireError:
            return


STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 5), st.integers(0, 5)),
    st.tuples(st.just("step"), st.integers(1, 30), st.just(0)),
    st.sampled_from([("drop", 0, 0), ("resume", 0, 0), ("sweep", 0, 0)]),
)
A2 = ReplicaId(GroupId(2), 1, 0)
PAIRS = [(A0, B0), (A0, B1), (A1, B0), (A1, B1), (A2, B0), (A2, B1)]
PAYLOADS = [b"s", b"t" * 90, b"u" * 150, b"v" * 1_000, b"w" * 3_000, b"x" * 6_000]


TIGHT = replace(LIMITS, message=7_000, queue=13_000, kept=1)
"""So that the bound of what the peer holds is reached."""


@given(st.lists(STEP, max_size=80), st.sampled_from([LIMITS, TIGHT]))
@settings(max_examples=500 if CAMPAIGN else 60, deadline=None)
def test_pairs_are_fifo_within_an_epoch_whatever_happens(
    steps: list[tuple[str, int, int]], limits: FlowLimits
) -> None:
    """What arrives of a pair is what was sent in each epoch, in order, without a gap but at its end."""
    pipe = Pipe(limits)
    epochs: list[dict[tuple[Process, Process], list[Any]]] = [defaultdict(list)]
    arrived: dict[int, dict[tuple[Process, Process], list[Any]]] = defaultdict(lambda: defaultdict(list))

    def step() -> bool:
        found = pipe.step()
        for pair, messages in pipe.arrived.items():
            arrived[pipe.into.epoch][pair] += messages
        pipe.arrived.clear()
        return found

    for number, (what, which, kind) in enumerate(steps):
        if what == "send":
            if not pipe.out.behind:
                payload = PAYLOADS[kind]
                run = accept(number, payload, b"-", PAYLOADS[-kind])
                message = run if number % 2 else multicast(number, payload)
                if number % 5 == 0:
                    message = state([NewState, NewLeaderAck][number % 2], number, payload)[0]
                merged = pipe.out.merged
                pipe.out.send([(*PAIRS[which], [message])])
                if pipe.out.merged == merged:
                    epochs[-1][PAIRS[which]].append(message)
                if pipe.out.queued - pipe.out.free > limits.queue:
                    pipe.out.fall_behind()
        elif what == "step":
            for _ in range(which):
                step()
        elif what == "drop":
            pipe.out.fall_behind()
        elif what == "resume" and pipe.out.behind:
            pipe.out.resume()
            epochs.append(defaultdict(list))
        elif what == "sweep":
            pipe.out.sweep()
        assert 0 <= pipe.out.queued - pipe.out.free <= limits.queue + 20_000
        assert pipe.into.held <= limits.held
    while step() or pipe.out.behind:
        if pipe.out.behind:
            pipe.out.resume()
            epochs.append(defaultdict(list))
    assert pipe.into.epoch == pipe.out.epoch == len(epochs) - 1
    for epoch, found in arrived.items():
        for pair, messages in found.items():
            assert messages == epochs[epoch][pair][: len(messages)]
    assert arrived[len(epochs) - 1] == epochs[-1]
    assert pipe.out.queued == pipe.out.free == 0
    assert not pipe.out._states
