"""Records on disk: they come back as they were, fold as they should, and damaged bytes are refused."""

from __future__ import annotations

import copy
import dataclasses
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wbkv_proto.log_pb2 import Run, SnapshotHead

from kvstore.storage import checksum, delivery_snapshot, keys, records, run_format
from kvstore.storage.errors import BadSnapshot, StorageError
from kvstore.storage.identity import FORMAT
from kvstore.storage.records import decode, encode
from kvstore.wire.schema import NUMBER_MAX
from multicast.durable import (
    Accepted,
    Configured,
    Counted,
    Dropped,
    Durable,
    Joined,
    Learned,
    Promised,
    Record,
    Remembered,
    Reported,
    Voted,
)
from multicast.membership import Configuration, Membership
from multicast.messages import Delivery, EntryState, LocalTimestamps
from multicast.types import (
    GROUPS_MAX,
    NO_BALLOT,
    NO_TIMESTAMP,
    TIMESTAMP_MAX,
    Ballot,
    ClientId,
    GroupId,
    MessageId,
    Phase,
    ReplicaId,
    Timestamp,
)
from tests.campaigns import CAMPAIGN
from tests.unit.multicast.memberships import memberships

EXAMPLES = settings(deadline=None, derandomize=True)
FUZZ = settings(deadline=None, derandomize=True, max_examples=300 if CAMPAIGN else 100)

Strategy: TypeAlias = st.SearchStrategy[Any]
Path_: TypeAlias = tuple[int, ...]
"""Of indices, to a place in a batch."""

KINDS: list[type[Any]] = list(get_args(Record))


# Any record, from the fields its class declares. Numbers are as large as they may be.

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
    types.NoneType: st.none(),
    Phase: st.sampled_from(Phase),
    ReplicaId: REPLICAS,
    Ballot: st.just(NO_BALLOT) | st.builds(Ballot, NUMBERS, REPLICAS, NUMBERS),
    MessageId: st.builds(MessageId, NUMBERS_64, NUMBERS, NUMBERS_64),
    Membership: memberships(),
    str: st.text(max_size=40),
}


