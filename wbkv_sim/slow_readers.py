"""Clients that ask for much and read nothing of it. That may cost them their connections, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import session_pb2 as session

from kvstore.api.budget import RESERVE
from kvstore.api.kv import SERVICE
from kvstore.api.session import SERVICE as SESSION
from kvstore.simulation.rpc import WINDOW, SimChannel
from multicast.sim.checkers import Violation
from wbkv_sim.clients import ClientProcess

if TYPE_CHECKING:
    from wbkv_sim.run import StoreSimulation

PAUSE_S: Final = 0.6
"""Between two connections that are not read."""
HELD_S: Final = (0.2, 2.0)
"""How long such a connection is kept open."""
CALLS: Final = 16
"""Calls that are made on each, at once."""
IN_A_MESSAGE: Final = 4
"""Calls in one message of a session."""
STREAMS: Final = 10
"""Watches and scans that are opened on each: more than a connection may have."""


class SlowReader(ClientProcess):
    """A client whose connections are full of answers that it does not read."""

    calls = CALLS

    def __init__(self, simulation: StoreSimulation, number: int) -> None:
        super().__init__(simulation, number, f"slow reader {number}")
        self.most_unread = 0
        """The most bytes that a node has kept for all clients."""
        self._tasks: list[asyncio.Future[Any]] = []

    async def work(self) -> None:
        """Open connections until all clients are done."""
        while not all(client.idle for client in self.simulation.store_clients):
            await asyncio.sleep(self.rng.expovariate(1 / PAUSE_S))
            channel = self.channel(self.address())
            channel.stop_reading()
            self.rng.choice((self._call, self._watch, self._scan, self._open_session))(channel)
            await asyncio.sleep(self.rng.uniform(*HELD_S))
            self._check()
            await channel.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks.clear()

    def address(self) -> str:
        """Return the address of the next node."""
        return self.rng.choice(self.addresses)

    def _begin(self, call: Awaitable[Any]) -> None:
        self._tasks.append(asyncio.ensure_future(call))

    def _key(self) -> bytes:
        return self.rng.choice(self.simulation.workload.all)

    def _call(self, channel: SimChannel) -> None:
        get = channel.unary_unary(
            f"/{SERVICE}/Get", kv.GetRequest.SerializeToString, kv.GetResponse.FromString
        )
        for _ in range(self.calls):
            self._begin(get(kv.GetRequest(key=self._key())))

    def _watch(self, channel: SimChannel) -> None:
        watch = channel.unary_stream(
            f"/{SERVICE}/Watch", kv.WatchRequest.SerializeToString, kv.WatchResponse.FromString
        )
        for _ in range(STREAMS):
            watch(
                kv.WatchRequest(ranges=[kv.Range(prefix=b"")], after=self.rng.choice((0, 1)), progress_ms=50)
            )

    def _scan(self, channel: SimChannel) -> None:
        scan = channel.unary_stream(
            f"/{SERVICE}/Scan", kv.ScanRequest.SerializeToString, kv.ScanResponse.FromString
        )
        for _ in range(STREAMS):
            scan(kv.ScanRequest(range=kv.Range(prefix=b""), page_bytes=1))

    def _open_session(self, channel: SimChannel) -> None:
        stream = channel.stream_stream(f"/{SESSION}/Open")()
        for first in range(0, self.calls, IN_A_MESSAGE):
            calls = [
                session.Call(number=number, get=kv.GetRequest(key=self._key()))
                for number in range(first, first + IN_A_MESSAGE)
            ]
            self._begin(stream.write(session.SessionRequest(calls=calls).SerializeToString()))

    def _check(self) -> None:
        """Check that each node keeps to its budget, by its own count and by what it has in fact written."""
        simulation = self.simulation
        for number, budget in simulation.budgets.items():
            server = simulation.server(number)
            if server is None:
                continue
            for connection in server.connections:
                if (streams := connection.streams) > simulation.streams_per_connection:
                    raise Violation("Quota", f"{connection.name} has {streams} streams at node {number}")
            most = budget.total + budget.total // RESERVE
            unread, windows = server.unread_bytes, WINDOW * IN_A_MESSAGE * simulation.reply_bytes
            self.most_unread = max(self.most_unread, unread)
            if budget.used > most or unread > most + windows:
                raise Violation(
                    "Budget",
                    f"node {number} holds {budget.used} bytes by its count, and {unread} in fact, for clients"
                    f" that do not read; its budget is {budget.total}",
                )
