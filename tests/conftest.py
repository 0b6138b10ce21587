"""How tests are shared out among processes (`pytest -n 2`)."""

from __future__ import annotations

from typing import Any

import pytest

ONE_SESSION = "tests/pipeline/"
"""Spark starts slowly: all of these share a session, so one process runs them."""
TOGETHER = "tests/unit/"
"""Many and fast: a file at a time."""


def scope_of(nodeid: str) -> str:
    """Tests of the same scope run in one process. (xdist's own groups do nothing with this pytest.)"""
    if nodeid.startswith(ONE_SESSION):
        return ONE_SESSION
    return nodeid.partition("::")[0] if nodeid.startswith(TOGETHER) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # the same
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    return Scheduling(config, log)