def values_of(hint: Any) -> Strategy:
    if hint in LEAVES:
        return LEAVES[hint]
    arguments = get_args(hint)
    if get_origin(hint) is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if get_origin(hint) in (Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    fields = get_type_hints(hint)
    if hint in (Accepted, LocalTimestamps):
        return st.integers(0, 3).flatmap(lambda length: st.builds(hint, **columns_of(fields, length)))
    return st.builds(hint, **{name: values_of(field) for name, field in fields.items()})


def columns_of(fields: Mapping[str, Any], length: int) -> dict[str, Strategy]:
    """The fields of a record that has columns: all of them are of this length."""
    found = {name: values_of(field) for name, field in fields.items()}
    for name in {"mids", "dests", "local_ts", "payloads", "ack_below"} & fields.keys():
        each = values_of(get_args(fields[name])[0])
        found[name] = st.lists(each, min_size=length, max_size=length).map(tuple)
    if "clock" in fields:  # an acceptance, where one stands for all
        found["dests"] |= values_of(get_args(fields["dests"])[0]).map(lambda dest: (dest,))
    return found


ANY_OF = {cls: values_of(cls) for cls in KINDS}


# Records about few messages, so that they meet: what a replica may emit, and some more.

G0, G1 = GroupId(0), GroupId(1)
R0, R1 = ReplicaId(G0, 0, 0), ReplicaId(G1, 1, 2**64 - 1)
MIDS = [MessageId(ClientId(client), 1, digest) for client in (1, 2**64 - 1) for digest in (0, 2**64 - 1)]
SMALL: dict[Any, Strategy] = {
    MessageId: st.sampled_from(MIDS),
    bytes: st.sampled_from([b"", b"a", b"b"]),
    GroupId: st.sampled_from([G0, G1]),
    Ballot: st.sampled_from([NO_BALLOT, Ballot(1, R0, 0), Ballot(2, R1, 1)]),
    Timestamp: st.integers(0, 5 << 10),
    int: st.integers(0, 2),
    ClientId: st.just(1),
    types.NoneType: st.nothing(),
    Membership: memberships(st.sampled_from([G0, G1])),
}


def meeting(cls: type[Any]) -> Strategy:
    with pytest.MonkeyPatch.context() as patch:
        for hint, strategy in SMALL.items():
            patch.setitem(LEAVES, hint, strategy)
        return values_of(cls)


HISTORIES = st.lists(st.lists(st.one_of(*map(meeting, KINDS)), max_size=8), max_size=8)


def same(one: object, other: object) -> bool:
    """Named tuples equal plain ones, and True equals 1; what they print does not."""
    return one == other and repr(one) == repr(other)


def again(found: Sequence[Record], *before: Sequence[Record]) -> list[Record]:
    """What is read of records that come after other batches."""
    return decode(encode(found, folded(*before)), folded(*before), "here")


def obvious_fold(records: Iterable[Record]) -> tuple[Any, ...]:
    """What `Durable` amounts to, without its short cuts: every record becomes entries at once."""
    ballot = cballot = NO_BALLOT
    clock = count = 0
    executed = NO_TIMESTAMP
    memories: dict[ReplicaId, int] = {}
    entries: dict[MessageId, EntryState] = {}
    memberships: dict[GroupId, Membership] = {}
    for record in records:
        clock = max(clock, getattr(record, "clock", 0))
        match record:
            case Accepted(dests, mids, local_ts, payloads, ack_below) | Voted(
                LocalTimestamps(mids, dests, payloads, ack_below, local_ts)
            ):
                dests = dests * len(mids) if len(dests) == 1 else dests
                for mid, dest, payload, below, at in zip(
                    mids, dests, payloads, ack_below, local_ts, strict=True
                ):
                    if mid not in entries or entries[mid].phase is not Phase.COMMITTED:
                        entries[mid] = EntryState(mid, dest, payload, below, Phase.ACCEPTED, at, NO_TIMESTAMP)
            case Delivery(mid, dest, payload, below, at, global_ts):
                entries[mid] = EntryState(mid, dest, payload, below, Phase.COMMITTED, at, global_ts)
            case Learned(entry):
                entries[entry.mid] = entry
            case Dropped(mids):
                entries = {mid: entry for mid, entry in entries.items() if mid not in mids}
            case Promised(ballot):
                pass
            case Reported(reported):
                executed = max(executed, reported)
            case Configured(membership):
                memberships[membership.group] = membership
                former = {m for m in memories if m.group == membership.group} - {*membership.everyone}
                memories = {m: known for m, known in memories.items() if m not in former}
            case Counted(told):
                count = max(count, told)
            case Remembered(member, told):
                memories[member] = max(memories.get(member, 0), told)
            case Joined(ballot, _, joined):
                cballot = ballot
                entries = {entry.mid: entry for entry in joined}
    return ballot, cballot, clock, executed, entries, memberships, count, memories


def folded(*batches: Sequence[Record]) -> Durable:
    fold = Durable()
    for record in chain(*batches):
        fold.apply((record,))
    return fold


# Some records

BALLOT, OTHER = Ballot(1, R0, 0), Ballot(2, R1, 3)
DEST = (G0, G1)
MID, MID2 = MIDS[3], MIDS[0]
TS = Timestamp(5 << 10)
ENTRY = EntryState(MID, DEST, b"payload", 1, Phase.COMMITTED, TS, TS)
ACCEPTED = Accepted((DEST,), (MID,), (TS,), (b"payload",), (1,), 5)
DELIVERY = Delivery(MID, DEST, b"payload", 1, TS, TS, Timestamp(7), mismatch=True)
VOTED = Voted(LocalTimestamps((MID,), (DEST,), (b"payload",), (1,), (TS,)), 5)
CLOCK = Voted(LocalTimestamps(), 7)
JOINED = Joined(OTHER, 5, (ENTRY, ENTRY._replace(mid=MID2)))
DROPPED = Dropped((MID, MID2))
SOME: list[Record] = [
    Promised(BALLOT), ACCEPTED, VOTED, CLOCK, DELIVERY, DELIVERY._replace(mid=MID2),
    JOINED, Learned(ENTRY), DROPPED, Configured(Membership(Configuration(G0, 1, [R0], ["here"]))),
    Reported(TS), Counted(7), Remembered(R1, 8),
]  # fmt: skip
"""At least one of every kind, and a delivery with and one without its payload."""


# What comes back


@pytest.mark.parametrize("cls", KINDS)
@EXAMPLES
@given(st.data())
def test_every_kind_of_record_comes_back_as_it_was(cls: type[Any], data: st.DataObject) -> None:
    batch = data.draw(st.lists(ANY_OF[cls], max_size=3))
    assert same(again(batch), batch)


@EXAMPLES
@given(st.lists(st.one_of(*ANY_OF.values()), max_size=8))
def test_records_of_all_kinds_keep_their_order(batch: list[Record]) -> None:
    assert same(again(batch), batch)


@FUZZ
@given(HISTORIES)
def test_batches_come_back_and_fold_as_they_were(history: list[list[Record]]) -> None:
    """The writer's fold and the reader's go along with the batches, as they do in a log."""
    writing, reading = Durable(), Durable()
    for count, batch in enumerate(history, 1):
        found = decode(encode(batch, writing), reading, "here")
        assert same(found, batch)
        wanted = obvious_fold(chain(*history[:count]))
        for fold in (writing, reading):
            found_fold = fold.ballot, fold.cballot, fold.clock, fold.executed, fold.entries, fold.memberships
            assert same((*found_fold, fold.count, fold.memories), wanted)


@FUZZ
@given(HISTORIES, HISTORIES)
def test_what_is_kept_amounts_to_all(history: list[list[Record]], later: list[list[Record]]) -> None:
    """Batches that follow are read as well after what is kept as after all."""
    writing = folded(*history)
    kept = writing.records()
    counts = bool(writing.count) + len(writing.memories)
    assert len(kept) == 3 + len(writing.memberships) + counts, "nothing superfluous is kept"
    reading = Durable()
    assert same(decode(encode(kept, Durable()), reading, "here"), kept)
    assert same(reading, writing)
    for batch in later:
        assert same(decode(encode(batch, writing), reading, "here"), batch)
    assert same(reading, writing)


def test_a_delivery_is_read_with_what_was_kept_of_its_acceptance() -> None:
    writing, reading = folded([ACCEPTED]), Durable()
    decode(encode(writing.records(), Durable()), reading, "here")
    data = encode([DELIVERY], writing)
    assert b"payload" not in data
    assert decode(data, reading, "here") == [DELIVERY]


def test_a_batch_may_be_empty() -> None:
    assert again([]) == []


def test_every_kind_of_record_has_a_format() -> None:
    assert {type(record) for record in SOME} == set(KINDS)
    assert set(records._RECORDS.put) == {*KINDS, records._Decided, records._Known, records._Staged}
    assert again(SOME) == SOME


def test_tags_and_bytes_of_records_are_those_of_the_disk_format() -> None:
    """A change of these is a change of the format: it needs another `identity.FORMAT`."""
    order = [Promised, Joined, Accepted, records._Decided, Delivery, Voted, Learned, Dropped, Configured]
    order += [records._Known, Reported, Counted, Remembered]
    assert FORMAT == 10
    assert dict(enumerate(order, 1)) | {60: records._Staged} == records.TAGS
    assert zlib.crc32(encode(SOME, Durable())) == 0xBD09BFFA


def test_what_is_no_record_is_not_encoded() -> None:
    with pytest.raises(TypeError, match="EntryState is not a record"):
        encode([ENTRY], Durable())  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(TypeError, match="EntryState is not a record"):
        Durable().apply([ENTRY])  # type: ignore[list-item]  # wrong on purpose


# What need not be written


HELD = Learned(ENTRY._replace(phase=Phase.ACCEPTED, global_ts=NO_TIMESTAMP))


@pytest.mark.parametrize("known", [ACCEPTED, VOTED, HELD], ids=lambda r: type(r).__name__)
def test_a_payload_that_the_log_has_is_not_written_again(known: Record) -> None:
    data = encode([DELIVERY], folded([known]))
    assert b"payload" not in data
    assert decode(data, folded([known]), "here") == [DELIVERY]


@pytest.mark.parametrize("known", [ACCEPTED, VOTED], ids=lambda r: type(r).__name__)
def test_a_payload_is_written_once_in_a_batch(known: Record) -> None:
    data = encode([known, DELIVERY], Durable())
    assert data.count(b"payload") == 1
    assert decode(data, Durable(), "here") == [known, DELIVERY]


def test_deliveries_that_follow_each_other_are_one_row() -> None:
    times = [Timestamp(number << 10) for number in range(1, 5)]
    accepted = Accepted((DEST,), tuple(MIDS), tuple(times), (b"payload",) * 4, (1,) * 4, 4)
    run = [
        DELIVERY._replace(
            mid=mid, local_ts=at, global_ts=at, previous_ts=Timestamp(at - 1024), mismatch=wrong
        )
        for mid, at, wrong in zip(MIDS, times, (False, True, False, True), strict=True)
    ]
    gap = run[3]._replace(previous_ts=Timestamp(1))
    for batch, rows in (run, 1), (run[:1], 1), ([*run[:3], gap], 4), ([run[0], *run[2:]], 3):
        data = encode(batch, folded([accepted]))
        assert [row[0] for row in msgspec.msgpack.decode(data)] == [DECIDED] * rows
        assert same(decode(data, folded([accepted]), "here"), batch)


@pytest.mark.parametrize(
    "change", [{"payload": b"other"}, {"dest": (G0,)}, {"ack_below": 2}, {"local_ts": Timestamp(9)}], ids=str
)
def test_a_delivery_that_differs_from_what_the_log_has_is_written_whole(change: dict[str, Any]) -> None:
    delivery = DELIVERY._replace(**change)
    assert again([delivery], [ACCEPTED]) == [delivery]
    assert again([ACCEPTED, delivery]) == [ACCEPTED, delivery]


def test_what_follows_a_delivery_in_its_batch_does_not_change_it() -> None:
    later = dataclasses.replace(ACCEPTED, ack_below=(9,), clock=9)
    batches: list[list[Record]]
    batches = [[DELIVERY, later], [later, DELIVERY], [DROPPED, DELIVERY], [JOINED, DELIVERY, later]]
    for batch in batches:
        assert again(batch, [ACCEPTED]) == batch


# What makes no sense


def test_a_message_is_not_accepted_without_its_payload() -> None:
    bare = dataclasses.replace(ACCEPTED, mids=(MID, MID2))
    for fold in (Durable(), folded([ACCEPTED]), folded([VOTED]), folded([DELIVERY, DROPPED])):
        with pytest.raises(ValueError, match="is shorter than"):
            encode([bare], fold)


def test_a_decision_outlives_a_later_acceptance() -> None:
    fold = folded([DELIVERY], [dataclasses.replace(ACCEPTED, clock=9)])
    assert fold.entries[MID].phase is Phase.COMMITTED
    assert fold.clock == 9


TOO_LARGE = NUMBER_MAX + 1
LEARNED, PROMISED = Learned(ENTRY), Promised(BALLOT)
DECIDED = next(kind for kind, cls in records.TAGS.items() if cls is records._Decided)

BAD: list[tuple[Record, Path_, object, str]] = [
    (ACCEPTED, (0,), 0, "Invalid value 0"),
    (ACCEPTED, (0,), 99, "Invalid value 99"),
    (ACCEPTED, (), [3], "at least length"),
    (ACCEPTED, (), [], "at least length"),
    (DROPPED, (), [8, [], 1], "at most length"),
    (PROMISED, (1, 0), TOO_LARGE, "not a ballot"),
    (PROMISED, (1, 1, 0), GROUPS_MAX, "not a process"),
    (PROMISED, (1, 1, 1), TOO_LARGE, "not a process"),
    (PROMISED, (1, 1), [-1, 0, 5], "not a replica"),
    (ACCEPTED, (1, 0, 1), GROUPS_MAX, "<= 1023"),
    (ACCEPTED, (1,), [], r"columns of .0, 1."),
    (ACCEPTED, (1,), [[0], [1]], r"columns of .1, 2."),
    (ACCEPTED, (2, 0, 1), TOO_LARGE, "Expected `int`"),
    (ACCEPTED, (2,), [], r"columns of .0, 1."),
    (ACCEPTED, (3,), [], r"columns of .0, 1."),
    (ACCEPTED, (3, 0), TOO_LARGE, "Expected `int`"),
    (ACCEPTED, (4,), [], r"columns of .0, 1."),
    (ACCEPTED, (5,), [1, 2], r"columns of .1, 2."),
    (ACCEPTED, (6,), -1, ">= 0"),
    (VOTED, (1,), [[], [], [], []], "length 5"),
    (VOTED, (1, 0), [], r"a vote has columns of .0, 1."),
    (VOTED, (1, 4), [1, 2], r"a vote has columns of .1, 2."),
    (VOTED, (1, 1, 0), [GROUPS_MAX], "<= 1023"),
    (VOTED, (2,), -1, ">= 0"),
    (DELIVERY, (8,), 2, "Expected `bool`"),
    (LEARNED, (1, 4), 4, "Invalid enum value 4"),
    (JOINED, (3, 0, 4), 9, "Invalid enum value 9"),
    (DROPPED, (1, 0), [1, 2], "length 3"),
    (Configured(Membership(Configuration(G0, 1, [R0], ["here"]))), (1,), b"nonsense", "."),
]


def changed(batch: Any, path: Path_, value: object) -> bytes:
    """A batch of one record with something else at a place within that."""
    batch = copy.deepcopy(batch)
    node, places = batch, (0, *path)
    for i in places[:-1]:
        node = node[i]
    node[places[-1]] = value
    return msgspec.msgpack.encode(batch)


@pytest.mark.parametrize(("record", "path", "value", "message"), BAD)
def test_what_is_wrong_is_refused_by_name(record: Record, path: Path_, value: object, message: str) -> None:
    batch = msgspec.msgpack.decode(encode([record], Durable()))
    with pytest.raises(StorageError, match=f"^row 7: not a batch of records: .*{message}"):
        decode(changed(batch, path, value), Durable(), "row 7")


@pytest.mark.parametrize(
    ("path", "value"), [((1,), []), ((3,), []), ((3,), [1, 1]), ((4,), []), ((4,), [False, False])]
)
def test_what_is_wrong_with_a_decision_is_refused(path: Path_, value: object) -> None:
    batch = msgspec.msgpack.decode(encode([DELIVERY], folded([ACCEPTED])))
    assert batch[0][0] == DECIDED
    with pytest.raises(StorageError, match=r"^row 7: .*a decision of . messages has columns"):
        decode(changed(batch, path, value), folded([ACCEPTED]), "row 7")


@pytest.mark.parametrize("known", [[], [DELIVERY], [LEARNED], [ACCEPTED, DROPPED]], ids=str)
def test_a_decision_without_an_acceptance_is_refused(known: list[Record]) -> None:
    data = encode([DELIVERY], folded([ACCEPTED]))
    with pytest.raises(StorageError, match=f"row 7: .*message {MID} was not accepted"):
        decode(data, folded(known), "row 7")


# What nobody thought of


def decodes_or_is_refused(data: bytes) -> None:
    try:
        found = decode(data, folded([ACCEPTED]), "row 7")
    except StorageError as error:
        assert str(error).startswith("row 7: ")  # noqa: PT017 - the point is that nothing else is raised
    else:
        assert same(again(found, [ACCEPTED]), found)


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    decodes_or_is_refused(data)


@FUZZ
@given(st.lists(st.one_of(*ANY_OF.values()), max_size=6) | st.just(SOME), st.data())
def test_damaged_bytes_decode_or_are_refused(batch: list[Record], data: st.DataObject) -> None:
    damaged = bytearray(encode(batch, Durable()))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(damaged)))
        end = data.draw(st.integers(start, min(len(damaged), start + 4)))
        damaged[start:end] = data.draw(st.binary(max_size=4))
    decodes_or_is_refused(bytes(damaged))


