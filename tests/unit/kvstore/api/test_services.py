"""The services over a machine in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.unit.kvstore.api.harness import Client, run
from tests.unit.kvstore.api.scenarios import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[Client], Awaitable[None]]) -> None:
    run(scenario)
