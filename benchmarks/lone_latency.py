"""What a lone transaction costs three nodes in CPU time, when nothing else is under way to share it with.

The nodes are real, with their disks and the wire format between them, but all in this process and thread,
without sockets and gRPC: so the figure does not depend on what else the machine does. Transactions of two
20-byte puts go through one node's gateway, one at a time, each to so many partitions. With `--cold`, other
memory is touched between two turns, as on a machine where processes share cores: then caches are cold.
For latencies through gRPC see `store_throughput.py --in-flight 1`.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.hosting import Host
from benchmarks.store_throughput import keys_by_partition
from kvstore.config.addresses import NodeId
from kvstore.config.checks import Durability
from kvstore.config.model import Config
from kvstore.machine.codec import TABLES
from kvstore.machine.request import Get, Put, Transaction
from kvstore.node.ports import Application
from kvstore.server.engine import EPOCH_S
from kvstore.store.application import StoreApplication
from kvstore.store.questions import StrictRead
from multicast.types import TICKS_PER_S, ClientId

COLD_BYTES = 16 << 20
"""More than a core's own caches."""


class Serving(Host):
    """A node of the store, in real time."""

    store: StoreApplication

    def __init__(self, config: Config, me: NodeId, others: Mapping[NodeId, Host]) -> None:
        self.wall_s = time.time() - EPOCH_S - self.now()
        super().__init__(config, me, others, tables=TABLES, wall_s=self.wall_s)

    def application(self, config: Config) -> Application:
        """The store."""
        number = 1 + [*config.nodes].index(self.me)
        self.store = StoreApplication(
            self.disk.state, config.topology, config.first_placement, me=ClientId(number),
            limits=config.store.limits, now=self.now,
            ticks=lambda: int((self.now() + self.wall_s) * TICKS_PER_S), rng=random.Random(number),
        )  # fmt: skip
        return self.store

    def now(self) -> float:
        """`ports.Clock`."""
        return time.monotonic()


class Cluster:
    """Three of them, driven in turns."""

    def __init__(self, directory: Path, durability: Durability, *, cold: bool) -> None:
        ports = range(1, 7)
        config = Config.local(3, 3, 3, directory, ports=ports[:3], api_ports=ports[3:], durability=durability)
        named: dict[NodeId, Serving] = {}
        for node in config.nodes:
            named[node] = Serving(config, node, named)
        self.hosts = list(named.values())
        self.keys = [keys for keys in keys_by_partition(config.first_placement).values() if keys]
        self.cpu_s = 0.0
        self._rest = bytearray(COLD_BYTES) if cold else bytearray()
        while not self._led():
            self.run_once()

    def _led(self) -> bool:
        return all(any(host.node.replicas[r].is_leader for host in self.hosts for r in host.node.replicas
                       if r.group == group) for group in self.hosts[0].store.groups)  # fmt: skip

    def run_once(self) -> None:
        """A turn of every node that has something to do; its CPU time counts."""
        for host in self.hosts:
            if host.ready():
                if self._rest:
                    self._rest[::64] = bytes(len(self._rest) // 64)
                began = time.thread_time()
                host.turn()
                self.cpu_s += time.thread_time() - began

    def wait_for(self, outcomes: list[Any], count: int) -> None:
        """Until there are so many."""
        while len(outcomes) < count:
            self.run_once()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def transact(self, dest: int) -> None:
        """A transaction, from the gateway and back to it."""
        gateway = random.choice(self.hosts).store.gateway
        outcomes: list[Any] = []
        groups = random.sample(self.keys, dest)
        puts = [Put(random.choice(keys), b"x" * 20) for keys in (groups * 2)[:2]]
        gateway.transact(Transaction(then=tuple(puts)), outcomes.append)
        self._kick(gateway)
        self.wait_for(outcomes, 1)

    def read(self) -> None:
        """A strict read of one key."""
        gateway = random.choice(self.hosts).store.gateway
        outcomes: list[Any] = []
        key = random.choice(random.choice(self.keys))
        question = StrictRead((Get(key),))
        gateway.ask(gateway.placement.group_of(key), question, outcomes.append, of_leader=True)
        self._kick(gateway)
        self.wait_for(outcomes, 1)

    def _kick(self, gateway: object) -> None:
        for host in self.hosts:
            if host.store.gateway is gateway:
                began = time.thread_time()
                host.turn()
                self.cpu_s += time.thread_time() - began

    def counts(self) -> dict[str, int]:
        """What all nodes have done."""
        statistics_ = [host.node.statistics for host in self.hosts]
        return {
            "turns": sum(each.turns for each in statistics_),
            "batches": sum(each.batches for each in statistics_),
            "frames": sum(host.frames for host in self.hosts),
        }

    def close(self) -> None:
        """End all threads."""
        for host in self.hosts:
            host.disk.close()


def measure(cluster: Cluster, what: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """CPU microseconds of all nodes together for one, in each round."""
    figures = []
    before = cluster.counts()
    for _ in range(arguments.rounds):
        gc.collect()
        cluster.cpu_s = 0.0
        for _ in range(arguments.count):
            if what == "read":
                cluster.read()
            else:
                cluster.transact(int(what))
        figures.append(cluster.cpu_s / arguments.count * 1e6)
    total = arguments.rounds * arguments.count
    each = {name: (count - before[name]) / total for name, count in cluster.counts().items()}
    return {"best_us": min(figures), "median_us": statistics.median(figures), **each}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--durability", choices=("fsync", "os"), default="os")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--count", type=int, default=50, help="transactions in a round")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = {}
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), arguments.durability, cold=arguments.cold)
        try:
            for what in ("1", "2", "read"):
                report[what] = measure(cluster, what, arguments)
        finally:
            cluster.close()
    if arguments.json:
        print(json.dumps(report))
        return
    print("CPU of all nodes together")
    names = {"1": "in one partition", "2": "in two partitions", "read": "strict read"}
    for what, row in report.items():
        done = ", ".join(f"{row[name]:.1f} {name}" for name in ("turns", "frames", "batches"))
        print(f"{names[what]}: best {row['best_us']:.0f}, median {row['median_us']:.0f} us; {done}")


if __name__ == "__main__":
    main()
