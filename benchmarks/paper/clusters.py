"""Clusters that several points share, and protocols that take turns on them.

A cluster of ten groups takes seconds to start, and a turn is hardly longer. So the clusters of all protocols
that are compared stay up side by side, and one at a time is loaded. Before a turn, every group must be led
by the member that prefers to: where leaders are decides what a cluster can do, and how far clients are.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.load import Plan, measure, running
from kvstore.local.cluster import LocalCluster
from kvstore.local.status import ask

HOME_S: Final = 60.0
"""How long leadership may take to reach the preferred leaders."""
GIVE_BACK_S: Final = 2.0
"""Of clusters that are measured: a leader that is not the preferred one hands over sooner than usual."""


_shape = attrgetter("protocol", "clock", "groups", "replicas", "regions", "durability", "level")
"""What a cluster of a plan is started with. Plans that differ in anything else can share one."""


class Clusters:
    """Running clusters, started when they are first needed, and again after a failure."""

    def __init__(self, keep: int, together: int | None = None) -> None:
        """No more than so many are up; the one that was started first makes room. `together`: the number of
        the node that leads all groups, counted from 0; without one, leaders are spread.
        """
        self._keep = keep
        self._together = together
        self._up: dict[object, tuple[LocalCluster, contextlib.ExitStack]] = {}

    def __enter__(self) -> Clusters:
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._up:
            self._close(next(iter(self._up)))

    def get(self, plan: Plan) -> LocalCluster:
        """The cluster for a plan."""
        shape = _shape(plan)
        if shape not in self._up:
            while len(self._up) >= self._keep:
                self._close(next(iter(self._up)))
            stack = contextlib.ExitStack()
            cluster = stack.enter_context(running(plan, groups=led_by(plan, self._together)))
            stack.callback(cluster.kill)  # its data is about to be removed, and need not be left in order
            self._up[shape] = cluster, stack
        return self._up[shape][0]

    def discard(self, plan: Plan) -> None:
        """End the plan's cluster, if it is running. The next `get` starts a new one."""
        if (shape := _shape(plan)) in self._up:
            self._close(shape)

    def _close(self, shape: object) -> None:
        _, stack = self._up.pop(shape)
        stack.close()


def led_by(plan: Plan, together: int | None) -> list[list[str]] | None:
    """Members of all groups such that one node is the preferred leader of all; None for the default."""
    if together is None:
        return None
    size = plan.replicas
    # Group g prefers its member number g, counted around.
    return [
        [f"n{1 + (together + number - group) % size}" for number in range(size)]
        for group in range(plan.groups)
    ]


@dataclass(frozen=True, slots=True)
class Counters:
    """What all nodes together have read from their sockets since they started, and delivered.

    The kernel counts what a process reads. Nodes read little else: their disks are mapped into memory. What
    a node sends to itself is not in it, nor what two of its replicas send to each other.
    """

    delivered: int
    """Deliveries, counted once for every group."""
    read_bytes: int
    reads: int

    @classmethod
    def of(cls, cluster: LocalCluster) -> Counters:
        """Read the counters. Raises `RuntimeError` if a node does not answer."""
        totals = {"rchar": 0, "syscr": 0}
        delivered: dict[str, int] = {}
        for node in cluster.config.nodes:
            pid, said = cluster.pid(node), ask(cluster.config.status_socket(node))
            if pid is None or said is None:
                raise RuntimeError(f"{node} has ended, or does not answer")
            for line in Path(f"/proc/{pid}/io").read_text().splitlines():
                name, _, value = line.partition(": ")
                if name in totals:
                    totals[name] += int(value)
            for group, about in said["groups"].items():
                delivered[group] = max(delivered.get(group, 0), int(about["deliveries"]))
        return cls(sum(delivered.values()), totals["rchar"], totals["syscr"])

    def since(self, before: Counters, dest: int) -> dict[str, Any]:
        """Counts for each multicast to `dest` groups since `before`; empty if there was none."""
        count = (self.delivered - before.delivered) / dest
        if not count:
            return {}
        read_bytes, reads = self.read_bytes - before.read_bytes, self.reads - before.reads
        return {"read_bytes": read_bytes / count, "reads": reads / count}


def in_turns(plans: Sequence[Plan], rounds: int, clusters: Clusters) -> dict[str, Any]:
    """Run rounds in which every plan has a turn: neighbours in time can be compared.

    A turn that fails is kept as such, and its cluster is replaced.
    """
    for plan in plans:
        with contextlib.suppress(Exception):  # it fails again in its turn, and is reported then
            clusters.get(plan)
    turns: list[dict[str, Any]] = []
    failed: list[str] = []
    for number in range(rounds):
        for plan in plans:
            turn: dict[str, Any] = {"protocol": plan.protocol, "clock": plan.clock, "round": number}
            try:
                turn |= _turn(plan, clusters)
            except Exception as error:  # noqa: BLE001 - any failure is a result of this turn
                turn["failed"] = f"{type(error).__name__}: {error}"
                failed.append(f"{plan.protocol}, round {number + 1}: {turn['failed']}")
                clusters.discard(plan)
            turns.append(turn)
    result: dict[str, Any] = {"turns": turns, "summary": _summary(turns)}
    return result | ({"failed": failed} if failed else {})


def _turn(plan: Plan, clusters: Clusters) -> dict[str, Any]:
    cluster = clusters.get(plan)
    wait_home(cluster)
    before = Counters.of(cluster)
    found = measure(replace(plan, rounds=1), cluster).as_json()
    if not found["throughput"]:
        raise RuntimeError("not one message was answered")
    return found | {"received": Counters.of(cluster).since(before, plan.dest)}


def _summary(turns: Sequence[dict[str, Any]]) -> str:
    parts = []
    for protocol in dict.fromkeys(turn["protocol"] for turn in turns):
        good = [turn for turn in turns if turn["protocol"] == protocol and "failed" not in turn]
        if good:
            rate = statistics.median(turn["throughput"] for turn in good)
            mean = statistics.median(turn["latency_ms"]["mean"] for turn in good)
            parts.append(f"{protocol} {rate:,.0f}/s {mean:,.1f} ms")
    return "; ".join(parts)


def homes(cluster: LocalCluster) -> dict[int, str]:
    """The preferred leader of each group: a node."""
    config = cluster.config
    preferred = {group: config.topology.preferred_leader(group) for group in config.groups}
    return {int(group): str(config.placement[replica]) for group, replica in preferred.items()}


def wait_home(cluster: LocalCluster) -> None:
    """Wait until every group is led by its preferred leader; after `HOME_S` raise `RuntimeError`."""
    wanted = homes(cluster)
    deadline = time.monotonic() + HOME_S
    while (found := {group["id"]: group["leader"] for group in cluster.status()["groups"]}) != wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(f"leaders are {found} and not {wanted} after {HOME_S:g} s")
        time.sleep(0.1)


def as_plan(plan: Plan) -> dict[str, Any]:
    """A plan as a point's plan has it: without what only the store level knows."""
    return {name: value for name, value in asdict(plan).items() if name != "conditions"}


def from_plan(plan: Mapping[str, Any]) -> Plan:
    """The plan of which `as_plan` made this."""
    return msgspec.convert(plan, Plan)
