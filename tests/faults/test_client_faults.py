"""Clients while nodes are killed, paused and started: nothing lost, nothing twice, no client stuck."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import wbkv
from wbkv import aio

from kvstore.config.addresses import NodeId
from tests.faults.harness import PATIENCE_S, CallLoad, FaultyCluster, until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    found = FaultyCluster(tmp_path_factory.mktemp("faults") / "cluster", 3, 2, durability="os")
    with found:
        assert found.wait_ready(PATIENCE_S)
        yield found


@pytest.fixture
def client(cluster: FaultyCluster) -> Iterator[wbkv.Client[bytes]]:
    assert cluster.wait_ready(PATIENCE_S)
    with wbkv.connect(cluster.addresses, timeout=PATIENCE_S) as found:
        found.delete(wbkv.EVERYTHING)
        yield found


@contextlib.contextmanager
def faulty(cluster: FaultyCluster, node: NodeId, how: str) -> Iterator[Callable[[], None]]:
    """A function that hurts a node. At the end, all is well again."""

    def strike() -> None:
        cluster.hurt("pause" if how == "pause" else "kill", node)
        if how == "restart":
            cluster.start(node)

    try:
        yield strike
    finally:
        if how == "pause":
            cluster.hurt("continue", node)
        elif cluster.pid(node) is None:
            cluster.start(node)
        assert cluster.wait_ready(PATIENCE_S)


@wbkv.transactional
def transfer(tx: wbkv.Transaction[int], source: str, target: str) -> None:
    tx.put(source, (tx.get(source) or 0) - 1)
    tx.put(target, (tx.get(target) or 0) + 1)


@wbkv.transactional
async def transfer_async(tx: aio.Transaction[int], source: str, target: str) -> None:
    tx.put(source, (await tx.get(source) or 0) - 1)
    tx.put(target, (await tx.get(target) or 0) + 1)


@pytest.mark.parametrize("how", ["kill", "restart", "pause"])
def test_threads_go_on(cluster: FaultyCluster, client: wbkv.Client[bytes], how: str) -> None:
    numbers = client.using(wbkv.codecs.INTEGER)
    watched: list[int] = []
    ended = threading.Event()
    begun = client.put("begin", b"")
    watch = client.watch("count/", after=begun)

    def follow() -> None:
        for change in watch:
            watched.extend(e.version for e in change.events if e.key == b"count/a")
        ended.set()

    follower = threading.Thread(target=follow)
    follower.start()
    work = CallLoad(
        lambda: client.add("count/a"),
        lambda: client.add("count/b"),
        lambda: transfer(numbers, "account/1", "account/2"),
        lambda: transfer(numbers, "account/2", "account/3"),
        lambda: list(client.scan("account/")),
    )
    try:
        work.wait_for(5)
        with faulty(cluster, cluster.leader(), how) as strike:
            strike()
            work.wait_for(5)
        work.wait_for(3)
    finally:
        work.finish()
    a, b = client.get_many(["count/a", "count/b"])
    added = int(a or 0) + int(b or 0)
    assert work.done[0] + work.done[1] <= added <= work.done[0] + work.done[1] + work.unknown
    assert sum(value or 0 for value in numbers.get_many(["account/1", "account/2", "account/3"])) == 0
    until(lambda: len(watched) >= int(a or 0))
    watch.close()
    assert ended.wait(PATIENCE_S)
    follower.join()
    assert watched == list(range(1, int(a or 0) + 1))  # every change once, in order


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_tasks_go_on(cluster: FaultyCluster, client: wbkv.Client[bytes], how: str) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(3 * PATIENCE_S),
            aio.connect(cluster.addresses, timeout=PATIENCE_S) as mine,
        ):
            numbers = mine.using(wbkv.codecs.INTEGER)
            stop = asyncio.Event()
            counts = {"adds": 0, "unknown": 0, "transfers": 0, "watched": 0}

            async def keep_adding() -> None:
                while not stop.is_set():
                    try:
                        await mine.add("count/a")
                        counts["adds"] += 1
                    except wbkv.OutcomeUnknown:
                        counts["unknown"] += 1

            async def keep_transferring() -> None:
                while not stop.is_set():
                    await transfer_async(numbers, "account/1", "account/2")
                    counts["transfers"] += 1

            async def follow(watch: aio.Watch[bytes]) -> None:
                async for change in watch:
                    counts["watched"] += len(change.events)

            async def more(adds: int, transfers: int) -> None:
                adds, transfers = adds + counts["adds"], transfers + counts["transfers"]
                while counts["adds"] < adds or counts["transfers"] < transfers:
                    await asyncio.sleep(0.02)

            async with mine.watch("count/", after=await mine.put("begin", b"")) as watch:
                tasks = [asyncio.create_task(keep_adding()) for _ in range(8)]
                tasks += [asyncio.create_task(keep_transferring()) for _ in range(2)]
                following = asyncio.create_task(follow(watch))
                await more(20, 3)
                with faulty(cluster, cluster.leader(1), how) as strike:
                    await asyncio.to_thread(strike)
                    await more(20, 3)
                stop.set()
                await asyncio.gather(*tasks)
                total = int(await mine.get("count/a") or 0)
                assert counts["adds"] <= total <= counts["adds"] + counts["unknown"]
                assert sum(n or 0 for n in await numbers.get_many(["account/1", "account/2"])) == 0
                while counts["watched"] < total:
                    await asyncio.sleep(0.02)
                assert counts["watched"] == total
            await following

    asyncio.run(main())


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_scan_goes_on_elsewhere(cluster: FaultyCluster, client: wbkv.Client[bytes], how: str) -> None:
    """The node that sends it goes away in the middle."""
    keys = [b"scan/%04d" % i for i in range(400)]
    for part in range(0, 400, 50):
        client.txn().then(*(wbkv.put(key, b"x" * 20_000) for key in keys[part : part + 50])).commit()
    scan = client.scan("scan/")
    found = [next(scan).key]
    revision = scan.revision
    client.put("scan/0000", b"later")
    address = client._requests.calls.router.address_for(b"scan/", 0)
    node = next(n for n, (h, p) in cluster.config.api_addresses.items() if f"{h}:{p}" == address)
    with faulty(cluster, node, how) as strike:
        strike()
        found += [entry.key for entry in scan]
    assert found == keys
    assert scan.revision == revision


def test_no_cluster_is_said_in_time(cluster: FaultyCluster, client: wbkv.Client[bytes]) -> None:
    """With one node of three there is no quorum, and then there is no node at all."""
    nodes = list(cluster.config.nodes)
    try:
        cluster.kill(*nodes[:2])
        begun = time.monotonic()
        with pytest.raises(wbkv.OutcomeUnknown):
            client.put("a", b"", timeout=3.0)
        with pytest.raises((wbkv.DeadlineExceeded, wbkv.Unavailable)):
            client.get("a", timeout=3.0)
        cluster.kill(nodes[2])
        with pytest.raises(wbkv.Error) as found:
            client.put("a", b"", timeout=1.0)
        assert isinstance(found.value, wbkv.Unavailable | wbkv.OutcomeUnknown)
        with pytest.raises(wbkv.Unavailable, match="is the cluster up"):
            client.put("a", b"", timeout=1.0)
        with pytest.raises(wbkv.Unavailable):
            wbkv.connect(cluster.addresses)
        assert time.monotonic() - begun < PATIENCE_S  # no more than a bound against hanging
    finally:
        cluster.start(*nodes)
        assert cluster.wait_ready(PATIENCE_S)
    assert client.put("a", b"1")
    assert client.get("a") == b"1"
