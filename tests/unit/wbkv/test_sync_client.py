"""The client for threads is generated from the one for event loops."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import wbkv
from tools.sync_client import MODULES, WBKV, generate
from wbkv import aio, batching, lock

PUBLIC: list[Any] = [*map(wbkv.__dict__.get, wbkv.__all__), *map(aio.__dict__.get, aio.__all__)]


def source_of(name: str) -> str:
    return (WBKV / "aio" / f"{name}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MODULES)
def test_what_is_committed_is_what_is_generated(name: str) -> None:
    committed = (WBKV / f"{name}.py").read_text(encoding="utf-8")
    assert generate(name, source_of(name)) == committed, "run `make sync-client`"


def test_a_change_of_the_source_changes_what_is_generated() -> None:
    source = source_of("lock")
    changed = source.replace("timeout: float | None = None", "timeout: float | None = 1.0")
    assert generate("lock", source) != generate("lock", changed)
    with pytest.raises(ValueError, match=r"aio/client\.py has 0 times, not once: '.*one event loop"):
        generate("client", source_of("client").replace("one event loop", "an event loop"))


@pytest.mark.parametrize("found", [*PUBLIC, lock.Lock, batching.Batch])
def test_everything_public_says_what_it_is(found: Any) -> None:
    if inspect.isclass(found) or inspect.isfunction(found):
        assert found.__doc__
    if inspect.isclass(found):
        for name, value in inspect.getmembers(found):
            if not name.startswith("_") and (callable(value) or isinstance(value, property)):
                assert value.__doc__, name
