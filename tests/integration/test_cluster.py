"""Local clusters of real processes, with a stand-in for the node (`standin.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import io
import itertools
import json
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from kvstore.commands import cluster as commands
from kvstore.commands.serve import main as serve_main
from kvstore.config.addresses import NodeId
from kvstore.config.checks import ConfigError
from kvstore.config.model import Config
from kvstore.config.toml import dump_config, load_config
from kvstore.local import cluster as module
from kvstore.local import supervise
from kvstore.local.cluster import LocalCluster, free_ports
from kvstore.local.folder import started_at, supervisor
from kvstore.local.status import ask, ask_all, merge, serve_status
from kvstore.local.supervise import BACK_OFF_MAX_S, BACK_OFF_S, ClusterError, back_off
from kvstore.storage.errors import StorageError
from kvstore.storage.identity import read_disk
from multicast.protocol import Timing
from multicast.types import GroupId, timestamp
from tests.integration import standin
from tests.tree import ROOT

NODE = standin.NODE
DIES_WITH_US = (sys.executable, "-I", "-S", "-c", supervise._LAUNCH, str(os.getpid()))
WAIT_S = 60.0
"""Nothing here takes long; this is when to give up."""
G0 = GroupId(0)
N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
ONE = ("--nodes", "1", "--partitions", "1")


class Watched:
    """A process that need not be our child: its end can be waited for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def has_ended(self, timeout_s: float = WAIT_S) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        os.close(self._descriptor)


