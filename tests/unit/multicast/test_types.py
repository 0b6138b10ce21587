"""The nouns: timestamps order as the paper's pairs, digests bind, and people can read them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from multicast.types import (
    GROUPS_MAX,
    NO_BALLOT,
    NO_TIMESTAMP,
    Ballot,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    ReplicaId,
    Timestamp,
    digest_of,
    format_timestamp,
    group_of,
    time_of,
    timestamp,
)

EXAMPLES = settings(deadline=None, derandomize=True)

TIMES = st.integers(0, 2**43 - 1)
GROUPS = st.integers(0, GROUPS_MAX - 1).map(GroupId)
PAIRS = st.tuples(TIMES, GROUPS)
DESTINATIONS = st.sets(GROUPS, min_size=1, max_size=5).map(lambda groups: tuple(sorted(groups)))


@EXAMPLES
@given(PAIRS, PAIRS)
def test_timestamps_order_as_the_pairs_do(one: tuple[int, GroupId], other: tuple[int, GroupId]) -> None:
    a, b = timestamp(*one), timestamp(*other)
    assert (a < b) == (one < other)
    assert (a == b) == (one == other)


@EXAMPLES
@given(TIMES, GROUPS)
def test_a_timestamp_gives_back_its_time_and_its_group(time: int, group: GroupId) -> None:
    packed = timestamp(time, group)
    assert (time_of(packed), group_of(packed)) == (time, group)


@EXAMPLES
@given(TIMES, GROUPS)
def test_timestamps_stay_below_what_json_clients_read_exactly(time: int, group: GroupId) -> None:
    assert timestamp(time, group) < 2**53


@EXAMPLES
@given(GROUPS)
def test_bottom_is_below_the_first_timestamp_of_any_group(group: GroupId) -> None:
    assert timestamp(1, group) > NO_TIMESTAMP


def test_a_timestamp_is_read_as_time_and_group() -> None:
    assert format_timestamp(timestamp(17, GroupId(3))) == "17.3"
    assert format_timestamp(timestamp(17, GroupId(GROUPS_MAX - 1))) == f"17.{GROUPS_MAX - 1}"
    assert format_timestamp(NO_TIMESTAMP) == "-"
    assert format_timestamp(Timestamp(0)) == "-"


@EXAMPLES
@given(DESTINATIONS, st.binary(max_size=40), DESTINATIONS, st.binary(max_size=40))
def test_the_digest_is_the_same_just_for_the_same_message(
    dest: Destinations, payload: bytes, other_dest: Destinations, other_payload: bytes
) -> None:
    same = (dest, payload) == (other_dest, other_payload)
    assert (digest_of(dest, payload) == digest_of(other_dest, other_payload)) == same


@EXAMPLES
@given(DESTINATIONS, st.binary(max_size=40), st.data())
def test_the_digest_binds_every_bit_of_the_payload(
    dest: Destinations, payload: bytes, data: st.DataObject
) -> None:
    if payload:
        at = data.draw(st.integers(0, 8 * len(payload) - 1))
        changed = bytearray(payload)
        changed[at // 8] ^= 1 << at % 8
        assert digest_of(dest, bytes(changed)) != digest_of(dest, payload)
    assert digest_of(dest, payload + b"\0") != digest_of(dest, payload)


@EXAMPLES
@given(DESTINATIONS, st.binary(max_size=40))
def test_the_digest_binds_every_destination(dest: Destinations, payload: bytes) -> None:
    for index in range(len(dest)):
        assert digest_of(dest[:index] + dest[index + 1 :], payload) != digest_of(dest, payload)


def test_the_digest_does_not_confuse_destinations_with_payload() -> None:
    dest: Destinations = (GroupId(1),)
    assert digest_of(dest, b"x") != digest_of((), b"x" + repr(dest).encode())


def test_the_digest_is_the_same_in_every_process() -> None:
    # A constant: Python's own hash of bytes differs from process to process.
    assert digest_of((GroupId(0), GroupId(2)), b"payload") == 8719990262031905906


def test_names_of_replicas_messages_and_ballots() -> None:
    replica = ReplicaId(GroupId(2), 1, 0)
    assert str(replica) == "g2r1"
    assert str(ReplicaId(GroupId(2), 1, 0xBEEF)) == "g2r1#beef"
    assert str(MessageId(ClientId(9), 4, 123)) == "9:4"
    assert str(Ballot(3, replica, 0)) == "b3@g2r1"
    assert str(NO_BALLOT) == "-"


def test_ballots_order_by_number_first() -> None:
    low = Ballot(1, ReplicaId(GroupId(0), 2, 0), 0)
    high = Ballot(2, ReplicaId(GroupId(0), 0, 0), 0)
    assert NO_BALLOT < low < high
    assert Ballot(1, ReplicaId(GroupId(0), 0, 0), 0) < low


def test_another_incarnation_is_another_replica() -> None:
    assert ReplicaId(GroupId(0), 0, 1) != ReplicaId(GroupId(0), 0, 2)


def test_phases_are_in_the_order_of_the_paper() -> None:
    assert Phase.START < Phase.PROPOSED < Phase.ACCEPTED < Phase.COMMITTED