def places(node: Any, path: Path_ = ()) -> Iterator[Path_]:
    """All leaves of a batch, and all arrays in it."""
    if path:
        yield path
    if isinstance(node, list):
        for i, child in enumerate(node):
            yield from places(child, (*path, i))


@FUZZ
@given(st.lists(st.one_of(*ANY_OF.values()), max_size=6) | st.just(SOME), st.data())
def test_damaged_fields_decode_or_are_refused(found: list[Record], data: st.DataObject) -> None:
    """Valid MessagePack with something else in it: what damaged bytes seldom are."""
    batch = [msgspec.msgpack.decode(encode(found, Durable()))]
    for _ in range(data.draw(st.integers(1, 3))):
        paths = list(places(batch[0]))
        if paths:
            other: Any = batch[0]
            for i in data.draw(st.sampled_from(paths)):
                other = other[i]
            value: object = data.draw(st.just(other) | NUMBERS_64 | st.integers(-3, 0) | st.just([]))
            batch = [msgspec.msgpack.decode(changed(batch, data.draw(st.sampled_from(paths)), value))[0]]
    decodes_or_is_refused(msgspec.msgpack.encode(batch[0]))


# Keys and values of the state

ANY_TS = NUMBERS_64.map(Timestamp)


@EXAMPLES
@given(st.lists(st.tuples(GROUPS, LEAVES[MessageId]), max_size=20))
def test_keys_are_in_the_order_of_what_they_stand_for(rows: list[tuple[GroupId, MessageId]]) -> None:
    by_key = sorted(rows, key=lambda row: keys.delivery_key(*row))
    assert by_key == sorted(rows)
    for group, mid in rows:
        assert keys.group_of_key(keys.delivery_key(group, mid), "here") == group
        assert keys.mid_of_key(keys.delivery_key(group, mid), "here") == mid
        number = mid.client
        for key in (
            keys.row_key(group, number),
            keys.run_key(group, Timestamp(number)),
            keys.client_key(group, number),
        ):
            assert keys.number_of_key(key, "here") == number


