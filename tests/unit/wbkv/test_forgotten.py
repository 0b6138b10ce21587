"""Mistakes that would do something else, or nothing, without an error."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import wbkv
from wbkv import aio

from tests.unit.wbkv.model import ModelLink


@pytest.mark.filterwarnings("ignore:.*never awaited:RuntimeWarning")
def test_a_client_that_was_not_awaited() -> None:
    opening: Any = aio.connect("h:1")
    assert repr(copy.copy(opening)) == repr(opening)
    with pytest.raises(
        AttributeError, match=r"wbkv.aio.connect\(...\), not awaited yet> has no 'get': `await` it"
    ):
        opening.get("k")
    with (
        pytest.raises(TypeError, match=r"wbkv.aio.connect\(...\), not awaited yet> needs `async with`"),
        opening,
    ):
        raise AssertionError
    with pytest.raises(TypeError, match=r"wbkv.aio.open\(...\), not awaited yet> needs"), aio.open():  # type: ignore[attr-defined]
        raise AssertionError


def test_an_opening_that_is_dropped_warns() -> None:
    with pytest.warns(RuntimeWarning, match=r"wbkv.aio.connect\(...\), not awaited yet> was never awaited"):
        aio.connect("h:1")


def test_async_was_forgotten(aclient: aio.Client[bytes]) -> None:
    given: list[Any] = [
        aclient, aclient.transaction(), aclient.scan("a"), aclient.keys("a"), aclient.watch("a"),
        aclient.lock("l"),
    ]  # fmt: skip
    for each in given:
        with pytest.raises(TypeError, match=r"<wbkv.aio.* needs `async with`, not `with`"), each:
            raise AssertionError
    for each in (given[2], given[3], given[4]):
        with pytest.raises(TypeError, match=r"<wbkv.aio.* needs `async for`, not `for`"):
            list(each)


def test_a_lock_is_released_once(
    link: ModelLink, client: wbkv.Client[bytes], aclient: aio.Client[bytes]
) -> None:
    lock = client.lock("l")
    with pytest.raises(wbkv.LockLost, match="not held: it was released, or never acquired"):
        lock.release()
    assert lock.acquire()
    lock.release()
    with pytest.raises(wbkv.LockLost, match="not held: it was released, or never acquired"):
        lock.release()
    with lock:
        lock.release()  # early; the end of the block has nothing to do
    assert link.store.at(b"l")[1] is None

    async def main() -> None:
        async with (other := aclient.lock("l")):
            await other.release()
        with pytest.raises(wbkv.LockLost, match="not held"):
            await other.release()

    asyncio.run(main())


def test_what_was_committed_is_not_rolled_back(client: wbkv.Client[bytes]) -> None:
    with client.transaction() as tx:
        tx.put("a", b"1")
        tx.commit()
        with pytest.raises(wbkv.Error, match="was committed: it cannot be rolled back"):
            tx.rollback()
    with pytest.raises(KeyError), client.transaction() as tx:  # noqa: PT012 - the block's end keeps the error
        tx.put("a", b"2")
        tx.commit()
        raise KeyError
    assert client.get("a") == b"2"
