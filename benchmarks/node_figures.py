"""What nodes promise beside their throughput: fail-over, restart, idling, and a steady state.

All of it is measured on real processes, on loopback, with default time-outs and with `fsync`, through the
client that fault tests use. Every message that a figure speaks of has really been multicast and delivered.
Each subcommand prints what it found beside its target. Times are of the wall clock, so the load average
stands beside them; what a process used of the CPU is the kernel's account.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from kvstore.bare.client import MulticastClient
from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from kvstore.local.status import ask
from multicast.types import GroupId

NODES, PARTITIONS = 3, 3
MIB: Final = 1 << 20
PATIENCE_S: Final = 120.0
"""How long anything may take that must happen at some time."""

Report = dict[str, Any]


class Load:
    """Clients in a thread of their own: a number of messages in flight, a new one for each that is answered.

    With a rate, so many a second are begun instead, as long as no more than that number are in flight.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        in_flight: int,
        *,
        spread: int,
        payload: int = 20,
        limit: float = float("inf"),
        rate: float | None = None,
    ) -> None:
        self._config = cluster.config
        self._in_flight = in_flight
        self._spread = spread
        self._payload = payload
        self._limit = limit
        self._pace_s = in_flight / rate if rate else 0.0
        self._rng = random.Random(1)
        self._stop = threading.Event()
        self.pending: dict[int, float] = {}
        """Messages in flight: when each was multicast."""
        self.finished: dict[int, float] = {}
        """Messages answered since somebody last cleared this: when each was."""
        self.sent = self.answered = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self._failure = error

    async def _main(self) -> None:
        async with MulticastClient.of(self._config) as client:
            await asyncio.gather(*(self._work(client) for _ in range(self._in_flight)))

    async def _work(self, client: MulticastClient) -> None:
        groups = self._config.topology.groups
        due = time.monotonic() + self._rng.random() * self._pace_s
        while not self._stop.is_set() and self.sent < self._limit:
            if self._pace_s:
                await asyncio.sleep(max(due - time.monotonic(), 0.0))
                due += self._pace_s
            dest = self._rng.sample(groups, self._rng.randint(1, min(self._spread, len(groups))))
            self.sent += 1
            number = self.sent
            self.pending[number] = time.monotonic()
            await client.multicast(dest, self._rng.randbytes(self._payload))
            self.finished[number] = time.monotonic()
            del self.pending[number]
            self.answered += 1

    def check(self) -> None:
        """Raise what ended the load, if anything has."""
        if self._failure is not None:
            raise RuntimeError("the load has ended") from self._failure

    def finish(self) -> None:
        """No more messages; those in flight are awaited."""
        self._stop.set()
        self.wait()

    def wait(self) -> None:
        """Until the load has ended by itself, by its limit."""
        self._thread.join()
        self.check()


# Looking at processes, files and groups


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process. (Their `schedstat`, for `stat` counts in ticks of 10 ms.)"""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def memory_mib(pid: int) -> dict[str, float]:
    """Resident memory: all, and what is the process's own (the rest are mapped files, LMDB's among them)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "RssA"))}
    return {"rss": kib["VmRSS"] / 1024, "own": kib["RssAnon"] / 1024}


def file_mib(cluster: LocalCluster, node: NodeId, store: str) -> float:
    """What the log or the state of a node takes on the disk."""
    return (cluster.config.data(node) / store / "data.mdb").stat().st_blocks * 512 / MIB


def pid_of(cluster: LocalCluster, node: NodeId) -> int:
    pid = cluster.pid(node)
    if pid is None:
        raise RuntimeError(f"{node} is not running; see {cluster.log(node)}")
    return pid


def said(cluster: LocalCluster, node: NodeId) -> Mapping[GroupId, Mapping[str, Any]]:
    """What a node says of its replicas; nothing, while it does not answer."""
    answer = ask(cluster.config.status_socket(node)) or {"groups": {}}
    return {GroupId(int(group)): replica for group, replica in answer["groups"].items()}


def until(reached: Callable[[], bool], what: str, pause_s: float = 0.05) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(pause_s)


