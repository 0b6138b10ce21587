"""Distributions, keyspaces and paces, compared with theory, by seeds."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from random import Random

import pytest

from loadtests.distributions import Uniform, Zipf, distribution_of
from loadtests.errors import LoadTestError
from loadtests.keyspace import Keyspace
from loadtests.pacing import Pace

DRAWS = 40_000


@pytest.mark.parametrize("skew", [0.0, 0.5, 0.99, 1.0, 1.00000001, 1.7, 4.0])
@pytest.mark.parametrize("count", [1, 2, 50])
def test_zipf_is_as_theory_says(skew: float, count: int) -> None:
    rng, zipf = Random(f"{skew}/{count}"), Zipf(skew)
    found = Counter(zipf.draw(rng, count) for _ in range(DRAWS))
    assert min(found) >= 0
    assert max(found) < count
    total = sum(rank**-skew for rank in range(1, count + 1))
    for rank in range(count):
        share = (rank + 1) ** -skew / total
        # Five standard deviations: of some 400 comparisons, none is off by chance.
        assert abs(found[rank] - DRAWS * share) <= 5 * math.sqrt(DRAWS * share * (1 - share)) + 1e-9, rank


def test_zipf_of_very_many_ranks_has_the_head_that_it_should_have() -> None:
    count, skew = 10_000_000, 0.99
    rng, zipf = Random(1), Zipf(skew)
    found = Counter(zipf.draw(rng, count) for _ in range(DRAWS))
    # Euler and Maclaurin
    tail = (count ** (1 - skew) - 1) / (1 - skew) + 0.5 * (1 + count**-skew) + skew / 12
    for rank in range(3):
        share = (rank + 1) ** -skew / tail
        assert abs(found[rank] - DRAWS * share) <= 5 * math.sqrt(DRAWS * share)


def test_distributions_by_name() -> None:
    assert type(distribution_of("uniform", 0.99)) is Uniform
    assert {type(distribution_of(name, 0.99)) for name in ("zipfian", "latest")} == {Zipf}
    found = Counter(Uniform().draw(Random(seed), 4) for seed in range(4_000))
    assert all(800 < found[rank] < 1_200 for rank in range(4))
    with pytest.raises(ValueError, match="-1"):
        Zipf(-1)


def partition_of(number: int) -> int:
    return zlib.crc32(b"%d" % number) % 4


@pytest.mark.parametrize("ranks", [Zipf(0.99), Zipf(3.0), Uniform()])
@pytest.mark.parametrize("size", [2, 4])
def test_keys_are_of_one_partition_or_each_of_another(ranks: Zipf | Uniform, size: int) -> None:
    rng = Random(1)
    keys = Keyspace(partition_of, range(4), 200)
    keys.check(size, 100)
    for crossing in (False, True):
        for _ in range(300):
            chosen = keys.choose(rng, ranks, size, crossing=crossing)
            assert len(set(chosen)) == size
            assert len({partition_of(number) for number in chosen}) == (size if crossing else 1)


def test_the_first_key_is_as_popular_as_the_distribution_says() -> None:
    keys, zipf = Keyspace(partition_of, range(4), 50), Zipf(1.0)
    for crossing in (False, True):
        rng = Random(2)
        found = Counter(keys.choose(rng, zipf, 2, crossing=crossing)[0] for _ in range(10_000))
        share = 1 / sum(1 / rank for rank in range(1, 51))
        assert abs(found[0] - 10_000 * share) < 5 * math.sqrt(10_000 * share)


def test_too_few_keys_or_partitions_are_named() -> None:
    with pytest.raises(LoadTestError, match="spread = 5, but the cluster has only 4 partitions"):
        Keyspace(partition_of, range(4), 1_000).check(5, 1)
    Keyspace(partition_of, range(4), 1_000).check(5, 0)
    with pytest.raises(LoadTestError, match=r"keys = 3 are too few: partition \d has \d of them"):
        Keyspace(partition_of, range(4), 3).check(2, 100)


def test_a_timetable_does_not_wait_for_the_store() -> None:
    pace = Pace(10.0, (5.0, 5.0), Random(1), 100.0)
    first = pace.wait(100.0)
    assert 0 <= first <= 0.1
    assert pace.intended == pytest.approx(100.0 + first)
    assert pace.wait(200.0) == 0, "it is late"
    assert pace.intended == pytest.approx(100.1 + first)
    assert pace.wait(100.15 + first) == pytest.approx(0.05)


def test_without_a_timetable_users_think() -> None:
    pace = Pace(0.0, (1.0, 3.0), Random(1), 100.0)
    waits = [pace.wait(100.0) for _ in range(200)]
    assert 1 <= min(waits) < 1.2
    assert 2.8 < max(waits) <= 3
    assert pace.intended is None
