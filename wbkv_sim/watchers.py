"""Simulated watchers: clients that follow all changes, and must miss none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import wbkv

from kvstore.simulation.history import Watched
from kvstore.store.questions import Event
from wbkv_sim.clients import ClientProcess

if TYPE_CHECKING:
    from wbkv_sim.run import StoreSimulation

AGAIN: Final = 0.02
"""How often a watcher ends its watch after a change, and begins another one."""
FIRST: Final = 1
"""A revision before all others."""


class Watcher(ClientProcess):
    """Follows all changes: from the beginning, or from now."""

    def __init__(self, simulation: StoreSimulation, number: int) -> None:
        super().__init__(simulation, 100 + number, f"watcher {number}")
        self.seen_upto = 0 if number % 2 else FIRST
        self.watches = 0
        self.gaps = 0
        """How often what was to come next was compacted."""

    async def work(self) -> None:
        """Watch until the last change was seen."""
        while self.simulation.done_at > self.seen_upto:
            try:
                await self._watch()
            except wbkv.Compacted as compacted:
                self.gaps += 1
                self.seen_upto = max(self.seen_upto, compacted.revision)
            except (wbkv.Unavailable, wbkv.DeadlineExceeded, wbkv.OutcomeUnknown):
                await asyncio.sleep(0.05)

    async def _watch(self) -> None:
        self.watches += 1
        simulation = self.simulation
        after = self.seen_upto or None
        async with self.client.watch(wbkv.EVERYTHING, after=after, progress=True, timeout=20.0) as watch:
            watched = Watched(after or watch.revision, watch.revision)
            simulation.history.watched.append(watched)
            while simulation.done_at > self.seen_upto:
                change = await watch.next(timeout=0.25)
                watched.upto = self.seen_upto = watch.revision
                if change is not None and change.events:
                    events = tuple(Event(*event) for event in change.events)
                    watched.transactions.append((change.revision, events))
                    if self.rng.random() < AGAIN and not simulation.healed:
                        return
