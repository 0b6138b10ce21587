"""What the Python client costs: microseconds of its own CPU, keys per second, and the time to import it.

The stand-in is another process that answers at once and stores nothing: against it the client's own cost is
seen apart from the cluster's speed. Rounds of what is compared alternate, since machines are shared.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import wbkv
from wbkv import aio
from wbkv_proto.v1 import cluster_pb2 as cluster
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import kv_pb2_grpc
from wbkv_proto.v1 import session_pb2 as session

from kvstore.local.cluster import LocalCluster

VALUE = b"v" * 20
IN_FLIGHT = 300
PAGE = 10_000


# The stand-in


def _header(own: int = 0) -> kv.Header:
    return kv.Header(revision=1, transaction_revision=own)


async def _session(request: Any, _context: Any) -> AsyncIterator[session.SessionResponse]:
    results = [kv.OperationResult(written=kv.Written())] * 2
    answer = kv.TxnResponse(header=_header(1), succeeded=True, results=results)
    yield session.SessionResponse(header=_header())
    async for message in request:
        yield session.SessionResponse(
            replies=[session.Reply(number=call.number, txn=answer) for call in message.calls]
        )


async def _put(_request: kv.PutRequest, _context: Any) -> kv.PutResponse:
    return kv.PutResponse(header=_header(1))


async def _scan(_request: kv.ScanRequest, _context: Any) -> AsyncIterator[kv.ScanResponse]:
    """A million keys, ten thousand to a page."""
    for page in range(100):
        entries = [
            kv.Entry(key=b"%010d" % i, value=VALUE, create_revision=1 << 48, mod_revision=1 << 48, version=1)
            for i in range(page * PAGE, (page + 1) * PAGE)
        ]
        yield kv.ScanResponse(header=_header(), entries=entries)


def _method(service: str, name: str, handler: Any, request: Any, *, streams: str) -> Any:
    make = getattr(grpc, f"{streams}_rpc_method_handler")
    method = make(handler, request_deserializer=request.FromString, response_serializer=_bytes)
    return grpc.method_handlers_generic_handler(service, {name: method})


def _bytes(message: Any) -> bytes:
    found: bytes = message.SerializeToString()
    return found


async def _stand_in() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")

    async def topology(_request: Any, _context: Any) -> cluster.TopologyResponse:
        return cluster.TopologyResponse(
            header=kv.Header(cluster="stand-in"),
            nodes=[cluster.Node(name="n1", address=f"127.0.0.1:{port}")],
            partitions=[cluster.Partition(id=0, leader="n1", members=["n1"])],
            placement=cluster.Placement(scheme=cluster.Placement.HASHED, starts=[b""], owners=[0]),
        )

    server.add_generic_rpc_handlers((
        _method("wbkv.v1.Session", "Open", _session, session.SessionRequest, streams="stream_stream"),
        _method("wbkv.v1.KV", "Put", _put, kv.PutRequest, streams="unary_unary"),
        _method("wbkv.v1.KV", "Scan", _scan, kv.ScanRequest, streams="unary_stream"),
        _method("wbkv.v1.Cluster", "Topology", topology, cluster.TopologyRequest, streams="unary_unary"),
    ))  # fmt: skip
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


@contextmanager
def stand_in() -> Iterator[str]:
    command = [sys.executable, __file__, "--stand-in"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - this script
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def real(partitions: int) -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory() as data,
        LocalCluster(Path(data) / "cluster", 3, partitions, durability="os") as running,
    ):
        assert running.wait_ready()
        yield ",".join(f"{host}:{port}" for host, port in running.config.api_addresses.values())


# What is measured


async def pipelined(endpoints: str, count: int) -> tuple[float, float]:
    """Transactions of two puts: microseconds of CPU for each, and how many a second."""
    async with aio.connect(endpoints, timeout=60.0) as client:
        numbers = iter(range(count))

        async def work() -> None:
            for i in numbers:
                await client.txn().then(wbkv.put(f"a/{i}", VALUE), wbkv.put(f"b/{i}", VALUE)).commit()

        begun, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        spent, took = time.process_time() - cpu, time.perf_counter() - begun
    return spent / count * 1e6, count / took


def unary(endpoints: str, count: int) -> tuple[float, float]:
    """Puts one after the other: microseconds of CPU for each, by the client and by a bare stub."""
    with wbkv.connect(endpoints) as client, grpc.insecure_channel(endpoints.split(",")[0]) as channel:
        address = client.topology().nodes["n1"]
        assert address
        make: Any = kv_pb2_grpc.KVStub
        stub = make(channel)
        numbers = itertools.count(1)

        def bare() -> None:
            number = next(numbers)
            request = kv.PutRequest(
                key=b"alice", value=VALUE, min_revision=1,
                id=kv.RequestId(client=1, sequence=number, ack_below=number),
            )  # fmt: skip
            revision: int = stub.Put(request, timeout=10.0).header.transaction_revision
            assert revision

        mine = cpu_of(lambda: client.put("alice", VALUE), count)
        return mine, cpu_of(bare, count)


def cpu_of(call: Callable[[], object], count: int) -> float:
    begun = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - begun) / count * 1e6


async def load(endpoints: str, count: int) -> None:
    async with aio.connect(endpoints, timeout=60.0) as client:
        parts = iter(range(0, count, 1000))

        async def work() -> None:
            for part in parts:
                puts = [wbkv.put(b"%010d" % i, VALUE) for i in range(part, min(part + 1000, count))]
                await client.txn().then(*puts).commit()

        await asyncio.gather(*(work() for _ in range(8)))


def scanned(endpoints: str) -> tuple[float, float]:
    """Keys per second by the clock, and microseconds of CPU for each."""
    with wbkv.connect(endpoints, timeout=60.0) as client:
        begun, cpu = time.perf_counter(), time.process_time()
        found = sum(1 for _ in client.scan(wbkv.EVERYTHING))
        return found / (time.perf_counter() - begun), (time.process_time() - cpu) / found * 1e6


async def scanned_async(endpoints: str) -> tuple[float, float]:
    """The same in an event loop."""
    async with aio.connect(endpoints, timeout=60.0) as client:
        begun, cpu = time.perf_counter(), time.process_time()
        found = 0
        async for _ in client.scan(wbkv.EVERYTHING):
            found += 1
        return found / (time.perf_counter() - begun), (time.process_time() - cpu) / found * 1e6


def import_time(module: str) -> float:
    """Milliseconds of CPU to import it, in a process of its own."""
    program = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    return float(done.stdout) * 1000


def best(name: str, values: list[float], unit: str, *, highest: bool = False) -> None:
    top = max(values) if highest else min(values)
    print(f"{name}: best {top:,.1f}, median {statistics.median(values):,.1f} {unit}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stand-in", action="store_true", help="only answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000, help="transactions in a round")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of the scan; 0: no real cluster")
    options = parser.parse_args()
    if options.stand_in:
        asyncio.run(_stand_in())
        return
    rounds = range(options.rounds)
    with stand_in() as address:
        costs = [asyncio.run(pipelined(address, options.count))[0] for _ in rounds]
        best("stand-in, pipelined transactions of two puts", costs, "us of client CPU")
        pairs = [unary(address, options.count // 10) for _ in rounds]
        best("stand-in, put", [mine for mine, _ in pairs], "us of client CPU")
        best("stand-in, bare stub's Put", [bare for _, bare in pairs], "us of client CPU")
        ratio = statistics.median(mine / bare for mine, bare in pairs)
        lowest = min(mine for mine, _ in pairs) / min(bare for _, bare in pairs)
        print(f"put to bare Put: median ratio {ratio:.2f}, of the best {lowest:.2f}")
        for name, scans in (
            ("scan", [scanned(address) for _ in range(2)]),
            ("asyncio scan", [asyncio.run(scanned_async(address)) for _ in range(2)]),
        ):
            best(f"stand-in, {name}", [cost for _, cost in scans], "us of client CPU for a key")
    for module in ("wbkv", "grpc", "wbkv_proto.v1.kv_pb2"):
        best(f"import {module}", [import_time(module) for _ in rounds], "ms of CPU")
    if not options.keys:
        return
    with real(3) as endpoints:
        runs = [asyncio.run(pipelined(endpoints, options.count)) for _ in rounds]
        best(
            "real cluster, pipelined transactions of two puts", [cost for cost, _ in runs], "us of client CPU"
        )
        best("  of them", [speed for _, speed in runs], "a second", highest=True)
    with real(1) as endpoints:
        asyncio.run(load(endpoints, options.keys))
        for _ in range(2):
            speed, cost = scanned(endpoints)
            print(
                f"real cluster, scan of {options.keys:,} keys: {speed:,.0f} keys/s, {cost:.2f} us of CPU each"
            )
            speed, cost = asyncio.run(scanned_async(endpoints))
            print(f"real cluster, asyncio scan: {speed:,.0f} keys/s, {cost:.2f} us of CPU each", flush=True)


if __name__ == "__main__":
    main()
