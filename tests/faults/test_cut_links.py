"""Cut links on real processes: partitions whose leaders do not reach each other go on serving."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import wbkv

from kvstore.config.addresses import NodeId
from tests.faults.harness import FaultyCluster, until

CALL_S = 15.0
"""The time limit of one call: as long as a cut without relays stops a partition, that is for ever, and far
longer than a few heartbeats on a busy machine."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    found = FaultyCluster(tmp_path_factory.mktemp("cuts") / "cluster", 3, 3, durability="os")
    with found:
        yield found


@pytest.fixture
def client(cluster: FaultyCluster) -> Iterator[wbkv.Client[bytes]]:
    until(lambda: not relayed(cluster))
    with wbkv.connect(cluster.addresses, timeout=CALL_S) as found:
        yield found
    cluster.hurt("heal", *cluster.nodes)


def relayed(cluster: FaultyCluster) -> dict[tuple[str, str], str]:
    """The links whose frames go through another node, and that node."""
    return {(n["id"], target): via for n in cluster.status()["nodes"] for target, via in n["relayed"].items()}


def keys(cluster: FaultyCluster) -> list[bytes]:
    """A key of each partition, by the partition's number."""
    placement = cluster.config.first_placement
    found = {placement.group_of(key): key for key in (f"key {n}".encode() for n in range(100))}
    return [found[group] for group in sorted(found)]


def lead_apart(cluster: FaultyCluster) -> list[NodeId]:
    """Wait until each partition is led by another node; return these, by the partition's number."""
    until(lambda: len({cluster.leader(group) for group in range(3)}) == 3)
    return [cluster.leader(group) for group in range(3)]


@pytest.mark.parametrize("ways", [("to", "from"), ("to",), ("from",)], ids=" and ".join)
def test_a_cut_between_two_leaders_stops_no_partition(
    cluster: FaultyCluster, client: wbkv.Client[bytes], ways: tuple[str, ...]
) -> None:
    """One direction suffices to stop both partitions of a transaction, and a third with the next one."""
    leaders, [zero, one, two] = lead_apart(cluster), keys(cluster)
    for key in (zero, one, two):
        client.put(key, b"before")
    for way in ways:
        cluster.hurt(way, leaders[0], leaders[1])
    for turn in range(3):
        value = f"{ways} {turn}".encode()
        client.txn().then(wbkv.put(zero, value), wbkv.put(one, value)).commit()
        client.txn().then(wbkv.put(one, value + b"!"), wbkv.put(two, value)).commit()
        assert [client.get(key) for key in (zero, one, two)] == [value, value + b"!", value]
        for key in (zero, one, two):
            client.put(key, value)
    first, second, third = leaders
    found = {"to": ((first, second), third), "from": ((second, first), third)}
    assert relayed(cluster) == dict(found[way] for way in ways)
    for (source, target), relay in relayed(cluster).items():
        said = f"{target} does not hear this node: frames to it go through {relay} (logged once)"
        assert cluster.log(NodeId(source)).read_text().count(said) == 1