class Shell:
    """Runs `wbkv` with the stand-in, and ends whatever it has seen running."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._children: list[subprocess.Popen[str]] = []
        self._watched: dict[int, Watched] = {}

    def start(self, command: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(  # noqa: S603 - our own command
            [*DIES_WITH_US, *NODE, "wbkv", command, "--data", str(self.data), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            process_group=0,
        )
        self._children.append(child)
        return child

    def run(self, command: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """In this process, where that is safe: starting Python takes longer than most of what it does."""
        if command != "up":
            with (
                contextlib.redirect_stdout(io.StringIO()) as output,
                contextlib.redirect_stderr(io.StringIO()) as complained,
            ):
                code = standin.wbkv([command, "--data", str(self.data), *arguments])
            return code, output.getvalue(), complained.getvalue()
        child = self.start(command, *arguments, **environment)
        out, err = child.communicate(timeout=WAIT_S)
        assert "Traceback" not in err, err
        return child.returncode, out, err

    def status(self) -> Any:
        return json.loads(self.run("status", "--json")[1])

    def nodes(self) -> list[Watched]:
        """The processes of all nodes that are up."""
        found = ask_all(load_config(self.data / "cluster.toml"))
        return [self.watch(node["pid"]) for node in found["nodes"] if node["pid"] is not None]

    def supervisor(self) -> Watched:
        pid = supervisor(self.data)
        assert pid is not None
        return self.watch(pid)

    def watch(self, pid: int) -> Watched:
        if pid not in self._watched:
            self._watched[pid] = Watched(pid)
        return self._watched[pid]

    def end(self) -> None:
        # Nodes are their supervisor's children; it may have failed to write its id.
        with contextlib.suppress(ConfigError, OSError):
            for node in self.nodes():
                parent = int(Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()[1])
                if parent not in (1, os.getpid()):
                    self.watch(parent)
        pid = supervisor(self.data)
        if pid is not None:
            self.watch(pid)
        for watched in self._watched.values():
            watched.end()
        for child in self._children:
            child.kill()
            child.communicate(timeout=WAIT_S)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    found = Shell(tmp_path / "data")
    try:
        yield found
    finally:
        found.end()


def started(cluster: LocalCluster) -> LocalCluster:
    cluster.start()
    assert cluster.wait_ready(WAIT_S)
    return cluster


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, "it never happens"
        time.sleep(0.02)


def line(process: subprocess.Popen[str], stream: IO[str] | None, pattern: str) -> None:
    """Read until a line matches. A process that never prints one is killed, so that reading ends."""
    assert stream is not None
    timer = threading.Timer(WAIT_S, process.kill)
    timer.start()
    try:
        assert any(re.search(pattern, text) for text in stream), f"no line matches {pattern}"
    finally:
        timer.cancel()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Callable[..., LocalCluster]]:
    """Makes clusters that are closed in any case."""
    with contextlib.ExitStack() as stack:

        def make(**arguments: Any) -> LocalCluster:
            usual: dict[str, Any] = {
                "nodes": 1,
                "partitions": 1,
                "command": NODE,
                "make_disk": standin.make_disk,
                "grace_s": WAIT_S,
            }
            cluster = LocalCluster(tmp_path / "data", **{**usual, **arguments})
            stack.callback(cluster.close)
            return cluster

        yield make


# Up, status, down


def test_up_runs_in_the_foreground_until_interrupted(shell: Shell) -> None:
    up = shell.start("up", "--nodes", "3", "--partitions", "3")
    line(up, up.stdout, r"^cluster [0-9a-f]+ is up: 3 nodes, 3 partitions of 3 \(whitebox, fsync\)$")
    line(up, up.stdout, r"^  n2  127\.0\.0\.1:\d+  process \d+  leads 1  serves clients on 127\.0\.0\.1:\d+$")
    line(up, up.stdout, r"^stop: +Ctrl-C$")
    nodes = shell.nodes()
    assert len(nodes) == 3
    os.killpg(up.pid, signal.SIGINT)
    _, err = up.communicate(timeout=WAIT_S)
    assert up.returncode == 0
    assert err == f"stopping\nstopped; the data is kept in {shell.data}\n"
    assert all(node.has_ended(0) for node in nodes)
    # The supervisor stopped each node, not the terminal: they had time to hand over.
    assert [(shell.data / f"n{n}.log").read_text() for n in (1, 2, 3)] == [
        f"n{n} begins\nn{n} ends\n" for n in (1, 2, 3)
    ]
    assert not (shell.data / "cluster.pid").exists()


def test_up_in_the_background_status_and_down(shell: Shell) -> None:
    code, out, err = shell.run("up", "--nodes", "3", "--partitions", "2", "--detach")
    assert (code, err) == (0, "")
    assert re.search(r"(?m)^stop: +\S*wbkv down --data .*/data$", out)
    found = shell.status()
    nodes = shell.nodes()
    supervising = shell.supervisor()
    assert os.getsid(supervising.pid) == supervising.pid  # the terminal's end is not its own
    assert [(node["id"], node["up"]) for node in found["nodes"]] == [("n1", True), ("n2", True), ("n3", True)]
    assert [node["pid"] for node in found["nodes"]] == [node.pid for node in nodes]
    assert {re.sub(r"\d+$", "", node["address"]) for node in found["nodes"]} == {"127.0.0.1:"}
    assert [(group["id"], group["leader"], group["ballot"]) for group in found["groups"]] == [
        (0, "n1", 1),
        (1, "n2", 1),
    ]
    assert found["groups"][0]["replicas"][1] == {
        "node": "n2",
        "status": "follower",
        "clock": 7,
        "delivered": 4096,
        "lag": 0,
        "entries": 0,
        "store_bytes": 8192,
        "configuration": None,
        "settled": None,
        "time": None,
        "damage": None,
        "comparison": None,
        "history": None,
        "up": True,
    }
    code, table, _ = shell.run("status")
    assert code == 0
    assert re.search(
        r"3 of 3 nodes up\n\nNODE +ADDRESS +PROCESS +UP\nn1 +127\.0\.0\.1:\d+ +\d+ +yes\n", table
    )
    assert re.search(r"(?m)^1 +n2 +1 +n1 +follower +7 +4096 +0 +0 +8192\n +n2 +leader ", table)
    code, out, err = shell.run("down")
    assert (code, err) == (0, "")
    assert f"(process {supervising.pid})" in out
    # All of it has ended by the time `down` returns.
    assert supervising.has_ended(0)
    assert all(node.has_ended(0) for node in nodes)


def test_down_twice(shell: Shell) -> None:
    assert shell.run("up", *ONE, "--detach")[0] == 0
    assert shell.run("down")[0] == 0
    assert shell.run("down") == (1, "", f"wbkv down: no cluster is up in {shell.data}\n")
    code, out, err = shell.run("status", "--json")
    hint = "start it with `wbkv up`"
    assert (code, err) == (1, f"wbkv status: no node of the cluster in {shell.data} is up; {hint}\n")
    found = json.loads(out)
    assert [(node["id"], node["pid"], node["up"]) for node in found["nodes"]] == [("n1", None, False)]
    assert found["groups"][0]["leader"] is None
    assert shell.run("status") == (1, "", err)


def test_a_cluster_comes_back_as_it_was(shell: Shell) -> None:
    assert shell.run("up", *ONE, "--durability", "os", "--protocol", "skeen", "--detach")[0] == 0
    before = load_config(shell.data / "cluster.toml")
    assert (before.durability, before.protocol) == ("os", "skeen")
    assert shell.run("down")[0] == 0
    assert shell.run("up", "--detach")[0] == 0
    assert load_config(shell.data / "cluster.toml") == before


@pytest.mark.parametrize(
    ("option", "value", "has"),
    [
        ("nodes", 2, 1),
        ("partitions", 2, 1),
        ("replicas", 3, 1),
        ("protocol", "whitebox", "skeen"),
        ("durability", "fsync", "os"),
        ("timing", Timing(history=1), Timing()),
        ("delays_ms", {"n1-n2": 3}, {}),
        ("clock", "logical", "hybrid"),
        ("regions", {"n1": "eu"}, {}),
        ("groups", [["n2"]], [["n1"]]),
    ],
)
def test_a_cluster_is_not_another(tmp_path: Path, option: str, value: Any, has: object) -> None:
    disks: dict[str, Any] = {"make_disk": standin.make_disk}
    LocalCluster(tmp_path / "data", 1, 1, protocol="skeen", durability="os", **disks).close()
    complaint = f"{tmp_path}/data/cluster.toml is of a cluster with {option} {has}, not {value}"
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        LocalCluster(tmp_path / "data", **{option: value})
    same: dict[str, Any] = {option: has}
    LocalCluster(tmp_path / "data", **same).close()


def test_two_ups_on_one_folder(shell: Shell) -> None:
    assert shell.run("up", *ONE, "--detach")[0] == 0
    (node,) = shell.nodes()
    pid = shell.supervisor().pid
    complaint = f"wbkv up: a cluster is up in {shell.data} already (process {pid})\n"
    assert shell.run("up", *ONE) == (1, "", complaint)
    assert shell.run("up", *ONE, "--detach") == (1, "", complaint)
    assert not node.has_ended(0)
    assert shell.supervisor().pid == pid


def test_an_interrupt_before_it_is_up_stops_it_too(shell: Shell) -> None:
    up = shell.start("up", "--nodes", "2", "--partitions", "1", STANDIN='{"n2": "silent"}')
    until(lambda: (shell.data / "n1.sock").exists() and ask(shell.data / "n1.sock"))
    (node,) = shell.nodes()
    up.send_signal(signal.SIGTERM)
    out, err = up.communicate(timeout=WAIT_S)
    stopped = f"stopping\nstopped; the data is kept in {shell.data}\n"
    assert (up.returncode, out, err) == (130, "", stopped)
    assert node.has_ended(0)


def test_an_interrupt_of_up_in_the_background_stops_it_too(shell: Shell) -> None:
    up = shell.start("up", "--nodes", "2", "--partitions", "1", "--detach", STANDIN='{"n2": "silent"}')
    until(lambda: (shell.data / "n1.sock").exists() and ask(shell.data / "n1.sock"))
    (node,) = shell.nodes()
    supervising = shell.supervisor()
    os.killpg(up.pid, signal.SIGINT)
    out, err = up.communicate(timeout=WAIT_S)
    assert (up.returncode, out, err) == (130, "", "stopped\n")
    assert node.has_ended(0)
    assert supervising.has_ended(0)


# The process that runs the cluster dies


@pytest.mark.parametrize("detach", [True, False])
def test_no_node_outlives_a_killed_supervisor(shell: Shell, detach: bool) -> None:  # noqa: FBT001 - a parameter of the test
    if detach:
        assert shell.run("up", "--nodes", "3", "--partitions", "1", "--detach")[0] == 0
    else:
        up = shell.start("up", "--nodes", "3", "--partitions", "1")
        line(up, up.stdout, "^stop:")
    nodes = shell.nodes()
    assert len(nodes) == 3
    os.kill(shell.supervisor().pid, signal.SIGKILL)
    assert all(node.has_ended() for node in nodes)
    # Nothing is in the way of another: neither the lock, nor the pid file, nor the sockets, nor the ports.
    if detach:
        assert (shell.data / "cluster.pid").exists()
        assert shell.run("down") == (1, "", f"wbkv down: no cluster is up in {shell.data}\n")
        assert shell.run("up", "--detach")[0] == 0
        assert shell.run("down")[0] == 0


def test_a_stale_pid_file_names_no_supervisor(shell: Shell) -> None:
    LocalCluster(shell.data, 1, 1, make_disk=standin.make_disk).close()
    bystander = subprocess.Popen(["/bin/sleep", "600"])
    try:
        ours = started_at(os.getpid())
        assert ours is not None
        # The id is used again, by a process that began at another time; or of which nothing is known.
        for started in (ours, "before", None, 7):
            (shell.data / "cluster.pid").write_text(json.dumps({"pid": bystander.pid, "started": started}))
            assert supervisor(shell.data) is None
            assert shell.run("down") == (1, "", f"wbkv down: no cluster is up in {shell.data}\n")
        for nonsense in ("", "7", "[]", "{}", '{"pid": "x", "started": 1}', '{"pid": null, "started": null}'):
            (shell.data / "cluster.pid").write_text(nonsense)
            assert shell.run("down")[0] == 1
        (shell.data / "cluster.pid").write_text(json.dumps({"pid": bystander.pid, "started": ours}))
        assert shell.run("up", "--detach")[0] == 0
        assert shell.supervisor().pid != bystander.pid
        assert shell.run("down")[0] == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_is_known_by_its_start() -> None:
    first, second = (subprocess.Popen(["/bin/sleep", "600"]) for _ in range(2))
    try:
        assert started_at(os.getpid()) is not None
        assert started_at(first.pid) == started_at(first.pid)
        assert started_at(first.pid) != started_at(os.getpid())
    finally:
        for child in (first, second):
            child.kill()
        Watched(first.pid).has_ended()
        assert started_at(first.pid) is None, "a process that is not reaped yet has ended"
        for child in (first, second):
            child.wait()


def test_down_wakes_a_stopped_supervisor(shell: Shell) -> None:
    assert shell.run("up", *ONE, "--detach")[0] == 0
    (node,) = shell.nodes()
    os.kill(shell.supervisor().pid, signal.SIGSTOP)
    assert shell.run("down")[0] == 0
    assert node.has_ended(0)
    # Not by killing it, which `down` does in the end.
    assert (shell.data / "n1.log").read_text() == "n1 begins\nn1 ends\n"


# What can be in the way


def test_a_folder_of_something_else_is_left_alone(shell: Shell) -> None:
    shell.data.mkdir()
    (shell.data / "thesis.txt").write_text("precious")
    code, out, err = shell.run("up", *ONE)
    assert (code, out) == (2, "")
    what = f"{shell.data} is not empty, and not a cluster: it has thesis.txt but no cluster.toml"
    assert err == f"wbkv up: {what}\n"
    assert [file.name for file in shell.data.iterdir()] == ["thesis.txt"]
    for command in ("down", "status"):
        complaint = f"wbkv {command}: {shell.data} holds no cluster: there is no cluster.toml\n"
        assert shell.run(command) == (2, "", complaint)


def test_a_file_is_not_a_folder(shell: Shell) -> None:
    shell.data.write_text("")
    assert shell.run("up", *ONE) == (2, "", f"wbkv up: {shell.data} is not a folder\n")


def test_a_configuration_that_cannot_work(shell: Shell) -> None:
    shell.data.mkdir()
    file = shell.data / "cluster.toml"
    for text, complaint in (
        ("[cluster]\nid = 7\n[nodes]\n[groups]\n", ", line 2: cluster.id: must be a string, not 7\n"),
        ("[cluster\n", ": not TOML: Expected ']' at the end of a table declaration (at line 1, column 9)\n"),
    ):
        file.write_text(text)
        for command in ("up", "status"):
            assert shell.run(command) == (2, "", f"wbkv {command}: {file}{complaint}")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--nodes", "3", "--replicas", "5"], "5 replicas of a group need as many nodes, not 3"),
        (["--nodes", "3", "--replicas", "2"], "group 0 has 2 members; it needs an odd number"),
        (["--protocol", "skeen", "--replicas", "3"], "Skeen's protocol needs groups of one process"),
        (["--port", "65535", "--nodes", "2"], '"127.0.0.1:65536" is not HOST:PORT'),
        (["--partitions", "1025"], "group ids are 0..1023"),
        (["--nodes", "0"], "0 must be at least 1"),
        (["--durability", "none"], "invalid choice: 'none'"),
        (
            ["--trace", "/dev/null/traces"],
            "in /dev/null/traces: /dev/null is not a writable folder",
        ),
    ],
)
def test_bad_arguments_make_no_cluster(shell: Shell, arguments: list[str], complaint: str) -> None:
    code, out, err = shell.run("up", *arguments)
    assert (code, out) == (2, "")
    assert complaint in err
    assert not (shell.data / "cluster.toml").exists()
    assert not (shell.data / "n1").exists()


def test_a_port_that_is_taken_is_named(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = shell.run("up", "--nodes", "2", "--partitions", "1", "--port", str(port - 1))
        assert (code, out) == (1, "")
        # The port before it may be taken as well.
        assert re.fullmatch(
            rf"wbkv up: n[12] cannot listen on 127\.0\.0\.1:\d+: port ({port}|{port - 1}) is taken\n", err
        )
        assert not (shell.data / "cluster.toml").exists()
    # Nothing was made, so nothing is in the way of trying again.
    base = consecutive(2)
    assert shell.run("up", "--nodes", "2", "--partitions", "1", "--port", str(base), "--detach")[0] == 0
    assert load_config(shell.data / "cluster.toml").addresses == {
        N1: ("127.0.0.1", base),
        N2: ("127.0.0.1", base + 1),
    }


def consecutive(count: int) -> int:
    while True:
        (base,) = free_ports(1)
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(base, base + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return base


def test_an_added_node_gets_no_port_of_a_node_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(LocalCluster(tmp_path / "cluster", 3, 2)) as cluster:
        config = cluster.config
        taken = [port for _, port in [*config.addresses.values(), *config.api_addresses.values()]]
        monkeypatch.setattr(module, "free_ports", lambda count: [*taken, 9998, 9999][:count])
        node = cluster.add()
        assert cluster.config.addresses[node][1] == 9998
        assert cluster.config.api_addresses[node][1] == 9999


def test_a_cluster_whose_port_was_taken_meanwhile_can_move(shell: Shell) -> None:
    LocalCluster(shell.data, 1, 1, make_disk=standin.make_disk).close()
    before = load_config(shell.data / "cluster.toml")
    ((host, port),) = before.addresses.values()
    with socket.create_server((host, port)):
        assert shell.run("up") == (
            1,
            "",
            f"wbkv up: n1 cannot listen on {host}:{port}: port {port} is taken\n",
        )
        (other,) = free_ports(1)
        assert shell.run("up", "--port", str(other), "--detach")[0] == 0
        after = load_config(shell.data / "cluster.toml")
        assert after.addresses == {N1: (host, other)}
        assert after.hash == before.hash
        assert shell.run("down")[0] == 0


def test_free_ports_are_not_those_of_outgoing_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = free_ports(20)
    assert len(set(found)) == 20
    if first > 20_000:
        assert max(found) < first


# Nodes that do not come up


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_node_that_dies_at_the_start_is_reported_with_its_log(shell: Shell, detach: list[str]) -> None:
    arguments = ("--nodes", "3", "--partitions", "1", *detach)
    code, out, err = shell.run("up", *arguments, STANDIN='{"n2": "dies"}')
    assert (code, out) == (1, "")
    log = shell.data / "n2.log"
    assert err.endswith(
        f"wbkv up: n2 ended with status 3; the end of {log}:\n  n2 begins\n  I cannot go on\n"
    )
    assert supervisor(shell.data) is None
    found = ask_all(load_config(shell.data / "cluster.toml"))
    assert not any(node["up"] for node in found["nodes"])
    # The next error does not show the output of an earlier process.
    code, out, err = shell.run("up", *arguments, STANDIN='{"n2": "dies"}')
    assert err.endswith(f"n2 ended with status 3; the end of {log}:\n  n2 begins\n  I cannot go on\n")


def test_a_node_that_does_not_answer_is_reported_with_its_log(
    local: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN", '{"n2": "silent"}')
    cluster = local(nodes=2)
    cluster.start()
    until(lambda: ask(cluster.config.status_socket(N1)) and cluster.log(N2).read_text())
    with pytest.raises(ClusterError) as refused:
        cluster.wait_ready(0.0)
    assert str(refused.value) == f"n2 does not answer after 0 s; the end of {cluster.log(N2)}:\n  n2 begins"


def test_a_group_without_a_leader_is_reported(
    local: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN", '{"n1": "headless"}')
    cluster = local(partitions=2)
    cluster.start()
    until(lambda: ask(cluster.config.status_socket(N1)))
    with pytest.raises(ClusterError, match=r"^no leader after 0 s in group 0, 1$"):
        cluster.wait_ready(0.0)


def test_a_command_that_is_not_there(local: Callable[..., LocalCluster]) -> None:
    cluster = local(command=["/nowhere/at/all"])
    cluster.start()
    with pytest.raises(ClusterError, match=r"(?s)n1 ended with status 1; .*/nowhere/at/all|No such file"):
        cluster.wait_ready(WAIT_S)


# Supervising


def test_a_node_that_crashes_is_started_again(shell: Shell) -> None:
    up = shell.start("up", "--nodes", "2", "--partitions", "1")
    line(up, up.stdout, "^stop:")
    first, second = shell.nodes()
    os.kill(second.pid, signal.SIGKILL)
    line(up, up.stderr, rf"^n2 was killed by signal 9 \(Killed\); the end of {shell.data}/n2\.log:$")
    line(up, up.stderr, "^  n2 begins$")
    line(up, up.stderr, r"^starting n2 again in 0\.5 s$")
    until(lambda: [node.pid for node in shell.nodes()][1:] not in ([], [second.pid]))
    assert shell.nodes()[0].pid == first.pid


def test_a_long_log_is_rotated_while_the_node_runs(
    local: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "LOOK_S", 0.01)
    monkeypatch.setattr(supervise, "LOG_BYTES", 1000)
    with local() as cluster:
        log = cluster.log(N1)
        aside = log.with_name("n1.log.1")
        with log.open("a") as file:
            file.write("an old line\n" * 100)
        until(aside.exists)
        until(lambda: log.stat().st_size == 0)
        assert "n1 begins" in aside.read_text()
        cluster.stop(N1)
        assert log.read_text() == "n1 ends\n"  # where the log goes on, without a hole
        assert "n1 ends" in cluster._children[N1].tail()


def test_a_log_that_cannot_be_rotated_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "LOG_BYTES", 1000)
    log = tmp_path / "n1.log"
    log.write_text("an old line\n" * 100)
    (tmp_path / "n1.log.1").mkdir()
    reports: list[str] = []
    assert not supervise.rotate(log, reports.append)
    assert log.stat().st_size == 1200
    assert f"cannot rotate {log}: " in reports[0]


def test_the_supervisors_log_is_rotated_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "LOOK_S", 0.01)
    monkeypatch.setattr(supervise, "LOG_BYTES", 1000)
    log = tmp_path / "data" / commands.SUPERVISOR_LOG

    def ready(*_: object) -> None:
        log.write_text("an old line\n" * 100)

    def stop() -> None:
        until(log.with_name("cluster.log.1").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    make = functools.partial(LocalCluster, command=NODE, make_disk=standin.make_disk)
    command = commands.UpCommand(make, serves=lambda *_: True)
    with commands.Signals() as signals:
        stopper = threading.Thread(target=stop)
        stopper.start()
        assert command._supervise(make(log.parent, 1, 1), signals, ready) == 0
        stopper.join()


def test_restarts_back_off() -> None:
    delays = [back_off(0.0, 0.0)]
    while delays[-1] < BACK_OFF_MAX_S:
        delays.append(back_off(delays[-1], lived_s=1.0))
    assert delays[:4] == [BACK_OFF_S, 2 * BACK_OFF_S, 4 * BACK_OFF_S, 8 * BACK_OFF_S]
    assert delays[-1] == BACK_OFF_MAX_S == back_off(BACK_OFF_MAX_S, lived_s=1.0)
    assert back_off(BACK_OFF_MAX_S, lived_s=BACK_OFF_MAX_S + 1) == BACK_OFF_S


def test_a_node_is_only_started_again_if_that_was_asked_for(local: Callable[..., LocalCluster]) -> None:
    reports: list[str] = []
    cluster = started(local(restart=False, report=reports.append))
    cluster.send_signal(N1, signal.SIGKILL)
    assert cluster._children[N1].wait(WAIT_S)
    assert cluster.pid(N1) is None
    assert reports == []
    cluster.start(N1)
    assert cluster.wait_ready(WAIT_S)
    with pytest.raises(ClusterError, match="n1 is already running"):
        cluster.start(N1)


def test_nodes_that_were_killed_or_stopped_stay_away(local: Callable[..., LocalCluster]) -> None:
    reports: list[str] = []
    cluster = started(local(nodes=3, report=reports.append))
    before = [cluster.pid(node) for node in (N1, N2, N3)]
    assert before == [node["pid"] for node in cluster.status()["nodes"]]
    cluster.kill(N1)
    cluster.stop(N2)
    assert reports == []
    assert cluster.log(N1).read_text() == "n1 begins\n"
    assert cluster.log(N2).read_text() == "n2 begins\nn2 ends\n"
    found = cluster.status()
    assert [node["up"] for node in found["nodes"]] == [False, False, True]
    assert [replica["up"] for replica in found["groups"][0]["replicas"]] == [False, False, True]
    assert found["groups"][0]["leader"] is None
    cluster.start(N1, N2)
    assert cluster.wait_ready(WAIT_S)
    after = [cluster.pid(node) for node in (N1, N2, N3)]
    assert after[2] == before[2]
    assert not set(after[:2]) & set(before)


def test_a_node_that_does_not_stop_is_killed(
    local: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN", '{"n1": "deaf"}')
    reports: list[str] = []
    cluster = started(local(grace_s=0.2, report=reports.append))
    cluster.stop()
    assert reports == ["n1 did not stop within 0.2 s: killed"]
    assert cluster.pid(N1) is None


def test_a_paused_node_can_be_stopped_cleanly(local: Callable[..., LocalCluster]) -> None:
    cluster = started(local())
    cluster.send_signal(N1, signal.SIGSTOP)
    assert ask(cluster.config.status_socket(N1), timeout_s=0.2) is None
    cluster.stop()
    assert cluster.log(N1).read_text() == "n1 begins\nn1 ends\n"


def test_what_a_node_has_started_ends_with_it(
    local: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN", '{"n1": "parent"}')
    cluster = started(local())
    (pid,) = re.findall(r"child (\d+)", cluster.log(N1).read_text())
    grandchild = Watched(int(pid))
    try:
        node = cluster.pid(N1)
        assert node is not None
        os.kill(node, signal.SIGKILL)
        assert grandchild.has_ended()
    finally:
        grandchild.end()


def test_nodes_outlive_the_thread_that_asked_for_them(local: Callable[..., LocalCluster]) -> None:
    cluster = local(restart=False)

    def ask_for_them() -> None:
        cluster.start()
        cluster.wait_ready(WAIT_S)

    thread = threading.Thread(target=ask_for_them)
    thread.start()
    thread.join()
    until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
    assert cluster.status()["nodes"][0]["up"]


def test_a_cluster_is_run_by_one_process_at_a_time(shell: Shell, local: Callable[..., LocalCluster]) -> None:
    with local() as cluster:
        with pytest.raises(ClusterError, match=f"is in use already, by process {os.getpid()}"):
            LocalCluster(shell.data)
        complaint = f"the cluster in {shell.data} is not run by `wbkv up`: stop its process"
        assert shell.run("down") == (1, "", f"wbkv down: {complaint}\n")
        assert cluster.pid(N1) is not None
    assert cluster.pid(N1) is None
    LocalCluster(shell.data).close()


def test_a_cluster_that_could_not_be_made_leaves_nothing(tmp_path: Path) -> None:
    made: list[NodeId] = []

    def fails(config: Config, node: NodeId) -> None:
        assert not (tmp_path / "data" / "cluster.toml").exists()
        if made:
            raise OSError("No space left on device")
        config.data(node).mkdir()
        made.append(node)

    with pytest.raises(OSError, match="No space"):
        LocalCluster(tmp_path / "data", 2, 1, make_disk=fails)
    assert made == [N1]
    assert [file.name for file in (tmp_path / "data").iterdir()] == ["cluster.lock"]
    disks: list[tuple[NodeId, int | None]] = []
    cluster = LocalCluster(
        tmp_path / "data",
        2,
        1,
        make_disk=lambda config, node: disks.append((node, config.nodes[node].incarnation)),
    )
    cluster.close()
    assert disks == [(node, cluster.config.nodes[node].incarnation) for node in (N1, N2)]
    # It exists now: its disks are not made again.
    LocalCluster(tmp_path / "data", make_disk=fails).close()


@pytest.mark.parametrize(("nodes", "replicas"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 3)])
def test_the_usual_number_of_replicas(nodes: int, replicas: int, tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "data", nodes, 2, make_disk=standin.make_disk)
    cluster.close()
    assert {len(members) for members in cluster.config.groups.values()} == {replicas}


def test_groups_of_a_cluster_have_the_given_members(tmp_path: Path) -> None:
    groups = [("n4", "n2", "n3"), ("n1", "n2", "n3")]
    disks: dict[str, Any] = {"make_disk": standin.make_disk}
    for _ in range(2):
        cluster = LocalCluster(tmp_path / "data", 4, groups=groups, regions={"n4": "far"}, **disks)
        cluster.close()
        assert list(cluster.config.groups.values()) == groups
        assert cluster.config.nodes[NodeId("n4")].region == "far"
    for option in ("partitions", "replicas"):
        same: dict[str, Any] = {option: 2, "groups": groups}
        with pytest.raises(ConfigError, match=f"{option} and groups say the same"):
            LocalCluster(tmp_path / "other", 4, **same)
    assert not (tmp_path / "other").exists()


# Status


def replica(status: str, ballot: int, delivered: int, **more: int) -> dict[str, object]:
    found = {"status": status, "ballot": ballot, "leader": "n1", "clock": 1, "entries": 2, "store_bytes": 3}
    return {**found, "delivered": delivered, **more}


def merged(*replicas: dict[str, object] | None) -> Any:
    config = Config.local(3, 1, 3, "/nowhere")
    answers = {
        node: None if replica is None else {"id": node, "pid": 5, "address": "x", "groups": {"0": replica}}
        for node, replica in zip(config.nodes, replicas, strict=True)
    }
    return merge(config, answers)["groups"][0]


def test_the_leader_is_the_one_of_the_highest_ballot() -> None:
    found = merged(replica("leader", 9, 1), replica("leader", 10, 1), replica("follower", 11, 1))
    assert (found["leader"], found["ballot"]) == ("n2", 10)
    found = merged(replica("recovering", 9, 1), replica("follower", 10, 1), None)
    assert (found["leader"], found["ballot"]) == (None, 10)
    assert (merged(None, None, None)["leader"], merged(None, None, None)["ballot"]) == (None, None)


def test_lag_is_counted_in_ticks_or_messages() -> None:
    ahead, behind, hardly = timestamp(9, G0), timestamp(4, G0), timestamp(9, G0) - 1
    found = merged(replica("leader", 1, ahead), replica("follower", 1, behind), None)
    assert [each["lag"] for each in found["replicas"]] == [0, 5, None]
    found = merged(replica("leader", 1, ahead), replica("follower", 1, hardly), None)
    assert [each["lag"] for each in found["replicas"]] == [0, 1, None]
    found = merged(replica("leader", 1, 900, deliveries=7), replica("follower", 1, 400, deliveries=5), None)
    assert [each["lag"] for each in found["replicas"]] == [0, 2, None]
    assert [each["delivered"] for each in found["replicas"]] == [900, 400, None]
    # Counts cannot be compared with positions.
    found = merged(replica("leader", 1, ahead, deliveries=7), replica("follower", 1, behind), None)
    assert [each["lag"] for each in found["replicas"]] == [0, 5, None]


def test_members_that_came_later_are_shown_where_they_answer() -> None:
    config = Config.local(4, 1, 3, "/nowhere")
    answer = {"id": "n4", "pid": 5, "address": "x", "groups": {"0": replica("leader", 2, 1)}}
    found = merge(config, {N1: None, N2: None, N3: None, NodeId("n4"): answer})["groups"][0]
    assert found["leader"] == "n4"
    assert [each["node"] for each in found["replicas"]] == ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize("deep", [False, True])
def test_a_node_says_how_it_is(deep: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter of the test
    folder = tmp_path / ("x" * 120) if deep else tmp_path
    folder.mkdir(exist_ok=True)
    path = folder / "n1.sock"
    path.touch()  # what an earlier life left behind
    numbers = itertools.count(1)

    async def scenario() -> None:
        server = await serve_status(path, lambda: {"asked": next(numbers)})
        assert path.stat().st_mode & 0o777 == 0o600
        for number in (1, 2):
            assert await asyncio.to_thread(ask, path, WAIT_S) == {"asked": number}
        server.close()
        await server.wait_closed()
        assert await asyncio.to_thread(ask, path) is None

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))
    assert ask(tmp_path / "absent.sock") is None


@pytest.mark.parametrize("sent", [b"", b"{", b"[]\n", b'"up"\n'])
def test_a_node_that_speaks_nonsense_is_down(sent: bytes, tmp_path: Path) -> None:
    path = tmp_path / "n1.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(sent)

        thread = threading.Thread(target=answer)
        thread.start()
        assert ask(path, WAIT_S) is None
        thread.join(WAIT_S)


# Serve


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    dump_config(Config.local(3, 1, 3, tmp_path), tmp_path / "cluster.toml")
    return tmp_path / "cluster.toml"


def test_serve_runs_the_node(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[Config, NodeId]] = []

    async def serve(config: Config, node: NodeId) -> int:
        ran.append((config, node))
        return 5

    fake = types.ModuleType("kvstore.server.process")
    monkeypatch.setattr(fake, "serve", serve, raising=False)
    monkeypatch.setitem(sys.modules, "kvstore.server.process", fake)
    assert serve_main(["--config", str(config_file), "--node", "n2"]) == 5
    assert ran == [(load_config(config_file), N2)]
    serve_main(["--config", str(config_file), "--node", "n2", "--trace", "traces"])
    assert ran[1][0].trace_folder == Path.cwd() / "traces"


@pytest.mark.parametrize(
    ("error", "logged", "traced"),
    [
        (OSError(28, "No space left"), "No space left", False),
        (StorageError("no disk"), "stopped: no disk", False),
        (KeyError("bug"), "KeyError: 'bug'", True),
    ],
)
def test_a_node_that_fails_says_why(
    config_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    logged: str,
    traced: bool,  # noqa: FBT001 - a parameter
) -> None:
    async def serve(config: Config, node: NodeId) -> int:
        raise error

    fake = types.ModuleType("kvstore.server.process")
    monkeypatch.setattr(fake, "serve", serve, raising=False)
    monkeypatch.setitem(sys.modules, "kvstore.server.process", fake)
    assert serve_main(["--config", str(config_file), "--node", "n2"]) == 1
    # As the log has it: PySpark, once loaded, gives everybody's handlers a format of its own.
    text = "".join(logging.Formatter().format(record) for record in map(_unformatted, caplog.records))
    assert logged in text
    assert traced == ("Traceback" in text)


def _unformatted(record: logging.LogRecord) -> logging.LogRecord:
    record.exc_text = None
    return record


def test_serve_refuses_what_it_cannot_run(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve_main(["--config", str(config_file), "--node", "n11"]) == 2
    assert capsys.readouterr().err == 'wbkv serve: unknown node "n11"; did you mean "n1"?\n'
    config_file.write_text("nodes = 3\n")
    assert serve_main(["--config", str(config_file), "--node", "n1"]) == 2
    assert capsys.readouterr().err == f"wbkv serve: {config_file}: cluster: missing\n"
    assert serve_main(["--config", str(config_file.with_name("absent")), "--node", "n1"]) == 2
    assert "absent: No such file" in capsys.readouterr().err


def test_nodes_are_started_with_serve(tmp_path: Path) -> None:
    """The default command, up to where the node itself would begin."""
    dump_config(Config.local(1, 1, 1, tmp_path), tmp_path / "cluster.toml")
    arguments = ["--config", str(tmp_path / "cluster.toml"), "--node", "n7"]
    done = subprocess.run(  # noqa: S603 - our own command
        [*module.SERVE, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (2, 'wbkv serve: unknown node "n7"; known: n1\n')


def test_real_nodes(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "data", 3, 2, grace_s=WAIT_S) as cluster:
        for node in cluster.config.nodes:
            identity, _ = read_disk(cluster.config.data(node))
            assert (identity.node, identity.incarnation) == (node, cluster.config.nodes[node].incarnation)
        found = cluster.status()
        assert [node["pid"] for node in found["nodes"]] == [
            cluster.pid(node) for node in cluster.config.nodes
        ]
        for group in found["groups"]:
            assert group["leader"] in cluster.config.nodes
            assert group["ballot"]
            assert [each["node"] for each in group["replicas"]] == ["n1", "n2", "n3"]
            assert all(
                isinstance(value, int) for each in group["replicas"] for value in (each["clock"], each["lag"])
            )
    assert not any(node["up"] for node in cluster.status()["nodes"])


def test_the_commands_are_entry_points() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    entries = project["project"]["entry-points"]
    for group, name in (("", "serve"), ("", "up"), ("", "down"), (".local", "status")):
        found, _, attribute = entries[f"wbkv.commands{group}"][name].partition(":")
        assert getattr(importlib.import_module(found), attribute).help


def test_a_config_error_is_bad_usage() -> None:
    assert issubclass(ConfigError, ValueError)
    assert not issubclass(ClusterError, ValueError | OSError)
