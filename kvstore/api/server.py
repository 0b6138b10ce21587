"""The API on a port: all services, gRPC's limits, and reflection.

It listens on loopback by default. Every client that reaches the port may read and write everything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION
from grpc_reflection.v1alpha.reflection import aio as reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from kvstore.api import cluster, health, kv, session
from kvstore.api.calls import Calls, Context, parse, send
from kvstore.api.methods import ApiContext, Options
from kvstore.api.ports import Facts, Service

LISTEN: Final = "127.0.0.1:0"
KEEPALIVE_MS: Final = 30_000
"""A client that has been silent for this long is pinged."""
KEEPALIVE_TIMEOUT_MS: Final = 10_000
PING_MS: Final = 5_000
"""How often clients may ping the server."""


class Api:
    """A node's API. It belongs to the event loop in which it is made."""

    def __init__(self, service: Service, facts: Facts, options: Options) -> None:
        api = ApiContext(service, facts, options)
        self._calls = Calls(api)
        self.budget = api.budget
        self.intake = api.intake
        self.quotas = self._calls.quotas
        self._health = health.Health(api)
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=options.calls,
            options=(
                ("grpc.max_receive_message_length", api.message_bytes),
                ("grpc.max_send_message_length", -1),  # the services see to it
                ("grpc.max_concurrent_streams", options.connection_streams),
                ("grpc.so_reuseport", 0),  # two nodes on one port would share its clients
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                ("grpc.http2.min_ping_interval_without_data_ms", PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
            ),
        )
        services = {
            kv.SERVICE: self._calls.handlers(kv.KV(api).methods),
            session.SERVICE: session.SessionService(api, self._calls).handlers(),
            cluster.SERVICE: self._calls.handlers(cluster.Cluster(api).methods),
            health.SERVICE: self._calls.handlers(self._health.methods),
        }
        self._reflection = reflection.ReflectionServicer([*services, REFLECTION])
        services[REFLECTION] = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(self._reflect)}
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, handlers) for name, handlers in services.items()]
        )

    async def start(self, listen: str = LISTEN, credentials: grpc.ServerCredentials | None = None) -> int:
        """Serve. Returns the port. Raises `OSError` if the address cannot be bound.

        No caller passes credentials yet: the hook waits for TLS.
        """
        try:
            if credentials is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {listen}") from error
        await self._server.start()
        return port

    def take_no_more(self) -> None:
        """Report this node as not healthy, so that clients begin nothing here."""
        self._health.stopping = True

    async def stop(self, grace_s: float | None = None) -> None:
        """Take no new calls, and end those that are not done in time, or at once."""
        self.take_no_more()
        self._calls.stopping = True
        await self._server.stop(grace_s)

    async def _reflect(self, raws: AsyncIterator[bytes], context: Context) -> None:
        async def requests() -> AsyncIterator[ServerReflectionRequest]:
            async for raw in raws:
                yield parse(ServerReflectionRequest, raw)

        answers: Any = self._reflection.ServerReflectionInfo(requests(), context)
        try:
            with self._calls.stream("streams", context.peer()):
                async for answer in answers:
                    await send(context, answer.SerializeToString())
        except Exception as error:  # noqa: BLE001 - all are reported to the client
            await self._calls.fail(context, error)
