"""Dividing ranges by where every so-many-th key is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.machine.ordered import MemoryMap, marks_of
from kvstore.machine.request import Range
from kvstore.store import splits
from kvstore.store.splits import Spread, divide
from multicast.types import GroupId


def spread_of(keys: list[bytes], asked: Range, looked_at: int) -> Spread:
    rows: MemoryMap[bytes, int] = MemoryMap(dict.fromkeys(keys, 0))
    spread = Spread(asked)
    while spread.left is not None:
        spread.add(*rows.marks(*spread.left, spread.every, looked_at))
    return spread


def inside(keys: list[bytes], asked: Range) -> list[bytes]:
    return [key for key in keys if asked.covers(key)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 3000),
    pieces=st.integers(1, 40),
    kept=st.sampled_from([8, 4096]),
    bounds=st.sampled_from([(b"", None), (b"2", b"8"), (b"55", None)]),
)
def test_pieces_cover_everything_once(
    seed: int, count: int, pieces: int, kept: int, bounds: tuple[bytes, bytes | None]
) -> None:
    rng = random.Random(seed)
    keys = sorted({b"%d" % rng.randrange(10 ** rng.randrange(1, 9)) for _ in range(count)})
    asked = Range(*bounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "KEPT", kept)
        spread = spread_of(keys, asked, 512)
    cut = [keys for keys, _ in spread.cut(pieces)]
    assert cut[0].start == asked.start
    assert cut[-1].end == asked.end
    assert [each.end for each in cut[:-1]] == [each.start for each in cut[1:]]
    assert all(each.end is None or each.start < each.end for each in cut)
    assert 1 <= len(cut) <= max(pieces, 1)
    assert abs(spread.count - len(inside(keys, asked))) <= spread.every


def test_pieces_are_even_however_uneven_keys_are() -> None:
    keys = sorted([b"a%06d" % i for i in range(50_000)] + [b"z"] + [b"m/%d" % i for i in range(200)])
    spread = spread_of(keys, Range(b"", None), splits.LOOKED_AT)
    sizes = [len(inside(keys, piece)) for piece, _ in spread.cut(10)]
    assert len(sizes) == 10
    assert max(sizes) < 1.2 * min(sizes)


def test_more_pieces_go_to_whom_has_more() -> None:
    small = spread_of([b"%06d" % i for i in range(1000)], Range(b"", None), 512)
    large = spread_of([b"%06d" % i for i in range(9000)], Range(b"", None), 512)
    none = spread_of([], Range(b"", None), 512)
    found = divide({GroupId(0): small, GroupId(1): large, GroupId(2): none}, 10)
    assert [sum(each.group == group for each in found) for group in (0, 1, 2)] == [1, 9, 1]


def test_marks_stop_where_they_are_told_to() -> None:
    keys = list(range(100))
    assert marks_of(keys, 30, 1000) == ((29, 59, 89), 10, None)
    assert marks_of(keys, 30, 60) == ((29, 59), 0, 59)
    assert marks_of([], 30, 60) == ((), 0, None)
