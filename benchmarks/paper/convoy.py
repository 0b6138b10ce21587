"""The convoy effect on real nodes: delivery latency against the rate of conflicting messages.

Two groups, and a node for every replica, so that all that replicas say to each other takes δ, which is
emulated and much longer than anything that processes do. All messages go to both groups and so conflict.
They come from clients at several distances: one leader is δ away, the other anything up to δ, as in the
paper's model, where δ is the most that a message takes. Starts are a Poisson process that is fixed in
advance. Nodes note when they deliver (`timed_node`), so latency is that of delivery, at leaders and at
followers, without the way back; `benchmarks.load` measures answers, so this study has its own sender.

The same study in virtual time, where processes and disks take no time at all, is `wbkv bench convoy`; its
figures are kept beside these.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.paper.clusters import GIVE_BACK_S, wait_home
from benchmarks.paper.points import Point
from benchmarks.paper.runner import Measure
from benchmarks.record import ROOT
from kvstore.bare.client import MulticastClient
from kvstore.local.cluster import LocalCluster
from multicast import PROTOCOLS, VARIANTS
from multicast.protocol import Timing
from multicast.sim.convoy import Summary
from multicast.types import GroupId

COMMAND: Final = (sys.executable, "-P", "-m", "benchmarks.paper.timed_node")
DELTA_MS: Final = 30.0
RATES: Final = (0.1, 0.3, 1.0, 3.0, 8.0)
"""Messages per δ."""
SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How far clients are from their nearer leader, in δ."""
PATIENCE_S: Final = 20.0
GROUPS: Final = 2
VIRTUAL_RATES: Final = (0.03, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
TIMING: Final = Timing(retry_s=2.0, give_back_s=GIVE_BACK_S)
"""Messages are not repeated just because they take long."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A protocol with its clock."""

    protocol: str
    clock: str = "logical"

    @property
    def name(self) -> str:
        """The name in files and plots."""
        return self.protocol if self.clock == "logical" else f"{self.protocol}-{self.clock}"

    @property
    def plan(self) -> dict[str, Any]:
        """The variant in the plan of a point."""
        return {"variant": self.name, "protocol": self.protocol, "clock": self.clock}


def variants(protocols: Sequence[str] | None = None) -> list[Variant]:
    """The paper's protocols, and variants of the white-box protocol; only the given protocols, if any."""
    known = {**PROTOCOLS, **{name: each for name, each in VARIANTS.items() if name.startswith("whitebox")}}
    found = [Variant(name) for name in known]
    found.insert(1, Variant("whitebox", "hybrid"))
    return [each for each in found if protocols is None or each.protocol in protocols]


@dataclass(frozen=True, slots=True)
class ConvoyStudy:
    """The study: every variant at every rate, on real nodes and in virtual time."""

    variants: Sequence[Variant]
    rates: Sequence[float]
    messages: int
    """About so many in a point; but it takes at least `least_s` and at most `most_s`."""
    least_s: float
    most_s: float
    virtual_messages: int
    name: str = "convoy"

    def points(self) -> list[Point]:
        """The rates of one variant follow each other, on one cluster."""
        real = [self._real(variant, rate) for variant in self.variants for rate in self.rates]
        return real + [self._virtual(variant) for variant in self.variants]

    def _real(self, variant: Variant, rate: float) -> Point:
        per_s = rate / (DELTA_MS / 1000)
        seconds = round(min(max(self.messages / per_s, self.least_s), self.most_s), 2)
        plan = {"kind": "real", **variant.plan, "delta_ms": DELTA_MS, "rate": rate, "warm_up_s": 1.0}
        plan |= {"seconds": seconds, "seed": 0}
        return Point(self.name, f"real-{variant.name}-{rate:g}", plan, seconds + 3.0)

    def _virtual(self, variant: Variant) -> Point:
        rates = ",".join(f"{rate:g}" for rate in VIRTUAL_RATES)
        options = ["--protocols", variant.protocol, "--clock", variant.clock, "--rates", rates]
        options += ["--messages", str(self.virtual_messages), "--seeds", "2"]
        plan = {"kind": "virtual", **variant.plan, "options": " ".join(options)}
        return Point(self.name, f"virtual-{variant.name}", plan, 15.0)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Measure]:
        """Measure on one cluster at a time: δ decides here, not the load of the machine."""
        with contextlib.ExitStack() as stack:
            running: dict[str, _Nodes] = {}

            def measure(point: Point) -> dict[str, Any]:
                plan = point.plan
                if plan["kind"] == "virtual":
                    return in_virtual_time(plan["options"].split())
                if plan["variant"] not in running:
                    running.clear()
                    stack.close()
                    nodes = _nodes(plan["protocol"], plan["clock"], plan["delta_ms"])
                    running[plan["variant"]] = stack.enter_context(nodes)
                try:
                    return on_real_nodes(plan, running[plan["variant"]])
                except Exception:
                    running.clear()
                    stack.close()
                    raise

            yield measure


def convoy(protocols: Sequence[str] | None, *, quick: bool = False) -> ConvoyStudy:
    """The study of all variants, or of the given protocols."""
    chosen = variants(protocols)
    if quick:
        return ConvoyStudy(chosen, (0.3, 3.0), 50, 2.0, 4.0, 50)
    return ConvoyStudy(chosen, RATES, 150, 3.0, 12.0, 300)


def in_virtual_time(options: Sequence[str]) -> dict[str, Any]:
    """Run `wbkv bench convoy`, and return its curve."""
    command = [str(Path(sys.executable).with_name("wbkv")), "bench", "convoy", "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(
            f"{' '.join(['wbkv', *command[1:]])} ended with {done.returncode}: {done.stderr.strip()[-500:]}"
        )
    (found,) = json.loads(done.stdout)["protocols"].values()
    failed = {"failed": [f"out of bounds: {each}" for each in found["strays"]]} if found["strays"] else {}
    return {"curve": found, "summary": f"{len(found['points'])} rates in virtual time"} | failed


