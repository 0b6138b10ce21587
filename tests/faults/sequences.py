"""Sequences of faults and of operators' actions on real processes, and how soon clusters serve afterwards.

The same actions as in `tests.sim.sequences`. Here a change of members is complete before the next action:
what happens in the middle of one, the simulator knows better.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from pathlib import Path
from typing import Final

import wbkv

from kvstore.config.addresses import NodeId
from kvstore.simulation.availability import connected
from tests.faults.harness import PATIENCE_S, FaultyCluster, leader_of, until
from tests.faults.test_processes import member
from tests.sim.sequences import PAUSE_S

PARTITIONS: Final = 3
PAUSES_S: Final = (0.5, 1.5, 3.0)
"""Between two actions."""


class OperatedCluster(FaultyCluster):
    """Three nodes that are killed, replaced and so on."""

    def __init__(self, folder: Path, sequence: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(folder, 3, PARTITIONS, durability="os")
        self.sequence = sequence
        self.choice = random.Random(f"{sequence} {seed}")
        self.said: list[str] = []
        self.up = dict.fromkeys(self.config.nodes)
        """The nodes that run."""
        self.members = list(self.config.nodes)
        self._cuts: dict[tuple[NodeId, NodeId], NodeId] = {}
        """Links that are cut, and the node whose process drops their frames."""
        self._paused: dict[NodeId, float] = {}
        """Nodes that stand still, and until when."""

    # Actions

    def do(self, action: str) -> None:
        """Do something to a node that is up, or to a link between two; "kill of n1" names the node."""
        action, _, named = action.partition(" of ")
        awake = [node for node in self.up if node not in self._paused]
        if not awake:
            return
        leading = {leader_of(self, group) for group in range(PARTITIONS)}
        # Half of the time to one that leads: it matters most.
        first = [node for node in awake if node in leading]
        node = self.choice.choice(first if first and self.choice.random() < 0.5 else awake)
        node = NodeId(named) if named else node
        self.said.append(f"{action} {node}")
        getattr(self, f"_{action.replace(' ', '_')}")(node)

    def _kill(self, node: NodeId) -> None:
        self._ends(node)
        self.hurt("kill", node)

    def _stop(self, node: NodeId) -> None:
        self._ends(node)
        self.hurt("stop", node)

    def _ends(self, node: NodeId) -> None:
        del self.up[node]
        self._paused.pop(node, None)
        self._cuts = {link: dropper for link, dropper in self._cuts.items() if dropper != node}

    def _wipe(self, node: NodeId) -> None:
        """Unless the groups would not survive that."""
        if node in self.members and self._is_whole():
            self._ends(node)
            self.hurt("wipe", node)
            self.hurt("start", node)
            self.up[node] = None
            self._wait_for_members()

    def _replace(self, node: NodeId) -> None:
        """Let a new node replace another, which stays up."""
        if node in self.members and self._is_whole():
            new = self.add()
            self.hurt("start", new)
            self.up[new] = None
            self.members = [new if old == node else old for old in self.members]
            until(lambda: not member(self, "replace", node, new).returncode)
            self._wait_for_members()

    def _restart_all(self, _: NodeId) -> None:
        nodes = list(self.config.nodes)
        for node in list(self.up):
            self._ends(node)
        self.hurt("kill", *nodes)
        self.hurt("start", *nodes)
        self.up = dict.fromkeys(nodes)

    def _cut(self, node: NodeId) -> None:
        others = [other for other in self.up if other != node and other not in self._paused]
        if others:
            other = self.choice.choice(others)
            self.hurt("to", node, other)
            self._cuts[node, other] = node
            if self.choice.random() < 0.5:
                self.hurt("from", node, other)
                self._cuts[other, node] = node

    def _pause(self, node: NodeId) -> None:
        self.hurt("pause", node)
        self._paused[node] = time.monotonic() + PAUSE_S

    # Time

    def wait(self, seconds: float) -> None:
        """Let time pass; paused nodes go on when it is time."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            for node, until_s in list(self._paused.items()):
                if now >= until_s:
                    self.hurt("continue", node)
                    del self._paused[node]
            time.sleep(0.02)

    # What is left

    def _is_whole(self) -> bool:
        """Whether all members are up, and connected: then one of them may be lost."""
        return all(node in self.up and node not in self._paused for node in self.members) and not self._cuts

    def _wait_for_members(self) -> None:
        """Wait until all groups have these members, and no other."""

        def settled() -> bool:
            groups = self.status()["groups"]
            for group in groups:
                found = {
                    replica["node"]
                    for replica in group["replicas"]
                    if replica["status"] in ("leader", "follower") and replica["settled"]
                }
                if group["leader"] is None or not found >= set(self.members):
                    return False
            return len(groups) == PARTITIONS

        until(settled, lambda: f"{self.said}: members do not change: {self.status()['groups']}")

    def serves(self) -> bool:
        """Whether a quorum of the members is up, and all nodes that are up are connected."""
        numbers = {node: number for number, node in enumerate(self.config.nodes)}
        cuts = [(numbers[one], numbers[other]) for one, other in self._cuts]
        alive = [node for node in self.members if node in self.up]
        return len(alive) >= 2 and connected(cuts, [numbers[node] for node in self.up])

    # The run

    def check(self) -> list[float]:
        """Carry out the sequence, then write to each partition through each node that is up. Return how long
        each write took, from the end of the last fault; nothing if the cluster cannot serve.
        """
        with self:
            for action in self.sequence:
                self.wait(self.choice.choice(PAUSES_S))
                self.do(action)
            while self._paused:
                self.wait(0.05)
            if not self.serves():
                return []
            return self._probe()

    def _probe(self) -> list[float]:
        placement = self.config.first_placement
        keys = {placement.group_of(key): key for key in (f"key {n}".encode() for n in range(100))}
        began, took, failures = time.monotonic(), [], []

        def put(address: str, key: bytes) -> None:
            while True:
                try:
                    with wbkv.connect([address], timeout=PATIENCE_S) as client:
                        client.put(key, f"{address} {self.said}".encode())
                        return
                except (wbkv.OutcomeUnknown, wbkv.Unavailable, wbkv.DeadlineExceeded):
                    if time.monotonic() - began > PATIENCE_S:
                        raise

        def write(node: NodeId, key: bytes) -> None:
            address = self.config.nodes[node].api
            assert address is not None
            try:
                put(address, key)
                took.append(time.monotonic() - began)
            except BaseException as error:  # noqa: BLE001 - reported below
                failures.append(f"{key!r} through {node}: {error!r}")

        threads = [
            threading.Thread(target=write, args=(node, key)) for node in self.up for key in keys.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, f"{self.said}: {failures}"
        return took


def figures(took: list[float]) -> str:
    """How soon calls were answered, for people."""
    return f"median {statistics.median(took):.2f} s, worst {max(took):.2f} s of {len(took)} calls"
