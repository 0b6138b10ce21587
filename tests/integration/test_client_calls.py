"""Every call of both clients, on a real cluster."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import wbkv
from wbkv import aio
from wbkv.core.transactions import RESERVE_AFTER

from kvstore.local.cluster import LocalCluster

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("client") / "cluster"
    with LocalCluster(data, 3, 3, durability="os", restart=False) as cluster:
        assert cluster.wait_ready(PATIENCE_S)
        yield ",".join(f"{host}:{port}" for host, port in cluster.config.api_addresses.values())
    for node in cluster.config.nodes:
        assert "Traceback" not in cluster.log(node).read_text()


@pytest.fixture
def client(endpoints: str) -> Iterator[wbkv.Client[bytes]]:
    with wbkv.connect(endpoints, timeout=PATIENCE_S) as found:
        found.delete(wbkv.EVERYTHING)
        yield found


def run(endpoints: str, test: Callable[[aio.Client[bytes]], Awaitable[None]]) -> None:
    """The test, with a client of the other kind."""

    async def main() -> None:
        async with asyncio.timeout(2 * PATIENCE_S), aio.connect(endpoints, timeout=PATIENCE_S) as client:
            await client.delete(wbkv.EVERYTHING)
            await test(client)

    asyncio.run(main())


def test_single_calls(client: wbkv.Client[bytes]) -> None:
    assert client.get("a") is None
    assert client.entry("a") is None
    first = client.put("a", b"1")
    second = client.put("a", b"2")
    assert first < second
    assert client.get("a") == b"2"
    assert client.entry("a") == wbkv.Entry(b"a", b"2", first, second, 2)
    assert client.get("a", revision=first) == b"1"
    assert client.get("a", consistency="serializable") == b"2"
    assert client.get_many(["b", "a", "a"]) == [None, b"2", b"2"]
    assert client.get_many(["b", "a"], revision=first) == [None, b"1"]
    assert client.get_many([]) == []
    assert client.append("a", b"34") == 3
    assert client.add("n", 5) == 5
    assert client.add("n", -7) == -2
    with pytest.raises(wbkv.OperationFailed) as failed:
        client.add("text" if client.put("text", b"x") else "", 1)
    assert failed.value.fault == "not a number"
    assert client.delete("a") == 1
    assert client.delete("a") == 0
    assert client.counter("n").add(3) == 1
    assert client.counter("n").value() == 1
    assert client.counter("none").value() == 0
    assert client.delete(wbkv.prefix("t")) == 1
    assert client.using(wbkv.codecs.JSON).put("j", {"a": [1]})
    assert client.using(wbkv.codecs.JSON).get("j") == {"a": [1]}


def test_scans(client: wbkv.Client[bytes]) -> None:
    keys = [b"k%03d" % i for i in range(300)]
    result = client.txn().then(*(wbkv.put(key, b"v" * 100) for key in keys)).commit()
    assert list(client.keys("k")) == keys
    scan = client.scan("k", limit=10, reverse=True)
    assert [entry.key for entry in scan] == keys[:-11:-1]
    assert scan.revision >= result.revision
    assert client.count("k1") == 100
    assert client.count(wbkv.EVERYTHING) == 300
    assert [e.key for e in client.scan(wbkv.between("k005", "k008"))] == keys[5:8]
    assert list(client.scan("none")) == []
    client.delete(wbkv.prefix("k0"))
    assert client.count("k", revision=result.revision) == 300
    assert client.count("k", consistency="serializable") == 200


def test_the_longest_keys(client: wbkv.Client[bytes]) -> None:
    size = client.topology().limits["key_bytes"]
    keys = sorted([b"k" * size, b"k" * (size - 1) + b"l", b"\xff" * size])
    client.txn().then(*(wbkv.put(key, b"") for key in keys)).commit()
    assert list(client.keys(wbkv.EVERYTHING)) == keys
    with client.transaction() as tx:
        assert [e.key for e in tx.scan("k", limit=1)] == [keys[0]]
        tx.put("w", b"")
    with pytest.raises(wbkv.LimitExceeded):
        client.put(b"k" * (size + 1), b"")


def test_limits(client: wbkv.Client[bytes]) -> None:
    limits = client.topology().limits
    with pytest.raises(wbkv.LimitExceeded, match="value_bytes"):
        client.put("a", b"x" * (limits["value_bytes"] + 1))
    with pytest.raises(wbkv.LimitExceeded, match="message_bytes"):
        client.put("a", b"x" * limits["message_bytes"])
    with pytest.raises(wbkv.InvalidRequest, match="empty"):
        client.put("", b"")
    with pytest.raises(wbkv.InvalidRequest, match="empty"):
        client.txn().commit()
    assert client.get("a") is None


def test_transactions(client: wbkv.Client[bytes]) -> None:
    txn = client.txn().when(wbkv.absent("a")).then(
        wbkv.put("a", b"1"), wbkv.get("a"), wbkv.add("n", 2), wbkv.maximum("n", 9), wbkv.minimum("n", 4),
        wbkv.append("l", b"xy"), wbkv.scan("a"), wbkv.delete("l"), wbkv.delete(wbkv.prefix("q")),
        wbkv.swap("s", b"new"),
    ).otherwise(wbkv.get("a"))  # fmt: skip
    result = txn.commit()
    assert result.succeeded
    entry = wbkv.Entry(b"a", b"1", result.revision, result.revision, 1)
    scanned = wbkv.Scanned((entry,), 1, more=False)
    assert result.results == (None, entry, 2, 9, 4, 2, scanned, 1, 0, None)
    again = txn.commit()
    assert (again.succeeded, again.unmet, again.results) == (False, (0,), (entry,))
    with pytest.raises(wbkv.OperationFailed) as failed:
        client.txn().then(wbkv.put("b", b""), wbkv.add("a", 2**63 - 1), wbkv.add("n", -9, floor=0)).commit()
    assert failed.value.failures == (
        wbkv.Failure(1, b"a", "overflow", otherwise=False),
        wbkv.Failure(2, b"n", "below floor", otherwise=False),
    )  # fmt: skip
    assert client.get_many(["b", "n"]) == [None, b"4"]
    reads = client.txn().when(wbkv.value("a") == b"1", wbkv.version("a") < 2).then(wbkv.get("n")).commit()
    assert reads.succeeded
    assert client.txn().when(wbkv.unchanged("a", since=reads.revision)).commit().succeeded


@wbkv.transactional
def transfer(tx: wbkv.Transaction[int], source: str, target: str, amount: int) -> int:
    left = (tx.get(source) or 0) - amount
    tx.put(source, left)
    tx.put(target, (tx.get(target) or 0) + amount)
    return left


@wbkv.transactional
async def transfer_async(tx: aio.Transaction[int], source: str, target: str, amount: int) -> int:
    left = (await tx.get(source) or 0) - amount
    tx.put(source, left)
    tx.put(target, (await tx.get(target) or 0) + amount)
    return left


def test_interactive_transactions(client: wbkv.Client[bytes]) -> None:
    with client.transaction() as tx:
        assert tx.get("a") is None
        tx.put("a", b"1")
        assert tx.add("n", 3) == 3
        assert [e.key for e in tx.scan(wbkv.EVERYTHING)] == [b"a", b"n"]
    assert client.entry("a") == wbkv.Entry(b"a", b"1", tx.revision, tx.revision, 1)
    with client.transaction() as tx:
        assert len(list(tx.scan("p/"))) == 0
        tx.put("w", b"")
        client.put("p/1", b"phantom")
        with pytest.raises(wbkv.Aborted):
            tx.commit()
    with client.transaction() as tx:  # only reads, at two moments
        tx.get("a")
        client.put("a", b"2")
        tx.get("n")
        assert not tx.holds()
        tx.rollback()
    assert client.get("w") is None


def test_transfers_by_many_threads_keep_the_sum(client: wbkv.Client[bytes]) -> None:
    numbers = client.using(wbkv.codecs.INTEGER)
    names = [f"account/{i}" for i in range(4)]
    for name in names:
        numbers.put(name, 100)

    def work(seed: int) -> None:
        for i in range(12):
            transfer(numbers, names[(seed + i) % 4], names[(seed + 2 * i + 1) % 4], 1 + i)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert sum(value or 0 for value in numbers.get_many(names)) == 400


def test_snapshots_and_compaction(client: wbkv.Client[bytes]) -> None:
    client.put("a", b"1")
    with client.snapshot(ttl=30.0) as snapshot:
        now = client.put("a", b"2")
        client.put("b", b"2")
        assert snapshot.get("a") == b"1"
        assert snapshot.entry("b") is None
        assert snapshot.get_many(["a", "b"]) == [b"1", None]
        assert list(snapshot.keys(wbkv.EVERYTHING)) == [b"a"]
        assert [e.value for e in snapshot.scan("a")] == [b"1"]
        assert snapshot.count(wbkv.EVERYTHING) == 1
        with pytest.raises(wbkv.Pinned):
            client.compact(now)
    client.compact(now)
    for read in (
        lambda: client.get("a", revision=snapshot.revision),
        lambda: client.get_many(["a", "b"], revision=snapshot.revision),
        lambda: list(client.scan("a", revision=snapshot.revision)),
        lambda: client.watch("a", after=snapshot.revision).next(),
    ):
        with pytest.raises(wbkv.Compacted) as found:
            read()
        assert found.value.revision == now
    later = client.put("a", b"3")
    assert client.compact(keep=3600.0) < now  # that much is not there any more
    assert client.get("a", revision=now) == b"2"
    kept = client.compact(keep=0)
    assert kept >= later
    with pytest.raises(wbkv.Compacted):
        client.get("a", revision=now)
    assert client.get("a", revision=client.revision()) == b"3"
    with pytest.raises(ValueError, match="pass a revision or keep, not both"):
        client.compact(now, keep=1.0)
    with pytest.raises(ValueError, match="keep must be a number of seconds, not -1"):
        client.compact(keep=-1)
    with pytest.raises(wbkv.FutureRevision):
        client.get("a", revision=2**52)
    with pytest.raises(wbkv.FutureRevision):
        client.get_many(["a", "b"], revision=2**52)


def test_watches(client: wbkv.Client[bytes]) -> None:
    before = client.put("w/0", b"0")
    with client.watch("w/", "v/") as watch:
        assert watch.revision >= before
        assert watch.next(timeout=0.0) is None
        first = client.txn().then(wbkv.put("w/1", b"1"), wbkv.put("v/1", b"1"), wbkv.put("x", b"")).commit()
        client.put("x", b"")
        second = client.txn().then(wbkv.delete("w/1")).commit()
        change = watch.next(timeout=PATIENCE_S)
        assert change == wbkv.Change(
            first.revision,
            (wbkv.Event(b"v/1", b"1", first.revision, 1), wbkv.Event(b"w/1", b"1", first.revision, 1)),
        )
        assert watch.revision == first.revision
        change = next(watch)
        assert (change.revision, change.events[0].value) == (second.revision, None)
    with client.watch("w/", after=before) as watch:
        assert [next(watch).revision, next(watch).revision] == [first.revision, second.revision]
    with client.watch("none", progress=True) as watch:
        marks = [next(watch), next(watch)]
    assert marks[0].revision <= marks[1].revision
    assert marks[1].events == ()


def test_a_watch_can_be_closed_by_another_thread(client: wbkv.Client[bytes]) -> None:
    watch = client.watch("never")
    watch.__enter__()
    threads = ThreadPoolExecutor(1)
    following = threads.submit(lambda: list(watch))
    watch.close()
    assert following.result(PATIENCE_S) == []
    threads.shutdown()


def test_locks(client: wbkv.Client[bytes]) -> None:
    other = client.lock("lock", ttl=30.0)
    with client.lock("lock", ttl=30.0) as held:
        entry = client.entry("lock")
        assert entry is not None
        assert entry.create_revision == held.token > 0
        assert not other.acquire(timeout=0.0)
        assert client.txn().when(held.holds()).then(wbkv.put("guarded", b"")).commit().succeeded
        condition = held.holds()
    assert not client.txn().when(condition).then(wbkv.put("guarded", b"")).commit().succeeded
    assert other.acquire(timeout=PATIENCE_S)
    assert other.token > entry.create_revision
    other.release()


def test_a_lock_is_renewed_and_taken_over(client: wbkv.Client[bytes]) -> None:
    """A machine that stalls for longer than the time to live loses the lock, and knows it: then another time
    to live is tried.
    """
    for ttl in (0.6, 2.4, 9.6):
        dead = client.lock("lock", ttl=ttl)
        assert dead.acquire()
        waiter = client.lock("lock", ttl=ttl)
        if not waiter.acquire(timeout=3 * ttl):  # it is renewed all the time
            break
        assert dead.lost
        waiter.release()
    else:
        pytest.fail("renewals were late three times")
    dead._stop_renewing()  # and now it is not any more
    with client.lock("lock", ttl=5.0) as held:
        assert dead.lost
        entry = client.entry("lock")
        assert entry is not None
        assert held.token == entry.create_revision > dead.token
        with pytest.raises(wbkv.LockLost):
            dead.release()


def test_a_node_that_is_slow_to_accept_connections_is_not_down(endpoints: str) -> None:
    """It is busy, or far away: a connection takes 200 ms."""
    host, port = endpoints.split(",")[0].rsplit(":", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def forward(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    target.sendall(data)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    one, _ = server.accept()
                    threading.Event().wait(0.2)
                    other = socket.create_connection((host, int(port)))
                    for pair in ((one, other), (other, one)):
                        threading.Thread(target=forward, args=pair, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        with wbkv.connect(f"127.0.0.1:{server.getsockname()[1]}") as client:
            assert client.get("none") is None


def test_batches(client: wbkv.Client[bytes]) -> None:
    with client.batch() as batch:
        puts = [batch.put(f"p/{i}", b"%d" % i) for i in range(2000)]
        adds = [batch.add("n") for _ in range(100)]
        batch.wait()
        gets = [batch.get(f"p/{i}") for i in range(2000)]
        many = batch.get_many(["p/1", "none"])
        entry = batch.entry("p/7")
        txn = batch.transact(wbkv.append("l", b"x"), when=[wbkv.absent("l")])
        wrong = batch.add("p/none" if client.put("p/none", b"x") else "")
    assert [future.result() for future in gets] == [b"%d" % i for i in range(2000)]
    assert sorted(future.result() for future in adds) == list(range(1, 101))
    assert len({future.result() for future in puts}) == 2000
    assert many.result() == [b"1", None]
    assert entry.result() is not None
    assert txn.result().succeeded
    assert isinstance(wrong.exception(), wbkv.OperationFailed)
    with pytest.raises(wbkv.ClientClosed):
        batch.get("a")
    assert client.count("p/") == 2001


def test_a_batchs_futures_can_be_cancelled(client: wbkv.Client[bytes]) -> None:
    with client.batch() as batch:
        futures = [batch.put(f"c/{i}", b"") for i in range(500)]
        cancelled = [future for future in futures if future.cancel()]
    done = [future for future in futures if not future.cancelled()]
    assert len(done) + len(cancelled) == 500
    assert all(future.result() for future in done)
    assert client.count("c/") == len(done)


def test_the_cluster(client: wbkv.Client[bytes], endpoints: str) -> None:
    topology = client.topology()
    assert sorted(topology.nodes.values()) == sorted(endpoints.split(","))
    assert [partition.id for partition in topology.partitions] == [0, 1, 2]
    statuses = client.status()
    assert [status.name for status in statuses] == ["n1", "n2", "n3"]
    assert all(status.partitions is not None and len(status.partitions) == 3 for status in statuses)


def test_many_threads_share_a_client(client: wbkv.Client[bytes]) -> None:
    def work(number: int) -> int:
        for i in range(20):
            client.put(f"t/{number}/{i}", b"%d" % i)
            assert client.get(f"t/{number}/{i}") == b"%d" % i
        return client.count(f"t/{number}/")

    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(work, range(12))) == [20] * 12


def test_closing_ends_everything(endpoints: str) -> None:
    client = wbkv.connect(endpoints, timeout=PATIENCE_S)
    watch = client.watch("never")
    watch.__enter__()
    errors: list[BaseException] = []
    begun = threading.Barrier(4)

    def keep(call: Callable[[], object]) -> None:
        begun.wait()
        try:
            while True:
                call()
        except wbkv.Error as error:
            errors.append(error)

    calls = (lambda: client.put("a", b""), lambda: client.get("a"), lambda: next(watch))
    threads = [threading.Thread(target=keep, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    begun.wait()
    client.close()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert [type(error) for error in errors] == [wbkv.ClientClosed] * 3
    client.close()
    for call in (lambda: client.get("a"), lambda: list(client.scan("a")), client.batch):
        with pytest.raises(wbkv.ClientClosed):
            call()


# The twin


def test_the_twins_calls(endpoints: str) -> None:
    async def test(client: aio.Client[bytes]) -> None:
        first = await client.put("a", b"1")
        second = await client.put("a", b"2")
        assert await client.entry("a") == wbkv.Entry(b"a", b"2", first, second, 2)
        assert await client.get("a", revision=first) == b"1"
        assert await client.get_many(["b", "a"]) == [None, b"2"]
        assert await client.append("a", b"34") == 3
        assert await client.add("n", 5) == 5
        assert await client.counter("n").add(3) == 8
        assert await client.counter("n").value() == 8
        assert await client.delete("a") == 1
        result = await client.txn().when(wbkv.absent("a")).then(wbkv.get("n")).commit()
        assert result.succeeded
        await asyncio.gather(*(client.put(f"g/{i}", b"") for i in range(1000)))
        assert await client.count("g/") == 1000
        assert len([entry async for entry in client.scan("g/")]) == 1000
        assert [key async for key in client.keys("g/1", limit=1, reverse=True)] == [b"g/199"]
        async with client.transaction() as tx:
            assert await tx.add("n", 2) == 10
            assert len([e async for e in tx.scan("g/99")]) == 11
        async with client.snapshot() as snapshot:
            await client.put("n", b"0")
            assert await snapshot.get("n") == b"10"
            assert await snapshot.count("g/") == 1000
        async with client.watch("w/") as watch:
            assert await watch.next(timeout=0.0) is None
            revision = await client.put("w/1", b"")
            change = await anext(watch)
            assert change.revision == watch.revision == revision
        async with client.lock("lock") as held:
            assert held.token
            assert not await client.lock("lock").acquire(timeout=0.0)
        with contextlib.suppress(wbkv.Pinned):  # by a watch of another test, which has just ended
            await client.compact(revision)
        assert len((await client.topology()).nodes) == 3
        assert len(await client.status()) == 3
        with pytest.raises(wbkv.LimitExceeded):
            await client.put("a", b"x" * (4 << 20))

    run(endpoints, test)


def test_the_twins_transfers_keep_the_sum(endpoints: str) -> None:
    async def test(client: aio.Client[bytes]) -> None:
        numbers = client.using(wbkv.codecs.INTEGER)
        names = [f"account/{i}" for i in range(8)]
        await asyncio.gather(*(numbers.put(name, 100) for name in names))
        pairs = [(names[i % 8], names[(3 * i + 1) % 8]) for i in range(60)]
        await asyncio.gather(*(transfer_async(numbers, a, b, 1) for a, b in pairs if a != b))
        assert sum(value or 0 for value in await numbers.get_many(names)) == 800

    run(endpoints, test)


def test_cancelling_leaves_everything_usable(endpoints: str) -> None:
    async def test(client: aio.Client[bytes]) -> None:
        for i in range(30):
            tasks = [asyncio.create_task(client.put(f"c/{j}", b"%d" % i)) for j in range(20)]
            for _ in range(i % 4):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, int) for each in found[1::2])
        async with client.watch("w/") as watch:
            for i in range(30):
                waiting = asyncio.create_task(watch.next())
                for _ in range(i % 5):
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
                revision = await client.put("w/1", b"%d" % i)
                change = await watch.next(timeout=PATIENCE_S)
                assert change is not None
                assert change.revision == revision
        scan = client.scan("c/")
        assert (await anext(scan)).key == b"c/0"
        await scan.close()
        assert await client.count("c/") >= 10

    run(endpoints, test)


def test_closing_the_twin_ends_everything(endpoints: str) -> None:
    async def main() -> None:
        client = await aio.connect(endpoints, timeout=PATIENCE_S)
        watch = client.watch("never")
        await watch.__aenter__()
        tasks = [asyncio.create_task(client.put(f"c/{i}", b"")) for i in range(50)]
        tasks.append(asyncio.create_task(watch.next()))  # type: ignore[arg-type]  # what it gives is not looked at
        await asyncio.sleep(0)
        await client.close()
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
        assert all(isinstance(each, int | wbkv.ClientClosed) for each in found)
        assert isinstance(found[-1], wbkv.ClientClosed)
        with pytest.raises(wbkv.ClientClosed):
            await client.get("a")
        with pytest.raises(wbkv.ClientClosed):
            [e async for e in client.scan("a")]
        await client.close()

    asyncio.run(main(), debug=True)


def test_the_twin_belongs_to_its_loop(endpoints: str) -> None:
    async def opened() -> aio.Client[bytes]:
        client = await aio.connect(endpoints)
        await client.put("a", b"")
        return client

    with asyncio.Runner() as mine, asyncio.Runner() as other:
        client = mine.run(opened())
        with pytest.raises(RuntimeError, match="another event loop"):
            other.run(client.get("a"))
        assert mine.run(client.get("a")) == b""
        mine.run(client.close())


def test_a_slow_transaction_beside_fast_writers_commits(endpoints: str) -> None:
    """Without a reservation it found no moment in which its key did not change, and gave up."""
    attempts = 0
    stop = threading.Event()

    def write(client: wbkv.Client[bytes]) -> None:
        while not stop.is_set():
            client.add("hot", 1)

    def slowly(tx: wbkv.Transaction[bytes]) -> int:
        nonlocal attempts
        attempts += 1
        found = int(tx.get("hot") or b"0")
        time.sleep(0.2)
        tx.put("slow", b"%d" % found)
        return found

    with wbkv.connect(endpoints, timeout=PATIENCE_S) as client:
        threads = [threading.Thread(target=write, args=(client,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            found = wbkv.transactional(slowly)(client)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert client.get("slow") == b"%d" % found
        assert attempts <= 2 * RESERVE_AFTER
        before = client.get("hot")
        assert client.add("hot", 1) == int(before or b"") + 1  # the reservation has ended


# Processes of their own


def in_process(endpoints: str, program: str, *, strict: bool = True) -> str:
    """What the program prints. Nothing may be left, or warned of."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program), endpoints]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)  # noqa: S603 - ours
    assert done.returncode == 0, done.stderr
    assert not strict or not done.stderr
    return done.stdout


