"""Bad and full disks of real nodes: what a node does about its own disk, and what clients notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import wbkv
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import kv_pb2_grpc
from wbkv_proto.v1.error_pb2 import Error

from kvstore.api.errors import METADATA
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
