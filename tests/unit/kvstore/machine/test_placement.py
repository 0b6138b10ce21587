"""Which group has which key."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.machine.placement import SHORT, WRITES, Placement, Scheme, _split, share_of, slot_token, tag_of
from kvstore.machine.request import (
    Compare,
    Delete,
    Get,
    InvalidRequest,
    Operator,
    Put,
    Range,
    Scan,
    Subject,
    Transaction,
    Unchanged,
    footprint_of,
)
from multicast.types import GroupId

A, B, C = GroupId(0), GroupId(1), GroupId(2)
ORDERED = Placement(1, Scheme.ORDERED, (b"", b"g", b"p"), (A, B, C), (A, B, C))
HASHED = Placement.evenly([A, B, C])


def test_tags() -> None:
    assert tag_of(b"plain") == b"plain"
    assert tag_of(b"a{tag}b{other}") == b"tag"
    assert tag_of(b"{}tag") == b"{}tag"
    assert tag_of(b"a{open") == b"a{open"
    assert tag_of(b"}{x}") == b"x"


def test_slots_are_stable() -> None:
    assert HASHED.token(b"key") == HASHED.token(b"other{key}")
    assert HASHED.token(b"key").hex() == "2ba9"
    assert [HASHED.group_of(b"k%d" % i) for i in range(9)] == [0, 1, 2, 0, 0, 1, 2, 0, 1]


def test_equal_shares() -> None:
    found = [HASHED.group_of(b"key %d" % i) for i in range(6000)]
    assert all(1800 < found.count(g) < 2200 for g in (A, B, C))


KEYS = st.text("{}ab", min_size=1, max_size=6).map(str.encode)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(KEYS, KEYS, KEYS, st.sampled_from([ORDERED, HASHED]))
def test_a_range_finds_the_groups_of_its_keys(key: bytes, one: bytes, other: bytes, by: Placement) -> None:
    for asked in (Range(min(one, other), max(one, other)), Range.of_prefix(one), Range(one, None)):
        if asked.covers(key):
            assert by.group_of(key) in by.groups_of_range(asked)


def test_ranges_go_to_as_few_groups_as_possible() -> None:
    assert ORDERED.groups_of_range(Range(b"a", b"g")) == {A}
    assert ORDERED.groups_of_range(Range(b"a", b"ga")) == {A, B}
    assert ORDERED.groups_of_range(Range(b"g", b"p")) == {B}
    assert ORDERED.groups_of_range(Range(b"h", None)) == {B, C}
    assert HASHED.groups_of_range(Range(b"a", b"b")) == {A, B, C}
    owner = {HASHED.group_of(b"{x}")}
    assert HASHED.groups_of_range(Range.of_prefix(b"{x}")) == owner
    assert HASHED.groups_of_range(Range(b"a{x}1", b"a{x}7")) == owner
    assert HASHED.groups_of_range(Range.of_prefix(b"{x")) == {A, B, C}


def test_parts() -> None:
    transaction = Transaction(
        (Compare(b"z", Subject.EXISTS, Operator.EQUAL, 1), Unchanged(Range(b"a", b"h"), 5)),
        (Put(b"h", b""), Get(b"a"), Scan(Range(b"", None))),
        (Put(b"b", b""),),
    )
    part = share_of(transaction, ORDERED, A, (A, B, C))
    assert part is not None
    assert [i for i, _ in part.conditions] == [1]
    assert [i for i, _ in part.then] == [1, 2]
    assert [i for i, _ in part.otherwise] == [0]
    assert part.footprint.reads == (b"a",)
    assert part.footprint.writes == (b"b",)
    assert part.voters == {A, B, C}
    assert share_of(transaction, ORDERED, A, (A, B)) is None
    assert share_of(Transaction(then=(Get(b"a"),)), ORDERED, B, (A, B)) is not None


def test_maps_that_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="1 token ranges with 2 groups"):
        Placement(1, Scheme.ORDERED, (b"",), (A, B), (A, B))
    with pytest.raises(InvalidRequest, match="rise strictly"):
        Placement(1, Scheme.ORDERED, (b"", b"b", b"a"), (A, B, A), (A, B))
    with pytest.raises(InvalidRequest, match="begin at the lowest token"):
        Placement(1, Scheme.HASHED, (slot_token(1),), (A,), (A,))
    with pytest.raises(InvalidRequest, match="not all among the groups"):
        Placement(1, Scheme.ORDERED, (b"",), (B,), (A,))


def test_maps_that_follow() -> None:
    later = Placement(2, Scheme.ORDERED, (b"",), (A,), (A, B, C))
    assert later.follows(ORDERED)
    assert not ORDERED.follows(later)
    assert not later.follows(HASHED)


def test_the_first_token_that_moves() -> None:
    groups = (A, B, C)
    split = Placement(2, Scheme.ORDERED, (b"", b"c", b"g", b"p"), (A, A, B, C), groups)
    assert split.moved_from(ORDERED) is None
    assert ORDERED.moved_from(split) is None
    assert Placement(2, Scheme.ORDERED, (b"", b"g", b"q"), (A, B, C), groups).moved_from(ORDERED) == b"p"
    assert Placement(2, Scheme.ORDERED, (b"",), (C,), groups).moved_from(ORDERED) == b""
    assert Placement(2, Scheme.ORDERED, (b"", b"z"), (A, C), groups).moved_from(ORDERED) == b"g"


OPERATIONS = st.sampled_from((b"a", b"{g}a", b"h", b"p", b"q")).flatmap(
    lambda key: st.sampled_from((Put(key, b""), Get(key), Delete(key)))
)


@settings(deadline=None)
@given(st.lists(OPERATIONS, max_size=5), st.sampled_from((ORDERED, HASHED)), st.sampled_from(((A,), (A, B))))
def test_the_share_of_points_is_that_of_any_transaction(
    operations: list[Put | Get | Delete], placement: Placement, destinations: tuple[GroupId, ...]
) -> None:
    """It is found by another way than that of transactions with conditions, ranges or two branches."""
    share = share_of(Transaction((), tuple(operations)), placement, A, destinations)
    then = _split(tuple(operations), placement, A, destinations)
    if then is None:
        assert share is None
        return
    assert share is not None
    assert (share.conditions, share.then, share.otherwise, share.voters) == ((), then, (), frozenset())
    assert share.footprint == footprint_of((), then)
    keys = [each.key for _, each in then if isinstance(each, Put)]
    assert share.only_puts == (len(set(keys)) == len(then))


@pytest.mark.parametrize(("count", "is_long"), [(SHORT + 1, False), (WRITES, False), (WRITES + 1, True)])
def test_many_puts_are_long(count: int, is_long: bool) -> None:  # noqa: FBT001
    puts = tuple([Put(b"%d" % number, b"") for number in range(count)])
    share = share_of(Transaction((), puts), Placement.evenly([A]), A, (A,))
    assert share is not None
    assert share.is_long is is_long
