"""The API of real nodes: what clients see in good times and in bad ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from wbkv_proto.v1 import cluster_pb2 as cluster_api
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import session_pb2 as session
from wbkv_proto.v1.error_pb2 import Error

from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from tests.unit.kvstore.api import scenarios
from tests.unit.kvstore.api.harness import Client, every, told

PATIENCE_S = 60.0
N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


@contextlib.contextmanager
def running(data: Path) -> Iterator[LocalCluster]:
    """A cluster whose logs have no stack trace at its end."""
    with LocalCluster(data, 3, 2, durability="os", restart=False) as cluster:
        assert cluster.wait_ready(PATIENCE_S)
        yield cluster
    for node in cluster.config.nodes:
        log = cluster.log(node).read_text()
        assert "Traceback" not in log, log


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("api") / "cluster") as found:
        yield found


def run(cluster: LocalCluster, test: Callable[[dict[NodeId, Client]], Awaitable[None]]) -> None:
    """The test, with a client of every node."""

    async def main() -> None:
        places = cluster.config.api_addresses
        clients = {node: Client(f"{host}:{port}") for node, (host, port) in places.items()}
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                await test(clients)
        finally:
            for client in clients.values():
                await client.close()

    asyncio.run(main())


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.05)


async def health(client: Client, service: str = "") -> int | None:
    stub: Any = health_pb2_grpc.HealthStub
    try:
        answer = await stub(client.channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
    except grpc.aio.AioRpcError:
        return None
    status: int = answer.status
    return status


async def in_flight(client: Client) -> int:
    status = await client.cluster.Status(cluster_api.StatusRequest())
    found: int = json.loads(status.json)["in_flight"]
    return found


@pytest.mark.parametrize(
    ("number", "scenario"),
    list(enumerate(scenarios.SCENARIOS)),
    ids=[scenario.__name__ for scenario in scenarios.SCENARIOS],
)
def test_scenario(cluster: LocalCluster, number: int, scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def test(clients: dict[NodeId, Client]) -> None:
        await scenario(list(clients.values())[number % 3])

    run(cluster, test)


def test_a_write_through_one_node_is_seen_through_all(cluster: LocalCluster) -> None:
    async def test(clients: dict[NodeId, Client]) -> None:
        for i in range(20):
            keys = [b"seen/%d" % j for j in range(4)]
            writer = clients[[N1, N2, N3][i % 3]]
            await writer.kv.Txn(kv.TxnRequest(then=[scenarios.put(key, b"%d" % i) for key in keys]))
            for client in clients.values():
                found = await client.kv.Txn(kv.TxnRequest(then=[scenarios.get(key) for key in keys]))
                assert [result.got.entry.value for result in found.results] == [b"%d" % i] * 4

    run(cluster, test)


def test_every_node_is_healthy_and_knows_the_leaders(cluster: LocalCluster) -> None:
    async def test(clients: dict[NodeId, Client]) -> None:
        for node, client in clients.items():

            async def healthy(client: Client = client) -> bool:
                names = ("", "partition/0", "partition/1")
                return {await health(client, name) for name in names} == {
                    health_pb2.HealthCheckResponse.SERVING
                }

            await until(healthy)
            topology = await client.cluster.Topology(cluster_api.TopologyRequest())
            assert topology.header.node == node
            assert all(partition.leader in clients for partition in topology.partitions)
            assert {n.address for n in topology.nodes} == {c.address for c in clients.values()}

    run(cluster, test)


def test_clients_that_go_away_leave_nothing(cluster: LocalCluster) -> None:
    async def test(clients: dict[NodeId, Client]) -> None:
        gone = Client(clients[N1].address)
        stream = gone.session.Open()
        await stream.read()
        calls = [session.Call(number=i, put=kv.PutRequest(key=b"gone/%d" % i)) for i in range(500)]
        calls += [session.Call(number=i, get=kv.GetRequest(key=b"gone/%d" % i)) for i in range(500, 1000)]
        await stream.write(session.SessionRequest(calls=calls))
        watch = gone.kv.Watch(kv.WatchRequest(ranges=[kv.Range(prefix=b"gone/")]))
        await watch.read()
        scan = gone.kv.Scan(kv.ScanRequest(range=kv.Range(prefix=b""), page_bytes=1))
        await scan.read()
        unary = [gone.kv.Get(kv.GetRequest(key=b"gone/1")) for _ in range(50)]
        await asyncio.sleep(0.01)
        await gone.close()
        del stream, watch, scan, unary

        async def nothing_left() -> bool:
            return await in_flight(clients[N1]) == 0

        await until(nothing_left)

    run(cluster, test)


def test_garbage_on_the_port(cluster: LocalCluster) -> None:
    for said in (
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(range(256)) * 200,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 99,
    ):
        with socket.create_connection(cluster.config.api_addresses[N2], timeout=5) as connection:
            connection.sendall(said)
            connection.settimeout(0.2)
            with contextlib.suppress(OSError):
                connection.recv(100)

    async def test(clients: dict[NodeId, Client]) -> None:
        assert (await clients[N2].kv.Put(kv.PutRequest(key=b"k"))).header.revision

    run(cluster, test)


AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
"""What a request under an id may be sent again after."""


async def add_once(
    clients: dict[NodeId, Client], sequence: int, first: NodeId, key: bytes, after: int
) -> tuple[int, int]:
    """Add one to a counter, under an id, wherever that can be done. The result, and its revision."""
    asked = kv.TxnRequest(
        then=[kv.Operation(add=kv.Calculate(key=key, operand=1))],
        id=kv.RequestId(client=0xC0FFEE, sequence=sequence, ack_below=sequence),
        min_revision=after,
    )
    order = [first, *(node for node in clients if node != first)]
    while True:
        for node in order:
            try:
                answer = await clients[node].kv.Txn(asked, timeout=2)
            except grpc.aio.AioRpcError as error:
                if error.code() not in AGAIN:
                    raise
            else:
                return answer.results[0].number.value, answer.header.transaction_revision


def test_a_killed_node_costs_no_request_and_repeats_none(tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster:

        async def test(clients: dict[NodeId, Client]) -> None:
            keys = [b"a", b"b", b"c"]
            revision = 0  # partitions' clocks differ by milliseconds: without it, revisions need not rise
            for i in range(60):
                if i == 20:
                    await asyncio.to_thread(cluster.kill, N1)
                if i == 40:
                    await asyncio.to_thread(cluster.start, N1)
                node = [N1, N2, N3][i % 3]
                found, revision = await add_once(clients, i + 1, node, keys[i % 3], revision)
                assert found == i // 3 + 1

            async def healthy() -> bool:
                return await health(clients[N1]) == health_pb2.HealthCheckResponse.SERVING

            await until(healthy)
            watch = clients[N1].kv.Watch(kv.WatchRequest(ranges=[kv.Range(prefix=b"")], after=1))
            changes: list[kv.Change] = []
            while len(changes) < 60:
                changes += (await watch.read()).transactions
            assert [change.events[0].key for change in changes] == [keys[i % 3] for i in range(60)]
            watch.cancel()

        run(cluster, test)


def test_without_a_quorum_outcomes_are_unknown_and_old_state_is_readable(tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster:

        async def test(clients: dict[NodeId, Client]) -> None:
            client = clients[N3]
            written = (await client.kv.Put(kv.PutRequest(key=b"k", value=b"before"))).header.revision
            near = kv.GetRequest(key=b"k", consistency=kv.SERIALIZABLE)
            here = cluster.config.first_placement.group_of(b"k")

            async def arrived() -> bool:
                """Whether n3's own replica has it: a read there would be answered by the leader before."""
                groups = (await asyncio.to_thread(cluster.status))["groups"]
                replicas = next(group["replicas"] for group in groups if group["id"] == here)
                return any(each["node"] == N3 and each["delivered"] >= written for each in replicas)

            await until(arrived)
            await asyncio.to_thread(cluster.kill, N1, N2)
            stream = client.session.Open()
            await stream.read()
            calls = [
                session.Call(number=1, timeout_ms=500, put=kv.PutRequest(key=b"k", value=b"after")),
                session.Call(number=2, timeout_ms=500, get=kv.GetRequest(key=b"k")),
                session.Call(number=3, get=near),
            ]
            await stream.write(session.SessionRequest(calls=calls))
            await stream.done_writing()
            replies = {reply.number: reply for response in await every(stream) for reply in response.replies}
            assert replies[1].error.kind == Error.OUTCOME_UNKNOWN
            assert (replies[1].error.retryable, replies[1].error.same_id) == (True, True)
            assert replies[2].error.kind == Error.DEADLINE_PASSED
            assert replies[3].get.entry.value == b"before", replies[3]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.kv.Put(kv.PutRequest(key=b"k"), timeout=0.2)
            assert caught.value.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN)

        run(cluster, test)


def test_a_node_that_stops_ends_its_streams_and_says_so(tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster:

        async def test(clients: dict[NodeId, Client]) -> None:
            stream = clients[N1].session.Open()
            await stream.read()
            watch = clients[N1].kv.Watch(kv.WatchRequest(ranges=[kv.Range(prefix=b"")]))
            await watch.read()
            stopping = asyncio.create_task(asyncio.to_thread(cluster.stop, N1))
            for call in (stream, watch):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await every(call)
                assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            await stopping
            assert (await add_once(clients, 1, N1, b"k", 0))[0] == 1

        run(cluster, test)


def test_errors_of_a_real_node_can_be_read(cluster: LocalCluster) -> None:
    async def test(clients: dict[NodeId, Client]) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await clients[N1].kv.Put(kv.PutRequest(key=b"k" * 5000))
        error = told(caught.value)
        assert (error.kind, error.limit.name, error.limit.value) == (Error.LIMIT_EXCEEDED, "key_bytes", 4096)

    run(cluster, test)
