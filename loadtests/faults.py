"""Kills a node during a run, and restarts it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import wbkv
from wbkv.testing import RunningCluster

AWAY_S: Final = 5.0
_LOOK_S: Final = 0.02


class NodeCrash:
    """Kills a leader some seconds after the users' start, and restarts it later."""

    def __init__(self, cluster: RunningCluster, client: wbkv.Client[bytes], trace: wbkv.Trace | None) -> None:
        self._cluster = cluster
        self._client = client
        self._trace = trace
        """Receives marks of the crash and of new leaders, for reports."""
        self._ending = threading.Event()

    @contextlib.contextmanager
    def within(self, begun: Callable[[], bool], after_s: float) -> Iterator[None]:
        """Crash a node while the block runs, `after_s` after `begun`. At the block's end the node is up."""
        thread = threading.Thread(target=self._crash, args=(begun, after_s), name="crash")
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()

    def _crash(self, begun: Callable[[], bool], after_s: float) -> None:
        while not begun():
            if self._ending.wait(_LOOK_S):
                return
        if self._ending.wait(after_s):
            return
        partitions = self._client.topology().partitions
        node = next(each.leader for each in partitions if each.leader is not None)
        led = {each.id for each in partitions if each.leader == node}
        self._cluster.kill(node)
        killed = time.monotonic()
        try:
            for partition in sorted(led):
                self._mark("crash", node, partition)
            self._await_leaders(node, led)
            self._ending.wait(max(killed + AWAY_S - time.monotonic(), 0.0))
        finally:
            self._cluster.start(node)

    def _await_leaders(self, gone: str, led: set[int]) -> None:
        """Wait until each partition has another leader, or until the block's end."""
        while led and not self._ending.wait(_LOOK_S):
            for node in self._client.status():
                for partition in node.partitions or ():
                    if partition.id in led and partition.leads and node.name != gone:
                        led.remove(partition.id)
                        self._mark("leader", node.name, partition.id)

    def _mark(self, what: str, node: str, partition: int) -> None:
        if self._trace is not None:
            self._trace.mark(what, node=node, group=partition)
