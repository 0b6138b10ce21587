"""The simulator's traces of fixed seeds are those of `traces.json`."""

from __future__ import annotations

import json

import pytest

from tests.campaigns import CAMPAIGN
from tests.sim.traces import FILE, runs, trace


@pytest.mark.parametrize("run", runs()[:: 1 if CAMPAIGN else 4])
def test_a_run_is_as_it_was(run: str) -> None:
    """If a change of behaviour is meant: make traces."""
    assert trace(run) == json.loads(FILE.read_text())[run]


def test_no_run_is_missing() -> None:
    assert list(json.loads(FILE.read_text())) == runs()
