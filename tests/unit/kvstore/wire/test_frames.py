"""Frames between nodes: every message comes back as it was, and bytes that are no frame are refused."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
import tracemalloc
import types
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.config.addresses import NodeId
from kvstore.store.messages import STORE_MESSAGES, VotesWanted
from kvstore.wire import schema
from kvstore.wire.frames import PROTOCOL_VERSION, TAGS, Envelope, FrameCodec, WireError
from kvstore.wire.messages import (
    ByName,
    Hearing,
    Holders,
    Period,
    Reach,
    Relayed,
    SnapshotAck,
    SnapshotPiece,
    StageAck,
    StagePiece,
    Unstaged,
)
from multicast.client import MulticastRefused, Reply
from multicast.membership import Configuration, Membership
from multicast.messages import (
    Accept,
    AcceptAck,
    CatchUp,
    ClockUpdates,
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
    LocalTimestamps,
    Members,
    MembersWanted,
    Message,
    Multicast,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    Phase2a,
    Phase2b,
    PreVote,
    PreVoteAck,
    Propose,
    Recall,
    Recalled,
    StatePart,
)
from multicast.types import (
    GROUPS_MAX,
    NO_BALLOT,
    TIMESTAMP_MAX,
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
from tests.tree import ROOT
from tests.unit.multicast.memberships import memberships

CODEC = FrameCodec(STORE_MESSAGES)
encode, decode, size_of = CODEC.encode, CODEC.decode, CODEC.size_of

EXAMPLES = settings(deadline=None, derandomize=True)
FUZZ = settings(deadline=None, derandomize=True, max_examples=300 if CAMPAIGN else 100)

Messages: TypeAlias = list[Any]
Strategy: TypeAlias = st.SearchStrategy[Any]
Path_: TypeAlias = tuple[int, ...]
"""Of indices, to a place in a frame."""

KINDS: list[type[Any]] = [
    *get_args(Message),
    Reply,
    MulticastRefused,
    SnapshotPiece,
    SnapshotAck,
    Reach,
    Relayed,
    Period,
    VotesWanted,
    StagePiece,
    StageAck,
    Holders,
    Unstaged,
    ByName,
]
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
    Timestamp: st.integers(0, 3) | st.integers(0, TIMESTAMP_MAX),
    int: NUMBERS,
    bool: st.booleans(),
    bytes: st.binary(max_size=40),
    str: st.text(max_size=40),
    NodeId: st.text(max_size=40).map(NodeId),
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
    dests, *columns = draw_columns(draw, Accept, "dests", "mids", "local_ts", "payloads", "ack_below")
    dests = dests[:1] if draw(st.booleans()) else dests
    run = columns if draw(st.booleans()) else [*columns[:2], (), ()]
    return Accept(dests, *(draw(values_of(hints[name])) for name in ("group", "ballot")), *run)


@st.composite
def any_reply(draw: st.DrawFn) -> Reply:
    mids, positions = draw_columns(draw, Reply, "mids", "positions")
    return Reply(mids, draw(GROUPS), positions)


@st.composite
def any_columns(draw: st.DrawFn, cls: Any) -> Any:
    return cls(*draw_columns(draw, cls, *cls._fields))


@st.composite
def any_propose(draw: st.DrawFn) -> Propose:
    ballot = draw(values_of(Ballot))
    return Propose(draw(GROUPS), ballot, *draw_columns(draw, Propose, "mids", "dests", "local_ts", "decided"))


LEAVES |= {LocalTimestamps: any_columns(LocalTimestamps), ClockUpdates: any_columns(ClockUpdates)}
RUNS: dict[type[Any], Strategy] = {Accept: any_accept(), Propose: any_propose(), Reply: any_reply()}
ANY_OF = {cls: RUNS[cls] if cls in RUNS else values_of(cls) for cls in KINDS}
PROCESSES = st.one_of(REPLICAS, LEAVES[ClientId])
FRAMES = st.lists(
    st.tuples(PROCESSES, PROCESSES, st.lists(st.one_of(*ANY_OF.values()), max_size=6)), max_size=4
)


WIDE = {ReplicaId: {"incarnation": ClientId}, MessageId: {"digest": ClientId}}
"""Fields that have 64 bits, as client ids do."""
LIMITS = {GroupId: GROUPS_MAX - 1, ClientId: 2**64 - 1, Timestamp: TIMESTAMP_MAX, int: NUMBER_MAX}


def well_formed(value: Any, hint: Any) -> bool:
    """Whether a value is what its type says, with numbers in range."""
    if hint in LIMITS:
        return type(value) is int and 0 <= value <= LIMITS[hint]
    if value is NO_BALLOT:
        return hint is Ballot
    hint = str if hint is NodeId else hint
    arguments = get_args(hint)
    if get_origin(hint) is tuple:
        if arguments[-1] is Ellipsis:
            arguments = arguments[:1] * len(value)
        return type(value) is tuple and all(map(well_formed, value, arguments))
    if get_origin(hint) in (Union, types.UnionType):
        return any(well_formed(value, argument) for argument in arguments)
    if hint is MessageId:
        hint = type(value) if isinstance(value, MessageId) else hint
    if type(value) is not hint or hint in (bytes, bool, str, types.NoneType, Phase, Membership):
        return type(value) is hint
    hint = MessageId if issubclass(hint, MessageId) else hint
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
LOCAL = LocalTimestamps((MID, MID2), (DEST, DEST), (b"payload", b""), (1, 2), (TS, TS))
CLOCKS = ClockUpdates((MID2,), (TS,))

ACCEPT = Accept((DEST,), GroupId(0), BALLOT, (MID, MID2), (TS, TS), (b"payload", b""), (1, 2))
FOREIGN = dataclasses.replace(ACCEPT, payloads=(), ack_below=())
ACK = AcceptAck((MID, MID2), GroupId(1), (BALLOT, OTHER))
DELIVER = Deliver(BALLOT, TS, ((MID, TS, TS), (MID2, TS, TS)))
HEARTBEAT = Heartbeat(BALLOT, TS, ((GroupId(0), TS), (GroupId(1), TS)), counts=(1, 2))
MULTICAST = Multicast(MID, DEST, b"payload", 1)
DELIVERIES = Deliveries((Delivery(MID, DEST, b"payload", 1, TS, TS, TS, mismatch=True),), TS)
NEW_STATE = NewState(BALLOT, 1, StatePart(1, 0, 1), (ENTRY,))
NEW_LEADER_ACK = NewLeaderAck(BALLOT, OTHER, 1, TS, StatePart(1, 0, 1), (ENTRY,))
PHASE_2A = Phase2a(BALLOT, LOCAL, CLOCKS)
PHASE_2B = Phase2b(BALLOT, (MID,), CLOCKS)
PROPOSE = Propose(GroupId(1), OTHER, (MID, MID2), (DEST, DEST), (TS, TS), (True, False))
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
        MulticastRefused(MID, GroupId(1), "why"),
    ),
    *(HeartbeatAck(BALLOT, NO_BALLOT, TS, 7, 8, 9), NewLeader(BALLOT), NewStateAck(BALLOT, 9)),
    *(PreVote(NO_BALLOT), PreVoteAck(OTHER), HandOver(BALLOT)),
    *(Join("somewhere", ReplicaId(GroupId(0), 1, 7)), MembersWanted(GroupId(1)), Members(MEMBERSHIP)),
    *(SnapshotPiece(1, 2, ordering=True, last=False, data=b"piece"), SnapshotAck(1, 2)),
    Reach(
        Hearing(NodeId("n1"), 2, 3, ((NodeId("n2"), 4),), (GroupId(0),), (GroupId(1),), (NodeId("n2"),), 1),
        (Hearing(NodeId("n3"), 5, 6, ()),),
    ),
    *(Relayed(NodeId("n1"), NodeId("n2"), 3, 4, 5, 6, b"frame"), Period(1, 2)),
    *(StagePiece(1, 0, 9, (GroupId(0), GroupId(1)), b"piece"), StageAck(1, 1, b"name", refused=False)),
    *(Holders(b"name", (NodeId("n1"), NodeId("n2"))), Unstaged(b"name")),
    ByName(((0, b"name"),), b"frame"),
    *(Recall(7), Recalled(7, 8, 9)),
    VotesWanted((TS,)),
]
"""At least one of every kind."""


def tree(*messages: object) -> Any:
    """A frame as lists of lists, to be changed."""
    return msgspec.msgpack.decode(encode([(R0, R1, messages)]))


def places(node: Any, path: Path_ = ()) -> Iterator[Path_]:
    """All leaves of a frame, and all arrays in it."""
    if path:
        yield path
    if isinstance(node, list):
        for i, child in enumerate(node):
            yield from places(child, (*path, i))


def changed(frame: Any, path: Path_, value: object) -> bytes:
    """The frame with something else at this place."""
    copied = copy.deepcopy(frame)
    node = copied
    for i in path[:-1]:
        node = node[i]
    node[path[-1]] = value
    return msgspec.msgpack.encode(copied)


def at(frame: Any, path: Path_) -> Any:
    for i in path:
        frame = frame[i]
    return frame


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


def test_what_is_said_to_many_is_in_the_frame_once() -> None:
    one = encode([(R0, R1, [ACCEPT])])
    both = encode([(R0, R1, [ACCEPT]), (R0, R2, [ACCEPT])])
    assert len(both) < len(one) + 32 < 2 * len(one)
    [(_, _, [first]), (_, _, [second])] = decode(both)
    assert first is second


def test_who_says_one_thing_twice_is_heard_twice() -> None:
    assert decode(encode([(R0, R1, [ACCEPT, ACK, ACCEPT])])) == [(R0, R1, [ACCEPT, ACK, ACCEPT])]


def test_a_frame_may_carry_nothing() -> None:
    assert decode(encode([])) == []
    assert decode(encode([(R0, R1, [])])) == [(R0, R1, [])]


def test_every_kind_of_message_has_a_wire_format() -> None:
    assert set(CODEC._put) == set(KINDS) | STORE_MESSAGES == {*TAGS.values()} | STORE_MESSAGES
    assert {type(message) for message in SOME} == set(KINDS)


GOLDEN = {
    16: ("Multicast", 0xD6D76325),
    17: ("Accept", 0xABFBF77D),
    18: ("AcceptAck", 0x09D8EDC3),
    19: ("Deliver", 0x38905B4B),
    20: ("NewLeader", 0x1FA70731),
    21: ("NewLeaderAck", 0x8D87B30C),
    22: ("NewState", 0x038F6EC3),
    23: ("NewStateAck", 0x469991B9),
    24: ("Phase2a", 0x6EDDE67C),
    25: ("Phase2b", 0xCEBAE0E3),
    26: ("Propose", 0xEDEA87BA),
    27: ("Hint", 0x77BD4BFF),
    28: ("Heartbeat", 0x1B012535),
    29: ("HeartbeatAck", 0xD77BC820),
    30: ("PreVote", 0x847A4C29),
    31: ("PreVoteAck", 0x90F50F6B),
    32: ("HandOver", 0x34908135),
    33: ("Join", 0xA4C501F1),
    34: ("MembersWanted", 0xE3106CEB),
    35: ("Members", 0x6326F5A6),
    36: ("CatchUp", 0xFF54A516),
    37: ("Deliveries", 0xAEDA42FE),
    38: ("Executed", 0x3D59F706),
    39: ("Reply", 0x08E2847E),
    40: ("MulticastRefused", 0x5CDF975C),
    41: ("SnapshotPiece", 0x67478BF1),
    42: ("SnapshotAck", 0x667B38E8),
    51: ("Reach", 0x429395CC),
    52: ("Relayed", 0x064BD090),
    53: ("Period", 0x1109652C),
    60: ("StagePiece", 0x8EB1DDFD),
    61: ("StageAck", 0xA40F6587),
    62: ("Holders", 0x83C8FF5A),
    63: ("Unstaged", 0x3C50A23B),
    64: ("ByName", 0xD2C57E81),
    65: ("Recall", 0x6E847569),
    66: ("Recalled", 0x9E09F6B1),
}
"""By tag: the class, and the CRC-32 of a frame with the first of `SOME` that is of this class."""


def test_tags_and_bytes_of_messages_are_those_of_the_protocol_version() -> None:
    """A change of this table is a change of the format: it needs another `PROTOCOL_VERSION`."""
    examples = {type(message): message for message in reversed(SOME)}
    found = {
        tag: (cls.__name__, zlib.crc32(encode([(R0, CLIENT, [examples[cls]])]))) for tag, cls in TAGS.items()
    }
    assert (PROTOCOL_VERSION, found) == (9, GOLDEN)
    assert {cls.__struct_config__.tag for cls in STORE_MESSAGES} == {*range(1, 13)}


@pytest.mark.parametrize("tag", [0, 16, "Stray"])
def test_an_application_has_tags_of_its_own(tag: int | str) -> None:
    stray = msgspec.defstruct("Stray", [], tag=tag, array_like=True)
    with pytest.raises(TypeError, match=r"of Stray is not in 1\.\.15"):
        FrameCodec([stray])


def test_equal_ballots_and_destinations_are_one_object() -> None:
    """Processes compare them by identity first."""
    others = [dataclasses.replace(ACCEPT, ballot=Ballot(1, R0, 0), dests=((*DEST,),)) for _ in range(3)]
    ack = AcceptAck((MID,), GroupId(0), (NO_BALLOT, Ballot(1, R0, 0)))
    [(_, _, first), (_, _, second)] = decode(encode([(R0, R1, [ACCEPT, *others]), (R0, R2, [*others, ack])]))
    accepts: list[Any] = [*first, *second[:-1]]
    assert {id(m.ballot) for m in accepts} == {id(accepts[0].ballot)}
    assert {id(dest) for m in accepts for dest in m.dests} == {id(accepts[0].dests[0])}
    decoded = second[-1]
    assert isinstance(decoded, AcceptAck)
    assert decoded.ballots[0] is NO_BALLOT
    assert decoded.ballots[1] is accepts[0].ballot


def test_what_is_remembered_of_other_frames_is_bounded() -> None:
    for n in range(2 * schema.KNOWN_MAX):
        replica, dest = ReplicaId(GroupId(0), n, 0), (GroupId(n // GROUPS_MAX), GroupId(n % GROUPS_MAX))
        messages = [PreVote(Ballot(1, replica, 0)), Multicast(MID, dest, b"", 1), PreVote(NO_BALLOT)]
        [(sender, _, decoded)] = decode(encode([(replica, R1, messages)]))
        assert (sender, decoded) == (replica, messages)
        assert decoded[-1].ballot is NO_BALLOT
    for cached in (schema.take_process, schema._ballot, schema._destinations):
        assert cached.cache_info().currsize <= schema.KNOWN_MAX


def test_the_size_of_a_message_is_that_of_a_frame_of_its_own() -> None:
    between = (ReplicaId(GroupId(0), 0, 0), ReplicaId(GroupId(0), 1, 0))
    for message in SOME:
        assert size_of(message) == len(encode([(*between, [message])]))
    longer = dataclasses.replace(ACCEPT, payloads=(b"payload" + bytes(100), b""))
    assert size_of(longer) == size_of(ACCEPT) + 100


def test_what_has_no_wire_format_is_not_encoded() -> None:
    with pytest.raises(TypeError, match="StatePart has no wire format"):
        encode([(R0, R1, [StatePart(1, 0, 1)])])


# What is refused


MID_RAW = [2**64 - 1, 1, 2**64 - 1]
FIELDS = (0, 0)
"""Where the first message of a frame is: its kind, and then its fields."""

BAD: list[tuple[Any, Path_, object, str]] = [
    # The frame and its envelopes
    (ACCEPT, (1, 0), [[0, 0, 0], [0, 1, 0]], "length 3"),
    (ACCEPT, (1, 0), 7, "Expected `array`"),
    (ACCEPT, (1, 0, 0), [GROUPS_MAX, 0, 0], "not a process"),
    (ACCEPT, (1, 0, 0), [0, -1, 0], "not a process"),
    (ACCEPT, (1, 0, 1), [0, 0, -1], "not a process"),
    (ACCEPT, (1, 0, 1), [0, NUMBER_MAX + 1, 0], "not a process"),
    (ACCEPT, (1, 0, 1), [-2, 0, 0], "not a process"),
    (ACCEPT, (1, 0, 1), [-1, 1, 0], "not a process"),
    (ACCEPT, (1, 0, 1), [-1, 0, -1], "not a process"),
    (ACCEPT, (1, 0, 1), 7, "Expected `array`"),
    (ACCEPT, (1, 0, 2, 0), 1, "refers to a message that it does not have"),
    (ACCEPT, (1, 0, 2, 0), -1, ">= 0"),
    (ACCEPT, (1, 0, 2), [0, 0], "sends the same message twice"),
    (ACCEPT, (0,), [], "refers to a message that it does not have"),
    # Kinds
    (ACCEPT, (*FIELDS, 0), 0, "Invalid value 0"),
    (ACCEPT, (*FIELDS, 0), 99, "Invalid value 99"),
    (ACCEPT, (*FIELDS, 0), "accept", "Expected `int`"),
    (ACCEPT, FIELDS, [], "at least length"),
    (ACCEPT, FIELDS, [17], "at least length"),
    (CATCH_UP, FIELDS, [*tree(CATCH_UP)[0][0], 1], "at most length"),
    # Fields
    (ACCEPT, (*FIELDS, 1), [[GROUPS_MAX]], "<= 1023"),
    (ACCEPT, (*FIELDS, 1), [[-1]], ">= 0"),
    (ACCEPT, (*FIELDS, 1), [[0], [1], [0]], "has columns of .3, 2, 2, 2."),
    (ACCEPT, (*FIELDS, 1), [], "has columns of .0, 2, 2, 2."),
    (ACCEPT, (*FIELDS, 2), GROUPS_MAX, "<= 1023"),
    (ACCEPT, (*FIELDS, 3), None, "got `None`"),
    (ACCEPT, (*FIELDS, 3, 0), -1, "not a ballot"),
    (ACCEPT, (*FIELDS, 3, 2), NUMBER_MAX + 1, "not a ballot"),
    (ACCEPT, (*FIELDS, 3, 1), [-1, 0, 3], "not a replica"),
    (ACCEPT, (*FIELDS, 3, 1), [-1, -1, 0], "not a process"),
    (ACCEPT, (*FIELDS, 4, 0, 1), NUMBER_MAX + 1, "<= "),
    (DELIVER, (*FIELDS, 2), TIMESTAMP_MAX + 1, "<= "),
    (ACCEPT, (*FIELDS, 4, 0, 0), -1, ">= 0"),
    (ACCEPT, (*FIELDS, 4, 1), [1, 2], "length 3"),
    (ACCEPT, (*FIELDS, 4), [MID_RAW], "an ACCEPT of 1 messages has columns of .1, 2, 2, 2."),
    (ACCEPT, (*FIELDS, 5), [1], "has columns of .2, 1, 2, 2."),
    (ACCEPT, (*FIELDS, 6), [b""], "has columns of .2, 2, 1, 2."),
    (ACCEPT, (*FIELDS, 6), [], "has columns of .2, 2, 0, 2."),
    (ACCEPT, (*FIELDS, 6, 0), "payload", "Expected `bytes`"),
    (ACCEPT, (*FIELDS, 7), [1], "has columns of .2, 2, 2, 1."),
    (FOREIGN, (*FIELDS, 7), [1, 1], "has columns of .2, 2, 0, 2."),
    (EXECUTED, (*FIELDS, 3), 2, "Expected `bool`"),
    (NEW_STATE, (*FIELDS, 4, 0, 4), 4, "Invalid enum value 4"),
    (NEW_STATE, (*FIELDS, 3), [1, 0], "length 3"),
    (PHASE_2A, (*FIELDS, 2), [[], [], [], []], "length 5"),
    (PHASE_2A, (*FIELDS, 2, 2), [b""], "a 2A has columns of .1, 2."),
    (PHASE_2A, (*FIELDS, 3, 1), [], "a 2A has columns of .0, 1."),
    (PHASE_2A, (*FIELDS, 2, 1, 0), [GROUPS_MAX], "<= 1023"),
    (PHASE_2B, (*FIELDS, 2, 0), [1, 2], "length 3"),
    (PHASE_2B, (*FIELDS, 3, 0), [], "a 2B has columns of .0, 1."),
    (PROPOSE, (*FIELDS, 3), [MID_RAW], "a PROPOSE has columns of .1, 2."),
    (PROPOSE, (*FIELDS, 6), [True], "a PROPOSE has columns of .1, 2."),
    (PROPOSE, (*FIELDS, 6, 0), 1, "Expected `bool`"),
    (REPLY, (*FIELDS, 3), [1], "a REPLY has 1 positions of 2 messages"),
    (Members(MEMBERSHIP), (*FIELDS, 1), b"nonsense", "not a frame"),
]


@pytest.mark.parametrize(("message", "path", "value", "complaint"), BAD)
def test_a_frame_with_one_thing_wrong_is_refused_by_name(
    message: Any, path: Path_, value: object, complaint: str
) -> None:
    frame = tree(message)
    assert decode(msgspec.msgpack.encode(frame)) == [(R0, R1, [message])]
    with pytest.raises(WireError, match=complaint):
        decode(changed(frame, path, value))


def test_a_frame_that_is_cut_off_is_refused_wherever_that_happens() -> None:
    data = encode([(R0, R1, SOME)])
    for length in range(1, len(data)):
        with pytest.raises(WireError):
            decode(data[:length])


ARRAY_OF_2_32 = b"\xdd\xff\xff\xff\xff"
BYTES_OF_2_32 = b"\xc6\xff\xff\xff\xff"


@pytest.mark.parametrize("claim", [ARRAY_OF_2_32, BYTES_OF_2_32])
@pytest.mark.parametrize("message", SOME)
def test_a_large_claim_allocates_nothing(message: Any, claim: bytes) -> None:
    """Wherever it stands: what is there becomes the claim, and nothing follows."""
    data = encode([(R0, R1, [message])])
    decode(data)  # what is made once is made now
    for place in range(len(data)):
        tracemalloc.start()
        try:
            with suppress(WireError):  # within a payload, it may be just that
                decode(data[:place] + claim)
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
def test_damaged_fields_decode_or_are_refused(envelopes: list[Envelope], data: st.DataObject) -> None:
    """Valid MessagePack with something else in it: what damaged bytes seldom are."""
    frame = msgspec.msgpack.decode(encode(envelopes))
    for _ in range(data.draw(st.integers(1, 3))):
        found = list(places(frame))
        if found:
            path, other = data.draw(st.sampled_from(found)), at(frame, data.draw(st.sampled_from(found)))
            value: object = data.draw(
                st.just(other) | NUMBERS_64 | st.integers(-3, 0) | st.just([]) | st.none()
            )
            frame = msgspec.msgpack.decode(changed(frame, path, value))
    decodes_or_is_refused(msgspec.msgpack.encode(frame))


@pytest.mark.parametrize("message", SOME)
def test_every_number_is_checked(message: Any) -> None:
    frame = tree(message)
    for path in places(frame):
        if type(at(frame, path)) is int:
            for number in (-1, GROUPS_MAX, NUMBER_MAX + 1, 2**64 - 1):
                decodes_or_is_refused(changed(frame, path, number))
        others: tuple[object, ...] = (None, True, 1.0, "1", b"", [], [1], {})
        for other in others:
            decodes_or_is_refused(changed(frame, path, other))


# The generated code


def test_the_generated_code_is_that_of_its_source(tmp_path: Path) -> None:
    source = ROOT / "proto"
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