# Real nodes


@dataclass(frozen=True, slots=True)
class _Nodes:
    """A cluster whose nodes note when they deliver."""

    cluster: LocalCluster
    trace: Path
    delta_s: float
    leaders: Sequence[str]
    """The leader of each group: nodes."""


@contextlib.contextmanager
def _nodes(protocol: str, clock: str, delta_ms: float) -> Iterator[_Nodes]:
    replicas = 1 if protocol == "skeen" else 3
    count = GROUPS * replicas
    names = [f"n{number}" for number in range(1, count + 1)]
    groups = [names[group * replicas : (group + 1) * replicas] for group in range(GROUPS)]
    delays = {f"{a}-{b}": delta_ms for index, a in enumerate(names) for b in names[index + 1 :]}
    with tempfile.TemporaryDirectory(prefix="wbkv-", ignore_cleanup_errors=True) as folder:
        trace = Path(folder) / "trace"
        with LocalCluster(
            Path(folder) / "cluster", count, groups=groups, protocol=protocol, clock=clock, durability="os",
            application="multicast", timing=TIMING, delays_ms=delays, trace=trace, restart=False,
            command=COMMAND,
        ) as cluster:  # fmt: skip
            wait_home(cluster)
            leaders = [str(group["leader"]) for group in cluster.status()["groups"]]
            yield _Nodes(cluster, trace, delta_ms / 1000, leaders)
            cluster.kill()  # its data is about to be removed, and need not be left in order


@dataclass(frozen=True, slots=True)
class _Sent:
    """One message: its client and number, and when it was due, in microseconds of the time of day."""

    client: int
    number: int
    start_us: int


def on_real_nodes(plan: Mapping[str, Any], nodes: _Nodes) -> dict[str, Any]:
    """Send messages at a rate, and measure when each node delivers them."""
    per_s = plan["rate"] / nodes.delta_s
    warm_up_s, seconds = plan["warm_up_s"], plan["seconds"]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sent, late = runner.run(_send(nodes, per_s, warm_up_s + seconds, random.Random(plan["seed"])))
    counted = sent[int(len(sent) * warm_up_s / (warm_up_s + seconds)) :]
    times = _wait_for_deliveries(nodes, counted)
    latencies: dict[bool, list[float]] = {True: [], False: []}  # at leaders, and at followers
    for message in counted:
        delivered = times[message.client, message.number]
        for leads, found in latencies.items():
            if ends := [at for node, at in delivered.items() if (node in nodes.leaders) == leads]:
                found.append((max(ends) - message.start_us) / 1e6 / nodes.delta_s)
    leader = summary(latencies[True])
    return {
        "messages": len(counted),
        "late": late,
        "leader": leader,
        "follower": summary(latencies[False]) if latencies[False] else None,
        "summary": f"at leaders {leader['mean']:.2f}δ, p99 {leader['p99']:.2f}δ, most {leader['max']:.2f}δ",
    }


async def _send(nodes: _Nodes, per_s: float, seconds: float, rng: random.Random) -> tuple[list[_Sent], int]:
    """All messages of a run, in the order of their starts, and how many were sent more than δ/10 late."""
    config = nodes.cluster.config
    delta_s = nodes.delta_s
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for far, near in (nodes.leaders, nodes.leaders[::-1]):
            for share in SHARES:
                delays = dict.fromkeys(config.nodes, delta_s) | {config.node(near): share * delta_s}
                assert delays[config.node(far)] == delta_s
                client = MulticastClient.of(config, retry_s=PATIENCE_S, delays_s=delays)
                clients.append(await stack.enter_async_context(client))
        dest = [GroupId(group) for group in range(GROUPS)]
        numbers = dict.fromkeys(clients, 0)
        sent, answers, late = [], [], 0
        due, wall_s = time.monotonic() + 0.1, time.time() - time.monotonic()
        end = due + seconds
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            late += time.monotonic() - due > delta_s / 10
            client = rng.choice(clients)
            numbers[client] += 1
            answers.append(client.multicast(dest, b"\0" * 20, PATIENCE_S))
            sent.append(_Sent(client.client, numbers[client], round((due + wall_s) * 1e6)))
            due += rng.expovariate(per_s)
        await asyncio.gather(*answers)
    return sent, late


def _wait_for_deliveries(nodes: _Nodes, sent: Sequence[_Sent]) -> dict[tuple[int, int], dict[str, int]]:
    """When each node delivered each message. Waits until all nodes have written that of all messages."""
    everywhere = len(nodes.cluster.config.nodes)
    wanted = {(message.client, message.number) for message in sent}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found: dict[tuple[int, int], dict[str, int]] = {}
        for path in nodes.trace.glob("times-*.jsonl"):
            node = path.stem.partition("-")[2]
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    at_us, _, messages = json.loads(line)
                    for client, number in messages:
                        if (client, number) in wanted:
                            found.setdefault((client, number), {})[node] = at_us
        missing = [each for each in wanted if len(found.get(each, ())) < everywhere]
        if not missing:
            return found
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(missing)} of {len(wanted)} messages were not delivered at every node")
        time.sleep(0.1)


def summary(latencies: Sequence[float]) -> dict[str, float]:
    """Statistics of latencies in δ, with the keys of `wbkv bench convoy`."""
    found: dict[str, float] = asdict(Summary.of([latencies]))
    del found["error"]  # there is one run: its error is unknown
    return found
