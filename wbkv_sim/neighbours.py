"""What one client's behaviour costs another: the same seed with and without a hostile client.

Work takes virtual time here: every row that a node looks at costs it some, and the node does nothing else
meanwhile. An innocent client writes and reads keys of its own, one call after another. The hostile one does
what its limits allow, at once and without end. The innocent client's worst call must not take much longer
than without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import wbkv
from wbkv.operations import Operation, put

from kvstore.machine.slices import RUN_ROWS
from kvstore.simulation.disk import SimMap, SimStoreDisk
from kvstore.simulation.nodes import SimMachine
from kvstore.simulation.store import SimApplication
from multicast.sim.checkers import Violation
from multicast.sim.clients import Workload as Load
from multicast.sim.run import Scenario
from wbkv_sim.clients import FINE, ClientProcess
from wbkv_sim.run import StoreSimulation
from wbkv_sim.workloads import Count

ROW_S: Final = 2e-5
"""What a row costs that a node looks at: about ten times what it does cost."""
ROWS: Final = 300
"""Keys of the hostile client."""
COUNTS: Final = 60
"""Ranges that it counts in one transaction."""
TASKS: Final = 6
"""Calls that it has under way."""
CALLS: Final = 24
"""Calls of the innocent client."""
PREFIX: Final = b"h"
WARM_UP_S: Final = 1.5
"""When the innocent client begins: then leaders are there, and the hostile client has its keys."""


class CostlyMap(SimMap):
    """Rows that are counted when they are looked at."""

    def __init__(self, disk: CostlyDisk) -> None:
        super().__init__()
        self._disk = disk

    def items(self, start: Any, end: Any, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """A range."""
        for item in super().items(start, end, reverse=reverse):
            self._disk.looked_at += 1
            yield item


class CostlyDisk(SimStoreDisk):
    """A disk that counts rows."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.looked_at = 0

    def map_type(self) -> CostlyMap:  # type: ignore[override]  # it makes one
        """Return a table."""
        return CostlyMap(self)


class CostlyMachine(SimMachine):
    """A node whose turns take time, by the rows that it looks at."""

    def _turn(self) -> None:
        before = self.state.looked_at
        super()._turn()
        cost_s = (self.state.looked_at - before) * ROW_S
        if cost_s:
            self.pause(cost_s)


class CostlyApplication(SimApplication):
    """Slices as in production."""

    slice_rows = RUN_ROWS


class Innocent(ClientProcess):
    """Puts and gets of its own keys, each after the other."""

    worst_s = 0.0

    async def work(self) -> None:
        """Call, and note how long that takes."""
        await asyncio.sleep(WARM_UP_S)
        for number in range(CALLS):
            await asyncio.sleep(self.rng.uniform(0.01, 0.06))
            began, key = self.loop.time(), b"i%d" % (number % 7)
            if number % 2:
                await self.client.get(key, timeout=20.0)
            else:
                await self.client.put(key, b"%d" % number, timeout=20.0)
            self.worst_s = max(self.worst_s, self.loop.time() - began)


class Hostile(ClientProcess):
    """Transactions on ranges of everything, large ones, and conflicts, as many as it can."""

    async def work(self) -> None:
        """Fill a range, and then go on until the innocent client is done."""
        for first in range(0, ROWS, 50):
            keys = [PREFIX + b"%03d" % number for number in range(first, first + 50)]
            await self._try([put(key, b"x" * 8) for key in keys])
        await asyncio.gather(*(self._go_on() for _ in range(TASKS)))

    async def _go_on(self) -> None:
        simulation = self.simulation
        assert isinstance(simulation, NeighbourSimulation)
        while not simulation.innocent.idle:
            kind = self.rng.random()
            if kind < 0.6:
                keys = wbkv.EVERYTHING if kind < 0.3 else wbkv.prefix(PREFIX)
                counts: list[Operation] = [Count(keys, 0, False) for _ in range(COUNTS)]  # noqa: FBT003 - as it is
                write = [put(PREFIX + b"000", b"")] if self.rng.random() < 0.5 else []  # then it is ordered
                await self._try([*counts, *write])
            elif kind < 0.8:
                some = [PREFIX + b"%03d" % self.rng.randrange(ROWS) for _ in range(6)]
                await self._try([put(key, self.rng.randbytes(1500)) for key in dict.fromkeys(some)])
            else:
                await self._try([put(PREFIX + b"000", b"%d" % self.rng.getrandbits(30))])

    async def _try(self, then: list[Operation]) -> None:
        try:
            await self.client.txn().then(*then).commit(timeout=2.0)
        except FINE:
            await asyncio.sleep(0.01)


class NeighbourSimulation(StoreSimulation):
    """An innocent client, with or without a hostile one."""

    machine_type = CostlyMachine
    disk_type = CostlyDisk
    application_type = CostlyApplication
    watching = lying = reading_slowly = 0

    def __init__(self, scenario: Scenario, seed: int, *, hostile: bool) -> None:
        self._is_hostile = hostile
        super().__init__(scenario, seed, "register")

    def _make_clients(self, workload: Load) -> None:
        super()._make_clients(workload)
        self.store_clients = []
        self.innocent = Innocent(self, 0, "innocent")
        self._others = [self.innocent]
        if self._is_hostile:
            self._others.append(Hostile(self, 1, "hostile"))  # type: ignore[arg-type]  # of one kind

    @property
    def _processes_of_clients(self) -> list[ClientProcess]:
        return list(self._others)


def cost_of_a_neighbour(scenario: Scenario, seed: int) -> tuple[float, float]:
    """Return the innocent client's worst latency without and with the hostile one, in virtual seconds."""
    worst = []
    for hostile in (False, True):
        simulation = NeighbourSimulation(scenario, seed, hostile=hostile)
        outcome = simulation.run()
        if outcome.violation is not None:
            raise Violation("Neighbour", f"seed {seed}, hostile: {hostile}: {outcome.violation}")
        worst.append(simulation.innocent.worst_s)
    return worst[0], worst[1]