def settled(cluster: LocalCluster) -> bool:
    """Whether every replica is up, serves, and has delivered what the others have."""
    return all(
        replica["up"] and replica["status"] in ("leader", "follower") and replica["lag"] == 0
        for group in cluster.status()["groups"]
        for replica in group["replicas"]
    )


def load_average() -> float:
    return round(os.getloadavg()[0], 2)


@dataclass(frozen=True, slots=True)
class Spread:
    """How a number of rounds came out."""

    median: float
    p90: float
    worst: float

    @classmethod
    def of(cls, values: Sequence[float], digits: int = 3) -> Spread:
        ordered = sorted(values)
        p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
        return cls(round(statistics.median(ordered), digits), round(p90, digits), round(ordered[-1], digits))


@contextlib.contextmanager
def local_cluster(arguments: argparse.Namespace, application: str = "multicast") -> Iterator[LocalCluster]:
    with tempfile.TemporaryDirectory(dir=arguments.where) as directory:
        data = Path(directory) / "cluster"
        cluster = LocalCluster(data, NODES, arguments.partitions, application=application, restart=False)
        with cluster:
            yield cluster


# Fail-over


@dataclass(slots=True)
class FailOver:
    """One kill of a node: seconds from it until each step was done, in the slowest of the groups it led."""

    groups: int
    interrupted: int
    opened: float = 0.0
    """A survivor has missed the leader, has been granted pre-votes, and opens a ballot."""
    leads: float = 0.0
    """It leads: a quorum has promised, and holds the ballot's initial state."""
    cleared: float = 0.0
    """The last of the messages that were in flight when the node died has been answered by all its groups."""


def fail_over(cluster: LocalCluster, load: Load, node: NodeId, led: Sequence[GroupId]) -> FailOver:
    survivors = [name for name in cluster.config.nodes if name != node]
    before = said(cluster, node)
    ballots = {group: int(before[group]["ballot"]) for group in led}
    load.finished.clear()
    killed = time.monotonic()
    cluster.kill(node)
    interrupted = set(load.pending.copy())
    found = FailOver(len(led), len(interrupted))
    headless, unopened = set(led), set(led)

    def look() -> bool:
        for name in survivors:
            groups = said(cluster, name)
            now = time.monotonic() - killed
            for group in headless & set(groups):
                about = groups[group]
                if about["ballot"] > ballots[group] and group in unopened:
                    unopened.discard(group)
                    found.opened = now
                if about["ballot"] > ballots[group] and about["status"] == "leader":
                    headless.discard(group)
                    found.leads = now
        return not headless

    until(look, f"another leader than {node}", pause_s=0.005)
    until(lambda: not interrupted & set(load.pending.copy()), "the interrupted messages", pause_s=0.005)
    ends = [load.finished[number] for number in interrupted if number in load.finished]
    found.cleared = max(ends, default=killed) - killed
    return found


def measure_fail_over(arguments: argparse.Namespace) -> Report:
    rng = random.Random(arguments.seed)
    rounds: list[FailOver] = []
    with local_cluster(arguments) as cluster:
        load = Load(cluster, arguments.in_flight, spread=2)
        while len(rounds) < arguments.kills:
            load.check()
            answered = load.answered
            until(lambda at=answered: load.answered > at + 100, "progress")  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            leaders = {group["id"]: group["leader"] for group in cluster.status()["groups"]}
            node = NodeId(rng.choice(sorted(filter(None, leaders.values()))))
            led = [GroupId(group) for group, leader in leaders.items() if leader == node]
            time.sleep(rng.random() * 0.2)  # anywhere between two heartbeats
            rounds.append(fail_over(cluster, load, node, led))
            cluster.start(node)
            until(lambda: settled_but_for_load(cluster), "the killed node's return")
        load.finish()
    return {
        "kills": len(rounds),
        "opened_s": asdict(Spread.of([found.opened for found in rounds])),
        "recovery_s": asdict(Spread.of([found.leads - found.opened for found in rounds])),
        "leads_s": asdict(Spread.of([found.leads for found in rounds])),
        "clearing_s": asdict(Spread.of([max(found.cleared - found.leads, 0.0) for found in rounds])),
        "cleared_s": asdict(Spread.of([found.cleared for found in rounds])),
        "interrupted": statistics.median(found.interrupted for found in rounds),
        "rounds": [asdict(found) for found in rounds],
    }


