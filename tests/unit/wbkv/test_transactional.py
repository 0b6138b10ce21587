"""Functions that are transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import wbkv
from wbkv import aio
from wbkv.core.transactions import RESERVE_AFTER
from wbkv_proto.v1 import kv_pb2 as kv

from tests.unit.wbkv.model import ADDRESSES, Clock, ModelLink, lost


def test_it_is_repeated_until_nobody_is_in_the_way(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    runs = []

    @wbkv.transactional
    def count(tx: wbkv.Transaction[bytes], key: str, *, by: int) -> int:
        """As it says."""
        runs.append(tx)
        number = int(tx.get(key) or 0) + by
        if len(runs) < 4:
            link.store.put(key.encode(), b"%d" % (10 * len(runs)))
        tx.put(key, b"%d" % number)
        return number

    assert count(client, "n", by=5) == 35
    assert (count.__name__, count.__doc__) == ("count", "As it says.")
    assert len(runs) == 4
    assert len(set(map(id, runs))) == 4
    assert client.get("n") == b"35"


def test_inside_of_another_it_joins(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    @wbkv.transactional
    def put(tx: wbkv.Transaction[bytes], key: str) -> None:
        tx.put(key, b"1")

    @wbkv.transactional
    def both(tx: wbkv.Transaction[bytes]) -> None:
        put(tx, "a")
        put(tx, "b")

    both(client)
    assert len(link.store.log) == 1
    with pytest.raises(KeyError), client.transaction() as tx:  # noqa: PT012 - the block's end raises
        put(tx, "c")
        raise KeyError
    assert client.get("c") is None


def test_who_has_lost_need_not_read_again(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    """A conflict brings what is there now: the next attempt is one message, and sees all of one moment."""
    seen = []

    @wbkv.transactional
    def copy(tx: wbkv.Transaction[bytes]) -> None:
        seen.append((tx.get("a"), tx.get("b")))
        if len(seen) == 1:
            link.store.put(b"a", b"2")
        tx.put("c", tx.get("a") or b"")

    link.store.put(b"a", b"1")
    copy(client)
    assert seen == [(b"1", None), (b"2", None)]
    assert client.get("c") == b"2"
    names = [ask.method.name for ask in link.asked if ask.method.name != "Topology"]
    assert names == ["Get", "Get", "Txn", "Txn", "Get"]


@pytest.mark.parametrize("writes", [True, False])
def test_what_was_told_is_a_read_like_others(
    link: ModelLink, client: wbkv.Client[bytes], *, writes: bool
) -> None:
    runs = []

    @wbkv.transactional
    def both(tx: wbkv.Transaction[bytes]) -> tuple[bytes | None, bytes | None]:
        runs.append(tx.get("a"))
        if len(runs) == 1:
            link.store.put(b"a", b"2")  # the first attempt fails, and is told of this
        elif len(runs) == 2:
            link.store.put(b"a", b"3")  # and what the second one is told does not hold either
        if writes:
            tx.put("c", b"")
        return runs[-1], tx.get("b")

    # Without writes, what was told will do: it is all of one moment, and that was after the beginning.
    assert both(client) == ((b"3" if writes else b"2"), None)


def test_it_ends_in_time(link: ModelLink, clock: Clock, client: wbkv.Client[bytes]) -> None:
    runs = []

    @wbkv.transactional(timeout=2.0)
    def never(tx: wbkv.Transaction[bytes]) -> None:
        runs.append(tx.get("a"))
        link.store.put(b"a", b"%d" % len(runs))
        tx.put("a", b"mine")

    begun = clock.now
    with pytest.raises(wbkv.Aborted, match="still in conflict after"):
        never(client)
    assert 1.0 <= clock.now - begun <= 2.0
    assert 3 < len(runs) < 200  # in fours, with a pause behind each
    with pytest.raises(ValueError, match="timeout"):
        wbkv.transactional(timeout=-1.0)(never)(client)


def test_a_starving_transaction_reserves_what_it_has_read(
    link: ModelLink, clock: Clock, client: wbkv.Client[bytes]
) -> None:
    """At all nodes, before the attempts that follow; the commit says so, and the end releases it."""
    runs = 0

    def reserved() -> list[kv.ReserveRequest]:
        return [ask.request for ask in link.asked if isinstance(ask.request, kv.ReserveRequest)]

    @wbkv.transactional(timeout=60.0)
    def slowly(tx: wbkv.Transaction[bytes]) -> None:
        nonlocal runs
        runs += 1
        tx.get("a")
        list(tx.scan(wbkv.prefix("b")))
        clock.now += 0.3
        if not reserved():
            link.store.put(b"a", b"%d" % runs)
        tx.put("c", b"mine")

    slowly(client)
    assert runs == RESERVE_AFTER + 1
    nodes = len(ADDRESSES)
    taken, released = reserved()[:nodes], reserved()[nodes:]
    for request in taken:
        assert request.keys == [b"a"]
        assert request.ranges[0].interval.start == b"b"
        assert 600 <= request.ttl_ms <= 2000
    for request in released:
        assert (request.ttl_ms, list(request.keys)) == (0, [])
    assert len(released) == nodes
    (name,) = {request.name for request in reserved()}
    commits = [ask.request for ask in link.asked if isinstance(ask.request, kv.TxnRequest)]
    assert [commit.reservation for commit in commits] == [0] * RESERVE_AFTER + [name]


def test_an_exception_counts_only_if_the_reads_hold(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    """It may be caused by nothing but reads of different moments."""
    link.store.put(b"a", b"1")
    link.store.put(b"b", b"1")
    runs: list[tuple[bytes | None, bytes | None]] = []

    @wbkv.transactional
    def compare(tx: wbkv.Transaction[bytes]) -> str:
        a = tx.get("a")
        if not runs:
            link.store.put(b"a", b"2")
            link.store.put(b"b", b"2")
        b = tx.get("b")
        runs.append((a, b))
        if a != b:
            raise RuntimeError("torn")
        return "equal"

    assert compare(client) == "equal"
    assert runs == [(b"1", b"2"), (b"2", b"2")]

    @wbkv.transactional
    def fail(tx: wbkv.Transaction[bytes]) -> None:
        tx.get("a")
        tx.get("b")
        tx.put("w", b"")
        raise RuntimeError("really")

    with pytest.raises(RuntimeError, match="really"):
        fail(client)
    assert client.get("w") is None


def test_other_errors_are_not_retried(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    runs = []

    @wbkv.transactional(timeout=1.0)
    def write(tx: wbkv.Transaction[bytes]) -> None:
        runs.append(tx)
        tx.put("a", b"")

    link.before = lambda asked: lost()
    with pytest.raises(wbkv.OutcomeUnknown):
        write(client)
    assert len(runs) == 1


def test_what_cannot_be_decorated() -> None:
    def generator(tx: Any) -> Iterator[int]:
        yield 1

    async def async_generator(tx: Any) -> AsyncIterator[int]:
        yield 1

    for wrong in (generator, async_generator):
        with pytest.raises(TypeError, match="generator"):
            wbkv.transactional(wrong)
        with pytest.raises(TypeError, match="generator"):
            wbkv.transactional(timeout=1.0)(wrong)
    with pytest.raises(TypeError, match="decorates functions"):
        wbkv.transactional(5)  # type: ignore[call-overload]  # that is the test


def test_wrong_clients(client: wbkv.Client[bytes], aclient: aio.Client[bytes]) -> None:
    ran = []

    @wbkv.transactional
    def plain(tx: wbkv.Transaction[bytes]) -> None:
        ran.append(tx)

    @wbkv.transactional
    async def twin(tx: aio.Transaction[bytes]) -> None:
        ran.append(tx)  # type: ignore[arg-type]  # it never gets here

    for wrong in (aclient, None, "client", aclient.transaction()):
        with pytest.raises(TypeError, match="needs a wbkv client"):
            plain(wrong)  # type: ignore[arg-type]  # that is the test
    for other in (client, None, client.transaction()):
        with pytest.raises(TypeError, match=r"needs a wbkv\.aio client"):
            asyncio.run(twin(other))  # type: ignore[arg-type]  # that is the test
    assert not ran


def test_the_twin_is_repeated_and_joins(link: ModelLink, aclient: aio.Client[bytes]) -> None:
    runs = []

    @wbkv.transactional
    async def inner(tx: aio.Transaction[bytes]) -> int:
        return await tx.add("n", 1)

    @wbkv.transactional(timeout=5.0)
    async def outer(tx: aio.Transaction[bytes]) -> int:
        runs.append(await inner(tx))
        if len(runs) == 1:
            link.store.put(b"n", b"7")
            await tx.get("other")
            raise RuntimeError("only since what it read does not hold")
        return await inner(tx)

    assert asyncio.run(outer(aclient)) == 9
    assert runs == [1, 8]
