"""Create, start, supervise and stop clusters of real processes on this machine.

All files of a cluster are in one folder: `cluster.toml`, a folder `nX` with the disk of each node, its output
`nX.log`, its socket `nX.sock` and, while it runs or if it crashed, a trace `nX.crash`. The process that runs
the cluster holds a lock on `cluster.lock`, which the kernel releases however that process ends. Its nodes
end with it, however it ends: see `supervise`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

from kvstore.config.addresses import NodeId
from kvstore.config.checks import ConfigError, Durability
from kvstore.config.history import KEEP_HISTORY, KeepHistory
from kvstore.config.model import API_PORT, Config, StoreConfig
from kvstore.config.toml import dump_config, load_config
from kvstore.local import folder
from kvstore.local.folder import CONFIG
from kvstore.local.status import ClusterStatus, ask_all
from kvstore.local.supervise import Child, ClusterError, has_ended, process_of
from kvstore.storage.errors import StorageError
from multicast.protocol import Timing

logger = logging.getLogger(__name__)

NODES, PARTITIONS, REPLICAS = 3, 3, 3
"""Defaults of a new cluster."""

SERVE: Final = (sys.executable, "-P", "-m", "kvstore.commands.serve")
"""`wbkv serve`, without loading the other subcommands."""

READY_S: Final = 60.0
GRACE_S: Final = 10.0
"""How long a node may take to hand over and exit before it is killed."""


def _create_disk(config: Config, node: NodeId) -> None:
    from kvstore.local.disk import create_disk  # loads LMDB, which only the creation of a cluster needs

    create_disk(config, node)


class LocalCluster:
    """The cluster of one folder. The constructor creates the cluster if the folder is empty.

    As a context manager, it starts the cluster, waits until it is ready, and stops it. With `restart`, nodes
    that crash after that are restarted. Nodes that `stop` or `kill` ended stay down until `start`.
    """

    def __init__(
        self,
        data: Path | str,
        nodes: int | None = None,
        partitions: int | None = None,
        *,
        replicas: int | None = None,
        port: int | None = None,
        api_port: int | None = None,
        protocol: str | None = None,
        durability: Durability | None = None,
        application: str | None = None,
        clock: str | None = None,
        store: StoreConfig | None = None,
        keep_history: str | None = None,
        timing: Timing | None = None,
        regions: Mapping[str, str] | None = None,
        delays_ms: Mapping[str, float] | None = None,
        groups: Sequence[Sequence[str]] | None = None,
        trace: Path | str | None = None,
        reclaim: bool = False,
        restart: bool = True,
        command: Sequence[str] = SERVE,
        make_disk: Callable[[Config, NodeId], None] = _create_disk,
        grace_s: float = GRACE_S,
        report: Callable[[str], None] = logger.warning,
    ) -> None:
        """Arguments left as None keep the folder's stored value, or the default for a new cluster. `port` is
        the first node's, `api_port` its port for clients; the other nodes' ports follow. `regions` and
        `delays_ms` emulate a wide area; `groups` has the members of each group, instead of `partitions` and
        `replicas` (default: `config.placed`). `trace` is a folder in which nodes record their deliveries.
        `keep_history` is how long leaders keep history; unlike most others, it may be changed later.

        `reclaim` shrinks nodes' files before they start.

        `command` is started with `--config FILE --node NAME`, and `--trace` if given. `report` gets events of
        nodes, and is called from other threads. Raises `ConfigError` or `ClusterError`.
        """
        self.data = Path(data).absolute()
        self.grace_s = grace_s
        self._report = report
        partitions, replicas = _sizes(partitions, replicas, groups)
        groups = None if groups is None else [list(members) for members in groups]
        more = [] if trace is None else ["--trace", str(_writable(trace))]
        more += ["--reclaim"] if reclaim else []
        if keep_history is not None:
            KeepHistory.read(keep_history)  # before anything is made
        self._lock = folder.lock(self.data)
        try:
            file = self.data / CONFIG
            if file.exists():
                found = load_config(file)
                wanted: dict[str, object] = {"nodes": nodes, "partitions": partitions, "replicas": replicas}
                wanted |= {"protocol": protocol, "durability": durability}
                wanted |= {"application": application, "clock": clock, "store": store}
                wanted |= {"timing": timing, "regions": regions, "delays_ms": delays_ms, "groups": groups}
                folder.compare(file, found, wanted)
                self.config = found
                count = len(found.nodes)
                if port is not None or api_port is not None:
                    ports = [own for _, own in found.addresses.values()]
                    ports = ports if port is None else list(_ports(port, count))
                    self.config = found.moved(ports, None if api_port is None else _ports(api_port, count))
                check_ports(self.config)
                if keep_history is not None:
                    kept = KeepHistory.read(keep_history, found.keep_history.bytes)
                    self.config = replace(self.config, keep_history=kept)
                if self.config != found:
                    dump_config(self.config, file)
            else:
                folder.check_empty(self.data)
                nodes = NODES if nodes is None else nodes
                free = free_ports(2 * nodes)
                partitions = PARTITIONS if partitions is None else partitions
                replicas = usual_replicas(nodes, protocol) if replicas is None else replicas
                self.config = Config.local(
                    nodes, partitions, replicas, self.data,
                    ports=free[:nodes] if port is None else _ports(port, nodes),
                    api_ports=free[nodes:] if api_port is None else _ports(api_port, nodes),
                    protocol=protocol or "whitebox", durability=durability or "fsync",
                    application=application or "store", clock=clock or "hybrid", store=store,
                    keep_history=KEEP_HISTORY if keep_history is None else keep_history,
                    timing=timing, regions=regions, delays_ms=delays_ms, groups=groups,
                )  # fmt: skip
                check_ports(self.config)
                self._create(file, make_disk)
        except BaseException:
            os.close(self._lock)
            raise
        self._ready = threading.Event()
        """Set once the cluster was ready: from then on, nodes that crash are restarted."""
        self._command = [*command, *more, "--config", str(file), "--node"]
        self._restart = restart
        self._children = {node: self._child(node) for node in self.config.nodes}

    def _child(self, node: NodeId) -> Child:
        def restarts() -> bool:
            return self._restart and self._ready.is_set()

        return Child(node, [*self._command, node], self.log(node), restarts, self._report)

    def add(self, port: int | None = None) -> NodeId:
        """Add a node, which is in no group until it replaces another. It does not run yet."""
        node = next(name for n in itertools.count(1) if (name := NodeId(f"n{n}")) not in self.config.nodes)
        taken = {
            own for nodes in (self.config.addresses, self.config.api_addresses) for _, own in nodes.values()
        }
        # Nodes that are down do not occupy theirs. With twice as many and two more, two are free.
        free, api = [found for found in free_ports(len(taken) + 2) if found not in taken][:2]
        serves = any(other.api for other in self.config.nodes.values())
        self.config = self.config.with_node(node, free if port is None else port, api if serves else None)
        dump_config(self.config, self.data / CONFIG)
        self._children[node] = self._child(node)
        return node

    def _create(self, file: Path, make_disk: Callable[[Config, NodeId], None]) -> None:
        """Create the disks, then the configuration: a configured node without a disk has lost it."""
        try:
            for node in self.config.nodes:
                make_disk(self.config, node)
            dump_config(self.config, file)
        except BaseException as error:
            for node in self.config.nodes:
                shutil.rmtree(self.config.data(node), ignore_errors=True)
            if isinstance(error, StorageError):
                raise ClusterError(f"cannot create the disks: {error}") from error
            raise

    def log(self, node: NodeId) -> Path:
        """Return the file of the node's output."""
        return self.data / f"{node}.log"

    def __enter__(self) -> LocalCluster:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all nodes, and release the folder."""
        try:
            self.stop()
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Release the folder without stopping nodes: for the parent of a supervisor, which holds it, too."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def start(self, *nodes: NodeId) -> None:
        """Start these nodes, or all, without waiting until they are ready: see `wait_ready`."""
        for node in nodes or self._children:
            self._children[node].start()

    def stop(self, *nodes: NodeId) -> None:
        """Let these nodes, or all, hand over and exit; kill those that do not. Return when all have ended."""
        stopping = [self._children[node] for node in nodes or self._children]
        for child in stopping:
            child.stop(signal.SIGTERM)
        deadline = time.monotonic() + self.grace_s
        stuck = [child.name for child in stopping if not child.wait(deadline - time.monotonic())]
        if stuck:
            self._report(f"{', '.join(stuck)} did not stop within {self.grace_s:g} s: killed")
            self.kill(*stuck)

    def kill(self, *nodes: NodeId) -> None:
        """Kill these nodes, or all, as a crash would. Return when they have ended."""
        killed = [self._children[node] for node in nodes or self._children]
        for child in killed:
            child.stop(signal.SIGKILL)
        for child in killed:
            if not child.wait(GRACE_S):
                raise ClusterError(f"{child.name} (process {child.pid}) did not end after SIGKILL")

    def send_signal(self, node: NodeId, number: signal.Signals) -> None:
        """Send a signal to a node, to pause and continue it. If the signal ends the node, that is a crash."""
        self._children[node].send_signal(number)

    @property
    def nodes(self) -> list[NodeId]:
        """The names of the nodes."""
        return list(self.config.nodes)

    @property
    def addresses(self) -> list[str]:
        """The addresses on which the nodes serve clients."""
        return [node.api for node in self.config.nodes.values() if node.api is not None]

    def pid(self, node: NodeId) -> int | None:
        """Return the id of the node's process; None if it does not run."""
        return self._children[node].pid

    def status(self) -> ClusterStatus:
        """Return the status that the nodes report."""
        return ask_all(self.config)

    def wait_ready(self, timeout_s: float = READY_S, pause: Callable[[float], bool] | None = None) -> bool:
        """Wait until every node answers and every group has a leader; else raise `ClusterError`, with logs.

        `pause` waits for some seconds, and returns whether to give up: then this returns False.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            late = time.monotonic() > deadline
            for child in self._children.values():
                if child.over:
                    raise ClusterError(child.obituary())
            found = self.status()
            silent = [NodeId(node["id"]) for node in found["nodes"] if not node["up"]]
            headless = [str(group["id"]) for group in found["groups"] if group["leader"] is None]
            if not silent and not headless:
                self._ready.set()
                return True
            if late and silent:
                node = self._children[silent[0]]
                raise ClusterError(f"{node.name} does not answer after {timeout_s:g} s{node.tail()}")
            if late:
                raise ClusterError(f"no leader after {timeout_s:g} s in group {', '.join(headless)}")
            if (pause or _sleep)(0.05):
                return False

    def wait_serving(self, timeout_s: float = READY_S, pause: Callable[[float], bool] | None = None) -> bool:
        """Wait until every node has answered a request to all partitions; see `wait_ready`."""
        from kvstore.local.probe import NotServing, wait_serving  # after a fork, if there is one: see grpc

        deadline = time.monotonic() + timeout_s
        for name, node in self.config.nodes.items():
            try:
                if node.api is not None and not wait_serving(node.api, deadline, pause or _sleep):
                    return False
            except NotServing as error:
                child = self._children[name]
                why = f"{name} does not serve clients on {node.api} after {timeout_s:g} s: {error}"
                raise ClusterError(why + child.tail()) from error
        return True


@contextlib.contextmanager
def local_cluster(
    nodes: int | None = None,
    partitions: int | None = None,
    *,
    durability: Durability | None = None,
    keep_history: str | None = None,
    data: Path | str | None = None,
    trace: Path | str | None = None,
) -> Iterator[LocalCluster]:
    """Run a cluster that serves clients while the context lasts, for tests and notebooks.

    Without `data`, the folder is temporary, and the durability "os". Arguments left as None keep the folder's
    stored value, or the default. `trace` is a folder in which nodes record their deliveries.
    """
    with contextlib.ExitStack() as stack:
        temporary = data is None
        if data is None:
            scratch = tempfile.TemporaryDirectory(prefix="wbkv-", ignore_cleanup_errors=True)
            data, durability = stack.enter_context(scratch), durability or "os"
        cluster = stack.enter_context(
            LocalCluster(
                data, nodes, partitions, durability=durability, keep_history=keep_history, trace=trace
            )
        )
        if temporary and trace is None:
            stack.callback(cluster.kill)  # a folder that is about to be removed needs no clean shutdown
        cluster.wait_serving()
        yield cluster


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _writable(folder: Path | str) -> Path:
    """Return the absolute path. Raises `ConfigError` if nodes could not create or write that folder."""
    path = Path(folder).absolute()
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot record in {path}: {there} is not a writable folder")
    return path


def _sizes(
    partitions: int | None, replicas: int | None, groups: Sequence[Sequence[str]] | None
) -> tuple[int | None, int | None]:
    """Return the number of groups and of their replicas, which `groups` must not contradict."""
    if groups is None:
        return partitions, replicas
    for name, number in (("partitions", partitions), ("replicas", replicas)):
        if number is not None:
            raise ConfigError(f"{name} and groups say the same: leave out one of them")
    return len(groups), None


def usual_replicas(nodes: int, protocol: str | None) -> int:
    """Return the default number of members of a group."""
    return REPLICAS if nodes >= REPLICAS and protocol != "skeen" else 1


# Ports


def _ports(base: int, count: int) -> Sequence[int]:
    return range(base, base + count)


PORTS_OF_A_PROCESS: Final = 512


def free_ports(count: int) -> list[int]:
    """Return random ports without a listener, below the range that the kernel uses for outgoing connections.

    From that range, a peer that dials a stopped node may get the very port it dials: then the peer is
    connected to itself, and the node cannot restart. Processes that look for ports at the same time, or
    while another cluster's nodes are down, each try a range of their own first.
    """
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 32_768
    found: list[int] = []
    with contextlib.ExitStack() as held:
        choices = range(10_000, first if first > 20_000 else 65_536)
        begin = os.getpid() * PORTS_OF_A_PROCESS % len(choices)
        own = choices[begin : begin + PORTS_OF_A_PROCESS]
        for port in (*random.sample(own, len(own)), *random.sample(choices, len(choices))):
            if len(found) >= count:
                return found
            with contextlib.suppress(OSError):
                held.enter_context(_bound("127.0.0.1", port))
                found.append(port)
    raise ClusterError(f"found fewer than {count} free ports on 127.0.0.1")


def usual_api_port(data: Path, nodes: int | None) -> int | None:
    """Return the default port of a new cluster's first node if it and the ports that follow are free."""
    if (data / CONFIG).exists():
        return None
    try:
        for port in range(API_PORT, API_PORT + (nodes or NODES)):
            _bound("127.0.0.1", port).close()
    except OSError:
        return None
    return API_PORT


