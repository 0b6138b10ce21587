"""The two clients are the same but for `await`: names, parameters and what is said of them."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import wbkv
from wbkv import aio, client, lock

PAIRS: list[tuple[Any, Any]] = [
    (client.Client, aio.Client),
    (client.Txn, aio.Txn),
    (client.Transaction, aio.Transaction),
    (client.Snapshot, aio.Snapshot),
    (client.Scan, aio.Scan),
    (client.Watch, aio.Watch),
    (client.Counter, aio.Counter),
    (lock.Lock, lock.AsyncLock),
]
ONLY_FOR_THREADS = {"batch"}
"""The twin sends together whatever is under way."""
NEVER_WAITS = {
    "using", "scan", "scan_columns", "keys", "changes", "partition_of", "txn", "transaction", "watch",
    "counter", "lock", "snapshot", "timeout", "when", "then", "otherwise", "put", "delete", "rollback",
    "revision", "token", "lost", "holds",
}  # fmt: skip
"""What makes something that is awaited, or only remembers."""


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def words(doc: str | None) -> str:
    """What is said, without what the twins must say differently."""
    assert doc
    text = " ".join(doc.split())
    for mine, other in (
        ("async with", "with"),
        ("StopAsyncIteration", "StopIteration"),
        ("task", "thread"),
        (" of `wbkv.aio`", ""),
    ):
        text = text.replace(mine, other)
    return text


def parameters(function: Any) -> str:
    """As they are written, types included."""
    found = str(inspect.signature(function))
    return re.sub(r"\s*->.*", "", found).replace("AsyncLink", "Link")


@pytest.mark.parametrize(("plain", "twin"), PAIRS, ids=[plain.__name__ for plain, _ in PAIRS])
def test_twins_agree(plain: type, twin: type) -> None:
    mine, theirs = public(plain), public(twin)
    assert mine.keys() - ONLY_FOR_THREADS == theirs.keys()
    if plain is not client.Client:  # whose own text tells what is different
        assert words(plain.__doc__) == words(twin.__doc__)
    for name in theirs:
        one, other = mine[name], theirs[name]
        assert words(one.__doc__) == words(other.__doc__), name
        assert isinstance(one, property) == isinstance(other, property), name
        if callable(one):
            assert parameters(one) == parameters(other), name
            waits = inspect.iscoroutinefunction(other)
            assert not inspect.iscoroutinefunction(one), name
            if name not in NEVER_WAITS:
                assert waits, name


def test_what_returns_differs_in_nothing_but_waiting() -> None:
    for plain, twin in PAIRS:
        for name, one in public(plain).items():
            if name in ONLY_FOR_THREADS or not inspect.isfunction(one):
                continue
            mine = inspect.signature(one).return_annotation
            other = inspect.signature(getattr(twin, name)).return_annotation
            other = re.sub(r"^Opening\[(.*)\]$", r"\1", other).replace("Async", "")
            assert mine == other, (plain, name)


@pytest.mark.parametrize("name", ["connect", "open"])
def test_opening_agrees(name: str) -> None:
    mine, other = getattr(wbkv, name), getattr(aio, name)
    assert parameters(mine) == parameters(other)
    assert other.__doc__


def test_everything_public_is_there_and_says_what_it_is() -> None:
    for name in wbkv.__all__:
        found = getattr(wbkv, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert found.__doc__, name
    for plain, twin in PAIRS:
        for kind in (plain, twin):
            for name, value in public(kind).items():
                if callable(value) or isinstance(value, property):
                    assert value.__doc__, (kind, name)
