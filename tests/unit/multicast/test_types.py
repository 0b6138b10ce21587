"""The nouns: timestamps order as the paper's pairs, digests bind, and people can read them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multicast import types as t
from tests.unit.multicast.replicas import EXAMPLES

TIMES = st.integers(0, 2**43 - 1)
GROUPS = st.integers(0, t.GROUPS_MAX - 1).map(t.GroupId)
PAIRS = st.tuples(TIMES, GROUPS)
DESTINATIONS = st.sets(GROUPS, min_size=1, max_size=5).map(lambda groups: tuple(sorted(groups)))


@EXAMPLES
@given(PAIRS, PAIRS)
def test_timestamps_order_as_the_pairs_do(one: tuple[int, t.GroupId], other: tuple[int, t.GroupId]) -> None:
    a, b = t.timestamp(*one), t.timestamp(*other)
    assert (a < b) == (one < other)
    assert (a == b) == (one == other)


@EXAMPLES
@given(TIMES, GROUPS)
def test_a_timestamp_gives_back_its_time_and_its_group(time: int, group: t.GroupId) -> None:
    packed = t.timestamp(time, group)
    assert (t.time_of(packed), t.group_of(packed)) == (time, group)


@EXAMPLES
@given(TIMES, GROUPS)
def test_timestamps_stay_below_what_json_clients_read_exactly(time: int, group: t.GroupId) -> None:
    assert t.timestamp(time, group) < 2**53


@EXAMPLES
@given(GROUPS)
def test_bottom_is_below_the_first_timestamp_of_any_group(group: t.GroupId) -> None:
    assert t.timestamp(1, group) > t.NO_TIMESTAMP


def test_a_timestamp_is_read_as_time_and_group() -> None:
    assert t.format_timestamp(t.timestamp(17, t.GroupId(3))) == "17.3"
    assert t.format_timestamp(t.timestamp(17, t.GroupId(t.GROUPS_MAX - 1))) == f"17.{t.GROUPS_MAX - 1}"
    assert t.format_timestamp(t.NO_TIMESTAMP) == "-"
    assert t.format_timestamp(t.Timestamp(0)) == "-"


@EXAMPLES
@given(DESTINATIONS, st.binary(max_size=40), DESTINATIONS, st.binary(max_size=40))
def test_the_digest_is_the_same_just_for_the_same_message(
    dest: t.Destinations, payload: bytes, other_dest: t.Destinations, other_payload: bytes
) -> None:
    same = (dest, payload) == (other_dest, other_payload)
    assert (t.digest_of(dest, payload) == t.digest_of(other_dest, other_payload)) == same


@EXAMPLES
@given(DESTINATIONS, st.binary(max_size=40), st.data())
def test_the_digest_binds_every_bit_of_the_payload(
    dest: t.Destinations, payload: bytes, data: st.DataObject
) -> None:
    if payload:
        at = data.draw(st.integers(0, 8 * len(payload) - 1))
        changed = bytearray(payload)
        changed[at // 8] ^= 1 << at % 8
        assert t.digest_of(dest, bytes(changed)) != t.digest_of(dest, payload)
    assert t.digest_of(dest, payload + b"\0") != t.digest_of(dest, payload)


@EXAMPLES
@given(DESTINATIONS, st.binary(max_size=40))
def test_the_digest_binds_every_destination(dest: t.Destinations, payload: bytes) -> None:
    for index in range(len(dest)):
        assert t.digest_of(dest[:index] + dest[index + 1 :], payload) != t.digest_of(dest, payload)


def test_the_digest_does_not_confuse_destinations_with_payload() -> None:
    dest: t.Destinations = (t.GroupId(1),)
    assert t.digest_of(dest, b"x") != t.digest_of((), b"x" + repr(dest).encode())


def test_the_digest_is_the_same_in_every_process() -> None:
    # A constant: Python's own hash of bytes differs from process to process.
    assert t.digest_of((t.GroupId(0), t.GroupId(2)), b"payload") == 8719990262031905906


def test_names_of_replicas_messages_and_ballots() -> None:
    replica = t.ReplicaId(t.GroupId(2), 1, 0)
    assert str(replica) == "g2r1"
    assert str(t.ReplicaId(t.GroupId(2), 1, 0xBEEF)) == "g2r1#beef"
    assert str(t.MessageId(t.ClientId(9), 4, 123)) == "9:4"
    assert str(t.Ballot(3, replica, 0)) == "b3@g2r1"
    assert str(t.NO_BALLOT) == "-"


def test_ballots_order_by_number_first() -> None:
    low = t.Ballot(1, t.ReplicaId(t.GroupId(0), 2, 0), 0)
    high = t.Ballot(2, t.ReplicaId(t.GroupId(0), 0, 0), 0)
    assert t.NO_BALLOT < low < high
    assert t.Ballot(1, t.ReplicaId(t.GroupId(0), 0, 0), 0) < low


def test_another_incarnation_is_another_replica() -> None:
    assert t.ReplicaId(t.GroupId(0), 0, 1) != t.ReplicaId(t.GroupId(0), 0, 2)


def test_phases_are_in_the_order_of_the_paper() -> None:
    assert t.Phase.START < t.Phase.PROPOSED < t.Phase.ACCEPTED < t.Phase.COMMITTED
