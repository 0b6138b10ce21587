"""Bad and full disks of real nodes: what a node does about its own disk, and what clients notice."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import grpc
import pytest
import wbkv
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import kv_pb2_grpc
from wbkv_proto.v1.error_pb2 import Error

from kvstore.api.errors import METADATA
from kvstore.commands.repair import RepairCommand
from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from kvstore.storage.space import FULL_BYTES, LOW_BYTES
from tests.faults.harness import FaultyCluster, control, until

N1, N2, N3 = map(NodeId, ("n1", "n2", "n3"))


def space_of(cluster: LocalCluster, node: NodeId) -> str | None:
    return next(each["space"] for each in cluster.status()["nodes"] if each["id"] == node)


def leaders(cluster: LocalCluster) -> set[str | None]:
    return {group["leader"] for group in cluster.status()["groups"]}


def lags(cluster: LocalCluster) -> set[int | None]:
    return {replica["lag"] for group in cluster.status()["groups"] for replica in group["replicas"]}


def put_at(cluster: LocalCluster, node: NodeId) -> Error:
    """Put a key through one node only; return its error."""
    with grpc.insecure_channel(str(cluster.config.nodes[node].api)) as channel:
        try:
            stub: Any = kv_pb2_grpc.KVStub
            stub(channel).Put(kv.PutRequest(key=b"k", value=b"v"), timeout=10)
        except grpc.RpcError as error:
            call: Any = error
            raw: bytes = dict(call.trailing_metadata())[METADATA]
            return Error.FromString(raw)
    return Error()


def test_a_node_with_little_space_takes_no_writes_and_one_without_space_hands_over(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", 3, 2) as cluster, wbkv.connect(cluster.addresses) as client:
        client.put(b"before", b"1")
        control(cluster, N1, f"space {LOW_BYTES - 1}")
        until(lambda: space_of(cluster, N1) == "low")
        error = put_at(cluster, N1)
        assert error.kind == Error.OVERLOADED
        assert error.retryable
        assert str(cluster.config.data(N1)) in error.message
        assert f"{LOW_BYTES - 1} bytes are free, {LOW_BYTES} are needed" in error.message
        client.put(b"low", b"2")  # the client goes to another node
        assert put_at(cluster, N2) == Error()
        assert "is low on space" in cluster.log(N1).read_text()
        control(cluster, N1, f"space {FULL_BYTES - 1}")
        until(lambda: space_of(cluster, N1) == "full")
        until(lambda: leaders(cluster) <= {"n2", "n3"}, lambda: str(cluster.status()))
        client.put(b"full", b"3")
        with wbkv.connect(str(cluster.config.nodes[N1].api)) as near:
            assert near.get(b"low") == b"2"  # reads through this node go on
        control(cluster, N1, f"space {2 * LOW_BYTES}")
        until(lambda: space_of(cluster, N1) == "enough")
        until(lambda: put_at(cluster, N1) == Error())
        until(lambda: lags(cluster) == {0}, lambda: str(cluster.status()))


# Damaged states


def flip_key(file: Path, key: bytes) -> None:
    """Flip a bit in every copy of a key in a node's file."""
    data = bytearray(file.read_bytes())
    start, count = 0, 0
    while (start := data.find(key, start)) >= 0:
        data[start] ^= 0x04
        start += len(key)
        count += 1
    assert count
    file.write_bytes(data)


def statuses(cluster: LocalCluster, node: NodeId) -> list[str | None]:
    found = [each for group in cluster.status()["groups"] for each in group["replicas"]]
    return [each["status"] for each in found if each["node"] == node]


def restored(cluster: LocalCluster, node: NodeId) -> bool:
    return {*statuses(cluster, node)} <= {"leader", "follower"} and lags(cluster) == {0}


KEYS = {f"key-{number:04}".encode(): f"value {number}".encode() for number in range(300)}


def test_a_damaged_row_is_never_served_and_its_replica_is_restored(tmp_path: Path) -> None:
    """Also if it is the leader's: the replica steps aside, and others lead, vote and give it a snapshot."""
    with FaultyCluster(tmp_path / "cluster", 3, 1) as cluster, wbkv.connect(cluster.addresses) as client:
        for row in KEYS.items():
            client.put(*row)
        cluster.stop(N1)
        flip_key(cluster.config.data(N1) / "state" / "data.mdb", b"key-0123")
        cluster.start(N1)
        until(lambda: "leader" in statuses(cluster, N1), lambda: str(cluster.status()))
        assert {item.key: item.value for item in client.scan(wbkv.prefix(b"key-"))} == KEYS
        assert all(client.get(key) == value for key, value in KEYS.items())
        until(lambda: restored(cluster, N1), lambda: str(cluster.status()))
        log = cluster.log(N1).read_text()
        assert "has a damaged state, and steps aside until it is restored" in log
        assert "is restored, at" in log
        client.put(b"after", b"1")
        cluster.kill(N2)
        until(lambda: client.get(b"key-0123") == KEYS[b"key-0123"])


def test_a_truncated_state_is_restored_and_a_truncated_log_stops_the_node(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", 3, 2) as cluster, wbkv.connect(cluster.addresses) as client:
        for row in KEYS.items():
            client.put(*row)
        cluster.stop(N1)
        file = cluster.config.data(N1) / "state" / "data.mdb"
        os.truncate(file, file.stat().st_size // 2)
        assert repair(cluster, N1) == 1
        cluster.start(N1)
        until(lambda: restored(cluster, N1), lambda: str(cluster.status()))
        log = cluster.log(N1).read_text()
        assert "data.mdb" in log
        assert [path for path in cluster.config.data(N1).iterdir() if path.name.startswith("state.damaged")]
        cluster.stop(N2)
        assert all(client.get(key) == value for key, value in KEYS.items())
        file = cluster.config.data(N2) / "log" / "data.mdb"
        os.truncate(file, file.stat().st_size // 2)
        cluster.start(N2)
        until(lambda: "`wbkv repair` says what can be done" in cluster.log(N2).read_text())
        assert repair(cluster, N2, "--drop-state") == 1


def repair(cluster: LocalCluster, node: NodeId, *options: str) -> int:
    """Run `wbkv repair`."""
    command = RepairCommand()
    parser = argparse.ArgumentParser()
    command.configure(parser)
    file = cluster.config.data(node).parent / "cluster.toml"
    return command.run(parser.parse_args(["--config", str(file), "--node", node, *options]))


def test_an_operator_lets_a_node_fetch_its_damaged_state_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FaultyCluster(tmp_path / "cluster", 3, 2) as cluster, wbkv.connect(cluster.addresses) as client:
        for row in KEYS.items():
            client.put(*row)
        assert repair(cluster, N1) == 1
        assert "is in use by process" in capsys.readouterr().err
        cluster.stop(N1)
        assert repair(cluster, N1) == 0
        assert "the disk is sound" in capsys.readouterr().out
        flip_key(cluster.config.data(N1) / "state" / "data.mdb", b"key-0123")
        assert repair(cluster, N1) == 1
        out = capsys.readouterr().out
        assert "DAMAGED table latest" in out
        assert "--drop-state mends it" in out
        assert repair(cluster, N1, "--drop-state") == 0
        assert repair(cluster, N1) == 0
        cluster.start(N1)
        until(lambda: restored(cluster, N1), lambda: str(cluster.status()))
        cluster.kill(N2)
        assert all(client.get(key) == value for key, value in KEYS.items())
