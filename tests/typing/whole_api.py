"""A program that uses the whole client: what a type checker must know of every result. It is not run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import assert_type

import wbkv
from wbkv import aio

Result = wbkv.Entry[bytes] | wbkv.Scanned[bytes] | wbkv.Failed | int | None


def calls(client: wbkv.Client[bytes]) -> None:
    assert_type(client.get("a"), bytes | None)
    assert_type(client.get(b"a", revision=3, consistency="serializable", timeout=1.0), bytes | None)
    assert_type(client.entry("a"), wbkv.Entry[bytes] | None)
    assert_type(client.get_many(["a", b"b"]), list[bytes | None])
    assert_type(client.put("a", b""), int)
    assert_type(client.delete("a"), int)
    assert_type(client.delete(wbkv.prefix("a")), int)
    assert_type(client.append("a", b""), int)
    assert_type(client.add("a", 2), int)
    assert_type(client.count(wbkv.EVERYTHING), int)
    assert_type(client.timeout, float)
    with client.scan("a", limit=1, reverse=True) as scan:
        assert_type(scan, wbkv.Scan[wbkv.Entry[bytes]])
        assert_type(scan.revision, int)
        for entry in scan:
            assert_type(entry, wbkv.Entry[bytes])
            assert_type(entry.key, bytes)
            assert_type(entry.value, bytes)
            assert_type(entry.mod_revision, int)
    assert_type(list(client.keys("a")), list[bytes])
    result = client.txn().when(wbkv.exists("a"), wbkv.value("a") == b"").then(wbkv.get("a")).commit()
    assert_type(result, wbkv.TxnResult[bytes])
    assert_type(result.results, tuple[Result, ...])
    assert_type(result.unmet, tuple[int, ...])
    assert_type(result.succeeded, bool)
    counter = client.counter("n")
    assert_type(counter.add(3), int)
    assert_type(counter.value(), int)
    client.compact(7)
    assert_type(client.topology(), wbkv.Topology)
    assert_type(client.status(), list[wbkv.NodeStatus])


def traces() -> None:
    with (
        wbkv.Trace("traces", scenario="transfers", protocol="whitebox", clients=4) as trace,
        wbkv.connect(trace=trace) as client,
        wbkv.open(codec=wbkv.codecs.TEXT, trace=trace) as text,
        wbkv.scenario("audit"),
    ):
        assert_type(trace, wbkv.Trace)
        assert_type(trace.run, str)
        assert_type(client, wbkv.Client[bytes])
        assert_type(text, wbkv.Client[str])
        trace.mark("crash", node="n1", group=0)
        trace.flush()


def codecs(client: wbkv.Client[bytes]) -> None:
    assert_type(client.using(wbkv.codecs.TEXT), wbkv.Client[str])
    assert_type(client.using(wbkv.codecs.INTEGER).get("a"), int | None)
    json = client.using(wbkv.codecs.JSON).get("a")
    if isinstance(json, dict):
        assert_type(json, dict[str, wbkv.codecs.Json])
    with wbkv.connect(codec=wbkv.codecs.TEXT) as text, wbkv.connect() as plain, wbkv.open("path") as embedded:
        assert_type(text, wbkv.Client[str])
        assert_type(plain, wbkv.Client[bytes])
        assert_type(embedded, wbkv.Client[bytes])


def blocks(client: wbkv.Client[str]) -> None:
    with client.transaction(timeout=1.0) as tx:
        assert_type(tx, wbkv.Transaction[str])
        assert_type(tx.get("a"), str | None)
        assert_type(tx.entry("a"), wbkv.Entry[str] | None)
        assert_type(tx.get_many(["a"]), list[str | None])
        assert_type(tx.scan("a"), Iterator[wbkv.Entry[str]])
        tx.put("a", "x")
        tx.delete("a")
        assert_type(tx.add("n"), int)
        assert_type(tx.append("a", "x"), int)
        assert_type(tx.holds(), bool)
        assert_type(tx.revision, int)
    assert_type(next(client.scan_columns(partitions=[0], values=False)).key_ends, bytes)
    assert_type(client.splits("a", 8)[0].keys, wbkv.KeyRange)
    assert_type(next(client.changes(after=1, until=client.revision())), wbkv.Change[str])
    assert_type(client.partition_of("a"), int)
    client.txn(id=wbkv.RequestId(1, 1, wbkv.later(1, 60.0))).then(wbkv.put("a", "1")).commit()
    with client.snapshot(ttl=5.0, name="mine", revision=7) as snapshot:
        client.release(snapshot.name)
        assert_type(snapshot.get("a"), str | None)
        assert_type(snapshot.entry("a"), wbkv.Entry[str] | None)
        assert_type(snapshot.get_many(["a"]), list[str | None])
        assert_type(snapshot.scan("a"), wbkv.Scan[wbkv.Entry[str]])
        assert_type(snapshot.keys("a"), wbkv.Scan[bytes])
        assert_type(snapshot.count("a"), int)
        assert_type(snapshot.revision, int)
    with client.watch("a", wbkv.between("c", "d"), after=snapshot.revision, progress=True) as watch:
        for change in watch:
            assert_type(change, wbkv.Change[str])
            assert_type(change.events[0].value, str | None)
        assert_type(watch.next(timeout=1.0), wbkv.Change[str] | None)
        assert_type(watch.revision, int)
    with client.lock("l", ttl=5.0) as held:
        assert_type(held.token, int)
        assert_type(held.holds(), wbkv.Condition)
        assert_type(held.lost, bool)
        assert_type(held.acquire(timeout=1.0), bool)
        held.release()
    with client.batch() as batch:
        assert_type(batch.put("a", "x"), Future[int])
        assert_type(batch.get("a"), Future[str | None])
        assert_type(batch.transact(wbkv.get("a"), when=[wbkv.exists("a")]), Future[wbkv.TxnResult[str]])
        batch.wait()


@wbkv.transactional
def transfer(tx: wbkv.Transaction[int], source: str, amount: int = 1) -> int:
    tx.put(source, amount)
    return amount


@wbkv.transactional(timeout=5.0)
def look(tx: wbkv.Transaction[int]) -> str:
    return str(transfer(tx, "a"))


@wbkv.transactional
async def transfer_async(tx: aio.Transaction[int], source: str) -> int:
    tx.put(source, 1)
    return await tx.get(source) or 0


def functions(client: wbkv.Client[int]) -> None:
    assert_type(transfer(client, "a", amount=3), int)
    assert_type(look(client), str)


async def twin(client: aio.Client[bytes]) -> None:
    assert_type(await client.get("a"), bytes | None)
    assert_type(await client.entry("a"), wbkv.Entry[bytes] | None)
    assert_type(await client.get_many(["a"]), list[bytes | None])
    assert_type(await client.put("a", b""), int)
    assert_type(await client.delete(wbkv.EVERYTHING), int)
    assert_type(await client.append("a", b""), int)
    assert_type(await client.add("a"), int)
    assert_type(await client.count("a"), int)
    async with client.scan("a") as scan:
        async for entry in scan:
            assert_type(entry, wbkv.Entry[bytes])
    assert_type([key async for key in client.keys("a")], list[bytes])
    assert_type(await client.txn().then(wbkv.put("a", b"")).commit(), wbkv.TxnResult[bytes])
    async with client.transaction() as tx:
        assert_type(await tx.get("a"), bytes | None)
        assert_type(tx.scan("a"), AsyncIterator[wbkv.Entry[bytes]])
    assert_type(await anext(client.scan_columns()), wbkv.Columns)
    assert_type(await client.splits(), list[wbkv.Split])
    assert_type(await anext(client.changes(after=1, until=await client.revision())), wbkv.Change[bytes])
    async with client.snapshot() as snapshot:
        assert_type(await snapshot.get("a"), bytes | None)
    assert_type(await client.snapshot(), aio.Snapshot[bytes])
    async with client.watch("a") as watch:
        async for change in watch:
            assert_type(change, wbkv.Change[bytes])
        assert_type(await watch.next(timeout=1.0), wbkv.Change[bytes] | None)
    async with client.lock("l") as held:
        assert_type(held.token, int)
    assert_type(await client.counter("n").value(), int)
    assert_type(await client.status(), list[wbkv.NodeStatus])
    assert_type(await transfer_async(client.using(wbkv.codecs.INTEGER), "a"), int)
    async with aio.connect("h:1", codec=wbkv.codecs.TEXT) as text, aio.open(trace=None) as embedded:
        assert_type(text, aio.Client[str])
        assert_type(embedded, aio.Client[bytes])
    assert_type(await aio.connect(), aio.Client[bytes])
