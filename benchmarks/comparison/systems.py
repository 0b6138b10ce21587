"""Start three nodes of a store in a temporary folder: real processes on loopback, which fsync.

One store runs at a time: the idle nodes of another would take CPU time from it.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.comparison.calls import PARTITIONS
from benchmarks.load import LoadError, Plan, running
from kvstore.config.addresses import NodeId
from kvstore.local.cluster import SERVE, LocalCluster, free_ports
from kvstore.local.supervise import Child

NODES: Final = 3
READY_S: Final = 30.0
SPREAD_S: Final = 60.0
"""Another leader hands over to the preferred one when that has been healthy for 20 s."""
GRACE_S: Final = 10.0
MISSING: Final = "etcd is not installed; on Debian, `apt-get install etcd-server` installs version 3.4"


@dataclass(frozen=True, slots=True)
class System:
    """A store that runs: where clients reach it, and its processes by name."""

    name: str
    addresses: list[str]
    pids: dict[str, int]


def etcd_command() -> str:
    """Return the path of etcd. Raises `SystemExit` that says how to get it."""
    found = shutil.which("etcd")
    if found is None:
        raise SystemExit(MISSING)
    return found


@contextlib.contextmanager
def etcd() -> Iterator[System]:
    """Three nodes of etcd with its own settings: fsync is one of them."""
    command = etcd_command()
    with contextlib.ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="etcd-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        ports = free_ports(2 * NODES)
        clients = {f"e{number + 1}": f"127.0.0.1:{port}" for number, port in enumerate(ports[:NODES])}
        peers = dict(zip(clients, (f"http://127.0.0.1:{port}" for port in ports[NODES:]), strict=True))
        children = []
        for name, address in clients.items():
            own = f"http://{address}"
            child = Child(
                NodeId(name),
                [
                    command, "--name", name, "--data-dir", str(folder / name), "--logger", "zap",
                    "--listen-client-urls", own, "--advertise-client-urls", own,
                    "--listen-peer-urls", peers[name], "--initial-advertise-peer-urls", peers[name],
                    "--initial-cluster", ",".join(f"{each}={url}" for each, url in peers.items()),
                    "--initial-cluster-state", "new",
                ],
                folder / f"{name}.log", lambda: False, print,
            )  # fmt: skip
            stack.callback(_end, child)
            child.start()
            children.append(child)
        for child, address in zip(children, clients.values(), strict=True):
            _wait_healthy(child, address)
        pids = {str(child.name): pid for child in children if (pid := child.pid) is not None}
        yield System("etcd", list(clients.values()), pids)


def _end(child: Child) -> None:
    child.stop(signal.SIGTERM)
    if not child.wait(GRACE_S):
        child.stop(signal.SIGKILL)
        child.wait(GRACE_S)


def _wait_healthy(child: Child, address: str) -> None:
    """Wait until a node of etcd answers strict reads. Raises `LoadError` if it does not."""
    deadline = time.monotonic() + READY_S
    while not _is_healthy(address):
        if child.over:
            raise LoadError(child.obituary())
        if time.monotonic() > deadline:
            raise LoadError(f"{child.name} is not healthy after {READY_S:g} s{child.tail()}")
        time.sleep(0.05)


def _is_healthy(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=2.0)
    try:
        connection.request("GET", "/health")
        return b'"true"' in connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def wbkv(command: Sequence[str] = SERVE) -> Iterator[System]:
    """Three nodes of ours, with three partitions of three replicas, which fsync; each node leads one."""
    plan = Plan(level="store", groups=PARTITIONS, durability="fsync")
    with running(plan, command=command) as cluster:
        _wait_spread(cluster)
        pids = {str(node): pid for node in cluster.nodes if (pid := cluster.pid(node)) is not None}
        yield System("wbkv", cluster.addresses, pids)


def _wait_spread(cluster: LocalCluster) -> None:
    """Wait until every node leads a partition: on a busy machine, one that starts first may lead several."""
    deadline = time.monotonic() + SPREAD_S
    while len({group["leader"] for group in cluster.status()["groups"]} - {None}) < NODES:
        if time.monotonic() > deadline:
            raise LoadError(f"not every node leads a partition after {SPREAD_S:g} s")
        time.sleep(0.1)


SYSTEMS: Final[dict[str, Callable[[], contextlib.AbstractContextManager[System]]]] = {
    "etcd": etcd, "wbkv": wbkv,
}  # fmt: skip