@st.composite
def chains(draw: st.DrawFn) -> list[Delivery]:
    """Any deliveries, as far as they can follow each other."""
    found: list[Delivery] = []
    last = Timestamp(draw(st.integers(0, 2**40)))
    for delivery in draw(st.lists(values_of(Delivery), min_size=1, max_size=6)):
        following = Timestamp(last + draw(st.integers(1, 2**40)))
        found.append(delivery._replace(global_ts=following, previous_ts=last))
        last = following
    return found


@EXAMPLES
@given(chains())
def test_a_run_of_deliveries_comes_back_from_its_value(deliveries: list[Delivery]) -> None:
    value = run_format.seal_run(G0, deliveries)
    found = run_format.unseal_run(value, G0, deliveries[-1].global_ts, "here")
    assert len(found) == len(deliveries)
    assert all(map(same, found, deliveries))
    assert run_format.run_follows(value, G0, deliveries[-1].global_ts, "here") == deliveries[0].previous_ts


@FUZZ
@given(chains(), st.data())
def test_any_damage_to_a_value_is_found(deliveries: list[Delivery], data: st.DataObject) -> None:
    value = run_format.seal_run(G0, deliveries)
    at = data.draw(st.integers(0, len(value) - 1))
    flipped = bytes([value[at] ^ data.draw(st.integers(1, 255))])
    for damaged in (value[:at], value[:at] + flipped + value[at + 1 :]):
        with pytest.raises(StorageError, match=f"^there: the checksum of {len(damaged)} bytes is wrong"):
            run_format.unseal_run(damaged, G0, deliveries[-1].global_ts, "there")


