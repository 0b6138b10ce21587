"""The store on real processes, under faults: what clients were told stays true, whatever happens to nodes.

A run cannot be repeated exactly: processes are not deterministic. What happened in it is in `history.jsonl`
beside the cluster's folder: every request with its times, every fault, every change; and in the nodes' logs.
Set `WBKV_TORTURE` to a number of seconds for a longer run of random faults, and `WBKV_SEED` for others.
Most faults are in `test_processes`, for bare messages and the store alike; here are those of the store alone.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from multicast.protocol import Timing
from tests.faults.clients import stored
from tests.faults.harness import wait_for_members
from tests.faults.history import check

TORTURE_S = float(os.environ.get("WBKV_TORTURE", "0"))
SEED = int(os.environ.get("WBKV_SEED", "1"))


def test_a_leader_is_killed_again_and_again(tmp_path: Path) -> None:
    """Nodes that come back are not waited for: the next is killed as soon as anything has been answered."""
    with stored(tmp_path) as cluster:
        for _ in range(4):
            leader = cluster.leader()
            cluster.hurt("kill", leader)
            cluster.hurt("start", leader)
            cluster.load.wait_for(2)


def test_nodes_are_restarted_one_after_the_other(tmp_path: Path) -> None:
    """As for an upgrade: each hands over, and clients lose nothing but connections."""
    with stored(tmp_path) as cluster:
        for node in cluster.config.nodes:
            cluster.hurt_for_a_while("stop", node)


def test_a_lost_disk_is_replaced(tmp_path: Path) -> None:
    """The node comes back as a new member, gets a snapshot, and can lead when another dies."""
    with stored(tmp_path, timing=Timing(history=8)) as cluster:
        node = cluster.leader(1)
        cluster.hurt("wipe", node)
        cluster.progress()
        cluster.hurt("start", node)
        wait_for_members(cluster, 1)
        cluster.progress()
        check("took a snapshot" in cluster.log(node).read_text(), "it got no snapshot")
        cluster.hurt_for_a_while("kill", cluster.leader(0))


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
            else:
                cluster.hurt(fault, victim, *(others if fault in ("to", "from") else ()))
                time.sleep(3 * rng.random())
                cluster.hurt({"pause": "continue", "to": "heal", "from": "heal"}.get(fault, "start"), victim)
            if fault == "wipe":
                changes += 1
                wait_for_members(cluster, changes)
            if rng.random() < 0.7:
                cluster.load.wait_for(rng.randint(1, 20))
