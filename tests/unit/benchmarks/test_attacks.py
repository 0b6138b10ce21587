"""When a cluster is back after an attack, and which attacks are run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import attackers, attacks
from benchmarks.attacks import BACK_PAIRS, BENCHMARK, COLUMNS, Call, back_after, chosen
from benchmarks.record import Figure, Machine, Result

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


def test_a_table_has_an_attack_in_each_row() -> None:
    figures = [
        Figure.of(f"{what}: {column}", unit, [number, number + 2.0])
        for number, what in enumerate(("scans", "control: files"))
        for column, unit in COLUMNS.items()
    ]
    heading, first, second = attacks.table(figures)
    assert heading == ["an innocent client beside ...", *COLUMNS]
    assert first == ["scans", "1.00 x (0 - 2.00 (2))", "1.00 ms", "1.00 ms", "1.00", "1.00 MiB", "1.00 s"]
    assert second[0] == "control: files"


def test_runs_of_some_attacks_are_kept_together_if_they_measure_the_same(tmp_path: Path) -> None:
    def result(names: str, commit: str = "abc") -> Result:
        figures = [Figure.of(name, "x", [float(len(names))]) for name in names.split(",")]
        machine = Machine(2, "CPython 3.11.2", "Linux 6.1.0")
        return Result("attacks", "attacks", "python -m", commit, machine, 0.2, "2026-01-02", figures)

    result("large,counts").write(tmp_path)
    together = BENCHMARK.completed(result("counts,past,refused"), tmp_path)
    assert {figure.name: figure.samples for figure in together.figures} == {
        "large": [12.0], "counts": [19.0], "past": [19.0], "refused": [19.0],
    }  # fmt: skip
    later = result("past", commit="abd")
    assert BENCHMARK.completed(later, tmp_path) == later
