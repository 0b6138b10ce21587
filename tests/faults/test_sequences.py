"""Every sequence of two and three faults and actions leaves a cluster that serves, wherever it can."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaigns import CAMPAIGN
from tests.faults.sequences import OperatedCluster, figures
from tests.sim.sequences import SEQUENCES

PAIRS = [sequence for sequence in SEQUENCES if len(sequence) == 2]
TRIPLES = random.Random(0).sample([sequence for sequence in SEQUENCES if len(sequence) == 3], 100)
"""The simulator runs all of them, faster."""
SHORT = [("cut", "pause"), ("wipe", "restart all")]


@pytest.fixture(scope="module")
def took() -> Iterator[list[float]]:
    """All writes' times: printed at the end, since a busy machine decides them."""
    found: list[float] = []
    yield found
    if found:
        print(f"\nafter faults, partitions with a quorum answer: {figures(found)}")  # noqa: T201 - a figure of the campaign


@pytest.mark.parametrize("sequence", [*PAIRS, *TRIPLES] if CAMPAIGN else SHORT, ids=", ".join)
def test_all_partitions_with_a_quorum_serve(
    tmp_path: Path, sequence: tuple[str, ...], took: list[float]
) -> None:
    cluster = OperatedCluster(tmp_path / "cluster", sequence)
    found = cluster.check()
    took += found
    if found:
        print(f"{cluster.said}: {figures(found)}")  # noqa: T201 - the same
    assert found or sum(action in ("kill", "stop", "cut") for action in sequence) >= 2, "it cannot serve"
