"""What one client's behaviour costs others: the clients of a workload beside heavy clients of one kind.

Work takes virtual time here: what a node does for rows, messages, bytes and the steps of its API, one thing
after another. The heavy clients do what their limits allow, at once and without end. No call of the others
may take much longer than it would alone: the checker *Neighbour* looks at each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

import wbkv
from wbkv.operations import Calculate, Condition, DeleteRange, Operation, Put, Scan, Unchanged, put

from kvstore.config.addresses import NodeId
from kvstore.machine import Limits
from kvstore.machine.slices import RUN_ROWS
from kvstore.simulation.disk import SimMap, SimStoreDisk
from kvstore.simulation.event_loop import SimEventLoop
from kvstore.simulation.nodes import SimMachine
from kvstore.simulation.store import SimApplication, scenario_of
from kvstore.store.pages import PAGE_BYTES
from kvstore.wire.frames import Envelope
from multicast.sim.checkers import Violation
from multicast.sim.clients import Workload as Load
from multicast.sim.network import Delays, Loop
from multicast.sim.run import Outcome, Scenario
from wbkv_sim.clients import FINE, ClientProcess, StoreClient
from wbkv_sim.run import StoreSimulation
from wbkv_sim.slow_readers import SlowReader
from wbkv_sim.workloads import Count

T = TypeVar("T")

ROW_S: Final = 2e-5
MESSAGE_S: Final = 5e-5
BYTE_S: Final = 1e-7
STEP_S: Final = 2e-5
"""What a row that is looked at, a message that arrives, a byte that is sent to a node, and a step of a
coroutine of the API cost a node: about ten times what they do cost, a step some three times."""

SHORT_S: Final = 0.5
"""The longest that a short call of the workload may take: a slice takes a node 10 ms, and one transaction of
a heavy client up to 0.36 s. Alone, calls take up to 0.07 s."""
LONG_S: Final = 4.0
"""The same of calls that look at ranges, or at all partitions as of one revision: these wait for transactions
on ranges that were admitted before, for some tenths of a second in reality (docs/divergence.md, S6)."""
RANGES: Final = (Scan, DeleteRange, Unchanged)

ROWS: Final = 300
"""Keys of a heavy client."""
PREFIX: Final = b"h"
WARM_UP_S: Final = 1.5
"""When the workload begins: then leaders are there, and heavy clients have their keys."""


# Nodes


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
    """A node that does one thing after another, each for some time."""

    _owed_s = 0.0

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """To another node, by the byte."""
        self._owed_s += len(self._simulation.codec.encode(envelopes)) * BYTE_S
        super().send(node, envelopes)

    def receive(self, envelope: Envelope, node: NodeId | None = None) -> None:
        """A message costs something when the process takes it."""
        if not self.paused:
            self._owed_s += MESSAGE_S
        super().receive(envelope, node)

    def _turn(self) -> None:
        before = self.state.looked_at
        super()._turn()
        self.spend((self.state.looked_at - before) * ROW_S)

    def spend(self, seconds: float) -> None:
        """Do nothing else for so long, and for what was done since the last turn."""
        owed_s, self._owed_s = self._owed_s + seconds, 0.0
        if owed_s:
            self.pause(owed_s)

    def when_free(self, call: Any) -> bool:
        """Call something after what the node does at present; return False if it does nothing."""
        if self._held is None:
            return False
        self._held.append((call, ()))
        return True


class CostlyLoop(SimEventLoop):
    """The event loop of a node's API: it waits while the node works, and each of its steps is work."""

    def __init__(self, loop: Loop, name: str, rate: float, machine: CostlyMachine) -> None:
        super().__init__(loop, name, rate)
        self._machine = machine

    def _run_round(self) -> None:
        if not self.dead and self._machine.when_free(self._run_round):
            return
        steps = len(self._ready)
        super()._run_round()
        self._machine.spend(steps * STEP_S)