def test_nothing_is_left_behind(endpoints: str) -> None:
    program = """
        import asyncio, gc, sys, threading, wbkv
        with wbkv.connect(sys.argv[1]) as client:
            client.put("a", b"1")
            assert next(client.scan(wbkv.EVERYTHING))
            with client.watch("a") as watch, client.lock("lock") as held, client.snapshot() as snapshot:
                client.put("a", b"2")
                assert watch.next(timeout=30)
            with client.batch() as batch:
                batch.get("a")
        for thread in threading.enumerate():
            if thread.name.startswith("wbkv"):
                thread.join(30)
                assert not thread.is_alive(), thread

        async def main():
            async with wbkv.aio.connect(sys.argv[1]) as client:
                await asyncio.gather(*(client.put(f"g/{i}", b"") for i in range(100)))
                async for entry in client.scan("g/"):
                    break
                async with client.watch("a") as watch, client.lock("lock"), client.snapshot():
                    await client.put("a", b"3")
                    assert await watch.next(timeout=30)
            for _ in range(20):
                await asyncio.sleep(0.01)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, left
        asyncio.run(main(), debug=True)
        gc.collect()
    """
    in_process(endpoints, program)


def test_only_what_it_needs_is_loaded(endpoints: str) -> None:
    """Grpc and protobuf, and not what happens to be installed beside them."""
    program = """
        import sys
        import wbkv
        client = wbkv.connect(sys.argv[1])
        client.get("a"), list(client.scan("a")), client.batch().close()
        client.close()
        roots = {name.partition(".")[0] for name in sys.modules}
        roots -= set(sys.stdlib_module_names) | {"__main__", "__mp_main__"}
        print(*sorted(roots))
        print(*sorted(name for name in sys.modules if name.startswith("google.")))
    """
    roots, google = in_process(endpoints, program).splitlines()
    allowed = {"google", "grpc", "typing_extensions", "wbkv", "wbkv_proto", "cython_runtime"}
    allowed |= {"grpc_health", "grpc_reflection", "grpc_tools"}  # which grpc looks for itself
    found = {root for root in roots.split() if not root.startswith(("_", "sitecustomize"))}
    assert found - allowed == set()
    assert {name.split(".")[1] for name in google.split()} <= {"protobuf", "_upb"}