def settled_but_for_load(cluster: LocalCluster) -> bool:
    """Whether every replica serves. How far each is can hardly be compared while messages go on."""
    return all(
        replica["status"] in ("leader", "follower")
        for group in cluster.status()["groups"]
        for replica in group["replicas"]
    )


def print_fail_over(found: Report) -> None:
    print(f"{found['kills']} kills of leaders, {found['interrupted']:g} messages in flight at each (median)")
    print("seconds                                 median    p90  worst  target")
    for name, key, target in (
        ("until a survivor opens a ballot", "opened_s", ""),
        ("... from there until it leads", "recovery_s", ""),
        ("a new leader in every group", "leads_s", "1"),
        ("... from there until all is answered", "clearing_s", ""),
        ("interrupted messages answered", "cleared_s", "2"),
    ):
        row = found[key]
        print(f"{name:38} {row['median']:7.3f} {row['p90']:6.3f} {row['worst']:6.3f}  {target:>6}")


# Restart


def start_and_time(cluster: LocalCluster, *nodes: NodeId) -> Report:
    """Seconds until these nodes answer, and until they serve in each of their groups."""
    began = time.monotonic()
    cluster.start(*nodes)
    answers: dict[NodeId, float] = {}
    serves: dict[NodeId, float] = {}

    def look() -> bool:
        for node in nodes:
            groups = said(cluster, node)
            if groups:
                answers.setdefault(node, time.monotonic() - began)
            if groups and all(about["status"] in ("leader", "follower") for about in groups.values()):
                serves.setdefault(node, time.monotonic() - began)
        return len(serves) == len(nodes)

    until(look, "nodes that serve again", pause_s=0.01)
    pids = [pid_of(cluster, node) for node in nodes]
    return {
        "answers_s": max(answers.values()),
        "serves_s": max(serves.values()),
        "cpu_s": max(map(cpu_s, pids)),
        **max((memory_mib(pid) for pid in pids), key=lambda found: found["rss"]),
    }


def measure_restart(arguments: argparse.Namespace) -> Report:
    one: list[Report] = []
    every: list[Report] = []
    missed: Report = {}
    with local_cluster(arguments) as cluster:
        began = time.monotonic()
        Load(cluster, arguments.in_flight, spread=1, limit=arguments.messages).wait()
        filled_s = time.monotonic() - began
        until(lambda: settled(cluster), "all replicas at the same place")
        victim = next(iter(cluster.config.nodes))
        for _ in range(arguments.rounds):
            cluster.kill(victim)
            time.sleep(1.0)  # until others lead
            one.append(start_and_time(cluster, victim))
            until(lambda: settled(cluster), "all replicas at the same place")
        if arguments.missed:
            missed = measure_missed(cluster, victim, arguments)
        for _ in range(arguments.rounds):
            cluster.kill()
            every.append(start_and_time(cluster, *cluster.config.nodes))
        sizes = {store: round(file_mib(cluster, victim, store), 1) for store in ("log", "state")}
    return {
        "messages": arguments.messages,
        "filled_s": round(filled_s, 1),
        "files_mib": sizes,
        "missed": missed,
        **{
            name: {key: asdict(Spread.of([row[key] for row in rows])) for key in rows[0]}
            for name, rows in (("one", one), ("every", every))
        },
    }


def measure_missed(cluster: LocalCluster, victim: NodeId, arguments: argparse.Namespace) -> Report:
    """Seconds from a node's start until it has all that was multicast while it was away."""
    cluster.kill(victim)
    Load(cluster, arguments.in_flight, spread=1, limit=arguments.missed).wait()
    began = time.monotonic()
    cluster.start(victim)
    most = 0.0

    def look() -> bool:
        nonlocal most
        most = max(most, memory_mib(pid_of(cluster, victim))["rss"])
        return settled(cluster)

    until(look, "all replicas at the same place", pause_s=0.02)
    spent = time.monotonic() - began
    return {
        "messages": arguments.missed,
        "seconds": round(spent, 2),
        "cpu_s": round(cpu_s(pid_of(cluster, victim)), 2),
        "most_rss": round(most, 1),
    }