class CostlyApplication(SimApplication):
    """Slices as in production."""

    slice_rows = RUN_ROWS


# Clients


class Innocent(StoreClient):
    """A client of the workload whose calls are timed."""

    async def work(self) -> None:
        """Begin when there is a leader."""
        await asyncio.sleep(WARM_UP_S)
        await super().work()

    async def txn(
        self,
        then: Sequence[Operation],
        conditions: Sequence[Condition] = (),
        otherwise: Sequence[Operation] = (),
        *,
        allow_failures: bool = False,
    ) -> wbkv.TxnResult[bytes] | None:
        """Execute a transaction: a short one, if it writes keys, and looks at no range."""
        began = self.loop.time()
        found = await super().txn(then, conditions, otherwise, allow_failures=allow_failures)
        writes = any(isinstance(each, Put | Calculate) for each in then)
        if writes and not any(isinstance(each, RANGES) for each in (*then, *conditions, *otherwise)):
            self._check(f"a transaction of {self.loop.name}", began)
        return found

    async def do(
        self, what: str, call: Coroutine[Any, Any, T], timeout_s: float, *, once: bool = True
    ) -> T | None:
        """Make a call. A strict read of keys of one partition is short, too."""
        began = self.loop.time()
        found = await super().do(what, call, timeout_s, once=once)
        if what == "a read":
            self._check(f"a read of {self.loop.name}", began)
        return found

    def _check(self, what: str, began: float) -> None:
        simulation, took_s = self.simulation, self.loop.time() - began
        assert isinstance(simulation, NeighbourSimulation)
        simulation.worst_s = max(simulation.worst_s, took_s)
        if took_s > SHORT_S:
            beside = simulation.heavy_type.__name__
            raise Violation("Neighbour", f"{what} took {took_s:.2f} s beside {beside}")

    def timeout(self) -> float:
        """Return the time limit of all calls, within which they must succeed."""
        return LONG_S


class Heavy(ClientProcess):
    """A client that does one heavy thing in several tasks, again and again, until the others are done."""

    tasks = 6

    def __init__(self, simulation: StoreSimulation, number: int) -> None:
        super().__init__(simulation, 200 + number, f"heavy client {number}")

    async def work(self) -> None:
        """Fill a range, and go on."""
        for first in range(0, ROWS, 50):
            await self._try(put(self.key(number), b"x" * 8) for number in range(first, first + 50))
        await asyncio.gather(*(self._go_on() for _ in range(self.tasks)))

    async def _go_on(self) -> None:
        while not all(client.idle for client in self.simulation.store_clients):
            await self.act()

    async def act(self) -> None:
        """Do it once."""
        raise NotImplementedError

    def key(self, number: int) -> bytes:
        """Return one of its keys."""
        return PREFIX + b"%d-%03d" % (self.number, number)

    def some(self) -> bytes:
        """Return any of its keys."""
        return self.key(self.rng.randrange(ROWS))

    async def _try(self, then: Iterator[Operation] | Collection[Operation]) -> None:
        try:
            await self.client.txn().then(*then).commit(timeout=2.0)
        except FINE:
            await asyncio.sleep(0.01)


class Nothing(Heavy):
    """No heavy client at all: what the workload takes alone."""

    async def work(self) -> None:
        """Do nothing."""


class Ranges(Heavy):
    """Counts ranges of everything, in transactions that write and in reads."""

    counts = 60

    async def act(self) -> None:
        """Count, and write in half of the cases: then it is ordered."""
        keys = wbkv.EVERYTHING if self.rng.random() < 0.5 else wbkv.prefix(PREFIX)
        counts: list[Operation] = [Count(keys, 0, False) for _ in range(self.counts)]  # noqa: FBT003 - as it is
        write = [put(self.key(0), b"")] if self.rng.random() < 0.5 else []
        await self._try([*counts, *write])


