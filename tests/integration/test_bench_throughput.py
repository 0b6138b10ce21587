"""`wbkv bench throughput` on clusters of real processes, briefly, and failures of its client processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.command import main
from benchmarks.load import LoadError, Plan, PlanError, measure, running, targets
from benchmarks.load.processes import workers
from benchmarks.load.worker import Job
from kvstore.bare.client import MulticastClient
from kvstore.config.addresses import NodeId
from kvstore.config.model import default_members
from kvstore.local.cluster import LocalCluster
from multicast.types import TICKS_PER_S, GroupId, time_of

WAIT_S = 60.0
SHORT = ("--groups", "2", "--clients", "8", "--warm-up", "0.1", "--seconds", "0.2", "--rounds", "2")


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    status = main(["throughput", *SHORT, *arguments, "--json"])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return json.loads(out)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check(found: Any) -> None:
    assert found["errors"] == 0, found
    assert found["throughput"] > 0
    assert len(found["throughput_rounds"]) == 2
    latency = found["latency_ms"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert found["cpu_us"].keys() == {"n1", "n2", "n3", "clients", "all"}


def test_an_open_loop_of_another_protocol(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    samples = tmp_path / "samples"
    options = ("--rate", "200", "--dest", "1", "--processes", "2", "--samples", str(samples))
    found = bench(capsys, "--protocol", "skeen", *options)
    check(found)
    assert found["plan"]["replicas"] == 1
    head, *rows = (samples / "samples-0.csv").read_text().splitlines()
    assert head == "start_us,end_us,process,groups,outcome"
    assert {row.split(",")[3] for row in rows} == {"0", "1"}
    assert all(int(row.split(",")[0]) >= found["began_us"] for row in rows)


def test_transactions_with_traces(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = bench(capsys, "--level", "store", "--trace", str(tmp_path / "traces"))
    check(found)
    files = [path.name.split("-")[0] for path in (tmp_path / "traces").iterdir()]
    assert sorted(files) == ["deliveries", "deliveries", "deliveries", "requests"]
    (requests,) = (tmp_path / "traces").glob("requests-*")
    lines = [json.loads(line) for line in requests.read_text().splitlines()]
    assert len(lines) >= found["messages"]
    assert {tuple(line["partitions"]) for line in lines} == {(0, 1)}
    assert {line["outcome"] for line in lines} == {"ok"}


# Plain messages, in emulated regions


FAR = Plan(groups=2, dest=2, clients=6, regions=True, warm_up_s=0.2, seconds=1.0, rounds=1, patience_s=WAIT_S)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """With a node that has one replica only, which leads its group."""
    groups = default_members(3, 2, 3)
    groups[1][1] = "n4"
    with running(FAR, nodes=4, groups=groups) as found:
        yield found


def test_a_plan_is_not_measured_on_another_cluster(cluster: LocalCluster) -> None:
    with pytest.raises(PlanError, match="protocol: the cluster has whitebox, not ftskeen"):
        measure(replace(FAR, protocol="ftskeen"), cluster)
    with pytest.raises(PlanError, match="regions: the cluster has True, not False"):
        measure(replace(FAR, regions=False), cluster)


def test_clocks_are_logical(cluster: LocalCluster) -> None:
    assert asyncio.run(position(cluster)) < TICKS_PER_S


def test_clients_are_in_every_region(cluster: LocalCluster) -> None:
    """From r3, group 1 is a round trip away: its quorums need r1, where its leader is, or else n3 leads."""

    async def main() -> float:
        async with targets.multicast(FAR, cluster.config, "r3") as send:
            await send((1,))  # the leader is known now
            began = time.monotonic()
            await send((1,))
            return time.monotonic() - began

    assert targets.regions(cluster.config) == ["r1", "r2", "r3"]
    assert targets.delays_s(cluster.config, "r2") == {"n1": 0.03, "n3": 0.0375, "n4": 0.03}
    assert asyncio.run(main()) >= 0.125


def test_a_leader_crashes_on_a_node_of_its_own(cluster: LocalCluster, tmp_path: Path) -> None:
    """Nothing is answered sooner than it can be between regions, and everything in the end."""
    topology = cluster.config.topology
    assert cluster.config.node_of(topology.preferred_leader(GroupId(1))) == "n4"
    killer = threading.Timer(0.5, cluster.kill, [NodeId("n4")])
    killer.start()
    found = measure(FAR, cluster, tmp_path / "samples")
    killer.join()
    assert found.errors == 0
    assert "n4" not in found.cpu_us
    rows = [row.split(",") for row in (tmp_path / "samples" / "samples-0.csv").read_text().splitlines()[1:]]
    assert {row[4] for row in rows} == {"ok"}
    # A quorum of group 0 is in two regions.
    assert min(int(row[1]) - int(row[0]) for row in rows) >= 60_000
    assert max(int(row[1]) for row in rows) > found.began_us + 500_000


async def position(cluster: LocalCluster) -> int:
    async with MulticastClient.of(cluster.config) as client:
        return time_of((await client.multicast([GroupId(0)], b"x", WAIT_S))[GroupId(0)])


# Client processes


def job(tmp_path: Path) -> Job:
    return Job(Plan(groups=1, dest=1), str(tmp_path / "cluster.toml"), 0)


def test_a_client_process_that_fails_reports_why(tmp_path: Path) -> None:
    with (
        pytest.raises(LoadError, match=r"has ended with 1: (?s:.)*cluster\.toml: No such file"),
        workers([job(tmp_path)]),
    ):
        pass


PARENT = """
import sys, time
from benchmarks.load import Plan
from benchmarks.load.processes import workers
from benchmarks.load.worker import Job
with workers([Job(Plan(groups=2), sys.argv[1], 0)]) as (worker,):
    print(worker.pid, flush=True)
    time.sleep(600)
"""


def test_client_processes_end_with_their_parent(cluster: LocalCluster) -> None:
    command = [sys.executable, "-c", PARENT, str(cluster.data / "cluster.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:  # noqa: S603 - our own
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not ended(pid)
        parent.kill()
    until(lambda: ended(pid))


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_client_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    stubborn = "import time; print('\"ready\"', flush=True); time.sleep(600)"
    with workers([job(tmp_path)], (sys.executable, "-c", stubborn), grace_s=0.01) as (worker,):
        assert not ended(worker.pid)
    assert ended(worker.pid)


# Bad input


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--dest", "3"], "--dest: 3 is not in 1..2: there are 2 groups"),
        (["--protocol", "fastcats"], "did you mean fastcast?"),
        (["--protocol", "skeen", "--replicas", "3"], "--replicas: Skeen's protocol has groups of 1, not 3"),
        (["--rate", "0"], "--rate: 0.0 is not a positive number"),
        (["--replicas", "0"], "--replicas: 0 is not in 1..99"),
        (["--warm-up", "-1"], "--warm-up: -1.0 is not a duration of 0 s or more"),
        (["--patience", "0"], "--patience: 0.0 is not"),
        (["--level", "store", "--regions"], "--regions: "),
        (["--trace", "somewhere"], "--trace: only the store level records traces"),
        (["--samples", "."], "--samples: . is not a new or empty folder"),
    ],
)
def test_an_invalid_option_is_named(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["throughput", *SHORT, *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert complaint in err
