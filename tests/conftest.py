"""How tests are shared out among processes (`pytest -n 3`), and in which order."""

from __future__ import annotations

from typing import Any

import pytest

ONE_SESSION = "tests/pipeline/"
"""Spark starts slowly: all of these share a session, so one process runs them."""
ALONE = ("tests/faults/test_processes.py", "tests/faults/test_store_faults.py", "tests/sim/")
"""Each takes long, and makes all that it needs: any process may run it. All other tests of a file stay
together, for they share clusters."""
EARLY = (ONE_SESSION, "tests/faults/", "tests/integration/", "tests/typing/")
"""In this order: what takes long and mostly waits."""
LATE = ("tests/sim/test_store", "tests/sim/")
"""What computes, in pieces that become small: no process is left with much at the end."""


def scope_of(nodeid: str) -> str:
    """Tests of the same scope run in one process. (xdist's own groups do nothing with this pytest.)"""
    if nodeid.startswith(ONE_SESSION):
        return ONE_SESSION
    return nodeid if nodeid.startswith(ALONE) else nodeid.partition("::")[0]


def rank_of(nodeid: str) -> int:
    """What has a lower rank begins earlier."""
    order = (*EARLY, "", *LATE)
    return next((order.index(place) for place in (*EARLY, *LATE) if nodeid.startswith(place)), len(EARLY))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

    config.option.loadscopereorder = False  # by the number of tests, that is: ours are not alike

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # the same
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    return Scheduling(config, log)