class Payloads(Heavy):
    """Writes large values."""

    async def act(self) -> None:
        """Write some."""
        keys = sorted({self.some() for _ in range(6)})
        await self._try([put(key, self.rng.randbytes(1500)) for key in keys])


class Conflicts(Heavy):
    """Writes the same key from all of its tasks."""

    async def act(self) -> None:
        """Write it."""
        await self._try([put(self.key(0), b"%d" % self.rng.getrandbits(30))])


class Flood(Heavy):
    """Makes as many small calls at once as it can."""

    tasks = 24

    async def act(self) -> None:
        """Write or read a key."""
        if self.rng.random() < 0.5:
            await self._try([put(self.some(), b"x")])
            return
        try:
            await self.client.get(self.some(), timeout=2.0)
        except FINE:
            await asyncio.sleep(0.01)


class Watches(Heavy):
    """Opens many watches of everything, and writes what they see."""

    tasks = 16

    async def act(self) -> None:
        """Watch some changes."""
        await self._try([put(self.some(), self.rng.randbytes(400))])
        try:
            async with self.client.watch(wbkv.EVERYTHING, progress=True, timeout=2.0) as watch:
                for _ in range(20):
                    await watch.next(timeout=0.05)
        except FINE:
            await asyncio.sleep(0.01)


class Unread(Heavy):
    """Reads nothing of what it asks for."""

    async def work(self) -> None:
        """Be several slow readers."""
        readers = [SlowReader(self.simulation, self.number + number) for number in range(3)]
        for reader in readers:
            reader.start()
        while not all(reader.idle for reader in readers):
            await asyncio.sleep(0.1)


KINDS: Final[tuple[type[Heavy], ...]] = (Ranges, Payloads, Conflicts, Flood, Watches, Unread)
"""All kinds of heavy clients."""


class NeighbourSimulation(StoreSimulation):
    """A workload beside heavy clients of one kind, without faults."""

    machine_type = CostlyMachine
    disk_type = CostlyDisk
    application_type = CostlyApplication
    page_bytes = PAGE_BYTES
    watching = lying = 0
    heavy_clients = 2

    def __init__(self, scenario: Scenario, seed: int, workload: str, heavy_type: type[Heavy]) -> None:
        self.heavy_type = heavy_type
        self.worst_s = 0.0
        """The longest call of the workload."""
        super().__init__(scenario, seed, workload)
        self.healed_at = 0.0  # there are no faults: all calls must succeed

    @property
    def limits(self) -> Limits:
        """Values of heavy clients are allowed."""
        return Limits()

    @limits.setter
    def limits(self, _: Limits) -> None:
        """Workloads' own limits are those of their mistakes, which are not of interest here."""

    def event_loop(self, name: str, rate: float = 1.0) -> SimEventLoop:
        """A node's API runs when the node has time for it."""
        machine = next((m for m in self._machines.values() if m.me == name), None)
        if not isinstance(machine, CostlyMachine):
            return super().event_loop(name, rate)
        self._processes.append(CostlyLoop(self.loop, name, rate, machine))  # type: ignore[abstract]
        return self._processes[-1]

    def _make_clients(self, workload: Load) -> None:
        super()._make_clients(workload)
        share = workload.messages // workload.clients
        self.store_clients = [Innocent(self, number, share) for number in range(workload.clients)]
        self.heavy = [self.heavy_type(self, number) for number in range(self.heavy_clients)]

    @property
    def _processes_of_clients(self) -> Sequence[ClientProcess]:
        return [*self.store_clients, *self.heavy]


def beside(heavy: type[Heavy], seed: int, workload: str = "register", operations: int = 16) -> Outcome:
    """Run a workload beside heavy clients of a kind."""
    scenario = scenario_of("none", operations=operations, delays=Delays(0.001, 0.01, 0.0))
    return NeighbourSimulation(scenario, seed, workload, heavy).run()
