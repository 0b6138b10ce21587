"""Which ranges a key is in, compared with an obvious way to find out."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kvstore.machine.request import Range
from kvstore.store import range_index
from kvstore.store.range_index import RangeIndex


@pytest.mark.parametrize("seed", range(20))
def test_owners_of_a_key(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_index, "NEW_MIN", 1)
    rng = random.Random(seed)

    def key() -> bytes:
        return rng.choice((b"", b"%d" % rng.randrange(10), b"%02d" % rng.randrange(100)))

    index: RangeIndex[int] = RangeIndex()
    owned: dict[int, list[Range]] = {}
    for number in range(400):
        step = rng.random()
        if step < 0.25:
            owned[number] = [Range(key(), rng.choice((None, key()))) for _ in range(rng.randrange(1, 4))]
            index.add(number, owned[number])
        elif step < 0.4 and owned:
            owner = rng.choice(list(owned))
            del owned[owner]
            index.remove(owner)
        else:
            wanted = key()
            expected = Counter(o for o, ranges in owned.items() for each in ranges if each.covers(wanted))
            assert Counter(index.owners(wanted)) == expected
    assert len(index) == sum(map(len, owned.values()))


def test_a_key_is_compared_with_few_ranges() -> None:
    index: RangeIndex[int] = RangeIndex()
    for number in range(2000):
        index.add(number, (Range.of_prefix(b"%04d/" % number),))
        list(index.owners(b"1"))
    assert list(index.owners(b"0007/x")) == [7]
    assert len(index._new) <= range_index.NEW_MIN + 2000 // 8
    assert sum(map(len, index._nodes)) < 4 * 2000  # a prefix is one leaf, or two