FORKS = """
import asyncio, multiprocessing, os, signal, sys, threading, wbkv

def in_child(do):
    "What it says. The child must end by itself: gRPC may neither crash nor block it."
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            do()
            os.write(writing, b"done")
        except BaseException as error:
            os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    return said
"""


def test_a_fork_goes_on_with_connections_of_its_own(endpoints: str) -> None:
    program = """
client = wbkv.connect(sys.argv[1])
client.put("forked", b"1")

def use():
    assert client.get("forked") == b"1"
    client.put("b", b"child")
    assert list(client.keys("forked")) == [b"forked"]
    client.close()

for _ in range(3):
    assert in_child(use) == "done"
    assert client.get("forked") == b"1"

def process(queue):
    queue.put(client.get("forked"))

context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
process = context.Process(target=process, args=(queue,))
process.start()
process.join(20)
assert process.exitcode == 0
assert queue.get() == b"1"
client.close()
"""
    in_process(endpoints, FORKS + program)


@pytest.mark.parametrize("how", ["threads", "batch", "streams", "batches"])
def test_a_fork_of_a_process_that_is_busy_with_grpc_says_so(endpoints: str, how: str) -> None:
    """It could hang there. With gRPC's own support of forks, some of the children crash."""
    threads = """
client = wbkv.connect(sys.argv[1])
client.put("a", b"1")
stop = threading.Event()

def load():
    while not stop.is_set():
        client.put("load", b"")

threads = [threading.Thread(target=load, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
said = {in_child(lambda: client.get("a")) for _ in range(5)}
said |= {in_child(lambda: wbkv.connect(sys.argv[1]).get("a"))}
stop.set()
for thread in threads:
    thread.join()
assert said <= {"Forked", "done"} and "Forked" in said, said
client.put("a", b"2")
client.close()
"""
    batch = """
client = wbkv.connect(sys.argv[1])
with client.batch() as batch:
    batch.put("a", b"1").result()
    assert in_child(lambda: batch.get("a")) == "Forked"
    assert in_child(batch.close) == "done"
    assert in_child(lambda: client.get("a")) == "Forked"
    assert batch.get("a").result() == b"1"
client.close()
"""
    streams = """
client = wbkv.connect(sys.argv[1])
client.put("a", b"1")
scan, watch = client.keys(""), client.watch("a")
next(scan), watch.__enter__()
assert in_child(watch.next) == "Forked"
assert in_child(lambda: (scan.close(), watch.close())) == "done"
assert in_child(lambda: client.get("a")) == "Forked"
revision = client.put("a", b"2")
assert watch.next(timeout=20).revision == revision
watch.close(), client.close()
"""
    batches = """
client = wbkv.connect(sys.argv[1])
stop = threading.Event()

def load():
    while not stop.is_set():
        with client.batch() as batch:
            batch.put("load", b"").result()

threads = [threading.Thread(target=load, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
said = {in_child(lambda: client.get("load")) for _ in range(30)}
stop.set()
for thread in threads:
    thread.join()
assert said <= {"Forked", "done"}, said
client.close()
"""
    programs = {"threads": threads, "batch": batch, "streams": streams, "batches": batches}
    in_process(endpoints, FORKS + programs[how], strict=False)


def test_the_twin_does_not_go_into_a_fork(endpoints: str) -> None:
    program = """
async def main():
    async with wbkv.aio.connect(sys.argv[1]) as client:
        await client.put("a", b"1")
        for call in (lambda: client.get("a"), lambda: client.put("a", b""), client.topology):
            assert in_child(lambda: call().send(None)) == "Forked"
        assert await client.get("a") == b"1"

asyncio.run(main())
"""
    in_process(endpoints, FORKS + program, strict=False)