def sealed(data: bytes, last: Timestamp) -> bytes:
    """Bytes that a disk would take for a run of deliveries."""
    return checksum.seal(data, checksum.seed_of(keys.STATE_DELIVERIES, keys.run_key(G0, last)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sequence": [1, 2, 3]}, "the columns of a run have different lengths"),
        ({"client": [0, 1]}, "a client or destinations are missing"),
        ({"dest": [0, 5]}, "a client or destinations are missing"),
        ({"destinations": [2, 1]}, r"\(1,\) are not 2 groups"),
        ({"destinations": [1, GROUPS_MAX]}, "are not 1 groups"),
        ({"global_ts": [2048, 1024]}, "1024 comes after 2048"),
        ({"previous_ts": 1024}, "1024 comes after 1024"),
        ({"global_ts": [1024, 3072]}, "a run that ends at 3072, not at 2048"),
    ],
)
def test_a_run_that_is_none_is_refused(change: dict[str, Any], message: str) -> None:
    first = DELIVERY._replace(global_ts=Timestamp(1024), previous_ts=NO_TIMESTAMP)
    second = DELIVERY._replace(global_ts=Timestamp(2048), previous_ts=Timestamp(1024))
    whole = Run.FromString(run_format.seal_run(G0, [first, second])[4:])
    for name, value in change.items():
        whole.ClearField(name)
        whole.MergeFrom(Run(**{name: value}))
    damaged = sealed(whole.SerializeToString(), Timestamp(2048))
    with pytest.raises(StorageError, match=f"^there: .*{message}"):
        run_format.unseal_run(damaged, G0, Timestamp(2048), "there")


