"""A cluster of real processes under load, and what must be true of its disks when it has come to rest."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

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


class Load:
    """Clients that multicast to random groups all the time, in a thread of their own."""

    def __init__(self, cluster: LocalCluster, workers: int = 16, seed: int = 0) -> None:
        self._config = cluster.config
        self._workers = workers
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.answered: list[tuple[bytes, dict[GroupId, Timestamp]]] = []
        """What was answered by every destination: the payload, and its places."""
        self.failure: BaseException | None = None
        self._thread.start()

    async def _run(self) -> None:
        try:
            async with MulticastClient.of(self._config) as client:
                await asyncio.gather(*(self._work(client, number) for number in range(self._workers)))
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.failure = error

    async def _work(self, client: MulticastClient, number: int) -> None:
        groups = self._config.topology.groups
        count = 0
        while not self._stop.is_set():
            dest = sorted(self._rng.sample(groups, self._rng.randint(1, len(groups))))
            payload = f"{number}:{count}".encode()
            places = await client.multicast(dest, payload, PATIENCE_S)
            self.answered.append((payload, places))
            count += 1

    def wait_for(self, more: int) -> None:
        """Until so many more messages have been answered: the cluster makes progress."""
        until, deadline = len(self.answered) + more, time.monotonic() + PATIENCE_S
        while len(self.answered) < until:
            if self.failure is not None:
                raise AssertionError(f"the load has ended: {self.failure!r}") from self.failure
            if time.monotonic() > deadline:
                raise AssertionError(f"no progress: {len(self.answered)} answered, {until} expected")
            time.sleep(0.02)

    def finish(self) -> None:
        """No more messages; those under way must be answered."""
        self._stop.set()
        self._thread.join(2 * PATIENCE_S)
        if self._thread.is_alive():
            raise AssertionError("messages under way were never answered")
        if self.failure is not None:
            raise AssertionError(f"the load has failed: {self.failure!r}") from self.failure


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


def until(done: Callable[[], bool]) -> None:
    """Wait for something that must happen."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.03)


def wait_for_members(cluster: LocalCluster, configuration: int) -> None:
    """Until the change to this configuration is settled at all replicas, and all are members."""
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
    data: Path,
    *,
    nodes: int = 3,
    partitions: int = 2,
    timing: Timing | None = None,
    away: Sequence[NodeId] = (),
    replaced: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[LocalCluster, Load]]:
    """A cluster and its load. At the end, everything must come to rest, and all disks must agree.

    Nodes that are `away` are killed before anything is multicast. `replaced` says which nodes have taken
    others' places by the end.
    """
    os.environ[TEST_HOOKS] = "1"
    cluster = LocalCluster(
        data, nodes, partitions, application="multicast", restart=False, timing=timing or Timing()
    )
    with cluster:
        if away:
            cluster.kill(*away)
        load = Load(cluster)
        load.wait_for(50)
        yield cluster, load
        load.wait_for(50)
        load.finish()
        settle(cluster, replaced)
    check_disks(cluster, load, replaced)


def members_of(cluster: LocalCluster, group: GroupId, replaced: Mapping[str, str]) -> list[NodeId]:
    """The nodes of a group, when some have taken others' places."""
    return [NodeId(replaced.get(node, node)) for node in cluster.config.groups[group]]


def settle(cluster: LocalCluster, replaced: Mapping[str, str]) -> None:
    """Until all members of a group have delivered the same, and hold nothing."""
    deadline = time.monotonic() + PATIENCE_S
    while not all(at_rest(cluster, group, replaced) for group in cluster.status()["groups"]):
        if time.monotonic() > deadline:
            raise AssertionError(f"the cluster does not come to rest: {cluster.status()['groups']}")
        time.sleep(0.03)


def at_rest(cluster: LocalCluster, group: GroupStatus, replaced: Mapping[str, str]) -> bool:
    """Whether all members answer, and have nothing left to do."""
    idle = {r["node"] for r in group["replicas"] if r["up"] and r["lag"] == 0 and r["entries"] == 0}
    return idle.issuperset(members_of(cluster, GroupId(group["id"]), replaced))


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


def check_disks(
    cluster: LocalCluster, load: Load, replaced: Mapping[str, str] = MappingProxyType({})
) -> None:
    """The same order at all replicas, nothing twice, and nothing missing that was answered."""
    places: dict[GroupId, dict[bytes, Timestamp]] = {}
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
        places[group] = {payload: ts for _, ts, payload in reference}
    assert load.answered
    for payload, told in load.answered:
        for group, place in told.items():
            assert places[group].get(payload) == place, f"{payload!r} was answered, but is not at {place}"
