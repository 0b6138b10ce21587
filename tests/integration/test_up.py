"""`make up`: a real cluster in the foreground, its example, and SIGINT; other commands under SIGINT."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kvstore.commands import welcome
from kvstore.commands.cluster import Signals, UpCommand
from kvstore.config.model import Config
from kvstore.config.toml import dump_config
from kvstore.local.cluster import LocalCluster, free_ports, local_cluster
from kvstore.local.probe import NotServing, wait_serving
from kvstore.local.supervise import ClusterError
from tests.integration import standin
from tests.integration.interrupts import IGNORING_SIGINT, children_that_ignore_sigint, until
from tests.tree import ROOT

WAIT_S = 60.0


def make_up() -> list[str]:
    """The command that `make up` runs after the installation."""
    command = ["make", "--no-print-directory", "-n", "up"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    program, *arguments = shlex.split(said.stdout.splitlines()[-1])
    assert program.endswith("bin/wbkv")
    return [str(Path(sys.executable).with_name("wbkv")), *arguments]


@contextlib.contextmanager
def running(folder: Path, by: Sequence[str] = ()) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command in a folder until it has printed everything. It is killed in any case."""
    up = subprocess.Popen(  # noqa: S603 - our own command
        [*by, *make_up()],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    timer = threading.Timer(WAIT_S, up.kill)
    timer.start()
    try:
        assert up.stdout is not None
        said = ""
        while "client.close()\n" not in said:
            line = up.stdout.readline()
            assert line, f"the command ended: {up.communicate()}"
            said += line
        yield up, said
    finally:
        timer.cancel()
        up.kill()
        up.communicate(timeout=WAIT_S)


def interrupt(up: subprocess.Popen[str]) -> str:
    """Press Ctrl-C; return what the command prints then."""
    os.killpg(up.pid, signal.SIGINT)
    _, complaints = up.communicate(timeout=WAIT_S)
    assert up.returncode == 0
    return complaints


def paste(example: str) -> str:
    """Paste into an interactive Python, line by line; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-iq"], input=example, capture_output=True, text=True, timeout=WAIT_S
    )
    assert "Error" not in done.stderr, done.stderr
    return done.stdout


def test_make_up_serves_an_example_that_can_be_pasted_and_keeps_its_data(tmp_path: Path) -> None:
    for again in (False, True):
        with running(tmp_path, IGNORING_SIGINT if again else ()) as (up, said):
            assert re.match(r"cluster \w+ is up: 3 nodes, 3 partitions of 3 \(whitebox, fsync\)\n", said)
            example = said[said.index("import wbkv\n") :]
            if again:
                example = re.sub(r"^client\.put.*\n", "", example, flags=re.MULTILINE)
            assert paste(example).splitlines()[-1] == ("[40, 60]" if again else "[70, 30]")
            assert interrupt(up) == f"stopping\nstopped; the data is kept in {tmp_path / '.wbkv'}\n"


@contextlib.contextmanager
def in_background(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A `wbkv` command that is started with SIGINT ignored, and told to end by SIGINT."""
    command = [*IGNORING_SIGINT, str(Path(sys.executable).with_name("wbkv")), *arguments]
    with subprocess.Popen(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        timer = threading.Timer(WAIT_S, child.kill)
        timer.start()
        try:
            yield child
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=WAIT_S)
        finally:
            timer.cancel()
            child.kill()


def test_a_campaign_in_the_background_of_a_script_ends_on_sigint() -> None:
    with in_background("sim", "--seeds", "0:1000000", "--jobs", "2") as sim:
        until(lambda: children_that_ignore_sigint(sim.pid) == 2, WAIT_S)
    assert sim.returncode == 130


def test_a_node_in_the_background_of_a_script_ends_on_sigint(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    port, api_port = free_ports(2)
    dump_config(Config.local(1, 1, 1, tmp_path, ports=[port], api_ports=[api_port]), file)
    with in_background("serve", "--config", str(file), "--node", "n1", "--create") as node:
        assert node.stderr is not None
        assert any("n1 serves 1 groups" in line for line in node.stderr)
    assert node.returncode == 0


def test_a_cluster_that_does_not_serve_is_not_up(tmp_path: Path) -> None:
    make = functools.partial(LocalCluster, command=standin.NODE, make_disk=standin.make_disk)
    cluster = make(tmp_path, 1, 1)
    command = UpCommand(make, serves=lambda made, _, pause: made.wait_serving(0.0, pause))
    with Signals() as signals, pytest.raises(ClusterError, match="n1 does not serve clients on"):
        command._supervise(cluster, signals, lambda: pytest.fail("it does not serve"))
    assert cluster.pid(cluster.nodes[0]) is None


def test_the_transfer_is_between_partitions(tmp_path: Path) -> None:
    placement = Config.local(3, 3, 3, tmp_path).first_placement
    accounts = set(re.findall('"(account/.*?)"', welcome.EXAMPLE))
    assert len({placement.group_of(account.encode()) for account in accounts}) == len(accounts) == 2


def test_commands_are_named_so_that_they_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(path))
    assert welcome.tool("wbkv") == "wbkv"
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(path.parent)
    assert welcome.tool("wbkv") == f"{path.name}/wbkv"
    monkeypatch.chdir("/")
    (path / "wbkv").relative_to("/")
    assert Path("/", shlex.split(welcome.tool("wbkv"))[0]) == path / "wbkv"


def test_a_cluster_for_tests_serves_at_once_and_leaves_nothing() -> None:
    with local_cluster(nodes=1, partitions=2) as cluster:
        folder = cluster.data
        assert cluster.nodes == ["n1"]
        (address,) = cluster.addresses
        assert wait_serving(address, 0.0, lambda _: True)
        process = cluster.pid(cluster.nodes[0])
        cluster.kill(cluster.nodes[0])
        with pytest.raises(NotServing):
            wait_serving(address, 0.0, lambda _: True)
        assert wait_serving(address, float("inf"), lambda _: True) is False
        cluster.start(cluster.nodes[0])
        cluster.wait_serving()
        assert cluster.pid(cluster.nodes[0]) != process
    assert not folder.exists()
    assert cluster.pid(cluster.nodes[0]) is None


def test_a_cluster_for_tests_can_be_kept(tmp_path: Path) -> None:
    with local_cluster(1, 1, durability="os", data=tmp_path):
        pass
    with local_cluster(data=tmp_path) as cluster:
        assert (cluster.nodes, cluster.config.durability) == (["n1"], "os")
    assert (tmp_path / "n1").exists()