def check_ports(config: Config) -> None:
    """Raise `ClusterError` if a node could not listen on its address."""
    addresses = [*config.addresses.items(), *config.api_addresses.items()]
    for node, (host, port) in addresses:
        try:
            _bound(host, port).close()
        except OSError as error:
            why = f"port {port} is taken" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise ClusterError(f"{node} cannot listen on {host}:{port}: {why}") from None


def _bound(host: str, port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # As the node will: connections of an earlier process do not count, listeners do.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(1)
    except BaseException:
        found.close()
        raise
    return found


# A supervisor in another process


def down(data: Path | str, timeout_s: float = 3 * GRACE_S) -> int:
    """Stop the cluster that another process runs, and wait until it has ended; return that process's id.

    A supervisor that does not end in time is killed, and its nodes with it.
    """
    data = Path(data).absolute()
    folder.check_cluster(data)
    pid = folder.supervisor(data)
    if pid is None:
        if folder.is_locked(data):
            raise ClusterError(f"the cluster in {data} is not run by `wbkv up`: stop its process")
        raise ClusterError(f"no cluster is up in {data}")
    with contextlib.suppress(ProcessLookupError), process_of(pid) as process:
        if folder.supervisor(data) != pid:
            return pid  # the supervisor has ended, and its id may be reused
        signal.pidfd_send_signal(process, signal.SIGTERM)
        signal.pidfd_send_signal(process, signal.SIGCONT)  # it may be paused
        if not has_ended(process, timeout_s):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            if not has_ended(process, GRACE_S):
                raise ClusterError(f"process {pid} of the cluster in {data} did not end after SIGKILL")
    return pid
