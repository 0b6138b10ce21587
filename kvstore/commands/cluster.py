"""`wbkv up`, `wbkv down` and `wbkv status`: a cluster of real processes on this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from kvstore.commands import welcome
from kvstore.commands.arguments import positive
from kvstore.config.checks import DURABILITY
from kvstore.config.history import KEEP_HISTORY
from kvstore.config.model import API_PORT, Config
from kvstore.config.private import open_private
from kvstore.config.toml import load_config
from kvstore.local.cluster import NODES, PARTITIONS, READY_S, REPLICAS, LocalCluster, down, usual_api_port
from kvstore.local.folder import CONFIG, check_cluster, pid_file
from kvstore.local.status import ClusterStatus, ask_all
from kvstore.local.supervise import LOOK_S, ClusterError, rotate
from multicast import PROTOCOLS, VARIANTS

DATA = Path(".wbkv")
"""The default folder of `wbkv up`."""
FILE_COLUMNS = ("used", "free", "file")
SUPERVISOR_LOG = "cluster.log"
STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Waits for SIGINT, SIGTERM and SIGHUP, which do not end the process while this object is in use.

    The C handler writes to a pipe: a Python handler runs only when the main thread wakes up, and the kernel
    may have given the signal to another thread.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = {number: signal.signal(number, lambda *_: None) for number in STOP}
        self._before_write = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether a signal has arrived, waiting at most this long for one; None: without limit."""
        return bool(select.select([self._read], [], [], seconds)[0])

    def __enter__(self) -> Signals:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._before_write)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)


class UpCommand:
    """Start a cluster, here or in the background."""

    help = "run a cluster of real processes on this machine"

    def __init__(
        self,
        cluster: Callable[..., LocalCluster] = LocalCluster,
        ready_s: float = READY_S,
        api_port: Callable[[Path, int | None], int | None] = usual_api_port,
        serves: Callable[[LocalCluster, float, Callable[[float], bool]], bool] = LocalCluster.wait_serving,
    ) -> None:
        self._cluster = cluster
        self._ready_s = ready_s
        self._api_port = api_port
        self._serves = serves

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to the parser."""
        parser.epilog = (
            "An empty or missing folder becomes a new cluster; the cluster of an existing folder is started "
            "again, and the other options can be left out. Status 0: the cluster was up, and was stopped "
            "(with --detach: it is up). 1: it could not be started. 2: invalid arguments. 130: interrupted "
            "before it was up."
        )
        add = parser.add_argument
        add("--data", type=Path, default=DATA, metavar="DIR", help=f"the cluster's folder ({DATA})")
        add("--nodes", type=positive, help=f"number of nodes, each a process ({NODES})")
        add("--partitions", type=positive, help=f"number of partitions ({PARTITIONS})")
        add(
            "--replicas",
            type=positive,
            help=f"replicas of a partition, an odd number ({REPLICAS}; 1 if fewer nodes, or skeen)",
        )
        add("--port", type=positive, metavar="BASE", help="first node's port; others follow (free ports)")
        add(
            "--api-port",
            type=positive,
            metavar="BASE",
            help=f"first node's port for clients; others follow ({API_PORT}, or free ports)",
        )
        add("--protocol", choices=sorted(PROTOCOLS | VARIANTS), help="ordering protocol (whitebox)")
        add("--durability", choices=DURABILITY, help="what an acknowledgement waits for (fsync)")
        kept = f"how long history is kept: 12h, 7d, forever ({KEEP_HISTORY})"
        add("--keep-history", metavar="TIME", help=kept)
        add("--trace", type=Path, metavar="DIR", help="folder in which every node records its deliveries")
        add("--reclaim", action="store_true", help="first shrink the nodes' files to what is in use")
        add("--detach", action="store_true", help="return when the cluster is up, and keep it running")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return its exit status."""
        try:
            with Signals() as signals:
                cluster = self._cluster(
                    arguments.data, arguments.nodes, arguments.partitions, replicas=arguments.replicas,
                    port=arguments.port,
                    api_port=arguments.api_port or self._api_port(arguments.data, arguments.nodes),
                    protocol=arguments.protocol, durability=arguments.durability,
                    keep_history=arguments.keep_history, trace=arguments.trace,
                    reclaim=arguments.reclaim, report=_warn,
                )  # fmt: skip
                if arguments.detach:
                    return self._detached(cluster, signals)
                return self._supervise(cluster, signals, lambda: _welcome(cluster, "Ctrl-C"))
        except ClusterError as error:
            return _complain("up", error)

    def _supervise(self, cluster: LocalCluster, signals: Signals, ready: Callable[[], None]) -> int:
        """Run the cluster until a signal arrives."""
        with contextlib.closing(cluster), pid_file(cluster.data):
            try:
                cluster.start()
                up = cluster.wait_ready(self._ready_s, signals.wait)
                up = up and self._serves(cluster, self._ready_s, signals.wait)
                if up:
                    ready()
                    while not signals.wait(LOOK_S):
                        rotate(cluster.data / SUPERVISOR_LOG, _warn)
                _say("stopping", sys.stderr)
            finally:
                cluster.stop()
        _say(f"stopped; the data is kept in {cluster.data}", sys.stderr)
        return 0 if up else 128 + signal.SIGINT

    def _detached(self, cluster: LocalCluster, signals: Signals) -> int:
        """Run the cluster in a background process; return when that reports that it is up, or why not."""
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # until parent and child each have a pipe of their own
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            os._exit(self._background(cluster, writing))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
        os.close(writing)
        cluster.let_go()
        while not select.select([reading], [], [], 0.1)[0]:
            if signals.wait(0):
                os.kill(pid, signal.SIGTERM)
                os.waitpid(pid, 0)
                _say("stopped", sys.stderr)
                return 128 + signal.SIGINT
        with open(reading, encoding="utf-8") as pipe:
            report = pipe.read()
        if not report:
            raise ClusterError(f"the supervisor ended early; see {cluster.data / SUPERVISOR_LOG}")
        problem = json.loads(report)
        if problem is not None:
            os.waitpid(pid, 0)
            raise ClusterError(problem)
        _welcome(cluster, f"{welcome.tool('wbkv')} down --data {shlex.quote(str(cluster.data))}")
        return 0

    def _background(self, cluster: LocalCluster, writing: int) -> int:
        """Supervise the cluster in the background process; report readiness, or the problem, to `writing`."""
        os.setsid()
        log = open_private(cluster.data / SUPERVISOR_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)

        def report(problem: str | None) -> None:
            with contextlib.suppress(BrokenPipeError), pipe:
                json.dump(problem, pipe)

        pipe = open(writing, "w", encoding="utf-8")  # noqa: SIM115 - `report` closes it
        try:
            with Signals() as signals:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
                return self._supervise(cluster, signals, lambda: report(None))
        except ClusterError as error:
            if not pipe.closed:
                report(str(error))
            return _complain("up", error)


