"""Clusters of real processes on this machine: made, started, watched and stopped.

All that a cluster has is in one folder: `cluster.toml`, a folder `nX` with the disk of each node, its output
`nX.log` and its socket `nX.sock`. Whoever runs the cluster holds a lock on `cluster.lock`, which the kernel
gives back however that process ends. Its nodes end with it, however it ends: see `supervise`.
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
from pathlib import Path
from types import TracebackType
from typing import Final

from kvstore.config.addresses import NodeId
from kvstore.config.checks import ConfigError, Durability
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
"""Of a new cluster, unless said otherwise."""

SERVE: Final = (sys.executable, "-P", "-m", "kvstore.commands.serve")
"""`wbkv serve`, without loading the other subcommands."""

READY_S: Final = 60.0
GRACE_S: Final = 10.0
"""How long a node may take to hand over and end before it is killed."""


def _create_disk(config: Config, node: NodeId) -> None:
    from kvstore.local.disk import create_disk  # loads LMDB, which only the creation of a cluster needs

    create_disk(config, node)


class LocalCluster:
    """The cluster of one folder. Making this object creates the cluster if the folder is empty.

    As a context manager it starts the cluster, waits until it is ready, and stops it. Nodes that end by
    themselves after that are started again, with `restart`. Nodes that were stopped or killed by `stop` and
    `kill` stay away until `start`.
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
        timing: Timing | None = None,
        regions: Mapping[str, str] | None = None,
        delays_ms: Mapping[str, float] | None = None,
        groups: Sequence[Sequence[str]] | None = None,
        trace: Path | str | None = None,
        restart: bool = True,
        command: Sequence[str] = SERVE,
        make_disk: Callable[[Config, NodeId], None] = _create_disk,
        grace_s: float = GRACE_S,
        report: Callable[[str], None] = logger.warning,
    ) -> None:
        """What is None is as the folder has it, or as usual. `port` is the first node's, `api_port` the one
        where it serves clients; the rest count up. `regions` and `delays_ms` emulate a wide area; `groups`
        has the members of each group, in the place of `partitions` and `replicas` (`config.placed` is the
        usual). `trace` is a folder where nodes record what they deliver, as long as this object runs them.

        `command` is started with `--config FILE --node NAME`, and `--trace` if there is one. `report` gets
        what happens to nodes; it is called from other threads. Raises `ConfigError` or `ClusterError`.
        """
        self.data = Path(data).absolute()
        self.grace_s = grace_s
        self._report = report
        partitions, replicas = _sizes(partitions, replicas, groups)
        groups = None if groups is None else [list(members) for members in groups]
        more = [] if trace is None else ["--trace", str(_writable(trace))]
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
                if self.config != found:
                    dump_config(self.config, file)
            else:
                folder.check_empty(self.data)
                nodes = NODES if nodes is None else nodes
                free = free_ports(2 * nodes)
                self.config = Config.local(
                    nodes,
                    PARTITIONS if partitions is None else partitions,
                    usual_replicas(nodes, protocol) if replicas is None else replicas,
                    self.data,
                    ports=free[:nodes] if port is None else _ports(port, nodes),
                    api_ports=free[nodes:] if api_port is None else _ports(api_port, nodes),
                    protocol=protocol or "whitebox",
                    durability=durability or "fsync",
                    application=application or "store",
                    clock=clock or "hybrid",
                    store=store,
                    timing=timing,
                    regions=regions,
                    delays_ms=delays_ms,
                    groups=groups,
                )
                check_ports(self.config)
                self._create(file, make_disk)
        except BaseException:
            os.close(self._lock)
            raise
        self._settled = threading.Event()
        """From here on, nodes that end are started again."""
        self._command = [*command, *more, "--config", str(file), "--node"]
        self._restart = restart
        self._children = {node: self._child(node) for node in self.config.nodes}

    def _child(self, node: NodeId) -> Child:
        restart = self._restart
        return Child(
            node,
            [*self._command, node],
            self.log(node),
            lambda: restart and self._settled.is_set(),
            self._report,
        )

    def add(self, port: int | None = None) -> NodeId:
        """One more node, which is in no group until it takes another's place. It does not run yet."""
        node = next(name for n in itertools.count(1) if (name := NodeId(f"n{n}")) not in self.config.nodes)
        free, api = free_ports(2)
        serves = any(other.api for other in self.config.nodes.values())
        self.config = self.config.with_node(node, free if port is None else port, api if serves else None)
        dump_config(self.config, self.data / CONFIG)
        self._children[node] = self._child(node)
        return node

    def _create(self, file: Path, make_disk: Callable[[Config, NodeId], None]) -> None:
        """The configuration comes last: with it, a node that has no disk has lost it."""
        try:
            for node in self.config.nodes:
                make_disk(self.config, node)
            dump_config(self.config, file)
        except BaseException as error:
            for node in self.config.nodes:
                shutil.rmtree(self.config.data(node), ignore_errors=True)
            if isinstance(error, StorageError):
                raise ClusterError(f"cannot make the disks: {error}") from error
            raise

    def log(self, node: NodeId) -> Path:
        """Where the node's output goes."""
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
        """Stop all nodes, and let others have the folder."""
        try:
            self.stop()
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Give up the folder without stopping anything: for the parent of a supervisor, which has it too."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def start(self, *nodes: NodeId) -> None:
        """Start these nodes, or all. They are ready later: see `wait_ready`."""
        for node in nodes or self._children:
            self._children[node].start()

    def stop(self, *nodes: NodeId) -> None:
        """Let these nodes, or all, hand over and end; kill those that do not. Returns when they have."""
        stopping = [self._children[node] for node in nodes or self._children]
        for child in stopping:
            child.stop(signal.SIGTERM)
        deadline = time.monotonic() + self.grace_s
        stuck = [child.name for child in stopping if not child.wait(deadline - time.monotonic())]
        if stuck:
            self._report(f"{', '.join(stuck)} did not stop within {self.grace_s:g} s: killed")
            self.kill(*stuck)

    def kill(self, *nodes: NodeId) -> None:
        """End these nodes, or all, at once, as a crash would. Returns when they have ended."""
        killed = [self._children[node] for node in nodes or self._children]
        for child in killed:
            child.stop(signal.SIGKILL)
        for child in killed:
            if not child.wait(GRACE_S):
                raise ClusterError(f"{child.name} (process {child.pid}) does not even end by SIGKILL")

    def send_signal(self, node: NodeId, number: signal.Signals) -> None:
        """Send a signal to a node, to stop and continue it. If it ends by it, that is a crash."""
        self._children[node].send_signal(number)

    @property
    def nodes(self) -> list[NodeId]:
        """What the nodes are called."""
        return list(self.config.nodes)

    @property
    def addresses(self) -> list[str]:
        """Where the nodes serve clients."""
        return [node.api for node in self.config.nodes.values() if node.api is not None]

    def pid(self, node: NodeId) -> int | None:
        """The node's process, while there is one."""
        return self._children[node].pid

    def status(self) -> ClusterStatus:
        """What the nodes say; see `status.ClusterStatus`."""
        return ask_all(self.config)

    def wait_ready(self, timeout_s: float = READY_S, pause: Callable[[float], bool] | None = None) -> bool:
        """Wait until every node answers and every group has a leader; else raise `ClusterError`, with logs.

        `pause` waits for some seconds, and says whether to give up: then this is False.
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
                self._settled.set()
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
    data: Path | str | None = None,
    trace: Path | str | None = None,
) -> Iterator[LocalCluster]:
    """A cluster that serves, for as long as the context lasts. For tests and notebooks.

    Without a folder for its data it is a temporary one, and does not wait for disks ("os"). What is None is
    as the folder has it, or as usual. `trace` is a folder where nodes record what they deliver.
    """
    with contextlib.ExitStack() as stack:
        temporary = data is None
        if data is None:
            usual = tempfile.TemporaryDirectory(prefix="wbkv-", ignore_cleanup_errors=True)
            data, durability = stack.enter_context(usual), durability or "os"
        cluster = stack.enter_context(
            LocalCluster(data, nodes, partitions, durability=durability, trace=trace)
        )
        if temporary and trace is None:
            stack.callback(cluster.kill)  # what is about to be removed need not be left in order
        cluster.wait_serving()
        yield cluster


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _writable(folder: Path | str) -> Path:
    """Where nodes are to record. Raises `ConfigError` if they could not make that folder, or write there."""
    path = Path(folder).absolute()
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot record in {path}: {there} is no folder that can be written to")
    return path


def _sizes(
    partitions: int | None, replicas: int | None, groups: Sequence[Sequence[str]] | None
) -> tuple[int | None, int | None]:
    """How many groups of how many members, unless it is all said by their members."""
    if groups is None:
        return partitions, replicas
    for name, number in (("partitions", partitions), ("replicas", replicas)):
        if number is not None:
            raise ConfigError(f"{name} and groups say the same: leave out one of them")
    return len(groups), None


def usual_replicas(nodes: int, protocol: str | None) -> int:
    """Members of a group, if nobody says otherwise."""
    return REPLICAS if nodes >= REPLICAS and protocol != "skeen" else 1


# Ports


def _ports(base: int, count: int) -> Sequence[int]:
    return range(base, base + count)


PORTS_OF_A_PROCESS: Final = 512


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, at random, below those that the kernel gives to outgoing connections.

    From that range, a peer that dials a node which is down may be given the very port it dials: then it is
    connected to itself, and the node cannot come back. Processes that look for ports at the same time, or
    while nodes of others are down, look in different places first.
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
    raise ClusterError(f"there are no {count} free ports on 127.0.0.1")


def usual_api_port(data: Path, nodes: int | None) -> int | None:
    """Where people look for a new cluster's first node, if that port and those that follow it are free."""
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
        # As the node will: connections of an earlier life do not count, listeners do.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(1)
    except BaseException:
        found.close()
        raise
    return found


# A supervisor that runs elsewhere


def down(data: Path | str, timeout_s: float = 3 * GRACE_S) -> int:
    """Stop the cluster that another process runs, and wait until it has ended. Returns that process's id.

    If it does not end in time, it is killed, and its nodes with it.
    """
    data = Path(data).absolute()
    folder.check_cluster(data)
    pid = folder.supervisor(data)
    if pid is None:
        if folder.is_locked(data):
            raise ClusterError(f"the cluster in {data} is run by something else than `wbkv up`: stop that")
        raise ClusterError(f"no cluster is up in {data}")
    with contextlib.suppress(ProcessLookupError), process_of(pid) as process:
        if folder.supervisor(data) != pid:
            return pid  # it ended, and its id may be another's by now
        signal.pidfd_send_signal(process, signal.SIGTERM)
        signal.pidfd_send_signal(process, signal.SIGCONT)  # it may have been stopped
        if not has_ended(process, timeout_s):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            if not has_ended(process, GRACE_S):
                raise ClusterError(f"process {pid}, which runs the cluster in {data}, does not end")
    return pid
