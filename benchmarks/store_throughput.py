"""How many transactions a store of real processes executes through gRPC, how fast, and what each costs.

A local cluster in a temporary folder; for every node a pipelined session from this process, which together
keep so many transactions of two 20-byte puts in flight, to so many partitions each. CPU time is that of whole
processes. With `--profile`, every node leaves a profile in a folder, and costs about twice as much. For the
same through the SDK, from processes of clients, see `wbkv bench throughput --level store`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import uvloop
from wbkv_proto.v1 import kv_pb2, kv_pb2_grpc, session_pb2, session_pb2_grpc

from benchmarks.load.nodes import cpu_s, serve_profiled
from kvstore.local.cluster import SERVE, LocalCluster
from kvstore.machine.placement import Placement

KEYS = 100_000


def keys_by_partition(placement: Placement) -> dict[int, list[bytes]]:
    """Some keys of each partition."""
    found: dict[int, list[bytes]] = {group: [] for group in placement.groups}
    for number in range(KEYS):
        key = b"key-%d" % number
        found[placement.group_of(key)].append(key)
    return found


class Load:
    """A closed loop over one session: whenever transactions are answered, as many are sent."""

    def __init__(self, channel: grpc.aio.Channel, keys: list[list[bytes]], dest: int, in_flight: int) -> None:
        self._stub: Any = session_pb2_grpc.SessionStub(channel)  # type: ignore[no-untyped-call]  # generated
        self._keys = keys
        self._dest = dest
        self._in_flight = in_flight
        self._free = asyncio.Semaphore(in_flight)
        self._more: asyncio.Queue[int] = asyncio.Queue()
        self._began: dict[int, float] = {}
        self._next = 0
        self.latencies_s: list[float] = []
        self.failed = 0
        self.stopped = False

    def _call(self) -> session_pb2.Call:
        self._next += 1
        self._began[self._next] = time.perf_counter()
        groups = random.sample(self._keys, self._dest)
        groups = groups * 2 if self._dest == 1 else groups[:2]
        return session_pb2.Call(number=self._next, txn=self.txn(list(map(random.choice, groups))))

    def txn(self, keys: list[bytes]) -> kv_pb2.TxnRequest:
        """A transaction on these keys."""
        puts = [kv_pb2.Operation(put=kv_pb2.Put(key=key, value=b"x" * 20)) for key in keys]
        return kv_pb2.TxnRequest(then=puts)

    async def _requests(self) -> AsyncIterator[session_pb2.SessionRequest]:
        wanted = self._in_flight
        while not self.stopped:
            yield session_pb2.SessionRequest(calls=[self._call() for _ in range(wanted)])
            wanted = await self._more.get()
            while not self._more.empty():
                wanted += self._more.get_nowait()

    async def run(self) -> None:
        """Until stopped."""
        async for response in self._stub.Open(self._requests()):
            now = time.perf_counter()
            for reply in response.replies:
                began = self._began.pop(reply.number)
                if reply.HasField("txn"):
                    self.latencies_s.append(now - began)
                else:
                    self.failed += 1
            if response.replies:
                self._more.put_nowait(len(response.replies))


async def unary(
    channels: list[grpc.aio.Channel], keys: list[list[bytes]], seconds: float, clients: int
) -> float:
    """Puts per second by unary calls."""
    stubs: list[Any] = [
        kv_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]  # generated
        for channel in channels
    ]
    end = time.perf_counter() + seconds
    done = 0

    async def client(number: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            key = random.choice(random.choice(keys))
            await stubs[number % len(stubs)].Put(kv_pb2.PutRequest(key=key, value=b"x" * 20))
            done += 1

    await asyncio.gather(*map(client, range(clients)))
    return done / seconds


async def measure(cluster: LocalCluster, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Several rounds of the same."""
    keys = [found for found in keys_by_partition(cluster.config.first_placement).values() if found]
    channels = [
        grpc.aio.insecure_channel(f"{host}:{port}") for host, port in cluster.config.api_addresses.values()
    ]
    loads = [Load(c, keys, arguments.dest, arguments.in_flight // len(channels)) for c in channels]
    tasks = [asyncio.create_task(load.run()) for load in loads]
    pids = {node: pid for node in cluster.config.nodes if (pid := cluster.pid(node)) is not None}
    await asyncio.sleep(arguments.warm_up)
    rounds = []
    for _ in range(arguments.rounds):
        for load in loads:
            load.latencies_s.clear()
        before = {node: cpu_s(pid) for node, pid in pids.items()}
        began, own = time.perf_counter(), cpu_s(os.getpid())
        await asyncio.sleep(arguments.seconds)
        took = time.perf_counter() - began
        latencies = sorted(latency for load in loads for latency in load.latencies_s)
        count = max(1, len(latencies))
        rounds.append({
            "transactions_per_s": len(latencies) / took,
            "p50_ms": 1000 * latencies[len(latencies) // 2] if latencies else 0.0,
            "p99_ms": 1000 * latencies[int(0.99 * len(latencies))] if latencies else 0.0,
            "node_us": {n: 1e6 * (cpu_s(pid) - before[n]) / count for n, pid in pids.items()},
            "client_us": 1e6 * (cpu_s(os.getpid()) - own) / count,
            "failed": sum(load.failed for load in loads),
        })  # fmt: skip
    for load in loads:
        load.stopped = True
    if arguments.unary:
        rate = await unary(channels, keys, arguments.seconds, arguments.unary)
        print(f"unary puts, {arguments.unary} clients: {rate:,.0f}/s")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for channel in channels:
        await channel.close()
    return rounds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--durability", choices=("fsync", "os"), default="fsync")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--dest", type=int, default=2, help="partitions of each transaction (1, 2)")
    parser.add_argument("--in-flight", type=int, default=300)
    parser.add_argument("--warm-up", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unary", type=int, default=0, metavar="CLIENTS")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    command = SERVE if arguments.profile is None else serve_profiled(arguments.profile)
    with (
        tempfile.TemporaryDirectory() as data,
        LocalCluster(
            data, arguments.nodes, arguments.groups, durability=arguments.durability, command=command,
            restart=False,
        ) as cluster,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):  # fmt: skip
        rounds = runner.run(measure(cluster, arguments))
    if arguments.json:
        print(json.dumps(rounds))
        return
    for name in ("transactions_per_s", "p50_ms", "p99_ms", "client_us"):
        values = [r[name] for r in rounds]
        print(f"{name}: median {statistics.median(values):,.1f}, of {min(values):,.1f} .. {max(values):,.1f}")
    nodes = {n: min(r["node_us"][n] for r in rounds) for n in rounds[0]["node_us"]}
    print("us of CPU per transaction:", ", ".join(f"{n} {us:.0f}" for n, us in nodes.items()))
    print("failed:", rounds[-1]["failed"])


if __name__ == "__main__":
    main()
