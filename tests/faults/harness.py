"""Clusters of real processes under load, their faults, and what must be true of their disks at rest."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import ge
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import wbkv

from kvstore import storage
from kvstore.bare.client import MulticastClient
from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from kvstore.local.status import GroupStatus
from kvstore.server.process import CONTROL, TEST_HOOKS
from multicast.messages import Delivery
from multicast.protocol import Timing
from multicast.types import NO_TIMESTAMP, GroupId, Timestamp

PATIENCE_S = 60.0
"""How long anything may take that must happen at some time."""


class Work:
    """Threads that work until they are told to stop, each counting what it has done."""

    def __init__(self, *runs: Callable[[], object]) -> None:
        self.done = [0] * len(runs)
        self.failures: list[BaseException] = []
        self.stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(run,), daemon=True) for run in runs]
        for thread in self._threads:
            thread.start()

    def _run(self, run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - reported by `_check`
            self.failures.append(error)

    def _check(self) -> None:
        for failure in self.failures:
            raise AssertionError(f"the load has failed: {failure!r}") from failure

    def wait_for(self, more: int) -> None:
        """Wait until every thread has done so much more: all make progress."""
        goals = [done + more for done in self.done]
        until(
            lambda: bool(self.failures) or all(map(ge, self.done, goals)),
            lambda: f"no progress: {self.done} done, {goals} expected",
        )
        self._check()

    def finish(self) -> None:
        """Stop the threads; each must complete what it has begun."""
        self.stopped.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)
            assert not thread.is_alive(), "work that was begun has not ended"
        self._check()


class MulticastLoad(Work):
    """Clients that multicast to random groups all the time."""

    def __init__(self, cluster: LocalCluster, workers: int = 16, seed: int = 0) -> None:
        self._config = cluster.config
        self._workers = workers
        self._rng = random.Random(seed)
        self.answered: list[tuple[bytes, dict[GroupId, Timestamp]]] = []
        """Payloads that all destinations have answered, and their positions."""
        super().__init__(lambda: asyncio.run(self._multicast()))

    async def _multicast(self) -> None:
        async with MulticastClient.of(self._config) as client:
            await asyncio.gather(*(self._work(client, number) for number in range(self._workers)))

    async def _work(self, client: MulticastClient, number: int) -> None:
        groups = self._config.topology.groups
        for count in itertools.count():
            if self.stopped.is_set():
                return
            dest = sorted(self._rng.sample(groups, self._rng.randint(1, len(groups))))
            payload = f"{number}:{count}".encode()
            self.answered.append((payload, await client.multicast(dest, payload, PATIENCE_S)))
            self.done[0] += 1


class CallLoad(Work):
    """Calls that are made again and again, each in a thread of its own."""

    def __init__(self, *calls: Callable[[], object], ignored: type[wbkv.Error] = wbkv.OutcomeUnknown) -> None:
        self._ignored = ignored
        self._unknown = [0] * len(calls)
        super().__init__(*(partial(self._repeat, number, call) for number, call in enumerate(calls)))

    def _repeat(self, number: int, call: Callable[[], object]) -> None:
        while not self.stopped.is_set():
            try:
                call()
                self.done[number] += 1
            except self._ignored:
                self._unknown[number] += 1

    @property
    def unknown(self) -> int:
        """The number of calls that raised the ignored error: their outcome is unknown."""
        return sum(self._unknown)


class AnyLoad(Protocol):
    """A load of any kind."""

    def wait_for(self, more: int) -> None:
        """Wait until every client has made so much progress."""


class FaultyCluster(LocalCluster):
    """A cluster of real processes, its load, and the faults that are injected."""

    load: AnyLoad
    step: int
    """How much of the load is progress."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        os.environ[TEST_HOOKS] = "1"
        super().__init__(*arguments, restart=False, **options)
        self.faults: list[tuple[float, str]] = []

    def leader(self, group: int = 0) -> NodeId:
        """Wait until a node leads the group, and return it."""
        until(lambda: leader_of(self, group) is not None)
        return leader_of(self, group) or NodeId("n1")

    def progress(self) -> None:
        self.load.wait_for(self.step)

    def hurt(self, fault: str, *nodes: NodeId) -> None:
        """Inject one fault, and record it. "to" and "from" cut links of the first node to the others."""
        self.faults.append((time.monotonic(), f"{fault} {' '.join(nodes)}"))
        if fault in ("to", "from"):
            one, *others = nodes
            for other in others:
                control(self, one, f"{fault} {other}")
        elif fault in ("kill", "stop", "start"):
            getattr(self, fault)(*nodes)
        for node in nodes:
            if fault == "wipe":
                self.kill(node)
                shutil.rmtree(self.config.data(node))
            elif fault in ("pause", "continue"):
                self.send_signal(node, signal.SIGSTOP if fault == "pause" else signal.SIGCONT)
            elif fault == "heal":
                control(self, node, "heal")

    def hurt_for_a_while(self, fault: str, node: NodeId, cure: str = "start") -> None:
        """Inject a fault, and undo it; the cluster must make progress both times."""
        self.hurt(fault, node)
        self.progress()
        self.hurt(cure, node)
        self.progress()


