"""Damaged rows among the simulator's faults, and sabotages of what replicas do about them."""

from __future__ import annotations

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

    def bad_groups(self) -> list[GroupId]:
        return []


class PromisesAfterLosingItsState(WhiteBox):
    """A replica without its state goes on as one that has executed nothing."""

    def __init__(self, start: Start) -> None:
        start.durable.executed = Timestamp(0)
        super().__init__(start)


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
