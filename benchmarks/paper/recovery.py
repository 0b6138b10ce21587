"""A leader crashes under load: the paper's last figure.

Messages go to random 4 of 10 groups. A fourth node has a replica of group 3 only, which leads it, and is
killed with SIGKILL: so one leader dies, as in the paper, and nothing else. The survivors are asked every few
milliseconds whether one of them leads the group. All of it happens in the paper's wide area, and in the local
area, where only the time-outs take long.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.load import BackgroundMeasurement, Plan, read_samples, running
from benchmarks.load.nodes import groups_of
from benchmarks.paper.bins import SERIES, bins, figures, split
from benchmarks.paper.clusters import GIVE_BACK_S, as_plan, from_plan, homes, wait_home
from benchmarks.paper.points import Point
from benchmarks.paper.runner import Measure
from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from multicast.protocol import Timing

AFFECTED: Final = 3
"""The group whose leader is killed."""
VICTIM: Final = NodeId("n4")
LOOK_S: Final = 0.01
PATIENCE_S: Final = 20.0
"""How long a new leader may take."""
_OVERHEAD_S: Final = 7.0
"""Seconds to start and end a cluster, and to read the samples."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The same crash several times, in new clusters."""

    protocols: Sequence[str]
    areas: Mapping[str, int]
    """Numbers of clients, in "lan" and "wan"."""
    times: int
    before_s: float
    """Seconds of steady load after the warm-up."""
    after_s: float
    warm_up_s: float
    name: str = "recovery"

    def points(self) -> list[Point]:
        """All points: one for each crash."""
        return [
            self._point(protocol, area, number)
            for area in self.areas
            for number in range(1, self.times + 1)
            for protocol in self.protocols
        ]

    def _point(self, protocol: str, area: str, number: int) -> Point:
        seconds = self.before_s + self.after_s
        load = Plan(
            protocol=protocol, dest=4, clients=self.areas[area], regions=area == "wan", rounds=1,
            warm_up_s=self.warm_up_s, seconds=seconds, seed=number, patience_s=PATIENCE_S,
            timing=Timing(give_back_s=GIVE_BACK_S, retry_s=0.5),
        )  # fmt: skip
        plan = {"area": area, "before_s": self.before_s, "after_s": self.after_s, "load": as_plan(load)}
        expected_s = self.warm_up_s + seconds + _OVERHEAD_S
        return Point(self.name, f"{area}-{protocol}-{number}", plan, expected_s)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Measure]:
        """Every point has a cluster of its own: what a crash leaves behind would disturb the next."""
        yield lambda it: crash(from_plan(it.plan["load"]), it.plan["before_s"], it.plan["after_s"])


def recovery(protocols: Sequence[str], *, quick: bool = False) -> Recovery:
    """The experiment: white-box only, as in the paper, unless only others are named."""
    chosen = [protocol for protocol in protocols if protocol == "whitebox"] or list(protocols)
    if quick:
        return Recovery(chosen, {"lan": 50, "wan": 50}, 1, before_s=3.0, after_s=6.0, warm_up_s=1.0)
    return Recovery(chosen, {"lan": 50, "wan": 50}, 5, before_s=4.5, after_s=9.0, warm_up_s=2.0)


def crash(plan: Plan, before_s: float, after_s: float) -> dict[str, Any]:
    """Load a cluster, kill the leader of a group, and measure how clients recover."""
    with (
        tempfile.TemporaryDirectory(prefix="wbkv-") as folder,
        cluster_of(plan, Path(folder) / "cluster") as cluster,
    ):
        samples = Path(folder) / "samples"
        ballot = _ballot(cluster)
        loading = BackgroundMeasurement(plan, cluster, samples)
        loading.sleep(plan.warm_up_s + before_s)
        crash_us = time.time_ns() // 1000
        cluster.kill(VICTIM)
        leader_us = _new_leader(cluster, ballot, loading)
        found = loading.wait()
        answered = read_samples(samples)
    series = split(answered, AFFECTED)
    leader_s = (leader_us - crash_us) / 1e6
    summary = {
        name: figures(series[name], crash_us, before_s, after_s - 1.0, 0.0 if name == "others" else leader_s)
        for name in SERIES
    }
    return {
        "leader_s": leader_s,
        "series": {name: bins(series[name], crash_us, before_s, after_s - 1.0) for name in SERIES},
        "figures": summary,
        "load": found.as_json(),
        "summary": f"new leader after {leader_s:.2f} s, clients back at 90% after "
        f"{summary['clients']['recovered_s']} s",
    }


@contextlib.contextmanager
def cluster_of(plan: Plan, folder: Path) -> Iterator[LocalCluster]:
    """Three nodes with a replica of every group but one, of which the fourth node has the leader."""
    usual = ["n1", "n2", "n3"]
    # The first member of group 3 is the one that prefers to lead it. Its region is the first, too.
    groups = [[VICTIM, "n2", "n3"] if group == AFFECTED else usual for group in range(plan.groups)]
    with running(plan, folder, nodes=4, groups=groups) as cluster:
        wait_home(cluster)
        assert [group for group, node in homes(cluster).items() if node == VICTIM] == [AFFECTED]
        yield cluster
        cluster.kill()  # its data is about to be removed, and need not be left in order


def _ballot(cluster: LocalCluster) -> int:
    return int(groups_of(cluster, VICTIM)[str(AFFECTED)]["ballot"])


def _new_leader(cluster: LocalCluster, ballot: int, loading: BackgroundMeasurement) -> int:
    """When a survivor first said that it leads the affected group: microseconds of the time of day."""
    survivors = [node for node in cluster.config.nodes if node != VICTIM]
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for node in survivors:
            about = groups_of(cluster, node).get(str(AFFECTED))
            if about and about["status"] == "leader" and about["ballot"] > ballot:
                return time.time_ns() // 1000
        loading.sleep(LOOK_S)
    raise RuntimeError(f"group {AFFECTED} has no new leader after {PATIENCE_S:g} s")
