"""The store on real processes, under faults: what clients were told stays true, whatever happens to nodes.

A run cannot be repeated exactly: processes are not deterministic. What happened in it is in `history.jsonl`
beside the cluster's folder: every request with its times, every fault, every change; and in the nodes' logs.
Set `WBKV_TORTURE` to a number of seconds for a longer run of random faults, and `WBKV_SEED` for others.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from kvstore.server.process import TEST_HOOKS
from multicast.protocol import Timing
from tests.faults.clients import EVERYTHING, Load, Nodes
from tests.faults.harness import control, leader_of, settle, until, wait_for_members
from tests.faults.history import check

TORTURE_S = float(os.environ.get("WBKV_TORTURE", "0"))
SEED = int(os.environ.get("WBKV_SEED", "1"))


class Cluster(LocalCluster):
    """A cluster, what is asked of it, and what is done to it."""

    load: Load

    def leader(self, group: int = 0) -> NodeId:
        until(lambda: leader_of(self, group) is not None)
        return leader_of(self, group) or NodeId("n1")

    def hurt(self, fault: str, *nodes: NodeId) -> None:
        """One fault, as the history has it too."""
        self.load.note(f"{fault} {' '.join(nodes)}")
        if fault == "kill":
            self.kill(*nodes)
        elif fault == "stop":
            self.stop(*nodes)
        elif fault == "start":
            self.start(*nodes)
        elif fault == "wipe":
            self.kill(*nodes)
            for node in nodes:
                shutil.rmtree(self.config.data(node))
        elif fault in ("pause", "continue"):
            for node in nodes:
                self.send_signal(node, signal.SIGSTOP if fault == "pause" else signal.SIGCONT)
        elif fault == "heal":
            for node in nodes:
                control(self, node, "heal")
        else:
            one, *others = nodes
            for other in others:
                control(self, one, f"{fault} {other}")


@contextmanager
def stored(tmp_path: Path, seed: int = 0, timing: Timing | None = None) -> Iterator[Cluster]:
    """A cluster and its load. At the end all must be at rest, agree, and have kept what was promised."""
    os.environ[TEST_HOOKS] = "1"
    cluster = Cluster(tmp_path / "cluster", 3, 3, durability="fsync", timing=timing, restart=False)
    with cluster, Load(cluster, seed) as load:
        cluster.load = load
        try:
            load.wait_for(10)
            yield cluster
            load.wait_for(10)
            load.finish()
            settle(cluster, {})
            check_nodes(cluster)
            load.note("stop all")
            cluster.stop()
            cluster.start()
            cluster.wait_ready()
            check_nodes(cluster)
            load.check()
        finally:
            load.history.write(tmp_path / "history.jsonl")
    check_logs(cluster)


def check_nodes(cluster: Cluster) -> None:
    """All nodes serve, and each has what the watch has seen, by itself."""

    async def look(nodes: Nodes) -> None:
        for node in nodes.names:
            while not await nodes.healthy(node):
                await asyncio.sleep(0.05)
        taken = await nodes.ask("Snapshot", kv.SnapshotRequest())
        asked = kv.ScanRequest(range=EVERYTHING, revision=taken.revision, consistency=kv.SERIALIZABLE)
        scans = {node: await nodes.scan(asked, node) for node in nodes.names}
        wanted = cluster.load.values()
        for node, (_, entries) in scans.items():
            check(entries == scans[NodeId("n1")][1], f"{node} and n1 differ: {scans}")
            found = {entry.key: entry.value for entry in entries}
            check(found == wanted, f"{node} has {found}, not {wanted}")

    cluster.load.run(look(cluster.load.nodes))
    for group in cluster.status()["groups"]:
        found = {str(replica["status"]) for replica in group["replicas"]}
        check(group["leader"] is not None and found == {"leader", "follower"}, f"not all serve: {group}")


def check_logs(cluster: Cluster) -> None:
    for node in cluster.config.nodes:
        log = cluster.log(node).read_text()
        for bad in ("Traceback", "own state is wrong", "ERROR", "CRITICAL"):
            check(bad not in log, f"{node} says:\n{log[-5000:]}")


def test_every_leader_is_killed_in_turn(tmp_path: Path) -> None:
    with stored(tmp_path) as cluster:
        for group in cluster.config.topology.groups:
            leader = cluster.leader(group)
            cluster.hurt("kill", leader)
            cluster.load.wait_for(5)
            cluster.hurt("start", leader)
            cluster.load.wait_for(5)


def test_a_leader_is_killed_again_and_again(tmp_path: Path) -> None:
    """Nobody waits for those that come back: the next is killed as soon as anything has been answered."""
    with stored(tmp_path) as cluster:
        for _ in range(4):
            leader = cluster.leader()
            cluster.hurt("kill", leader)
            cluster.hurt("start", leader)
            cluster.load.wait_for(2)


def test_all_nodes_are_killed_at_once(tmp_path: Path) -> None:
    with stored(tmp_path) as cluster:
        for _ in range(2):
            cluster.hurt("kill", *cluster.config.nodes)
            cluster.hurt("start", *cluster.config.nodes)
            cluster.load.wait_for(5)


def test_a_paused_leader_does_no_harm_when_it_wakes(tmp_path: Path) -> None:
    """It believes, for a moment, that it still leads: it must answer no read from what it has."""
    with stored(tmp_path) as cluster:
        for group in (0, 1):
            leader = cluster.leader(group)
            cluster.hurt("pause", leader)
            cluster.load.wait_for(5)
            cluster.hurt("continue", leader)
            cluster.load.wait_for(5)


def test_links_are_cut_and_healed(tmp_path: Path) -> None:
    """A leader that nobody hears, one that hears nobody, and one that is cut off altogether."""
    with stored(tmp_path) as cluster:
        for ways in (["to"], ["from"], ["to", "from"]):
            leader = cluster.leader()
            others = [node for node in cluster.config.nodes if node != leader]
            for way in ways:
                cluster.hurt(way, leader, *others)
            cluster.load.wait_for(5)
            cluster.hurt("heal", leader)
            cluster.load.wait_for(5)


def test_nodes_are_restarted_one_after_the_other(tmp_path: Path) -> None:
    """As for an upgrade: each hands over, and clients lose nothing but connections."""
    with stored(tmp_path) as cluster:
        for node in cluster.config.nodes:
            cluster.hurt("stop", node)
            cluster.load.wait_for(3)
            cluster.hurt("start", node)
            cluster.load.wait_for(3)


def test_a_lost_disk_is_replaced(tmp_path: Path) -> None:
    """The node comes back as somebody else, gets a snapshot, and can lead when another dies."""
    with stored(tmp_path, timing=Timing(history=8)) as cluster:
        node = cluster.leader(1)
        cluster.hurt("wipe", node)
        cluster.load.wait_for(5)
        cluster.hurt("start", node)
        wait_for_members(cluster, 1)
        cluster.load.wait_for(5)
        check("took a snapshot" in cluster.log(node).read_text(), "it got no snapshot")
        other = cluster.leader(0)
        cluster.hurt("kill", other)
        cluster.load.wait_for(5)
        cluster.hurt("start", other)


@pytest.mark.skipif(not TORTURE_S, reason="set WBKV_TORTURE to a number of seconds")
def test_torture(tmp_path: Path) -> None:
    """Anything, to anyone, at any time."""
    rng = random.Random(SEED)
    deadline = time.monotonic() + TORTURE_S
    with stored(tmp_path, SEED) as cluster:
        nodes = list(cluster.config.nodes)
        changes = 0
        while time.monotonic() < deadline:
            victim = rng.choice([*nodes, cluster.leader(rng.choice(cluster.config.topology.groups))])
            others = [node for node in nodes if node != victim]
            fault = rng.choice(["kill", "kill", "stop", "pause", "to", "from", "all", "wipe"])
            if fault == "all":
                cluster.hurt("kill", *nodes)
                time.sleep(rng.random())
                cluster.hurt("start", *nodes)
            elif fault == "pause":
                cluster.hurt("pause", victim)
                time.sleep(3 * rng.random())
                cluster.hurt("continue", victim)
            elif fault in ("to", "from"):
                cluster.hurt(fault, victim, *others)
                time.sleep(3 * rng.random())
                cluster.hurt("heal", victim)
            else:
                cluster.hurt(fault, victim)
                time.sleep(3 * rng.random())
                cluster.hurt("start", victim)
                if fault == "wipe":
                    changes += 1
                    wait_for_members(cluster, changes)
            if rng.random() < 0.7:
                cluster.load.wait_for(rng.randint(1, 20))