def print_restart(found: Report) -> None:
    sizes = found["files_mib"]
    print(
        f"{found['messages']} messages, each multicast to one group and delivered, in {found['filled_s']} s; "
        f"log {sizes['log']} MiB, state {sizes['state']} MiB; nodes killed, not stopped"
    )
    for name, title in (("one", "one node, others go on"), ("every", "all nodes at once")):
        rows = found[name]
        print(f"{title:32}  median  worst  target")
        for key, about, target in (
            ("answers_s", "answers, s", ""),
            ("serves_s", "serves in all groups, s", "5"),
            ("cpu_s", "CPU time until then, s", ""),
            ("rss", "resident memory, MiB", ""),
            ("own", "... of it the process's own", ""),
        ):
            print(f"  {about:30} {rows[key]['median']:7.2f} {rows[key]['worst']:6.2f}  {target:>6}")
    if missed := found["missed"]:
        print(
            f"one node that missed {missed['messages']} messages has them after {missed['seconds']} s "
            f"({missed['cpu_s']} s of CPU), with at most {missed['most_rss']} MiB"
        )


# Idling


def measure_idle(arguments: argparse.Namespace) -> Report:
    shares: list[float] = []
    turns: list[float] = []
    rss: list[float] = []
    with local_cluster(arguments, "store") as cluster:
        until(lambda: settled(cluster), "rest")
        time.sleep(2.0)  # the first commits and collections
        pids = [pid_of(cluster, node) for node in cluster.config.nodes]
        for _ in range(arguments.rounds):
            before = [(cpu_s(pid), node_turns(cluster, node)) for pid, node in pair(cluster, pids)]
            began = time.monotonic()
            time.sleep(arguments.seconds)
            spent = time.monotonic() - began
            for (pid, node), (used, turned) in zip(pair(cluster, pids), before, strict=True):
                shares.append(100 * (cpu_s(pid) - used) / spent)
                turns.append((node_turns(cluster, node) - turned) / spent)
                rss.append(memory_mib(pid)["rss"])
        own = max(memory_mib(pid)["own"] for pid in pids)
    return {
        "partitions": arguments.partitions,
        "cpu_percent": asdict(Spread.of(shares, 2)),
        "turns_per_s": asdict(Spread.of(turns, 1)),
        "rss_mib": asdict(Spread.of(rss, 1)),
        "own_mib": round(own, 1),
    }


def pair(cluster: LocalCluster, pids: Sequence[int]) -> list[tuple[int, NodeId]]:
    return list(zip(pids, cluster.config.nodes, strict=True))


def node_turns(cluster: LocalCluster, node: NodeId) -> int:
    answer = ask(cluster.config.status_socket(node)) or {}
    return int(answer["statistics"]["turns"])


def print_idle(found: Report) -> None:
    print(f"{NODES} nodes, {found['partitions']} partitions, nobody speaks to them")
    print("for each node           median    p90  worst  target")
    for name, key, target in (
        ("CPU, % of a core", "cpu_percent", "3"),
        ("turns of its loop, /s", "turns_per_s", ""),
        ("resident memory, MiB", "rss_mib", "120"),
    ):
        row = found[key]
        print(f"{name:22} {row['median']:7.2f} {row['p90']:6.2f} {row['worst']:6.2f}  {target:>6}")


# A steady state


def sample(cluster: LocalCluster, load: Load) -> Report:
    """How things are now, at the worst node."""
    nodes = list(cluster.config.nodes)
    memory = [memory_mib(pid_of(cluster, node)) for node in nodes]
    entries = [about["entries"] for node in nodes for about in said(cluster, node).values()]
    return {
        "answered": load.answered,
        "own_mib": max(found["own"] for found in memory),
        "rss_mib": max(found["rss"] for found in memory),
        "entries": max(entries, default=0),
        "log_mib": max(file_mib(cluster, node, "log") for node in nodes),
        "state_mib": max(file_mib(cluster, node, "state") for node in nodes),
    }


