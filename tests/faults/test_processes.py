"""Faults of real processes, under load: whatever is answered stays, in one order, at all replicas."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from multicast.protocol import Timing
from tests.faults.harness import Load, control, leader_of, under_load, until, wait_for_members


def kill_and_restart(cluster: LocalCluster, load: Load, *nodes: NodeId, work: int = 30) -> None:
    cluster.kill(*nodes)
    if len(nodes) == 1:
        load.wait_for(work)
    cluster.start(*nodes)
    load.wait_for(work)


def test_random_nodes_are_killed(tmp_path: Path) -> None:
    rng = random.Random(1)
    with under_load(tmp_path / "cluster") as (cluster, load):
        for _ in range(4):
            kill_and_restart(cluster, load, rng.choice(list(cluster.config.nodes)))


def test_every_leader_is_killed_in_turn(tmp_path: Path) -> None:
    with under_load(tmp_path / "cluster") as (cluster, load):
        for group in cluster.config.topology.groups:
            leader = leader_of(cluster, group)
            assert leader is not None
            kill_and_restart(cluster, load, leader)


def test_all_nodes_are_killed_at_once(tmp_path: Path) -> None:
    with under_load(tmp_path / "cluster") as (cluster, load):
        for _ in range(2):
            kill_and_restart(cluster, load, *cluster.config.nodes)


@pytest.mark.parametrize("pause_work", [60])
def test_a_paused_leader_does_no_harm_when_it_wakes(tmp_path: Path, pause_work: int) -> None:
    """It sleeps until others lead and have gone on; then it believes, for a moment, that it still leads."""
    with under_load(tmp_path / "cluster") as (cluster, load):
        leader = leader_of(cluster, 0)
        assert leader is not None
        cluster.send_signal(leader, signal.SIGSTOP)
        load.wait_for(pause_work)
        cluster.send_signal(leader, signal.SIGCONT)
        load.wait_for(pause_work)


def test_a_node_that_is_told_to_stop_hands_over(tmp_path: Path) -> None:
    with under_load(tmp_path / "cluster") as (cluster, load):
        leader = leader_of(cluster, 0)
        assert leader is not None
        cluster.stop(leader)
        load.wait_for(30)
        assert leader_of(cluster, 0) not in (None, leader)
        cluster.start(leader)
        load.wait_for(30)


def test_links_are_cut_and_healed(tmp_path: Path) -> None:
    """A leader that nobody hears, one that hears nobody, and one that is cut off altogether."""
    with under_load(tmp_path / "cluster") as (cluster, load):
        for ways in (["to"], ["from"], ["to", "from"]):
            leader = leader_of(cluster, 0)
            assert leader is not None
            others = [node for node in cluster.config.nodes if node != leader]
            for way in ways:
                for other in others:
                    control(cluster, leader, f"{way} {other}")
            load.wait_for(40)
            control(cluster, leader, "heal")
            load.wait_for(40)


def test_disks_are_lost_one_after_the_other(tmp_path: Path) -> None:
    """Each node in turn comes back with nothing, as somebody else, until no first member is left."""
    with under_load(tmp_path / "cluster", timing=Timing(history=64)) as (cluster, load):
        for number, node in enumerate(cluster.config.nodes, 1):
            cluster.kill(node)
            shutil.rmtree(cluster.config.data(node))
            load.wait_for(30)
            cluster.start(node)
            wait_for_members(cluster, number)
            load.wait_for(30)
            assert "took a snapshot" in cluster.log(node).read_text()
        # The new members are no guests: they stay when all restart, and lead if they must.
        kill_and_restart(cluster, load, *cluster.config.nodes)
        kill_and_restart(cluster, load, leader_of(cluster, 0) or NodeId("n1"))


def test_another_node_takes_a_members_place(tmp_path: Path) -> None:
    """An operator replaces a node that leads a group; later it is killed, and so is the one that came."""
    timing, replaced = Timing(history=64), {"n1": "n4"}
    with under_load(tmp_path / "cluster", timing=timing, replaced=replaced) as (cluster, load):
        newcomer = cluster.add()
        cluster.start(newcomer)
        until(lambda: not member(cluster, "replace", "n1", newcomer).returncode)
        load.wait_for(30)
        cluster.kill(NodeId("n1"))
        load.wait_for(30)
        kill_and_restart(cluster, load, newcomer)
        for group in json.loads(member(cluster, "list", "--json").stdout)["groups"]:
            assert {each["node"] for each in group["members"]} == {"n2", "n3", "n4"}
            assert group["settled"]


def member(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """`wbkv member`."""
    command = [sys.executable, "-c", "from wbkv.cli.main import main; raise SystemExit(main())", "member"]
    file = str(cluster.data / "cluster.toml")
    command += [*arguments, "--config", file]
    return subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - our own command


def test_a_node_that_was_away_for_long_gets_what_it_missed(tmp_path: Path) -> None:
    """That is more than the others' replicas retain, but their states have it."""
    with under_load(tmp_path / "cluster", timing=Timing(history=8)) as (cluster, load):
        away = next(node for node in cluster.config.nodes if node != leader_of(cluster, 0))
        cluster.stop(away)  # which keeps all that it has executed
        load.wait_for(300)
        cluster.start(away)
        load.wait_for(100)
    assert "took a snapshot" not in cluster.log(away).read_text()


def test_a_node_that_has_nothing_gets_a_snapshot(tmp_path: Path) -> None:
    """The others go on serving meanwhile."""
    away = NodeId("n3")
    with under_load(tmp_path / "cluster", timing=Timing(history=8), away=[away]) as (cluster, load):
        load.wait_for(300)
        cluster.start(away)
        load.wait_for(100)
    assert "took a snapshot" in cluster.log(away).read_text()
