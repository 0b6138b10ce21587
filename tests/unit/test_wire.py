"""Frames between nodes: every message comes back as it was, and bytes that are no frame are refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tracemalloc
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wbkv_proto.peer_pb2 import Frame, Kind

from kvstore import wire
from kvstore.messages import STORE_MESSAGES, SnapshotAck, SnapshotPiece, VotesWanted
from kvstore.wire import Envelope, WireError, decode, encode, size_of
from multicast.client import Refused, Reply
from multicast.membership import Configuration, Membership
from multicast.messages import (
    Accept,
    AcceptAck,
    CatchUp,
    ClockUpdate,
    Deliver,
    Deliveries,
    Delivery,
    EntryState,
    Executed,
    HandOver,
    Heartbeat,
    HeartbeatAck,
    Hint,
    Join,
    LocalTimestamp,
    Members,
    MembersWanted,
    Message,
    Multicast,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    Part,
    Phase2a,
    Phase2b,
    PreVote,
    PreVoteAck,
    Propose,
)
from multicast.types import (
    GROUPS_MAX,
    NO_BALLOT,
    Ballot,
    ClientId,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Timestamp,
)
from tests.unit.memberships import memberships

EXAMPLES = settings(deadline=None, derandomize=True)
FUZZ = settings(deadline=None, derandomize=True, max_examples=300)

Messages: TypeAlias = list[Any]
Strategy: TypeAlias = st.SearchStrategy[Any]

KINDS: list[type[Any]] = [*get_args(Message), Reply, Refused, SnapshotPiece, SnapshotAck, VotesWanted]
"""Of the store's messages, which are all of one kind here, one stands for all: see `test_store_messages`."""


# Any message, from the fields its class declares. Numbers are as large as they may be.

NUMBER_MAX = 2**63 - 1
GROUPS = st.integers(0, GROUPS_MAX - 1).map(GroupId)
NUMBERS = st.integers(0, 3) | st.integers(0, NUMBER_MAX)
NUMBERS_64 = st.integers(0, 3) | st.integers(0, 2**64 - 1)
REPLICAS = st.builds(ReplicaId, GROUPS, NUMBERS, NUMBERS_64)
LEAVES: dict[Any, Strategy] = {
    GroupId: GROUPS,
    ClientId: NUMBERS_64,
    Timestamp: NUMBERS,
    int: NUMBERS,
    bool: st.booleans(),
    bytes: st.binary(max_size=40),
    str: st.text(max_size=40),
    types.NoneType: st.none(),
    Phase: st.sampled_from(Phase),
    ReplicaId: REPLICAS,
    Ballot: st.just(NO_BALLOT) | st.builds(Ballot, NUMBERS, REPLICAS, NUMBERS),
    MessageId: st.builds(MessageId, NUMBERS_64, NUMBERS, NUMBERS_64),
    Membership: memberships(),
}


