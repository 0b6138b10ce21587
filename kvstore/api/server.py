"""The API on a port: all services, and reflection.

It listens on loopback by default. Every client that reaches the port may read and write everything.
"""

from __future__ import annotations

import ssl
from typing import Final

from kvstore.api import cluster, health, kv, reflection, session
from kvstore.api.calls import Calls
from kvstore.api.methods import ApiContext, Options
from kvstore.api.ports import Facts, Service
from kvstore.http2.server import Bounds, Server

LISTEN: Final = "127.0.0.1:0"


class Api:
    """A node's API. It belongs to the event loop in which it is made."""

    def __init__(self, service: Service, facts: Facts, options: Options) -> None:
        api = ApiContext(service, facts, options)
        self._calls = Calls(api)
        self.budget = api.budget
        self.intake = api.intake
        self.quotas = self._calls.quotas
        self._health = health.Health(api)
        services = {
            kv.SERVICE: self._calls.handlers(kv.KV(api).methods),
            session.SERVICE: session.SessionService(api, self._calls).handlers(),
            cluster.SERVICE: self._calls.handlers(cluster.Cluster(api).methods),
            health.SERVICE: self._calls.handlers(self._health.methods),
        }
        services[reflection.SERVICE] = reflection.Reflection(self._calls, list(services)).handlers()
        methods = {
            f"/{service}/{name}": method
            for service, found in services.items()
            for name, method in found.items()
        }
        bounds = Bounds(api.message_bytes, options.connection_streams, options.calls, options.connections)
        self.server = Server(methods, bounds)

    async def start(self, listen: str = LISTEN, tls: ssl.SSLContext | None = None) -> int:
        """Serve. Returns the port. Raises `OSError` if the address cannot be bound.

        No caller passes `tls` yet.
        """
        return await self.server.start(listen, tls)

    def take_no_more(self) -> None:
        """Report this node as not healthy, so that clients begin nothing here."""
        self._health.stopping = True

    async def stop(self, grace_s: float | None = None) -> None:
        """Take no new calls, and end those that are not done in time, or at once."""
        self.take_no_more()
        self._calls.stopping = True
        await self.server.stop(grace_s)
