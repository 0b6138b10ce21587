"""Damaged rows among the simulator's faults, and sabotages of what replicas do about them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from kvstore.node.loop import Node
from kvstore.simulation.disk import SimMap, SimStoreDisk
from kvstore.simulation.store import StoreCluster
from kvstore.storage.errors import DamagedRow
from multicast.protocol import Start
from multicast.types import GroupId, Timestamp
from multicast.whitebox import WhiteBox
from tests.campaigns import CAMPAIGN
from wbkv_sim import scenario_of, simulate_store

SEEDS: Final = range(40 if CAMPAIGN else 3)


def test_damaged_rows_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    aside = []
    set_aside = Node.set_aside

    def noted(node: Node, group: GroupId, error: DamagedRow) -> None:
        aside.append(group)
        set_aside(node, group, error)

    monkeypatch.setattr(Node, "set_aside", noted)
    for seed in range(20 if CAMPAIGN else 1):
        outcome = simulate_store(scenario_of("crash", operations=60), seed, "register")
        assert outcome.violation is None, outcome
    assert aside


class _ServesBadRows(SimMap):
    """A row with a wrong checksum reads as if it were not there."""

    def look_at_all(self) -> None:
        pass

    def _checked(self, key: Any, default: Any = None) -> Any:
        return default if key in self.bad else super()._checked(key, default)

    def items(self, start: Any, end: Any, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        bad, self.bad = self.bad, set()
        rows = list(super().items(start, end, reverse=reverse))
        self.bad = bad
        return iter([row for row in rows if row[0] not in bad])


class ServesABadRow(SimStoreDisk):
    """Wrong checksums are ignored."""

    map_type = _ServesBadRows
    damaged_tables = ("latest",)

    def is_damaged(self) -> bool:
        return False


class PromisesAfterLosingItsState(WhiteBox):
    """A replica without its state goes on as one that has executed nothing."""

    def __init__(self, start: Start) -> None:
        start.durable.executed = Timestamp(0)
        super().__init__(start)


@pytest.mark.parametrize("scrub_s", [0.0, StoreCluster.scrub_s])
def test_what_is_never_read_is_found_by_the_scrubber(scrub_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, it stays damaged."""
    monkeypatch.setattr(StoreCluster, "scrub_s", scrub_s)
    monkeypatch.setattr(SimStoreDisk, "damaged_tables", ("history",))
    heal = StoreCluster.heal

    damaged: list[bool] = []

    def damage(cluster: StoreCluster) -> None:
        heal(cluster)
        damaged.append(cluster.machines[1].state.damage(random.Random(0)))

    monkeypatch.setattr(StoreCluster, "heal", damage)
    for seed in range(5):  # in some runs, clients compact all history at the end
        outcome = simulate_store(scenario_of("none", operations=20), seed, "register")
        if damaged[-1]:
            break
    assert damaged[-1]
    if scrub_s:
        assert outcome.violation is None, outcome
    else:
        assert "n1 has damaged rows" in str(outcome.violation)


def changed_at(number: int, monkeypatch: pytest.MonkeyPatch, seed: int) -> Any:
    """Run a store in which a value changes silently on one disk, when clients are done."""
    converged = StoreCluster.converged
    changed: list[bool] = []

    def change_first(cluster: StoreCluster) -> bool:
        if not converged(cluster):
            return False
        if not changed:
            changed.append(cluster.machines[number].state.change(random.Random(seed)))
            return False
        return True

    monkeypatch.setattr(StoreCluster, "converged", change_first)
    outcome = simulate_store(scenario_of("none", operations=20), seed, "register")
    assert changed == [True]
    return outcome


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_value_that_was_changed_silently_is_found_by_comparison(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether its replica leads or follows: two of three are right, and the third restores its state."""
    outcome = changed_at(number, monkeypatch, number)
    assert outcome.violation is None, outcome
    assert "differs from the majority, and is to restore its state" in caplog.text


def test_without_comparison_a_silent_change_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreCluster, "scrub_s", 0.0)
    assert "n1 has damaged rows" in str(changed_at(1, monkeypatch, 1).violation)


@pytest.mark.parametrize("mutant", [ServesABadRow, PromisesAfterLosingItsState], ids=lambda m: m.__name__)
def test_random_seeds_catch_it(mutant: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    if issubclass(mutant, SimStoreDisk):
        monkeypatch.setattr(StoreCluster, "disk_type", mutant)
    else:
        options["protocol"] = mutant
    for seed in SEEDS:
        outcome = simulate_store(scenario_of("crash", operations=60, **options), seed, "register")
        if outcome.violation is not None:
            return
    pytest.fail(f"{mutant.__name__} came through {len(SEEDS)} seeds")