def values_of(hint: Any) -> Strategy:
    if hint in LEAVES:
        return LEAVES[hint]
    arguments = get_args(hint)
    if get_origin(hint) is tuple:
        if arguments[-1] is not Ellipsis:
            return st.tuples(*map(values_of, arguments))
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if get_origin(hint) in (Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    fields = get_type_hints(hint)
    return st.builds(hint, **{name: values_of(field) for name, field in fields.items()})


def draw_columns(draw: st.DrawFn, cls: type[Any], *names: str) -> list[tuple[Any, ...]]:
    """Columns of one length."""
    hints = get_type_hints(cls)
    length = draw(st.integers(0, 3))
    return [
        tuple(draw(st.lists(values_of(get_args(hints[name])[0]), min_size=length, max_size=length)))
        for name in names
    ]


@st.composite
def any_accept(draw: st.DrawFn) -> Accept:
    """The columns that go to the own group only may be empty."""
    hints = get_type_hints(Accept)
    columns = draw_columns(draw, Accept, "mids", "local_ts", "payloads", "ack_below")
    run = columns if draw(st.booleans()) else [*columns[:2], (), ()]
    return Accept(*(draw(values_of(hints[name])) for name in ("dest", "group", "ballot")), *run)


@st.composite
def any_reply(draw: st.DrawFn) -> Reply:
    mids, places = draw_columns(draw, Reply, "mids", "places")
    return Reply(mids, draw(GROUPS), places)


RUNS: dict[type[Any], Strategy] = {Accept: any_accept(), Reply: any_reply()}
ANY_OF = {cls: RUNS[cls] if cls in RUNS else values_of(cls) for cls in KINDS}
PROCESSES = st.one_of(REPLICAS, LEAVES[ClientId])
FRAMES = st.lists(
    st.tuples(PROCESSES, PROCESSES, st.lists(st.one_of(*ANY_OF.values()), max_size=6)), max_size=4
)


WIDE = {ReplicaId: {"incarnation": ClientId}, MessageId: {"digest": ClientId}}
"""Fields that have 64 bits, as client ids do."""
LIMITS = {GroupId: GROUPS_MAX - 1, ClientId: 2**64 - 1, Timestamp: NUMBER_MAX, int: NUMBER_MAX}


def well_formed(value: Any, hint: Any) -> bool:
    """Whether a value is what its type says, with numbers in range."""
    if hint in LIMITS:
        return type(value) is int and 0 <= value <= LIMITS[hint]
    if value is NO_BALLOT:
        return hint is Ballot
    arguments = get_args(hint)
    if get_origin(hint) is tuple:
        if arguments[-1] is Ellipsis:
            arguments = arguments[:1] * len(value)
        return type(value) is tuple and all(map(well_formed, value, arguments))
    if get_origin(hint) in (Union, types.UnionType):
        return any(well_formed(value, argument) for argument in arguments)
    if type(value) is not hint or hint in (bytes, bool, str, types.NoneType, Phase, Membership):
        return type(value) is hint
    fields = get_type_hints(hint) | WIDE.get(hint, {})
    return all(well_formed(getattr(value, name), field) for name, field in fields.items())


def same(one: object, other: object) -> bool:
    """Named tuples equal plain ones, and True equals 1; what they print does not."""
    return one == other and repr(one) == repr(other)


# Some messages

R0, R1 = ReplicaId(GroupId(0), 0, 0), ReplicaId(GroupId(0), 1, 2**64 - 1)
R2 = ReplicaId(GroupId(1), 2, 7)
CLIENT = ClientId(2**64 - 1)
BALLOT, OTHER = Ballot(1, R0, 0), Ballot(2, R2, 3)
DEST = (GroupId(0), GroupId(1))
MID, MID2 = MessageId(CLIENT, 1, 2**64 - 1), MessageId(ClientId(3), 2, 0)
TS = Timestamp(5 << 10)
ENTRY = EntryState(MID, DEST, b"payload", 1, Phase.ACCEPTED, TS, Timestamp(0))
VALUES = LocalTimestamp(MID, DEST, b"payload", 1, TS), ClockUpdate(MID2, TS)

ACCEPT = Accept(DEST, GroupId(0), BALLOT, (MID, MID2), (TS, TS), (b"payload", b""), (1, 2))
FOREIGN = dataclasses.replace(ACCEPT, payloads=(), ack_below=())
ACK = AcceptAck((MID, MID2), GroupId(1), (BALLOT, OTHER))
DELIVER = Deliver(BALLOT, TS, ((MID, TS, TS), (MID2, TS, TS)))
HEARTBEAT = Heartbeat(BALLOT, TS, ((GroupId(0), TS), (GroupId(1), TS)))
MULTICAST = Multicast(MID, DEST, b"payload", 1)
DELIVERIES = Deliveries((Delivery(MID, DEST, b"payload", 1, TS, TS, TS, mismatch=True),), TS)
NEW_STATE = NewState(BALLOT, 1, Part(1, 0, 1), (ENTRY,))
NEW_LEADER_ACK = NewLeaderAck(BALLOT, OTHER, 1, TS, Part(1, 0, 1), (ENTRY,))
PHASE_2A = Phase2a(BALLOT, VALUES)
PHASE_2B = Phase2b(BALLOT, ((MID, TS), (MID2, Timestamp(0))))
PROPOSE = Propose(MID, DEST, GroupId(1), OTHER, TS, decided=True)
REPLY = Reply((MID, MID2), GroupId(1), (TS, Timestamp(7)))
CATCH_UP = CatchUp(TS)
EXECUTED = Executed(GroupId(1), TS, reply_wanted=True)
MEMBERSHIP = Membership(Configuration(GroupId(0), 3, [ReplicaId(GroupId(0), 1, 7)], ["here"]))
SOME: Messages = [
    *(ACCEPT, FOREIGN, ACK, DELIVER, HEARTBEAT, MULTICAST, DELIVERIES, NEW_STATE, NEW_LEADER_ACK),
    *(
        PHASE_2A,
        PHASE_2B,
        PROPOSE,
        EXECUTED,
        CATCH_UP,
        Hint(GroupId(1), OTHER),
        REPLY,
        Refused(MID, GroupId(1), "why"),
    ),
    *(HeartbeatAck(BALLOT, NO_BALLOT, TS), NewLeader(BALLOT), NewStateAck(BALLOT)),
    *(PreVote(NO_BALLOT), PreVoteAck(OTHER), HandOver(BALLOT)),
    *(Join("somewhere", ReplicaId(GroupId(0), 1, 7)), MembersWanted(GroupId(1)), Members(MEMBERSHIP)),
    *(SnapshotPiece(1, 2, ordering=True, last=False, data=b"piece"), SnapshotAck(1, 2)),
    VotesWanted((TS,)),
]
"""At least one of every kind."""


COLUMNS = [field.name for field in Frame.DESCRIPTOR.fields if field.name not in ("kinds", "payloads")]


def framed(*messages: Message | Reply) -> Frame:
    return Frame.FromString(encode([(R0, R1, messages)]))


# What comes back


@pytest.mark.parametrize("cls", KINDS)
@EXAMPLES
@given(st.data())
def test_every_kind_of_message_comes_back_as_it_was(cls: type[Any], data: st.DataObject) -> None:
    messages = data.draw(st.lists(ANY_OF[cls], max_size=3))
    assert same(decode(encode([(R0, R1, messages)])), [(R0, R1, messages)])


@EXAMPLES
@given(FRAMES)
def test_messages_of_all_kinds_between_many_processes_keep_their_order(frame: list[Envelope]) -> None:
    assert same(decode(encode(frame)), frame)


def test_order_is_kept_within_and_across_kinds() -> None:
    messages: Messages = [CatchUp(Timestamp(n)) if n % 3 else PreVote(BALLOT) for n in range(50)]
    assert decode(encode([(R0, R1, messages), (R0, R2, messages[::-1])])) == [
        (R0, R1, messages),
        (R0, R2, messages[::-1]),
    ]


def test_a_frame_may_carry_nothing() -> None:
    assert decode(encode([])) == []
    assert decode(encode([(R0, R1, [])])) == [(R0, R1, [])]


def test_every_kind_of_message_has_a_wire_format() -> None:
    assert set(wire._PUT) == set(KINDS) | STORE_MESSAGES
    kinds = {kind for kind, _ in wire._PUT.values()}
    assert sorted(kinds) == sorted(wire._TAKE) == sorted(set(Kind.values()) - {Kind.KIND_UNSPECIFIED})


def test_every_column_of_the_frame_has_a_use() -> None:
    assert {type(message) for message in SOME} == set(KINDS)
    used = {field.name for field, _ in framed(*SOME).ListFields()}
    assert used == {field.name for field in Frame.DESCRIPTOR.fields}


def test_equal_ballots_and_destinations_are_one_object() -> None:
    """Processes compare them by identity first."""
    others = [dataclasses.replace(ACCEPT, ballot=Ballot(1, R0, 0), dest=(*DEST,)) for _ in range(3)]
    ack = AcceptAck((MID,), GroupId(0), (NO_BALLOT, Ballot(1, R0, 0)))
    [(_, _, first), (_, _, second)] = decode(encode([(R0, R1, [ACCEPT, *others]), (R0, R2, [*others, ack])]))
    accepts: list[Any] = [*first, *second[:-1]]
    assert {id(m.ballot) for m in accepts} == {id(accepts[0].ballot)}
    assert {id(m.dest) for m in accepts} == {id(accepts[0].dest)}
    decoded = second[-1]
    assert isinstance(decoded, AcceptAck)
    assert decoded.ballots[0] is NO_BALLOT
    assert decoded.ballots[1] is accepts[0].ballot


def test_what_repeats_is_written_once() -> None:
    accepts = [
        ACCEPT,
        *(dataclasses.replace(ACCEPT, ballot=Ballot(1, R0, 0), dest=(*DEST,)) for _ in range(9)),
    ]
    frame = framed(*accepts)
    assert list(frame.ballots) == [1, 0, 0]
    assert list(frame.destinations) == [2, 0, 1]
    assert list(frame.digests) == [MID.digest, MID2.digest]
    assert len(frame.replicas) == 3 * len({R0, R1})


def test_the_size_of_a_message_is_that_of_a_frame_of_its_own() -> None:
    between = (ReplicaId(GroupId(0), 0, 0), ReplicaId(GroupId(0), 1, 0))
    for message in SOME:
        assert size_of(message) == len(encode([(*between, [message])]))
    longer = dataclasses.replace(ACCEPT, payloads=(b"payload" + bytes(100), b""))
    assert size_of(longer) == size_of(ACCEPT) + 100


def test_what_has_no_wire_format_is_not_encoded() -> None:
    with pytest.raises(TypeError, match="no wire format for Part"):
        encode([(R0, R1, [Part(1, 0, 1)])])
    with pytest.raises(ValueError, match="out of range"):
        encode([(R0, R1, [CatchUp(Timestamp(-1))])])


# What is refused


def put(column: str, at: int, number: int) -> Callable[[Frame], None]:
    """Another number at this place."""

    def change(frame: Frame) -> None:
        getattr(frame, column)[at] = number

    return change


def add(column: str, *numbers: int) -> Callable[[Frame], None]:
    return lambda frame: getattr(frame, column).extend(numbers)


def drop(column: str) -> Callable[[Frame], None]:
    def change(frame: Frame) -> None:
        del getattr(frame, column)[-1]

    return change


def kinds(of: bytes) -> Callable[[Frame], None]:
    return lambda frame: setattr(frame, "kinds", of)


TOO_LARGE = NUMBER_MAX + 1
MINUS_ONE = 2**64 - 1
"""What a negative number looks like when it is read as one without a sign."""

BAD: list[tuple[Message | Reply, Callable[[Frame], None], str]] = [
    # Kinds
    (ACCEPT, kinds(b"\x00"), "unknown kind of message 0"),
    (ACCEPT, kinds(b"\x63"), "unknown kind of message 99"),
    (ACCEPT, kinds(b"\x02\x02"), "accepts: 1 rows for 2 messages"),
    (ACCEPT, kinds(b"\x01"), "multicasts: 0 rows for 1 messages"),
    (ACCEPT, kinds(b""), "messages: there are 0, but lengths add up to 1"),
    # Envelopes
    (ACCEPT, put("envelopes", 2, 2), "messages: there are 1, but lengths add up to 2"),
    (ACCEPT, put("envelopes", 2, 0), "messages: there are 1, but lengths add up to 0"),
    (ACCEPT, put("envelopes", 2, MINUS_ONE), f"envelopes: {MINUS_ONE} is above {NUMBER_MAX}"),
    (ACCEPT, put("envelopes", 0, 8), "envelopes: .* out of range"),
    (ACCEPT, put("envelopes", 1, 5), "envelopes: .* out of range"),
    (ACCEPT, put("envelopes", 1, MINUS_ONE - 1), f"envelopes: {MINUS_ONE - 1} is above {NUMBER_MAX}"),
    (ACCEPT, drop("envelopes"), "envelopes: 2 numbers are not rows of 3"),
    (ACCEPT, add("envelopes", 0, 0, 1), "messages: there are 1, but lengths add up to 2"),
    # Tables
    (ACCEPT, put("replicas", 0, GROUPS_MAX), "replicas: .* out of range"),
    (ACCEPT, put("replicas", 1, TOO_LARGE), f"replicas: {TOO_LARGE} is above {NUMBER_MAX}"),
    (ACCEPT, drop("replicas"), "replicas: 5 numbers are not rows of 3"),
    (ACCEPT, put("ballots", 0, TOO_LARGE), f"ballots: {TOO_LARGE} is above {NUMBER_MAX}"),
    (ACCEPT, put("ballots", 1, 2), "ballots: .* out of range"),
    (ACCEPT, put("ballots", 2, TOO_LARGE), f"ballots: {TOO_LARGE} is above {NUMBER_MAX}"),
    (ACCEPT, drop("ballots"), "ballots: 2 numbers are not rows of 3"),
    (ACCEPT, put("destinations", 0, 3), "destinations: 2 follow, not 3"),
    (ACCEPT, put("destinations", 0, NUMBER_MAX), f"destinations: 2 follow, not {NUMBER_MAX}"),
    (ACCEPT, put("destinations", 0, MINUS_ONE), f"destinations: {MINUS_ONE} is above {NUMBER_MAX}"),
    (ACCEPT, put("destinations", 2, GROUPS_MAX), "destinations: .* out of range"),
    (ACCEPT, drop("destinations"), "destinations: 1 follow, not 2"),
    (ACCEPT, put("clients_of", 0, 2), "mids: .* out of range"),
    (ACCEPT, put("clients_of", 1, 3), "mids: there are 2, but lengths add up to 4"),
    (ACCEPT, put("clients_of", 1, NUMBER_MAX), f"mids: there are 2, but lengths add up to {NUMBER_MAX + 1}"),
    (ACCEPT, drop("clients_of"), "clients_of: 3 numbers are not rows of 2"),
    (ACCEPT, put("sequences", 1, TOO_LARGE), f"sequences: {TOO_LARGE} is above {NUMBER_MAX}"),
    (ACCEPT, drop("sequences"), "mids: columns of 1, 2 numbers"),
    (ACCEPT, drop("clients"), "mids: .* out of range"),
    (ACCEPT, drop("digests"), "mids: columns of 2, 1 numbers"),
    (ACCEPT, add("digests", 7), "mids: columns of 2, 3 numbers"),
    # Messages, field by field
    (ACCEPT, drop("accepts"), "accepts: 4 numbers are not rows of 5"),
    (CATCH_UP, add("catch_ups", 1), "catch_ups: 2 rows for 1 messages"),
    (ACCEPT, add("accepts", 0, 0, 0, 0, 0), "accept_local_ts: there are 2, but lengths add up to 4"),
    (ACCEPT, put("accepts", 0, 1), "accepts: .* out of range"),
    (ACCEPT, put("accepts", 1, GROUPS_MAX), "accepts: .* out of range"),
    (ACCEPT, put("accepts", 2, 2), "accepts: .* out of range"),
    (ACCEPT, put("accepts", 3, 1), "accepts: .* out of range"),
    (ACCEPT, put("runs", 0, 1), "accept_local_ts: there are 2, but lengths add up to 1"),
    (ACCEPT, put("runs", 0, 3), "runs: there are 2 ids, but lengths add up to 3"),
    (ACCEPT, put("runs", 0, NUMBER_MAX), f"runs: there are 2 ids, but lengths add up to {NUMBER_MAX}"),
    (ACCEPT, put("runs", 0, MINUS_ONE), f"runs: {MINUS_ONE} is above {NUMBER_MAX}"),
    (ACCEPT, put("accepts", 4, 2), "accepts: 1 payloads for 2 messages"),
    (ACCEPT, put("accepts", 4, NUMBER_MAX), "accepts: 0 payloads for 2 messages"),
    (ACCEPT, put("accepts", 4, 0), "accept_ack_below: there are 2, but lengths add up to 0"),
    (ACCEPT, drop("accept_local_ts"), "accept_local_ts: there are 1, but lengths add up to 2"),
    (ACCEPT, put("accept_local_ts", 1, TOO_LARGE), f"accept_local_ts: {TOO_LARGE} is above {NUMBER_MAX}"),
    (ACCEPT, put("accept_ack_below", 0, MINUS_ONE), f"accept_ack_below: {MINUS_ONE} is above {NUMBER_MAX}"),
    (FOREIGN, add("accept_ack_below", 1, 1), "accept_ack_below: there are 2, but lengths add up to 0"),
    (MULTICAST, put("multicasts", 0, 1), "multicasts: .* out of range"),
    (MULTICAST, put("runs", 0, 0), "multicasts: columns of 0, 1 numbers"),
    (MULTICAST, put("multicast_rows", 0, 1), "multicasts: .* out of range"),
    (MULTICAST, put("multicast_rows", 1, 1), "multicasts: .* out of range"),
    (MULTICAST, put("multicast_rows", 1, MINUS_ONE), f"multicast_rows: {MINUS_ONE} is above {NUMBER_MAX}"),
    (MULTICAST, drop("multicast_rows"), "multicast_rows: 2 numbers are not rows of 3"),
    (EXECUTED, put("executed", 2, 2), "executed: .* out of range"),
    # Tuples
    (ACK, put("accept_acks", 0, 1), "accept_acks: .* out of range"),
    (ACK, put("accept_acks", 2, 3), "accept_ack_ballots: there are 2, but lengths add up to 3"),
    (ACK, put("accept_acks", 2, 2**62), "accept_ack_ballots: there are 2, but lengths add up to 4611"),
    (ACK, add("accept_ack_ballots", 0), "accept_ack_ballots: there are 3, but lengths add up to 2"),
    (DELIVER, drop("deliver_local_ts"), "deliver_local_ts: there are 1, but lengths add up to 2"),
    (DELIVER, put("delivers", 2, 1), "delivers: .* out of range"),
    (DELIVER, put("runs", 0, 1), "deliver_local_ts: there are 2, but lengths add up to 1"),
    (DELIVER, put("deliver_global_ts", 1, TOO_LARGE), "deliver_global_ts: .* is above"),
    (HEARTBEAT, put("heartbeat_executed", 0, GROUPS_MAX), "heartbeats: .* out of range"),
    (HEARTBEAT, put("heartbeats", 2, 3), "heartbeat_executed: there are 2, but lengths add up to 3"),
    (DELIVERIES, put("deliveries", 0, 2), "deliveries_runs: there are 1, but lengths add up to 2"),
    (DELIVERIES, put("deliveries_runs", 7, 2), "deliveries: .* out of range"),
    (DELIVERIES, put("deliveries_runs", 2, 1), "deliveries: .* out of range"),
    (NEW_STATE, put("new_state_entries", 4, 4), "new_states: .* out of range"),
    (NEW_STATE, put("new_states", 5, 2), "new_state_entries: there are 1, but lengths add up to 2"),
    (NEW_STATE, put("new_states", 2, TOO_LARGE), "new_states: .* is above"),
    (NEW_LEADER_ACK, add("new_leader_ack_entries", 0), "new_leader_ack_entries: 8 numbers are not rows of 7"),
    (
        NEW_LEADER_ACK,
        put("new_leader_acks", 7, 0),
        "new_leader_ack_entries: there are 1, but lengths add up to 0",
    ),
    # Values
    (PHASE_2A, put("phase_2as", 1, 1), "phase_2a_values: there are 2, but lengths add up to 1"),
    (PHASE_2A, put("phase_2a_values", 3, 1), "phase_2as: .* out of range"),
    (PHASE_2A, put("phase_2a_values", 3, MINUS_ONE), "phase_2a_values: .* is above"),
    (PHASE_2A, put("phase_2a_values", 2, 0), "phase_2a_values: a payload is missing"),
    (PHASE_2A, put("phase_2a_values", 8, 1), "phase_2a_values: a payload is missing"),
    (PHASE_2A, put("phase_2a_values", 6, TOO_LARGE), "phase_2a_values: .* is above"),
    (PHASE_2B, put("phase_2bs", 1, 0), "phase_2b_instances: there are 2, but lengths add up to 0"),
    (PROPOSE, put("proposes", 5, 7), "proposes: .* out of range"),
    (REPLY, put("replies", 0, 1), "replies: .* out of range"),
    (REPLY, put("runs", 0, 1), "reply_places: there are 2, but lengths add up to 1"),
    (REPLY, drop("reply_places"), "reply_places: there are 1, but lengths add up to 2"),
    (REPLY, put("reply_places", 1, TOO_LARGE), f"reply_places: {TOO_LARGE} is above {NUMBER_MAX}"),
]


@pytest.mark.parametrize(("message", "change", "complaint"), BAD)
def test_a_frame_with_one_thing_wrong_is_refused_by_name(
    message: Message | Reply, change: Callable[[Frame], None], complaint: str
) -> None:
    frame = framed(message)
    assert decode(frame.SerializeToString()) == [(R0, R1, [message])]
    change(frame)
    with pytest.raises(WireError, match=complaint):
        decode(frame.SerializeToString())


def test_what_nothing_refers_to_is_ignored() -> None:
    frame = framed(ACCEPT)
    frame.catch_ups.extend([1, 2])
    frame.ballots.extend([9, 0, 0])
    unknown_field = b"\xfa\x7f\x03abc"
    assert decode(frame.SerializeToString() + unknown_field) == [(R0, R1, [ACCEPT])]


def test_a_frame_that_is_cut_off_is_refused_wherever_that_happens() -> None:
    """A cut between two fields leaves valid protobuf; the counts do not fit then."""
    data = encode([(R0, R1, SOME)])
    for length in range(1, len(data)):
        with pytest.raises(WireError):
            decode(data[:length])


CLAIMS = [
    *((ACCEPT, put(column, at, 2**62)) for column, at in (("envelopes", 2), ("destinations", 0))),
    (ACK, put("accept_acks", 2, 2**62)),
    (DELIVER, put("runs", 0, 2**62)),
    (ACCEPT, put("clients_of", 1, 2**62)),
    (DELIVERIES, put("deliveries", 0, 2**40)),
    (NEW_LEADER_ACK, put("new_leader_acks", 7, 2**32)),
]


@pytest.mark.parametrize(("message", "claim"), CLAIMS)
def test_a_large_claim_allocates_nothing(message: Message, claim: Callable[[Frame], None]) -> None:
    frame = framed(message)
    claim(frame)
    data = frame.SerializeToString()
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


# What nobody thought of


def decodes_or_is_refused(data: bytes) -> None:
    try:
        frame = decode(data)
    except WireError as error:
        assert str(error)  # noqa: PT017 - the point is that nothing else is raised
    else:
        assert same(decode(encode(frame)), frame)
        for sender, receiver, messages in frame:
            assert well_formed(sender, Process)
            assert well_formed(receiver, Process)
            assert all(type(message) in KINDS and well_formed(message, type(message)) for message in messages)


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    decodes_or_is_refused(data)


@FUZZ
@given(FRAMES | st.just([(R0, R1, SOME)]), st.data())
def test_damaged_bytes_decode_or_are_refused(frame: list[Envelope], data: st.DataObject) -> None:
    damaged = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(damaged)))
        end = data.draw(st.integers(start, min(len(damaged), start + 4)))
        damaged[start:end] = data.draw(st.binary(max_size=4))
    decodes_or_is_refused(bytes(damaged))


