"""An API on a port, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from wbkv_proto.v1 import cluster_pb2_grpc, kv_pb2_grpc, session_pb2_grpc
from wbkv_proto.v1.error_pb2 import Error

from kvstore.api.errors import METADATA
from kvstore.api.methods import Options
from kvstore.api.server import Api
from kvstore.machine import Limits
from tests.unit.kvstore.api.memory import NODE, MemoryService

CLUSTER = "c1"


class Client:
    """Stubs of all services, on one channel. The generator writes no types into stubs."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.aio.insecure_channel(
            address,
            options=(("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)),
        )
        stubs: Any = (kv_pb2_grpc.KVStub, session_pb2_grpc.SessionStub, cluster_pb2_grpc.ClusterStub)
        self.kv, self.session, self.cluster = (stub(self.channel) for stub in stubs)

    async def close(self) -> None:
        await self.channel.close()


class Served(Client):
    """A client of an API over a service in memory."""

    def __init__(self, service: MemoryService, api: Api, address: str) -> None:
        super().__init__(address)
        self.service = service
        self.api = api


@asynccontextmanager
async def serving(limits: Limits | None = None, **options: Any) -> AsyncIterator[Served]:
    service = MemoryService(limits)
    api = Api(service, service.facts_of_node, Options(CLUSTER, NODE, **options))
    port = await api.start()
    served = Served(service, api, f"127.0.0.1:{port}")
    try:
        yield served
    finally:
        await served.close()
        await api.stop()


Test = Callable[[Served], Awaitable[None]]


def run(test: Test, limits: Limits | None = None, **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), serving(limits, **options) as served:
            await test(served)

    asyncio.run(main())


def told(error: grpc.aio.AioRpcError) -> Error:
    """What a program reads."""
    return Error.FromString(dict(error.trailing_metadata())[METADATA])


async def fails(call: Awaitable[Any]) -> tuple[grpc.StatusCode, Error]:
    """How a call that must fail does."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    found = told(error)
    assert found.code == error.code().value[0]
    assert found.message == error.details()
    return error.code(), found


async def every(stream: Any) -> list[Any]:
    """All messages of a stream, or the rest of them."""
    found = []
    while (message := await stream.read()) is not grpc.aio.EOF:
        found.append(message)
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in this event loop."""
    while not condition():
        await asyncio.sleep(0.005)
