"""The cluster of a plan, and the CPU time and memory of its processes."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from benchmarks.load.plan import DELAYS_MS, REGIONS, Plan, PlanError
from kvstore.config.addresses import NodeId
from kvstore.config.checks import Durability
from kvstore.local.cluster import SERVE, LocalCluster
from kvstore.local.status import ask
from multicast.protocol import Timing

TICKS: Final = os.sysconf("SC_CLK_TCK")

FAR: Final = Timing(retry_s=2.0)
"""In a wide area, messages take longer than nodes on one machine wait before they retry."""

_PROFILED: Final = """
import cProfile, sys
from kvstore.commands.serve import main
folder, arguments = sys.argv[1], sys.argv[2:]
profile = cProfile.Profile()
status = profile.runcall(main, arguments)
profile.dump_stats(f"{folder}/{arguments[arguments.index('--node') + 1]}.prof")
sys.exit(status)
"""


def serve_profiled(folder: Path) -> Sequence[str]:
    """The command of nodes that leave a profile each in a folder, for `python -m pstats`."""
    folder.mkdir(parents=True, exist_ok=True)
    return (sys.executable, "-P", "-c", _PROFILED, str(folder.absolute()))


@contextlib.contextmanager
def running(
    plan: Plan,
    folder: Path | None = None,
    *,
    trace: Path | None = None,
    nodes: int | None = None,
    groups: Sequence[Sequence[str]] | None = None,
    delays_ms: Mapping[str, float] | None = None,
    command: Sequence[str] = SERVE,
) -> Iterator[LocalCluster]:
    """The cluster of a plan, started and ready. Without a folder, its data is temporary.

    It serves any plan that differs in the load only. `trace` is where nodes record what they deliver. `nodes`
    and `groups` place replicas in another way than `default_members` does. `delays_ms` are emulated
    between nodes; those of regions, if the plan has regions.
    """
    count = plan.nodes if nodes is None else nodes
    regions = {f"n{n + 1}": REGIONS[n % len(REGIONS)] for n in range(count)} if plan.regions else None
    sizes: dict[str, Any] = {"partitions": plan.groups, "replicas": plan.replicas}
    if groups is not None:
        sizes = {"groups": groups}
    with contextlib.ExitStack() as stack:
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="wbkv-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
        cluster = stack.enter_context(
            LocalCluster(
                folder, count, **sizes, protocol=plan.protocol, application=plan.level, clock=plan.clock,
                durability=cast(Durability, plan.durability),
                timing=plan.timing or (FAR if plan.regions else None),
                regions=regions, delays_ms=DELAYS_MS if plan.regions else delays_ms,
                trace=trace, restart=False, command=command,
            )
        )  # fmt: skip
        if plan.level == "store":
            cluster.wait_serving()
        yield cluster


def check_cluster(plan: Plan, cluster: LocalCluster) -> None:
    """Raise `PlanError` if the cluster is not one of the plan."""
    config = cluster.config
    found = {
        "protocol": config.protocol,
        "groups": len(config.groups),
        "level": config.application,
        "clock": config.clock,
        "durability": config.durability,
        "regions": any(node.region is not None for node in config.nodes.values()),
    }
    for name, value in found.items():
        if value != getattr(plan, name):
            raise PlanError(name, f"the cluster has {value}, not {getattr(plan, name)}")


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, user and system, of all its threads."""
    # The second field is the command's name, in brackets, and may be anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int, field: str = "RssAnon") -> float:
    """Memory of a process: by default its own, without files that it maps: their pages are the kernel's."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0]) / 1024


def pids(cluster: LocalCluster) -> list[int]:
    """Processes of the nodes that run."""
    return [pid for node in cluster.nodes if (pid := cluster.pid(node)) is not None]


def groups_of(cluster: LocalCluster, node: NodeId) -> dict[str, Any]:
    """The status of a node's replicas, by group; empty while the node does not answer."""
    groups: dict[str, Any] = (ask(cluster.config.status_socket(node)) or {}).get("groups", {})
    return groups


def spent_s(cluster: LocalCluster) -> dict[str, float]:
    """CPU seconds of each node that runs."""
    found = {}
    for node in cluster.config.nodes:
        pid = cluster.pid(node)
        with contextlib.suppress(FileNotFoundError):
            found.update({} if pid is None else {str(node): cpu_s(pid)})
    return found