@FUZZ
@given(st.binary(max_size=100))
def test_a_sealed_value_of_the_wrong_shape_is_refused(data: bytes) -> None:
    """As a value under another key's database would be."""
    try:
        run_format.unseal_run(sealed(data, TS), G0, TS, "there")
    except StorageError as error:
        assert str(error).startswith("there: ")  # noqa: PT017 - the point is that nothing else is raised
    if len(data) != 16:
        with pytest.raises(StorageError, match=r"^there: "):
            checksum.unseal_position(checksum.seal(data, 5), "there", 5)
    if len(data) != 8:
        with pytest.raises(StorageError, match=r"^there: "):
            checksum.unseal_number(checksum.seal(data, 5), "there", 5)
    if len(data) < 8:
        with pytest.raises(StorageError, match=r"^there: "):
            checksum.unseal_base(checksum.seal(data, 5), "there", 5)


def run(count: int) -> list[list[Delivery]]:
    """Runs of two deliveries that follow each other."""
    found: list[Delivery] = []
    previous = NO_TIMESTAMP
    for number in range(1, 2 * count + 1):
        following = Timestamp(number << 10)
        found.append(DELIVERY._replace(global_ts=following, previous_ts=previous))
        previous = following
    return [found[start : start + 2] for start in range(0, len(found), 2)]


