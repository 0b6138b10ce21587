"""When a cluster is back after an attack, and which attacks are run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks import attackers, attacks
from benchmarks.attacks import BACK_PAIRS, BENCHMARK, Call, back_after, chosen

ENOUGH = 2 * BACK_PAIRS


def calls(*times: float, first: float = 100.0) -> list[Call]:
    """Calls that take these times, one after the other."""
    made = []
    for took in times:
        made.append(Call(first, took, None))
        first += took
    return made


def sizes(only: str) -> SimpleNamespace:
    """The sizes of a trial, with some attacks only."""
    return SimpleNamespace(**{name: quick for name, (_, quick) in BENCHMARK.sizes.items()} | {"only": only})


def test_back_at_once_if_no_call_is_slow() -> None:
    assert back_after(calls(*[1.0] * ENOUGH), 100.0, bound=1.0) == 0.0


def test_back_when_the_last_slow_call_has_ended() -> None:
    made = calls(0.5, 4.0, *[0.5] * (ENOUGH - 1), 3.0, *[0.5] * ENOUGH)
    assert back_after(made, 100.0, bound=1.0) == 0.5 + 4.0 + 0.5 * (ENOUGH - 1) + 3.0


def test_not_back_while_too_few_calls_were_fast_or_one_failed() -> None:
    made = calls(*[0.5] * ENOUGH)
    assert back_after(made[:-1], 100.0, bound=1.0) is None
    failed = [*made[:3], made[3]._replace(error="Unavailable"), *made[4:]]
    assert back_after(failed, 100.0, bound=1.0) is None


def test_attacks_by_name() -> None:
    found = chosen(sizes("garbage,large"))
    assert [attack for _, attack, _ in found] == [attackers.garbage, attackers.large]
    assert len(chosen(sizes(""))) == len(list(attacks.attacks(sizes(""))))
    with pytest.raises(SystemExit, match=r"unknown attack nonsense; choose from large, counts"):
        chosen(sizes("large,nonsense"))