class DownCommand:
    """Stop a cluster that runs in the background or in another terminal."""

    help = "stop the cluster that `wbkv up` runs"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to the parser."""
        parser.epilog = "Status 0: the cluster has stopped. 1: none was up. 2: the folder holds no cluster."
        parser.add_argument(
            "--data", type=Path, default=DATA, metavar="DIR", help=f"the cluster's folder ({DATA})"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return its exit status."""
        try:
            pid = down(arguments.data)
        except ClusterError as error:
            return _complain("down", error)
        print(f"stopped the cluster in {arguments.data} (process {pid})")
        return 0


class StatusCommand:
    """Show the status that every node reports."""

    help = "show the nodes and groups of a cluster"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to the parser."""
        parser.epilog = (
            "Status 0: at least one node answers. 1: no node answers. 2: the folder holds no cluster."
        )
        parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the cluster's folder")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return its exit status."""
        check_cluster(arguments.data)
        config = load_config(arguments.data / CONFIG)
        found = ask_all(config)
        up = any(node["up"] for node in found["nodes"])
        if arguments.json:
            print(json.dumps(found))
        elif up:
            print("\n".join(_tables(config, found)))
        down = f"no node of the cluster in {arguments.data} is up; start it with `wbkv up`"
        return 0 if up else _complain("status", down)


def _welcome(cluster: LocalCluster, stop: str) -> None:
    """Print the addresses, and what to do next."""
    lines = [*welcome.where(cluster), *welcome.how(cluster, stop), *welcome.example(cluster.addresses)]
    print("\n".join(lines), flush=True)


