"""Clients that carry revisions which no partition has told them: no other client may notice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import wbkv

from wbkv_sim.clients import ClientProcess

if TYPE_CHECKING:
    from wbkv_sim.run import StoreSimulation

PAUSE_S: Final = 0.4
INVENTED_S: Final = (0.99, 0.99, 3600.0, 86_400.0, 6e8)
"""How far ahead of what it has seen the revisions are."""


class Liar(ClientProcess):
    """A client that wants its transactions to be above revisions from the future. They change nothing."""

    def __init__(self, simulation: StoreSimulation, number: int) -> None:
        super().__init__(simulation, number, f"liar {number}")

    async def work(self) -> None:
        """Lie until all faults have ended."""
        calls = self.client._requests.calls  # noqa: SLF001 - the SDK does not let its users lie
        keys = [keys[0] for keys in self.simulation.workload.keys.values()]
        while not self.simulation.healed:
            await asyncio.sleep(self.rng.expovariate(1 / PAUSE_S))
            seen = calls.seen
            calls.seen = wbkv.later(max(seen, 1), self.rng.choice(INVENTED_S))
            key = self.rng.choice(keys)
            nothing = wbkv.put(key, b"this is not executed")
            txn = self.client.txn().when(wbkv.exists(b"no such key")).then(nothing)
            timeout_s = self.timeout()
            await self.do("a lie", txn.commit(timeout=timeout_s), timeout_s, once=False)
            calls.seen = seen
