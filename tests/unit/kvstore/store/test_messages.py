"""What the store's processes say to each other, as bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.machine import Decision, Vote
from kvstore.machine.request import Get, Range, Scan, Shape
from kvstore.machine.results import Got, KeyValue, Scanned
from kvstore.storage.ports import Origin
from kvstore.store.gate import Announcement, Level
from kvstore.store.messages import (
    STORE_MESSAGES,
    Answer,
    BallotCheck,
    CalmLevels,
    CopyConfirmed,
    Digest,
    DigestWanted,
    Levels,
    Query,
    RaiseClock,
    Results,
    Span,
    StoreMessage,
    Votes,
    VotesWanted,
)
from kvstore.store.questions import (
    Busy,
    Changes,
    CompactedReply,
    Entries,
    Event,
    Feed,
    NotLeading,
    NotYetReply,
    Page,
    Question,
    ReadAt,
    Response,
    Sample,
    Sampled,
    StrictRead,
    Values,
)
from kvstore.wire.frames import FrameCodec
from multicast.types import Ballot, ClientId, GroupId, MessageId, ReplicaId, Timestamp

BALLOT = Ballot(3, ReplicaId(GroupId(1), 2, 2**63 - 1), 4)
MID = MessageId(ClientId(2**64 - 1), 5, 2**64 - 1)
TS = Timestamp(2**53 - 1)
ORIGIN = Origin(ReplicaId(GroupId(1), 2, 2**63 - 1), TS)
SCAN = Scan(Range(b"a", None), 3, 100, reverse=True, shape=Shape.KEYS)
ENTRY = KeyValue(b"k", b"v", 1, 2, 3)
QUESTIONS: list[Question] = [
    StrictRead((Get(b"k"), SCAN)),
    ReadAt((), 7),
    Page(SCAN, 9),
    Sample(SCAN.range, 64, 1024),
    Feed(1, (Range(b"", None), Range(b"a", b"b")), 1000, 0.5),
]
RESPONSES: list[Response] = [
    Values(7, (Got(None), Got(ENTRY), Scanned((ENTRY,), 1, more=False))),
    Entries(7, (ENTRY,), b"next", 5, 1),
    Sampled((b"k", b"l"), 3, b"m"),
    Sampled((), 0, None),
    Busy(),
    Changes(9, ((8, (Event(b"k", None, 1, 2), Event(b"l", b"v", 1, 2))),)),
    NotLeading(BALLOT),
    NotYetReply(4),
    CompactedReply(5),
]
SOME: list[StoreMessage] = [
    Results(GroupId(1), TS, (MID, MID), (TS, TS), (b"one", b"")),
    Votes((Vote(TS, MID, GroupId(2), yes=True),), ((TS, Decision.OTHERWISE_FAILS),)),
    VotesWanted((TS, TS)),
    Levels(Announcement(GroupId(1), TS, (Level(TS, 5), Level(Timestamp(0), 2**62)), wanted=Timestamp(7))),
    CalmLevels(Announcement(GroupId(1), TS, (Level(TS, 5),))),
    BallotCheck(BALLOT, 6, asked=False),
    RaiseClock(17),
    DigestWanted(3, TS, Span(history=True, start=b"", end=None)),
    Digest(3, b"digest", None),
    Digest(3, b"digest", ORIGIN),
    CopyConfirmed(ORIGIN),
    *(Query(number, question) for number, question in enumerate(QUESTIONS)),
    *(Answer(number, response) for number, response in enumerate(RESPONSES)),
]

CODEC = FrameCodec(STORE_MESSAGES)
HERE, THERE = ReplicaId(GroupId(0), 0, 0), ReplicaId(GroupId(0), 1, 0)


def written(message: StoreMessage) -> bytes:
    return CODEC.encode([(HERE, THERE, [message])])


def read(data: bytes) -> StoreMessage:
    [(_, _, [message])] = CODEC.decode(data)
    return message  # type: ignore[no-any-return]  # that is what it should be


@pytest.mark.parametrize("message", SOME, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: StoreMessage) -> None:
    found = read(written(message))
    assert found == message
    assert repr(found) == repr(message)


def test_there_is_one_of_every_kind() -> None:
    assert {type(message) for message in SOME} == STORE_MESSAGES


@settings(deadline=None, derandomize=True, max_examples=500)
@given(st.sampled_from(SOME), st.data())
def test_bytes_that_are_no_message_are_refused(message: StoreMessage, data: st.DataObject) -> None:
    whole = bytearray(written(message))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        frame = CODEC.decode(cut)
    except ValueError:
        return
    assert all(type(found) in STORE_MESSAGES for _, _, messages in frame for found in messages)


@pytest.mark.parametrize(
    "garbage", [b"", b"\xc1", b"\xff" * 9, msgspec.msgpack.encode([99, 1]), b"\x91" * 5000]
)
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        CODEC.decode(garbage)


@pytest.mark.parametrize("place", [-1, 2**63])
def test_what_no_disk_has_a_row_for_is_no_place(place: int) -> None:
    gts = Timestamp(place)
    for message in (
        VotesWanted((gts,)),
        Votes((), ((gts, Decision.THEN),)),
        Votes((Vote(gts, MID, GroupId(0), yes=True),)),
    ):
        with pytest.raises(ValueError, match="Expected `int`"):
            read(written(message))
