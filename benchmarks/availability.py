"""What a three-node cluster promises beside its throughput: fail-over, restart, idling, and a steady state.

Real processes on loopback with three partitions of three, default time-outs and `fsync`. Clients use the SDK.
Nodes are killed with SIGKILL, which they do not notice.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.load import BackgroundMeasurement, Plan, read_samples, running
from benchmarks.load.nodes import cpu_s, groups_of, memory_mib, pids
from benchmarks.record import Benchmark, Figure
from benchmarks.scan import fill
from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster

PLAN: Final = Plan(level="store", groups=3, durability="fsync", clients=16, rounds=1)
PATIENCE_S: Final = 60.0
SERVING: Final = ("leader", "follower")


def until(reached: Callable[[], bool], what: str, pause_s: float = 0.02) -> None:
    """Wait for something that must happen."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(pause_s)


def converged(cluster: LocalCluster, lag: float = 0) -> bool:
    """Whether every replica serves, and lacks no more than so many of the messages that others have."""
    replicas = [replica for group in cluster.status()["groups"] for replica in group["replicas"]]
    return all(it["up"] and it["status"] in SERVING and (it["lag"] or 0) <= lag for it in replicas)


# Fail-over


def kill(cluster: LocalCluster, node: NodeId) -> float:
    """Kill a node: seconds until each of the groups that it led has another leader."""
    led = {group: it["ballot"] for group, it in groups_of(cluster, node).items() if it["status"] == "leader"}
    survivors = [name for name in cluster.nodes if name != node]
    killed = time.monotonic()
    cluster.kill(node)

    def replaced() -> bool:
        for name in survivors:
            for group, it in groups_of(cluster, name).items():
                if it["status"] == "leader" and it["ballot"] > led.get(group, float("inf")):
                    del led[group]
        return not led

    until(replaced, f"other leaders than {node}", 0.005)
    return time.monotonic() - killed


def fail_over(cluster: LocalCluster, sizes: Any) -> Iterator[Figure]:
    """Kill a node that leads, again and again, under load."""
    rng = random.Random(1)
    plan = replace(PLAN, warm_up_s=0.5, seconds=sizes.kill_seconds)
    leads, answers = [], []
    for number in range(sizes.kills):
        with tempfile.TemporaryDirectory() as folder:
            loading = BackgroundMeasurement(replace(plan, seed=number), cluster, Path(folder))
            loading.sleep(1.0 + 0.2 * rng.random())  # anywhere between two heartbeats
            leaders = {group["leader"] for group in cluster.status()["groups"]}
            node = NodeId(rng.choice(sorted(filter(None, leaders))))
            killed_us = time.time_ns() // 1000
            leads.append(kill(cluster, node))
            if errors := loading.wait().errors_by_kind:
                raise SystemExit(f"transactions failed: {errors}")
            ends = [it.end_us for it in read_samples(Path(folder)) if it.start_us < killed_us < it.end_us]
        answers.append((max(ends, default=killed_us) - killed_us) / 1e6)
        cluster.start(node)
        until(lambda: converged(cluster), f"{node} is back")
    yield Figure.of("kill of a node: new leaders", "s", leads)
    yield Figure.of("kill of a node: last answer", "s", answers)


# Restart


def serves(cluster: LocalCluster, *nodes: NodeId) -> float:
    """Start nodes: seconds until they serve in all their groups."""
    began = time.monotonic()
    cluster.start(*nodes)

    def all_serve() -> bool:
        said = [groups_of(cluster, node) for node in nodes]
        return all(each and all(it["status"] in SERVING for it in each.values()) for each in said)

    until(all_serve, "the nodes serve again", 0.01)
    return time.monotonic() - began


def restart(cluster: LocalCluster, sizes: Any) -> Iterator[Figure]:
    """Kill and start one node; one that missed something; all of them."""
    fill(cluster, sizes.keys)
    node = cluster.nodes[0]
    one, every, memory = [], [], []
    for _ in range(sizes.restarts):
        cluster.kill(node)
        time.sleep(1.0)  # until others lead
        one.append(serves(cluster, node))
        memory += [memory_mib(pid, "VmRSS") for pid in pids(cluster)[:1]]
        until(lambda: converged(cluster), "the node has what the others have")
    cluster.kill(node)
    fill(cluster, sizes.keys)
    began = time.monotonic()
    cluster.start(node)
    until(lambda: converged(cluster), "the node has what it missed")
    missed_s = time.monotonic() - began
    for _ in range(sizes.restarts):
        cluster.kill()
        every.append(serves(cluster, *cluster.nodes))
    until(lambda: converged(cluster), "all nodes are back")
    yield Figure.of("restart of a node: serves", "s", one)
    yield Figure.of("restart of a node: resident memory", "MiB", memory)
    yield Figure.of(f"restart of a node that missed {sizes.keys:,} puts: has them", "s", [missed_s])
    yield Figure.of("restart of all nodes at once: all serve", "s", every)


# Idling and a steady state


def idle(cluster: LocalCluster, sizes: Any) -> Iterator[Figure]:
    """What nodes cost that have no clients."""
    time.sleep(2.0)  # the first commits and collections
    shares, memory = [], []
    for _ in range(sizes.idle_rounds):
        before = [*map(cpu_s, pids(cluster))]
        time.sleep(sizes.idle_seconds)
        after = [*map(cpu_s, pids(cluster))]
        shares += [100 * (b - a) / sizes.idle_seconds for a, b in zip(before, after, strict=True)]
        memory += [memory_mib(pid, "VmRSS") for pid in pids(cluster)]
    yield Figure.of("idle: CPU of a node", "% of a core", shares)
    yield Figure.of("idle: resident memory of a node", "MiB", memory)


def steady(cluster: LocalCluster, sizes: Any) -> Iterator[Figure]:
    """Whether anything grows under a load that the cluster can bear."""
    plan = replace(PLAN, rate=200.0, clients=None, dest=2, warm_up_s=1.0, seconds=sizes.steady_seconds)
    with tempfile.TemporaryDirectory() as folder:
        loading = BackgroundMeasurement(plan, cluster, Path(folder))
        for when in ("half-way", "at the end"):
            loading.sleep(0.48 * sizes.steady_seconds)
            memory = [*map(memory_mib, pids(cluster))]
            yield Figure.of(f"steady load, {when}: own memory of a node", "MiB", memory)
            files = [cluster.config.data(node) / "log" / "data.mdb" for node in cluster.nodes]
            taken = [file.stat().st_blocks * 512 / 2**20 for file in files]
            yield Figure.of(f"steady load, {when}: file of a node's log", "MiB", taken)
        found = loading.wait()
    yield Figure.of("steady load: transactions", "/s", found.throughput_rounds)
    yield Figure.of("steady load: p99", "ms", found.latency_rounds_ms["p99"])


def measure_all(sizes: Any) -> Iterator[Figure]:
    """All of it, on one cluster."""
    with running(PLAN) as cluster:
        yield from idle(cluster, sizes)
        yield from steady(cluster, sizes)
        yield from fail_over(cluster, sizes)
        yield from restart(cluster, sizes)


BENCHMARK = Benchmark(
    "availability", "cluster", __doc__, measure_all,
    {
        "idle_seconds": (10.0, 1.0), "idle_rounds": (2, 1), "steady_seconds": (45.0, 2.0),
        "kills": (8, 1), "kill_seconds": (4.0, 3.0), "keys": (100_000, 5_000), "restarts": (5, 1),
    },
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