def _tables(config: Config, found: ClusterStatus) -> Iterable[str]:
    """Yield the lines of the status tables."""
    up = sum(node["up"] for node in found["nodes"])
    yield f"cluster {config.id}: {up} of {len(found['nodes'])} nodes up"
    yield ""
    yield from _aligned(
        ["NODE", "ADDRESS", "PROCESS", "UP"],
        [
            [node["id"], node["address"], node["pid"], "yes" if node["up"] else "NO"]
            for node in found["nodes"]
        ],
    )
    for node in found["nodes"]:
        for target, relay in node["relayed"].items():
            yield f"{target} does not hear {node['id']}: frames to it go through {relay}"
        if node["space"] in ("low", "full"):
            yield f"{node['id']} is {node['space']} on space: {node['free_bytes']} bytes are free"
    yield ""
    yield from _aligned(
        ["GROUP", "LEADER", "BALLOT", "NODE", "STATUS", "CLOCK", "DELIVERED", "LAG", "ENTRIES", "BYTES"],
        [
            [
                *([group["id"], group["leader"], group["ballot"]] if first == 0 else [""] * 3),
                replica["node"],
                replica["status"] if replica["up"] else "DOWN",
                *(replica["clock"], replica["delivered"], replica["lag"]),
                *(replica["entries"], replica["store_bytes"]),
            ]
            for group in found["groups"]
            for first, replica in enumerate(group["replicas"])
        ],
    )
    for group in found["groups"]:
        for replica in group["replicas"]:
            if replica["damage"]:
                yield f"group {group['id']} at {replica['node']}: {replica['damage']}"
    yield from _clocks(found)
    yield from _files(found)
    yield from _history(found)
    yield from _disks(found)


def _files(found: ClusterStatus) -> Iterable[str]:
    """Yield a table of the bytes of each node's disk: what is used, and what later writes use again."""
    rows = [
        [node["id"], *(node["files"][name][kind] for name in ("state", "log") for kind in FILE_COLUMNS)]
        for node in found["nodes"]
        if node["files"]
    ]
    if rows:
        yield ""
        yield from _aligned(["NODE", "STATE", "FREE", "FILE", "LOG", "FREE", "FILE"], rows)


def _history(found: ClusterStatus) -> Iterable[str]:
    """Yield a table of what is kept of each group's history, as its leader reports it."""
    rows = []
    for group in found["groups"]:
        history = next((r["history"] for r in group["replicas"] if r["node"] == group["leader"]), None)
        if history:
            pin = history["oldest_pin"]
            oldest = None if pin is None else f"{pin['name']} ({pin['time']})"
            since = history["floor_time"] or "the beginning"
            rows.append([group["id"], history["keep"], since, history["floor"], oldest, history["held_by"]])
    if rows:
        yield ""
        yield from _aligned(
            ["GROUP", "KEEP", "HISTORY SINCE", "REVISION", "OLDEST SNAPSHOT", "HELD BY"], rows
        )


def _disks(found: ClusterStatus) -> Iterable[str]:
    """Yield what the scrubbers have read, and what is damaged."""
    for group in found["groups"]:
        for replica in group["replicas"]:
            if replica["damage"]:
                yield f"group {group['id']}: {replica['node']} restores its state: {replica['damage']}"
            compared = replica["comparison"] or {}
            yield from (f"ALARM of {replica['node']}: {alarm}" for alarm in compared.get("alarms", ()))
            if compared.get("unconfirmed"):
                copied = f"the state of {replica['node']} is {compared['unconfirmed']}"
                yield f"group {group['id']}: {copied}; no other replica has confirmed it yet"
    for node in found["nodes"]:
        scrub = node["scrub"] or {}
        if scrub.get("passes"):
            ago, rows = scrub["ended_s_ago"], scrub["last_rows"]
            yield f"{node['id']}: all {rows} rows were read, {ago:.0f} s ago; damage found: {scrub['found']}"


def _clocks(found: ClusterStatus) -> Iterable[str]:
    """Yield what is wrong with the clocks of groups."""
    for group in found["groups"]:
        for replica in group["replicas"]:
            time = replica["time"] or {}
            for member, by_s in time.get("wrong", {}).items():
                yield f"group {group['id']}: the clock of {member} is {by_s:+.1f} s off; it is not used"
            if time.get("held"):
                yield f"group {group['id']}: revisions do not follow the time of day; see `wbkv clock --help`"


def _aligned(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterable[str]:
    texts = [head, *(["-" if cell is None else str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return ("  ".join(map(str.ljust, row, widths)).rstrip() for row in texts)


def _say(text: str, stream: TextIO) -> None:
    # The reader may have closed the stream; that must not keep the supervisor from its nodes.
    with contextlib.suppress(OSError):
        print(text, file=stream, flush=True)


def _warn(text: str) -> None:
    _say(text, sys.stderr)


def _complain(name: str, error: object) -> int:
    _say(f"wbkv {name}: {error}", sys.stderr)
    return 1


up_command, down_command, status_command = UpCommand(), DownCommand(), StatusCommand()