IDS: delivery_snapshot.Ids = [
    (ClientId(1), 0, [(1, 2, Timestamp(1 << 10)), (1, 3, Timestamp(2 << 10))]),
    (ClientId(2**64 - 1), 7, []),
]


def snapshot(runs: Sequence[Sequence[Delivery]], position: Timestamp) -> bytes:
    head = delivery_snapshot.snapshot_head(position, IDS)
    return head + b"".join(
        delivery_snapshot.snapshot_row(run[-1].global_ts, run_format.seal_run(G0, run)) for run in runs
    )


@EXAMPLES
@given(st.integers(0, 4), st.lists(st.integers(0, 600), max_size=5))
def test_a_snapshot_comes_back_however_it_is_cut(count: int, cuts: list[int]) -> None:
    runs = run(count)
    position = runs[-1][-1].global_ts if runs else NO_TIMESTAMP
    data = snapshot(runs, position)
    borders = [0, *sorted(cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(borders)]
    assert delivery_snapshot.read_snapshot(pieces, G0, "here") == (position, IDS, [*chain(*runs)])


@FUZZ
@given(st.data())
def test_a_damaged_snapshot_is_refused(data: st.DataObject) -> None:
    runs = run(3)
    whole = snapshot(runs, runs[-1][-1].global_ts)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
    for damaged in (whole[:at], whole[:at] + flipped + whole[at + 1 :], whole + b"x"):
        with pytest.raises(BadSnapshot, match="there"):
            delivery_snapshot.read_snapshot([damaged], G0, "there")


def test_a_snapshot_lacks_no_delivery_and_repeats_none() -> None:
    runs = run(3)
    position = runs[-1][-1].global_ts
    for wrong in (runs[1:], runs[:-1], [runs[0], runs[2]], [*runs, runs[-1]], runs[::-1], []):
        with pytest.raises(BadSnapshot, match="there"):
            delivery_snapshot.read_snapshot([snapshot(wrong, position)], G0, "there")
    back = DELIVERY._replace(global_ts=Timestamp(1), previous_ts=position)
    with pytest.raises(BadSnapshot, match=f"there.*: 1 comes after {position}"):
        delivery_snapshot.read_snapshot([snapshot([*runs, [back]], Timestamp(1))], G0, "there")


@FUZZ
@given(st.lists(NUMBERS_64, max_size=6), st.lists(NUMBERS_64, max_size=4), st.lists(NUMBERS_64, max_size=3))
def test_a_head_of_any_numbers_is_read_or_refused(
    clients: list[int], places: list[int], digests: list[int]
) -> None:
    head = SnapshotHead(clients=clients, places=places, digests=digests).SerializeToString()
    value = checksum.seal(head)
    data = len(value).to_bytes(4, "big") + value
    try:
        _, ids, _ = delivery_snapshot.read_snapshot([data], G0, "there")
    except BadSnapshot as error:
        assert "there" in str(error)  # noqa: PT017 - the point is that nothing else is raised
    else:
        assert delivery_snapshot.snapshot_head(NO_TIMESTAMP, ids) == data


# Large payloads are written once

BIG = bytes(range(256)) * 32
BIG_ACCEPTED = replace(ACCEPTED, payloads=(BIG,))
BIG_VOTED = Voted(VOTED.local._replace(payloads=(BIG,)), 6)
BIG_ENTRY = ENTRY._replace(payload=BIG)


@pytest.mark.parametrize(
    "later",
    [
        replace(BIG_ACCEPTED, local_ts=(Timestamp(99),)),
        BIG_VOTED,
        Joined(OTHER, 5, (BIG_ENTRY._replace(phase=Phase.ACCEPTED, global_ts=NO_TIMESTAMP),)),
        Joined(OTHER, 5, (ENTRY._replace(mid=MID2), BIG_ENTRY)),
    ],
    ids=lambda record: type(record).__name__,
)
@pytest.mark.parametrize(
    "before", [BIG_ACCEPTED, BIG_VOTED, Learned(BIG_ENTRY)], ids=lambda r: type(r).__name__
)
def test_a_large_payload_that_the_log_has_is_not_written_again(before: Record, later: Record) -> None:
    data = encode([later], folded([before]))
    assert len(data) < 500 < len(BIG)
    assert same(decode(data, folded([before]), "here"), [later])
    assert same(again([before, later, later]), [before, later, later])


def test_another_payload_of_the_same_message_is_written() -> None:
    other = replace(BIG_ACCEPTED, payloads=(BIG[1:],))
    assert same(again([other], [BIG_ACCEPTED]), [other])
    assert same(again([BIG_ACCEPTED], [DROPPED]), [BIG_ACCEPTED])


def test_a_payload_that_is_said_to_be_known_must_be() -> None:
    data = encode([BIG_VOTED], folded([BIG_ACCEPTED]))
    with pytest.raises(StorageError, match="is not known"):
        decode(data, Durable(), "here")
    put = records._RECORDS.put
    known = put[records._Known](records._Known((MID,)))
    for rows in ([known], [known, put[Promised](Promised(BALLOT))], [known, known]):
        with pytest.raises(StorageError, match="known"):
            decode(msgspec.msgpack.encode(rows), folded([BIG_ACCEPTED]), "here")
