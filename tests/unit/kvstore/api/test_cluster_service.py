"""Where things are, how the node is, and what there is to call."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from wbkv_proto.v1 import cluster_pb2 as cluster
from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.api.methods import Options
from kvstore.api.server import Api
from kvstore.machine.placement import Placement, slot_token
from multicast.types import GroupId
from tests.unit.kvstore.api.harness import CLUSTER, Served, run
from tests.unit.kvstore.api.memory import NODE

Status = health_pb2.HealthCheckResponse


def test_the_topology_says_all_that_a_client_needs() -> None:
    async def test(served: Served) -> None:
        found = await served.cluster.Topology(cluster.TopologyRequest())
        assert found.header == kv.Header(cluster=CLUSTER, node=NODE)
        assert list(found.nodes) == [cluster.Node(name=NODE, address="127.0.0.1:1")]
        assert list(found.partitions) == [cluster.Partition(id=0, leader=NODE, members=[NODE])]
        assert found.placement.scheme == cluster.Placement.HASHED
        assert (list(found.placement.starts), list(found.placement.owners)) == ([b""], [0])
        assert found.limits.key_bytes == served.service.limits.key_bytes
        assert found.limits.message_bytes > served.service.limits.transaction_bytes
        assert found.limits.session_calls == 1024

    run(test)


def test_tokens_are_as_the_api_says() -> None:
    """Clients of other languages compute them from the comment."""
    placement = Placement.evenly([GroupId(0), GroupId(1)])
    assert placement.token(b"123456789") == slot_token(0xCBF43926 % (1 << 14))
    assert placement.token(b"x{123456789}y") == placement.token(b"123456789")


def test_the_status_is_that_of_the_node() -> None:
    async def test(served: Served) -> None:
        served.service.facts = served.service.facts._replace(revision=77, caught_up=False)
        found = await served.cluster.Status(cluster.StatusRequest())
        assert list(found.partitions) == [cluster.PartitionStatus(id=0, leads=True, revision=77)]
        assert json.loads(found.json) == {"id": NODE}

    run(test)


def test_health_follows_the_partitions() -> None:
    async def test(served: Served) -> None:
        stub: Any = health_pb2_grpc.HealthStub
        health = stub(served.channel)

        async def check(service: str) -> Any:
            return (await health.Check(health_pb2.HealthCheckRequest(service=service))).status

        facts = served.service.facts
        assert [await check(""), await check("partition/0")] == [Status.SERVING] * 2
        for bad in (facts._replace(caught_up=False), facts._replace(leader=None)):
            served.service.facts = bad
            assert [await check(""), await check("partition/0")] == [Status.NOT_SERVING] * 2
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check("partition/1")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = health.Watch(health_pb2.HealthCheckRequest(service="partition/0"))
        assert (await watch.read()).status == Status.NOT_SERVING
        served.service.facts = facts
        assert (await watch.read()).status == Status.SERVING
        unknown = health.Watch(health_pb2.HealthCheckRequest(service="partition/1"))
        assert (await unknown.read()).status == Status.SERVICE_UNKNOWN

    run(test)


def test_reflection_lists_everything() -> None:
    async def test(served: Served) -> None:
        def ask() -> tuple[set[str], Any]:
            with grpc.insecure_channel(served.address) as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                return set(database.get_services()), database.FindFileContainingSymbol("wbkv.v1.KV")

        services, file = await asyncio.to_thread(ask)
        assert {"wbkv.v1.KV", "wbkv.v1.Session", "wbkv.v1.Cluster", "grpc.health.v1.Health"} <= services
        assert [method.name for method in file.service[0].method][:2] == ["Txn", "Get"]

    run(test)


def test_it_listens_on_loopback_and_never_shares_a_port() -> None:
    async def test(served: Served) -> None:
        assert served.address.startswith("127.0.0.1:")
        other = Api(served.service, served.service.facts_of_node, Options(CLUSTER, NODE))
        with pytest.raises(OSError, match="cannot listen on 127"):
            await other.start(served.address)
        await other.stop()

    run(test)
