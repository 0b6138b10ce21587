"""How fast a million keys are scanned, and whether memory grows with the range.

First the pages of one partition, from the disk to the bytes of the answers, by CPU time. Then all of it,
through gRPC, with real processes: by the clock, so beside nothing else. Memory is what is a process's own:
the disk's file is mapped, and its pages are the kernel's to take back.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import uvloop
from wbkv_proto.v1 import kv_pb2, kv_pb2_grpc

from benchmarks.load.nodes import cpu_s
from benchmarks.store_cost import GATEWAY, HERE, Replica, Traffic
from kvstore.local.cluster import LocalCluster
from kvstore.machine.request import Range, Scan
from kvstore.machine.versions import Version
from kvstore.store.messages import STORE_MESSAGES, Query
from kvstore.store.questions import Entries, Page
from kvstore.store.service import PAGE_BYTES
from kvstore.wire.frames import FrameCodec
from multicast.types import timestamp

PUTS = 500
CODEC = FrameCodec(STORE_MESSAGES)
"""Of a transaction that fills the store."""


def own_mib(pid: int | str = "self") -> float:
    """Memory of a process without what is mapped from files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("the kernel does not say how much memory is a process's own")


def pages(path: Path, count: int, rounds: int) -> dict[str, Any]:
    """Keys per second of CPU of one replica's pages."""
    replica = Replica(path, "os", 1, leads=True)
    partition = replica.application.partition(HERE)
    _, maps = replica.disk.state.open(HERE)
    revision = timestamp(1, HERE)
    for payloads in Traffic(replica.placement, 64).all_keys():
        replica.batch(payloads)
    for first in range(0, count, 100_000):
        for number in range(first, min(count, first + 100_000)):
            maps["latest"].put(b"key%017d" % number, Version(b"v" * 20, revision, revision, 1))
        replica.commit()
    gc.collect()
    before, highest, rates = own_mib(), 0.0, []
    longest = 0.0
    for _ in range(rounds):
        found, start, more = 0, b"", True
        began = time.thread_time()
        while more:
            page_began = time.thread_time()
            question = Page(Scan(Range(start, None), 0, PAGE_BYTES), partition.machine.watermark)
            partition.receive(GATEWAY, Query(1, question), 0.0)
            ((_, _, answer),) = partition.turn(0.0)
            CODEC.size_of(answer)
            longest = max(longest, time.thread_time() - page_began)
            page = answer.response
            if not isinstance(page, Entries):
                raise SystemExit(f"a page is {page}")
            found += len(page.entries)
            more = page.more
            start = page.entries[-1].key + b"\0"
        rates.append(found / (time.thread_time() - began))
        highest = max(highest, own_mib())
        if found != count:
            raise SystemExit(f"{found} of {count} keys were found")
    replica.disk.close()
    return {
        "keys_per_cpu_s": [round(max(rates)), round(sorted(rates)[len(rates) // 2])],
        "more_mib": round(highest - before, 1),
        "longest_page_ms": round(1e3 * longest, 2),
    }


async def fill(stub: Any, count: int) -> None:
    """Put all keys."""
    numbers = iter(range(0, count, PUTS))

    async def client() -> None:
        for first in numbers:
            puts = [
                kv_pb2.Operation(put=kv_pb2.Put(key=b"key%017d" % number, value=b"v" * 20))
                for number in range(first, min(count, first + PUTS))
            ]
            await stub.Txn(kv_pb2.TxnRequest(then=puts), timeout=60)

    await asyncio.gather(*(client() for _ in range(4)))


async def scan(stub: Any, pids: list[int]) -> tuple[int, float]:
    """How many keys there are, and the most memory of any node meanwhile."""
    count, highest = 0, 0.0
    everything = kv_pb2.ScanRequest(range=kv_pb2.Range(prefix=b""))
    async for page in stub.Scan(everything, timeout=120):
        count += len(page.entries)
        highest = max(highest, *map(own_mib, pids))
    return count, highest


async def through_grpc(cluster: LocalCluster, count: int, rounds: int) -> dict[str, Any]:
    """Keys per second, and CPU of all nodes."""
    host, port = next(iter(cluster.config.api_addresses.values()))
    pids = [pid for node in cluster.config.nodes if (pid := cluster.pid(node)) is not None]
    options = [("grpc.max_receive_message_length", 16 << 20)]
    async with grpc.aio.insecure_channel(f"{host}:{port}", options=options) as channel:
        stub: Any = kv_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]  # generated
        await fill(stub, count)
        await asyncio.sleep(2)
        rates, before, after, node_us = [], max(map(own_mib, pids)), 0.0, []
        for _ in range(rounds):
            used, began = sum(map(cpu_s, pids)), time.perf_counter()
            found, highest = await scan(stub, pids)
            rates.append(found / (time.perf_counter() - began))
            node_us.append(1e6 * (sum(map(cpu_s, pids)) - used) / found)
            after = max(after, highest)
            if found != count:
                raise SystemExit(f"{found} of {count} keys were found")
    return {
        "keys_per_s": [round(max(rates)), round(sorted(rates)[len(rates) // 2])],
        "nodes_us_per_key": round(min(node_us), 2),
        "more_mib": round(after - before, 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--only", choices=("pages", "grpc"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        if arguments.only != "grpc":
            report["pages"] = pages(path / "pages", arguments.keys, arguments.rounds)
        if arguments.only != "pages":
            with (
                LocalCluster(
                    path / "cluster", arguments.nodes, arguments.groups, durability="os", restart=False
                ) as cluster,
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                report["grpc"] = runner.run(through_grpc(cluster, arguments.keys, arguments.rounds))
    if arguments.json:
        print(json.dumps(report))
        return
    for name, found in report.items():
        print(name, ", ".join(f"{figure}: {value}" for figure, value in found.items()))


if __name__ == "__main__":
    main()