def control(cluster: LocalCluster, node: NodeId, command: str) -> None:
    """Cut a node's links, or heal them: see `Server._control`."""
    path = str(cluster.config.data(node) / CONTROL)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        until(lambda: connection.connect_ex(path) == 0)  # a node that has just been started is not there yet
        connection.sendall(command.encode() + b"\n")
        assert connection.recv(100) == b"done\n"


def leader_of(cluster: LocalCluster, group: int) -> NodeId | None:
    found = next(each for each in cluster.status()["groups"] if each["id"] == group)["leader"]
    return None if found is None else NodeId(found)


def until(done: Callable[[], bool], problem: Callable[[], str] = str) -> None:
    """Wait for something that must happen; `problem` describes the state if it does not."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, problem()
        time.sleep(0.03)


def wait_for_members(cluster: LocalCluster, configuration: int) -> None:
    """Wait until the change to this configuration is complete at all replicas, and all are members."""
    until(
        lambda: all(
            replica["status"] in ("leader", "follower")
            and (replica["configuration"], replica["settled"]) == (configuration, True)
            for group in cluster.status()["groups"]
            for replica in group["replicas"]
        )
    )


@contextmanager
def under_load(
    folder: Path,
    *,
    timing: Timing | None = None,
    away: Sequence[NodeId] = (),
    replaced: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[FaultyCluster]:
    """A cluster and its load of messages. At the end, everything must come to rest, and all disks agree.

    Nodes that are `away` are killed before anything is multicast. `replaced` says which nodes have replaced
    others by the end.
    """
    cluster = FaultyCluster(folder / "cluster", 3, 2, application="multicast", timing=timing)
    with cluster:
        if away:
            cluster.kill(*away)
        load = cluster.load = MulticastLoad(cluster)
        cluster.step = 60
        cluster.progress()
        yield cluster
        cluster.progress()
        load.finish()
        wait_at_rest(cluster, replaced)
    check_disks(cluster, load, replaced)


def members_of(cluster: LocalCluster, group: GroupId, replaced: Mapping[str, str]) -> list[NodeId]:
    """The nodes of a group, when some have replaced others."""
    return [NodeId(replaced.get(node, node)) for node in cluster.config.groups[group]]


def wait_at_rest(cluster: LocalCluster, replaced: Mapping[str, str] = MappingProxyType({})) -> None:
    """Wait until all members of each group have delivered the same, and hold nothing."""

    def at_rest(group: GroupStatus) -> bool:
        idle = {r["node"] for r in group["replicas"] if r["up"] and r["lag"] == 0 and r["entries"] == 0}
        return idle.issuperset(members_of(cluster, GroupId(group["id"]), replaced))

    until(
        lambda: all(map(at_rest, cluster.status()["groups"])),
        lambda: f"the cluster does not come to rest: {cluster.status()['groups']}",
    )


def log_of(cluster: LocalCluster, node: NodeId, group: GroupId) -> list[Delivery]:
    """What a node's disk says that a group has delivered. The node must be down."""
    config = cluster.config
    disk = storage.open(
        config.data(node), config.id, node,
        on_durable=lambda _: None, on_committed=lambda _: None, on_failure=lambda _: None,
    )  # fmt: skip
    try:
        return disk.state.deliveries(group, NO_TIMESTAMP, 10**9)
    finally:
        disk.close()


def difference(found: Sequence[object], reference: Sequence[object]) -> str:
    """Where two logs part."""
    pairs = enumerate(zip(found, reference, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(found), len(reference)))
    return (
        f"have {len(found)} and {len(reference)}, and differ at {at}: {found[at:][:1]}, {reference[at:][:1]}"
    )


def check_disks(cluster: LocalCluster, load: MulticastLoad, replaced: Mapping[str, str]) -> None:
    """The same order at all replicas, nothing twice, and nothing missing that was answered."""
    positions: dict[GroupId, dict[bytes, Timestamp]] = {}
    for group in cluster.config.topology.groups:
        nodes = members_of(cluster, group, replaced)
        logs = {node: log_of(cluster, node, group) for node in nodes}
        reference = [(d.mid, d.global_ts, d.payload) for d in logs[nodes[0]]]
        for node, log in logs.items():
            found = [(d.mid, d.global_ts, d.payload) for d in log]
            assert found == reference, f"group {group}: {node} and {nodes[0]} {difference(found, reference)}"
        assert len({mid for mid, _, _ in reference}) == len(reference), f"group {group} delivered twice"
        stamps = [ts for _, ts, _ in reference]
        assert stamps == sorted(set(stamps)), f"group {group} is out of order"
        positions[group] = {payload: ts for _, ts, payload in reference}
    assert load.answered
    for payload, told in load.answered:
        for group, position in told.items():
            there = positions[group].get(payload)
            assert there == position, f"{payload!r} was answered at {position}, but is at {there}"