@FUZZ
@given(FRAMES | st.just([(R0, R1, SOME)]), st.data())
def test_damaged_columns_decode_or_are_refused(envelopes: list[Envelope], data: st.DataObject) -> None:
    """Valid protobuf with wrong numbers in it: what damaged bytes seldom are."""
    frame = Frame.FromString(encode(envelopes))
    for _ in range(data.draw(st.integers(1, 3))):
        column = getattr(
            frame, data.draw(st.sampled_from([c for c in COLUMNS if getattr(frame, c)] or COLUMNS))
        )
        start = data.draw(st.integers(0, len(column)))
        end = data.draw(st.integers(start, min(len(column), start + 3)))
        column[start:end] = data.draw(st.lists(NUMBERS_64, min_size=end - start, max_size=3))
    if data.draw(st.booleans()):
        frame.kinds = bytes(data.draw(st.permutations(frame.kinds))) + data.draw(st.binary(max_size=1))
    decodes_or_is_refused(frame.SerializeToString())


@pytest.mark.parametrize("message", SOME)
def test_every_number_is_checked(message: Message | Reply) -> None:
    data = framed(message).SerializeToString()
    places = [(column, at) for column in COLUMNS for at in range(len(getattr(framed(message), column)))]
    for column, at in places:
        frame = Frame.FromString(data)
        getattr(frame, column)[at] = GROUPS_MAX
        decodes_or_is_refused(frame.SerializeToString())
        has_64_bits = column in ("clients", "digests") or (column == "replicas" and at % 3 == 2)
        if not has_64_bits:
            getattr(frame, column)[at] = MINUS_ONE
            with pytest.raises(WireError):
                decode(frame.SerializeToString())


# The generated code


def test_the_generated_code_is_that_of_its_source(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "proto"
    subprocess.run(  # noqa: S603 - our own interpreter and files
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{source}"),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"),
            *map(str, sorted(source.glob("wbkv_proto/*.proto"))),
        ],
        check=True,
    )
    generated = sorted(tmp_path.glob("wbkv_proto/*"))
    assert len(generated) == 2 * len(list(source.glob("wbkv_proto/*.proto")))
    for file in generated:
        committed = source / "wbkv_proto" / file.name
        assert committed.read_text() == file.read_text(), f"{file.name}: run `make proto`"
