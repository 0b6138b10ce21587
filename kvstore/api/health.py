"""gRPC's standard health service: `partition/ID` for each partition, and "" for the node.

A partition is served once this node's replica has caught up and the partition has a leader; the node, once
all its partitions are. A load balancer that goes by it avoids nodes that would answer "unavailable".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from kvstore.api.errors import UnknownService
from kvstore.api.methods import ApiContext, Methods, Streaming, Unary
from kvstore.api.ports import PartitionFacts

SERVICE: Final = "grpc.health.v1.Health"
EVERY_S: Final = 0.2
"""How often a health watch looks for changes."""


def serves(facts: PartitionFacts) -> bool:
    """Whether requests to the partition can be answered through this node."""
    return facts.leader is not None and (facts.caught_up or not facts.here)


class Health:
    """The servicer."""

    def __init__(self, api: ApiContext) -> None:
        self._facts = api.facts
        self.stopping = False
        """Nothing is served from here on."""
        self.methods: Methods = {
            "Check": Unary(HealthCheckRequest, self._check),
            "Watch": Streaming(HealthCheckRequest, self._watch),
        }

    def _health(self, service: str) -> HealthCheckResponse:
        partitions = self._facts.topology().partitions
        healthy = {f"partition/{group}": serves(facts) for group, facts in partitions.items()}
        healthy[""] = bool(healthy) and all(healthy.values())
        if service not in healthy:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        if healthy[service] and not self.stopping:
            return HealthCheckResponse(status=HealthCheckResponse.SERVING)
        return HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)

    async def _check(self, message: HealthCheckRequest, timeout_s: float) -> HealthCheckResponse:
        found = self._health(message.service)
        if found.status == HealthCheckResponse.SERVICE_UNKNOWN:
            raise UnknownService(f"unknown service {message.service!r:.80}")
        return found

    async def _watch(
        self, message: HealthCheckRequest, timeout_s: float | None
    ) -> AsyncGenerator[HealthCheckResponse, None]:
        last = None
        while True:
            found = self._health(message.service)
            if found != last:
                yield found
                last = found
            await asyncio.sleep(EVERY_S)
