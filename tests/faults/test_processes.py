"""Faults of real processes, under load: whatever is answered stays, in one order, at all replicas."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from multicast.protocol import Timing
from tests.faults.clients import stored
from tests.faults.harness import FaultyCluster, leader_of, under_load, until, wait_for_members

Loaded = Callable[[Path], AbstractContextManager[FaultyCluster]]
both = pytest.mark.parametrize("loaded", [under_load, stored], ids=["multicast", "store"])
"""Nodes that only order messages, and the store; each checks at the end what it has promised."""


def kill_all(cluster: FaultyCluster) -> None:
    cluster.hurt("kill", *cluster.config.nodes)
    cluster.hurt("start", *cluster.config.nodes)
    cluster.progress()


def test_random_nodes_are_killed(tmp_path: Path) -> None:
    rng = random.Random(1)
    with under_load(tmp_path) as cluster:
        for _ in range(4):
            cluster.hurt_for_a_while("kill", rng.choice(list(cluster.config.nodes)))


@both
def test_every_leader_is_killed_in_turn(tmp_path: Path, loaded: Loaded) -> None:
    with loaded(tmp_path) as cluster:
        for group in cluster.config.topology.groups:
            cluster.hurt_for_a_while("kill", cluster.leader(group))


@both
def test_all_nodes_are_killed_at_once(tmp_path: Path, loaded: Loaded) -> None:
    with loaded(tmp_path) as cluster:
        for _ in range(2):
            kill_all(cluster)


@both
def test_a_paused_leader_does_no_harm_when_it_wakes(tmp_path: Path, loaded: Loaded) -> None:
    """The leader sleeps until others lead and have gone on. When it wakes, it believes for a moment that it
    still leads: it must answer no read from its own state.
    """
    with loaded(tmp_path) as cluster:
        for group in (0, 1):
            cluster.hurt_for_a_while("pause", cluster.leader(group), "continue")


@both
def test_links_are_cut_and_healed(tmp_path: Path, loaded: Loaded) -> None:
    """A leader whose messages are lost, one that receives none, and one that is cut off altogether."""
    with loaded(tmp_path) as cluster:
        for ways in (["to"], ["from"], ["to", "from"]):
            leader = cluster.leader()
            for way in ways:
                cluster.hurt(way, leader, *(node for node in cluster.config.nodes if node != leader))
            cluster.progress()
            cluster.hurt("heal", leader)
            cluster.progress()


def test_a_node_that_is_told_to_stop_hands_over(tmp_path: Path) -> None:
    with under_load(tmp_path) as cluster:
        leader = cluster.leader()
        cluster.stop(leader)
        cluster.progress()
        assert leader_of(cluster, 0) not in (None, leader)
        cluster.start(leader)
        cluster.progress()


def test_disks_are_lost_one_after_the_other(tmp_path: Path) -> None:
    """Each node in turn comes back with an empty disk, as a new replica, until no first member is left."""
    with under_load(tmp_path, timing=Timing(history=64)) as cluster:
        for number, node in enumerate(cluster.config.nodes, 1):
            cluster.hurt("wipe", node)
            cluster.progress()
            cluster.start(node)
            wait_for_members(cluster, number)
            cluster.progress()
            assert "took a snapshot" in cluster.log(node).read_text()
        # The new members stay when all nodes restart, and lead if they must.
        kill_all(cluster)
        cluster.hurt_for_a_while("kill", cluster.leader())


def test_another_node_replaces_a_member(tmp_path: Path) -> None:
    """An operator replaces a node that leads a group; later it is killed, and so is its successor."""
    timing, replaced = Timing(history=64), {"n1": "n4"}
    with under_load(tmp_path, timing=timing, replaced=replaced) as cluster:
        newcomer = cluster.add()
        cluster.start(newcomer)
        until(lambda: not member(cluster, "replace", "n1", newcomer).returncode)
        cluster.progress()
        cluster.kill(NodeId("n1"))
        cluster.progress()
        cluster.hurt_for_a_while("kill", newcomer)
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
    with under_load(tmp_path, timing=Timing(history=8)) as cluster:
        away = next(node for node in cluster.config.nodes if node != leader_of(cluster, 0))
        cluster.stop(away)  # which keeps all that it has executed
        cluster.load.wait_for(300)
        cluster.start(away)
        cluster.load.wait_for(100)
    assert "took a snapshot" not in cluster.log(away).read_text()


def test_a_node_that_has_nothing_gets_a_snapshot(tmp_path: Path) -> None:
    """The others go on serving meanwhile."""
    away = NodeId("n3")
    with under_load(tmp_path, timing=Timing(history=8), away=[away]) as cluster:
        cluster.load.wait_for(300)
        cluster.start(away)
        cluster.load.wait_for(100)
    assert "took a snapshot" in cluster.log(away).read_text()
