"""How many messages a cluster of real processes orders, how fast, and what each of its nodes spends on one.

A local cluster in a temporary folder, and one client in this process that keeps so many messages in flight.
CPU time is that of whole processes, their threads included: on a shared machine it is what can be compared,
and messages per second are not. With `--profile`, every node and the client leave a profile in a folder
(for `python -m pstats`), and cost about twice as much.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import uvloop

from kvstore.client import MulticastClient
from kvstore.cluster import SERVE, LocalCluster
from multicast import PROTOCOLS
from multicast.types import Destinations, GroupId

TICKS = os.sysconf("SC_CLK_TCK")

_PROFILED = """
import cProfile, sys
from kvstore.commands.serve import main
folder, arguments = sys.argv[1], sys.argv[2:]
profile = cProfile.Profile()
status = profile.runcall(main, arguments)
profile.dump_stats(f"{folder}/{arguments[arguments.index('--node') + 1]}.prof")
sys.exit(status)
"""


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, user and system."""
    # The second field is the command's name, in brackets, and may be anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Load:
    """A closed loop: whenever a message is answered, the next one is sent."""

    def __init__(self, client: MulticastClient, dest: Destinations, payload: int) -> None:
        self.client = client
        self.dest = dest
        self.payload = bytes(payload)
        self.latencies_s: list[float] = []
        self.stopped = False

    async def _work(self) -> None:
        while not self.stopped:
            began = time.perf_counter()
            await self.client.multicast(self.dest, self.payload)
            self.latencies_s.append(time.perf_counter() - began)

    async def run(self, in_flight: int, warm_up_s: float, seconds: float, cluster: LocalCluster,
                  rounds: int) -> list[dict[str, Any]]:  # fmt: skip
        """Measure so many rounds of so many seconds each."""
        workers = [asyncio.create_task(self._work()) for _ in range(in_flight)]
        await asyncio.sleep(warm_up_s)
        found = []
        for _ in range(rounds):
            gc.collect()
            self.latencies_s.clear()
            before, began, own = _nodes(cluster), time.perf_counter(), time.process_time()
            await asyncio.sleep(seconds)
            own, took, after = time.process_time() - own, time.perf_counter() - began, _nodes(cluster)
            count = len(self.latencies_s)
            if not count:
                raise SystemExit(f"not one message was answered within {seconds:g} s")
            percentiles = statistics.quantiles(self.latencies_s, n=100, method="inclusive")
            found.append({
                "messages_per_s": count / took,
                "p50_ms": percentiles[49] * 1e3,
                "p99_ms": percentiles[98] * 1e3,
                "node_us": {node: (after[node] - before[node]) / count * 1e6 for node in before},
                "client_us": own / count * 1e6,
            })  # fmt: skip
        self.stopped = True
        await asyncio.gather(*workers)
        return found


def _nodes(cluster: LocalCluster) -> dict[str, float]:
    found = {}
    for node in cluster.config.nodes:
        pid = cluster.pid(node)
        if pid is None:
            raise SystemExit(f"{node} has ended: see {cluster.log(node)}")
        found[str(node)] = cpu_s(pid)
    return found


async def measure(cluster: LocalCluster, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All rounds, by one client."""
    config = cluster.config
    directory = {r: (n, config.addresses[n]) for r, n in config.placement.items()}
    dest = tuple(GroupId(group) for group in range(arguments.dest))
    async with MulticastClient(config.id, config.hash, config.topology, directory) as client:
        load = Load(client, dest, arguments.payload)
        return await load.run(
            arguments.in_flight, arguments.warm_up, arguments.seconds, cluster, arguments.rounds
        )


@contextlib.contextmanager
def profiled(folder: Path | None) -> Iterator[None]:
    """The client's profile too."""
    if folder is None:
        yield
        return
    profile = cProfile.Profile()
    with profile:
        yield
    profile.dump_stats(folder / "client.prof")


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Rounds are disturbed by whatever else the machine does: the best is disturbed least."""
    totals = [sum(r["node_us"].values()) + r["client_us"] for r in rounds]
    rates = [r["messages_per_s"] for r in rounds]
    return {
        "messages_per_s": statistics.median(rates),
        "best_messages_per_s": max(rates),
        "p50_ms": statistics.median(r["p50_ms"] for r in rounds),
        "p99_ms": statistics.median(r["p99_ms"] for r in rounds),
        "node_us": {n: min(r["node_us"][n] for r in rounds) for n in rounds[0]["node_us"]},
        "client_us": min(r["client_us"] for r in rounds),
        "total_us": min(totals),
        "median_total_us": statistics.median(totals),
        "rounds": rounds,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--protocol", choices=PROTOCOLS, default="whitebox")
    parser.add_argument("--durability", choices=("fsync", "os"), default="os")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--dest", type=int, default=2, help="how many groups each message goes to")
    parser.add_argument("--payload", type=int, default=20)
    parser.add_argument("--in-flight", type=int, default=100)
    parser.add_argument("--warm-up", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    if not 1 <= arguments.dest <= arguments.groups:
        parser.error(f"--dest must be between 1 and the number of groups, {arguments.groups}")
    command: Sequence[str] = SERVE
    if arguments.profile is not None:
        arguments.profile.mkdir(parents=True, exist_ok=True)
        command = (sys.executable, "-P", "-c", _PROFILED, str(arguments.profile.absolute()))
    with (
        tempfile.TemporaryDirectory() as data,
        LocalCluster(
            data, arguments.nodes, arguments.groups, protocol=arguments.protocol,
            durability=arguments.durability, application="multicast", command=command, restart=False,
        ) as cluster,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        profiled(arguments.profile),
    ):  # fmt: skip
        report = summary(runner.run(measure(cluster, arguments)))
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['messages_per_s']:,.0f} messages/s (best {report['best_messages_per_s']:,.0f})")
    print(f"latency: p50 {report['p50_ms']:.2f} ms, p99 {report['p99_ms']:.2f} ms")
    nodes = ", ".join(f"{node} {us:.0f}" for node, us in report["node_us"].items())
    print(
        f"us of CPU per message, best of {arguments.rounds} rounds: {nodes}, client {report['client_us']:.0f}"
    )
    print(f"all together: {report['total_us']:.0f} (median {report['median_total_us']:.0f})")


if __name__ == "__main__":
    main()
