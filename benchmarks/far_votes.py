"""Whether a transaction that waits for a far vote delays others than those on its keys.

Two partitions of one replica each, on two nodes, with an emulated delay between them. Many transactions of
two puts are in flight on the first partition, alone (a), beside transactions on both partitions without
conditions (b), and with conditions in both (c), on other keys. What (b) loses against (a) is ordering: a
message that waits for its place makes later ones of the same group wait too, however they are executed. What
(c) loses against (b) would be due to votes. Rounds alternate; each ratio is of neighbours in time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time

import grpc
import uvloop
from wbkv_proto.v1 import kv_pb2

from benchmarks.store_throughput import Load, keys_by_partition
from kvstore.local.cluster import LocalCluster

APART = [("grpc.use_local_subchannel_pool", 1)]
"""A connection of its own."""


class Voting(Load):
    """Transactions with a condition on each key, which always holds."""

    def txn(self, keys: list[bytes]) -> kv_pb2.TxnRequest:
        """Puts, if the keys are as they are."""
        found = super().txn(keys)
        for key in keys:
            compare = kv_pb2.Compare(key=key, operator=kv_pb2.Operator.LESS, version=1 << 40)
            found.conditions.add(compare=compare)
        return found


async def measure(cluster: LocalCluster, arguments: argparse.Namespace) -> list[dict[str, list[float]]]:
    """For each round, by kind of company: transactions per second, median and p99 latency in ms."""
    found = list(keys_by_partition(cluster.config.first_placement).values())
    own = [found[0][: len(found[0]) // 2]]
    others = [keys[len(keys) // 2 :] for keys in found]
    host, port = next(iter(cluster.config.api_addresses.values()))
    rounds = []
    async with (
        grpc.aio.insecure_channel(f"{host}:{port}") as channel,
        grpc.aio.insecure_channel(
            f"{host}:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as second,
    ):
        load = Load(channel, own, 1, arguments.in_flight)
        running = asyncio.create_task(load.run())
        await asyncio.sleep(2)
        for number in range(arguments.rounds):
            figures: dict[str, list[float]] = {}
            for kind in ("abc", "acb")[number % 2]:
                company = None
                if kind != "a":
                    make = Voting if kind == "c" else Load
                    company = make(second, others, 2, arguments.company)
                    task = asyncio.create_task(company.run())
                    await asyncio.sleep(1)
                    company.latencies_s.clear()
                load.latencies_s.clear()
                began = time.perf_counter()
                await asyncio.sleep(arguments.seconds)
                took = time.perf_counter() - began
                figures[kind] = summary(load, took)
                if company is not None:
                    figures[f"{kind}, the company"] = summary(company, took)
                    company.stopped = True
                    await task
                    if company.failed:
                        raise SystemExit(f"{company.failed} transactions failed")
            rounds.append(figures)
        load.stopped = True
        await running
        if load.failed:
            raise SystemExit(f"{load.failed} transactions failed")
    return rounds


def summary(load: Load, took: float) -> list[float]:
    """Transactions per second, and their latencies in ms: the median and the 99th percentile."""
    latencies = sorted(load.latencies_s) or [0.0]
    return [len(latencies) / took, *(1e3 * latencies[int(p * len(latencies))] for p in (0.5, 0.99))]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--delay", type=float, default=60.0, help="one way, in ms")
    parser.add_argument("--in-flight", type=int, default=800)
    parser.add_argument("--company", type=int, default=20, help="of the others, in flight")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as data,
        LocalCluster(
            data, 2, 2, replicas=1, durability="os", delays_ms={"n1-n2": arguments.delay}, restart=False
        ) as cluster,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        rounds = runner.run(measure(cluster, arguments))
    if arguments.json:
        print(json.dumps(rounds))
        return
    for kind in sorted(rounds[0]):
        rate, p50, p99 = (statistics.median(r[kind][i] for r in rounds) for i in range(3))
        print(f"{kind}: {rate:,.0f}/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    for one, other in (("b", "a"), ("c", "b")):
        ratios = sorted(r[one][0] / r[other][0] for r in rounds)
        print(
            f"{one}/{other}: median {statistics.median(ratios):.3f}, of {ratios[0]:.3f} .. {ratios[-1]:.3f}"
        )


if __name__ == "__main__":
    main()
