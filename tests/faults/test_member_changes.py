"""Members are replaced, stopped and killed, on real processes: what is left serves without retries."""

from __future__ import annotations

from pathlib import Path

import wbkv

from kvstore.config.addresses import NodeId
from tests.faults.harness import PATIENCE_S, FaultyCluster, until
from tests.faults.test_processes import member

N1, N2 = NodeId("n1"), NodeId("n2")
CALLS = 60


def test_puts_are_quick_after_a_replacement_a_stop_and_a_kill(tmp_path: Path) -> None:
    """The first puts wait for an election. Those that follow need no retries: all nodes know who leads.

    Retries of gateways are counted by what arrives at the dead nodes' successors: a gateway that supposes a
    dead leader would need a retry for each put, and a call of the SDK at most two attempts.
    """
    cluster = FaultyCluster(tmp_path / "cluster", 3, 3, durability="os")
    with cluster, wbkv.connect(cluster.addresses, timeout=PATIENCE_S) as client:
        keys = [f"key {number}" for number in range(CALLS)]
        for key in keys:
            client.put(key, b"before")
        newcomer = cluster.add()
        cluster.start(newcomer)
        until(lambda: not member(cluster, "replace", N2, newcomer).returncode)
        cluster.hurt("stop", N2)
        cluster.hurt("kill", N1)
        for key in keys:  # the first of each partition waits for its election
            client.put(key, b"meanwhile")
        for key in keys:
            client.put(key, b"after", timeout=PATIENCE_S)
        until(lambda: all(group["leader"] not in (None, N1, N2) for group in cluster.status()["groups"]))
        slow = 0
        for key in keys:
            try:
                client.put(key, b"quick", timeout=0.8)
            except (wbkv.OutcomeUnknown, wbkv.DeadlineExceeded, wbkv.Unavailable):
                slow += 1
        assert slow < CALLS // 4, f"{slow} of {CALLS} puts took longer than a retry's time-out"
