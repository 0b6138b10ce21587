"""A few sequences of faults on real processes: `make sequences` runs all pairs and many triples.

No time is asserted: the campaign measures. Here, service must return, and the innocent client's history hold.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.campaign import BEGIN, END, PAGE, RESULTS, on_page, planned, read
from tests.faults.sequences import OperatedCluster
from tests.sim.sequences import ACTIONS, SEQUENCES

SHORT = [
    ("cut", "restart all", "kill"),
    ("replace", "pause", "cut"),
    ("stop", "wipe"),
    ("wipe", "restart all", "pause"),
]
"""Each action, also beside one that is not dealt with yet."""


@pytest.mark.parametrize("sequence", SHORT, ids=", ".join)
def test_what_has_a_quorum_serves_again(tmp_path: Path, sequence: tuple[str, ...]) -> None:
    outcome = OperatedCluster(tmp_path / "cluster", sequence).check()
    assert len(outcome.said) == len(sequence)


def test_the_campaign_has_all_pairs_and_the_short_form_all_actions() -> None:
    assert len({sequence for sequence in planned(0, 0) if len(sequence) == 2}) == len(ACTIONS) ** 2
    assert set(planned(1000, 0)) == set(SEQUENCES)
    assert {action for sequence in SHORT for action in sequence} == set(ACTIONS)


def test_the_page_has_the_table_of_the_results() -> None:
    text = PAGE.read_text()
    assert BEGIN in text
    assert END in text
    assert on_page(text, read(RESULTS)) == text, "run `python -m tests.faults.campaign --page`"