def measure_steady(arguments: argparse.Namespace) -> Report:
    samples: list[Report] = []
    with local_cluster(arguments) as cluster:
        load = Load(cluster, arguments.in_flight, spread=2, rate=arguments.rate)
        pids = [pid_of(cluster, node) for node in cluster.config.nodes]
        began = due = time.monotonic()
        before = sum(map(cpu_s, pids))
        while time.monotonic() - began < arguments.seconds:
            due += arguments.seconds / arguments.samples
            time.sleep(max(due - time.monotonic(), 0.0))
            load.check()
            samples.append(sample(cluster, load))
        load.finish()
        spent, used = time.monotonic() - began, sum(map(cpu_s, pids)) - before
        until(lambda: settled(cluster), "all replicas at the same place")
        until(lambda: sample(cluster, load)["entries"] == 0, "nothing is held")
    third = max(len(samples) // 3, 1)
    middle, end = samples[third : 2 * third] or samples, samples[-third:]
    return {
        "seconds": round(spent, 1),
        "answered": load.answered,
        "rate": round(load.answered / spent),
        "cpu_us": round(used / max(load.answered, 1) * 1e6 / NODES, 1),
        "middle": {key: round(statistics.median(row[key] for row in middle), 1) for key in samples[0]},
        "end": {key: round(statistics.median(row[key] for row in end), 1) for key in samples[0]},
        "most": {key: round(max(row[key] for row in samples), 1) for key in samples[0]},
        "samples": samples,
    }


def print_steady(found: Report) -> None:
    print(
        f"{found['answered']} messages in {found['seconds']} s ({found['rate']} /s), "
        f"{found['cpu_us']} us of each node's CPU for each"
    )
    print("at the worst node, medians of           second third  last third   most  target")
    for name, key, target in (
        ("the process's own memory, MiB", "own_mib", "no growth"),
        ("entries held by a replica", "entries", "no growth"),
        ("the log's file, MiB", "log_mib", "no growth"),
        ("resident memory, mapped files too, MiB", "rss_mib", ""),
        ("the state's file: every message, MiB", "state_mib", "its job"),
    ):
        middle, end, most = (found[part][key] for part in ("middle", "end", "most"))
        print(f"{name:39} {middle:12.1f} {end:11.1f} {most:6.1f}  {target}")
    print("nothing was held, and all replicas were at the same place, when the load had ended")


# The command


FIGURES: Final[Mapping[str, tuple[Callable[[argparse.Namespace], Report], Callable[[Report], None]]]] = {
    "failover": (measure_fail_over, print_fail_over),
    "restart": (measure_restart, print_restart),
    "idle": (measure_idle, print_idle),
    "steady": (measure_steady, print_steady),
}


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    figures = parser.add_subparsers(dest="figure", required=True)
    of: dict[str, argparse.ArgumentParser] = {}
    for name in FIGURES:
        of[name] = figures.add_parser(name)
        of[name].add_argument("--partitions", type=int, default=PARTITIONS)
        of[name].add_argument("--where", type=Path, help="a folder on the disk to measure")
        of[name].add_argument("--json", action="store_true")
    of["failover"].add_argument("--kills", type=int, default=20)
    of["failover"].add_argument("--in-flight", type=int, default=16)
    of["failover"].add_argument("--seed", type=int, default=1)
    of["restart"].add_argument("--messages", type=int, default=1_000_000)
    of["restart"].add_argument("--in-flight", type=int, default=1000)
    of["restart"].add_argument("--rounds", type=int, default=5)
    of["restart"].add_argument("--missed", type=int, default=20_000, help="while one node is away")
    of["idle"].add_argument("--seconds", type=float, default=10.0)
    of["idle"].add_argument("--rounds", type=int, default=3)
    of["steady"].add_argument("--seconds", type=float, default=600.0)
    of["steady"].add_argument("--samples", type=int, default=60)
    of["steady"].add_argument("--in-flight", type=int, default=64)
    of["steady"].add_argument("--rate", type=float, help="messages a second, instead of as many as it can")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = arguments_of()
    measure, show = FIGURES[arguments.figure]
    before = load_average()
    found = {**measure(arguments), "load_average": [before, load_average()]}
    if arguments.json:
        print(json.dumps(found))
    else:
        show(found)
        print(f"load average of the machine before and after: {found['load_average']}")


if __name__ == "__main__":
    main()
