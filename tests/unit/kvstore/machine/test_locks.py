"""Locks against a model that compares every claim with every earlier one."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from kvstore.machine.locks import LockTable
from kvstore.machine.request import Footprint, Range
from multicast.errors import InvariantBroken

LETTERS = [bytes((c,)) for c in b"abcdefgh"]
KEYS = st.lists(st.sampled_from(LETTERS), max_size=2, unique=True).map(tuple)
BOUNDS = st.tuples(st.sampled_from([b"", *LETTERS]), st.sampled_from([*LETTERS, b"bb", None]))
RANGES = st.lists(
    BOUNDS.filter(lambda b: b[1] is None or b[0] < b[1]).map(lambda b: Range(*b)), max_size=2, unique=True
).map(tuple)


@st.composite
def footprints(draw: st.DrawFn) -> Footprint:
    writes = draw(KEYS)
    reads = tuple(key for key in draw(KEYS) if key not in writes)
    if draw(st.booleans()):
        return Footprint(reads, writes)
    return Footprint(reads, writes, draw(RANGES), draw(RANGES))


def conflict(one: Footprint, other: Footprint) -> bool:
    """Whether either writes what the other touches."""
    return touches(one, other) or touches(other, one)


def touches(writer: Footprint, other: Footprint) -> bool:
    for key in writer.writes:
        if key in other.reads + other.writes:
            return True
        if any(r.covers(key) for r in other.read_ranges + other.write_ranges):
            return True
    for asked in writer.write_ranges:
        if any(asked.covers(key) for key in other.reads + other.writes):
            return True
        if any(asked.overlaps(*r) for r in other.read_ranges + other.write_ranges):
            return True
    return False


class Model:
    """Claims in order; a claim is granted when it conflicts with none before it."""

    def __init__(self) -> None:
        self.claims: dict[int, Footprint] = {}

    def granted(self) -> list[int]:
        found = []
        for gts, footprint in self.claims.items():
            before = [f for g, f in self.claims.items() if g < gts]
            if not any(conflict(footprint, f) for f in before):
                found.append(gts)
        return found


def play(script: Iterable[tuple[Footprint, int, int]]) -> None:
    """Claim, and release some after each claim; then all."""
    table, model = LockTable(), Model()
    granted: list[int] = []
    for i, (footprint, releases, which) in enumerate(script):
        gts = i + 1
        blocked = bool(table.blockers(footprint))
        model.claims[gts] = footprint
        assert table.claim(gts, footprint) == (not blocked) == (gts in model.granted())
        if not blocked:
            granted.append(gts)
        if granted and which % 3 == 0:
            narrow_one(table, model, granted, which)
        for _ in range(releases):
            release_one(table, model, granted, which)
    while granted:
        release_one(table, model, granted, 0)
    assert not model.claims
    assert not len(table)
    assert not table._segments
    assert not table._keys
    assert not table._unordered
    assert not table._writers
    assert not table._readers


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(st.tuples(footprints(), st.integers(0, 3), st.integers(0, 10)), max_size=20))
def test_same_grants_as_the_model(script: list[tuple[Footprint, int, int]]) -> None:
    play(script)


@pytest.mark.parametrize("seed", range(5))
def test_same_grants_as_the_model_in_long_runs(seed: int) -> None:
    """Many ranges that cut each other, which short examples seldom have."""
    rng = random.Random(seed)

    def some_keys() -> list[bytes]:
        return rng.sample(LETTERS, rng.choice([0, 0, 1, 2]))

    def some_ranges() -> tuple[Range, ...]:
        bounds = [sorted(rng.sample([b"", *LETTERS], 2)) for _ in range(rng.choice([0, 0, 1, 2]))]
        return tuple({Range(low, high if rng.random() < 0.9 else None): None for low, high in bounds})

    for _ in range(60):
        script = []
        for _ in range(30):
            writes = some_keys()
            reads = tuple(key for key in some_keys() if key not in writes)
            footprint = Footprint(reads, tuple(writes), some_ranges(), some_ranges())
            script.append((footprint, rng.choice([0, 1, 1, 2]), rng.randrange(9)))
        play(script)


def narrow_one(table: LockTable, model: Model, granted: list[int], which: int) -> None:
    """Give up some of what a claim reads."""
    before = set(model.granted())
    gts = granted[which % len(granted)]
    reads, writes, read_ranges, write_ranges = astuple(model.claims[gts])
    kept = Footprint(reads[which % 2 :], writes, read_ranges[which % 2 :], write_ranges)
    model.claims[gts] = kept
    new = table.narrow(gts, kept)
    assert new == sorted(set(model.granted()) - before)
    granted += new


def release_one(table: LockTable, model: Model, granted: list[int], which: int) -> None:
    if not granted:
        return
    before = set(model.granted())
    gts = granted.pop(which % len(granted))
    del model.claims[gts]
    new = table.release(gts)
    assert new == sorted(set(model.granted()) - before)
    granted += new


def test_a_range_does_not_lock_the_partition() -> None:
    table = LockTable()
    table.claim(1, Footprint((), (), (), (Range(b"b", b"d"),)))
    assert table.claim(2, Footprint((), (b"a",)))
    assert table.claim(3, Footprint((), (b"d",)))
    assert not table.claim(4, Footprint((b"c",), ()))
    assert table.claim(5, Footprint((), (), (), (Range(b"e", None),)))
    assert table.release(1) == [4]


def test_readers_share() -> None:
    table = LockTable()
    assert table.claim(1, Footprint((b"a",), ()))
    assert table.claim(2, Footprint((b"a",), (), (Range(b"a", b"c"),)))
    assert not table.claim(3, Footprint((), (b"a",)))
    assert not table.claim(4, Footprint((b"a",), ())), "it would overtake the writer"
    assert table.release(2) == []
    assert table.release(1) == [3]
    assert table.release(3) == [4]


def test_grants_come_in_the_order_of_claims() -> None:
    table = LockTable()
    table.claim(1, Footprint((), (b"a", b"b", b"c")))
    for owner, key in ((4, b"c"), (-3, b"a"), (2, b"b")):
        assert not table.claim(owner, Footprint((), (key,)))
    assert table.release(1) == [4, -3, 2]


def test_claims_come_once_and_are_released_when_granted() -> None:
    table = LockTable()
    table.claim(2, Footprint((), (b"a",)))
    with pytest.raises(InvariantBroken, match="2 has a claim already"):
        table.claim(2, Footprint((), (b"b",)))
    table.claim(3, Footprint((), (b"a",)))
    with pytest.raises(InvariantBroken, match="narrowed while it waits for 1"):
        table.narrow(3, Footprint())
    with pytest.raises(InvariantBroken, match="waits for 1"):
        table.release(3)
