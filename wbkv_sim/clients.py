"""Simulated clients: processes with an event loop, and a client of `wbkv.aio` on simulated connections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import wbkv
from wbkv import aio
from wbkv.codecs import BYTES
from wbkv.core.calls import Calls
from wbkv.core.environment import Environment
from wbkv.core.requests import Requests
from wbkv.core.routing import Router
from wbkv.links.tasks import run
from wbkv.operations import Condition, Operation

from kvstore.machine.request import Range
from kvstore.simulation.history import Cut, Pages, ScanCall, UserOperation
from kvstore.simulation.rpc import SimChannel
from kvstore.store.gateway import Committed, Ordered
from multicast.sim.checkers import Violation
from multicast.sim.wall_clocks import WALL_S
from multicast.types import TICKS_PER_S, GroupId, Timestamp, time_of, timestamp
from wbkv_sim.facts import entry_of
from wbkv_sim.link import OPERATION, SimLink

if TYPE_CHECKING:
    from wbkv_sim.run import StoreSimulation

T = TypeVar("T")

TIMEOUTS_S: Final = (0.4, 3.0)
SHORT_S: Final = (0.02, 0.4)
"""Time limits of some calls, which many nodes cannot keep: their outcome is unknown."""
NAMED: Final = 0.15
"""How often a transaction has an id of the user's."""
LIFE_S: Final = 60.0
PROBE_S: Final = 8.0
"""The time limit of a call that must succeed, since all faults have ended."""
BACK_S: Final = 2.0
"""How long after the last fault calls may still fail."""

AWAY: Final = (wbkv.Unavailable, wbkv.DeadlineExceeded, wbkv.OutcomeUnknown)
"""Errors of a store that cannot be reached, or not in time."""
NOTHING: Final = (wbkv.Unavailable, wbkv.DeadlineExceeded, wbkv.Aborted, wbkv.OperationFailed)
"""Errors that say that nothing was executed."""
FINE: Final = (
    *AWAY, wbkv.Aborted, wbkv.Compacted, wbkv.Pinned, wbkv.RequestExpired, wbkv.LockLost, wbkv.LimitExceeded,
    wbkv.OperationFailed,
)  # fmt: skip
"""Errors that users must expect while there are faults, and other users."""


class ClientProcess:
    """A process with one client."""

    def __init__(self, simulation: StoreSimulation, number: int, name: str) -> None:
        self.simulation = simulation
        self.number = number
        self.rng = random.Random(f"{simulation.seed} {name}")
        self.loop = simulation.event_loop(name)
        self.alive = True
        self.over = False
        self.addresses = [simulation.address(node) for node in range(simulation.scenario.replicas)]
        self._channels: list[SimChannel] = []
        self._client: aio.Client[bytes] | None = None

    @property
    def idle(self) -> bool:
        """Whether it has nothing more to do."""
        return self.over or not self.alive

    @property
    def client(self) -> aio.Client[bytes]:
        """The client of the SDK."""
        assert self._client is not None
        return self._client

    def start(self) -> None:
        """Start the process."""
        self.loop.create_task(self._main()).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, wbkv.Error):
                raise Violation("Client", f"{self.loop.name}: {error!r}") from error
            raise error
        self.over = True

    def die(self) -> None:
        """The process dies."""
        self.alive = False
        self.loop.kill()
        for channel in self._channels:
            channel.client_died()

    async def _main(self) -> None:
        link = SimLink(self)
        router = Router(self.addresses, Environment(self.loop.time, self.rng))
        calls = Calls(router, self.rng.uniform(*TIMEOUTS_S))
        await run(link, calls.connect(60.0))
        self._client = aio.Client(link, Requests(calls, BYTES, "strict"))
        await self.work()
        await self._client.close()

    async def work(self) -> None:
        """Do what the client is for."""
        raise NotImplementedError

    def channel(self, address: str) -> SimChannel:
        """Return a channel to a node."""
        found = SimChannel(self.simulation, self.loop, self.rng, self.addresses.index(address))
        self._channels.append(found)
        return found

    def later(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Call something after a while."""
        self.loop.call_later(seconds, call, *arguments)

    def revision_in(self, seconds: float) -> int:
        """Return what revisions will be like then, by the highest one that the client has seen."""
        now = max(int((WALL_S + self.simulation.loop.now) * TICKS_PER_S), time_of(Timestamp(self.seen)))
        return timestamp(now + int(seconds * TICKS_PER_S), GroupId(0))

    @property
    def seen(self) -> int:
        """The highest revision that the client has seen."""
        return self.client._requests.calls.seen  # noqa: SLF001 - there is no other way to know

    def timeout(self) -> float:
        """Return the time limit of a call."""
        return self.rng.uniform(*(TIMEOUTS_S if self.rng.random() < 0.85 else SHORT_S))

    # Calls, and what became of them

    async def do(
        self, what: str, call: Coroutine[Any, Any, T], timeout_s: float, *, once: bool = True
    ) -> T | None:
        """Make a call of the SDK. Return None if it fails as calls may; record what it has made of it.

        With `once`, at most one of its writes may be executed.
        """
        operation = UserOperation(f"{what} of {self.loop.name} at {self.simulation.loop.now:.4f}")
        if once:
            self.simulation.history.operations.append(operation)
        token = OPERATION.set(operation)
        begun = operation.asked_at = self.simulation.loop.now
        try:
            return await call
        except FINE as error:
            operation.not_executed = isinstance(error, NOTHING)
            self._check_available(operation, error, begun, timeout_s)
            return None
        except wbkv.Error as error:
            raise Violation("Client", f"{operation.what}: {error!r}") from error
        finally:
            OPERATION.reset(token)

    def _check_available(
        self, operation: UserOperation, error: wbkv.Error, begun: float, timeout_s: float
    ) -> None:
        """Check that the store was given too little time: of an interactive transaction, by its last call."""
        back = self.simulation.healed_at + BACK_S
        left_s = begun + timeout_s - operation.asked_at
        if begun > back and left_s >= TIMEOUTS_S[0] and isinstance(error, AWAY):
            raise Violation("Availability", f"{operation.what}, after all faults: {error!r}")


class StoreClient(ClientProcess):
    """A client of a workload: several tasks that share one client of the SDK."""

    def __init__(self, simulation: StoreSimulation, number: int, share: int) -> None:
        super().__init__(simulation, number, f"client {number}")
        self._left = share
        self._named = 0
        self._name = self.rng.randrange(1, 1 << 62)

    async def work(self) -> None:
        """Run the workload in some tasks at once, and then see whether the store is available."""
        lanes = self.simulation.scenario.workload.window
        await asyncio.gather(*(self._lane() for _ in range(lanes)))
        while self.simulation.loop.now < self.simulation.healed_at + BACK_S:
            await asyncio.sleep(0.3)
        for keys in self.simulation.workload.keys.values():
            await self.do("a probe", self.client.get(keys[0], timeout=PROBE_S), PROBE_S)

    async def _lane(self) -> None:
        workload = self.simulation.workload
        while self._left > 0:
            self._left -= 1
            await asyncio.sleep(self.rng.expovariate(1 / workload.think_s))
            await workload.step(self)

    # What workloads ask for

    async def txn(
        self,
        then: Sequence[Operation],
        conditions: Sequence[Condition] = (),
        otherwise: Sequence[Operation] = (),
        *,
        allow_failures: bool = False,
    ) -> wbkv.TxnResult[bytes] | None:
        """Execute a transaction; some under an id of the user's, some of these with little time."""
        timeout_s, named = self.timeout(), None
        if self.rng.random() < NAMED:
            self._named += 1
            life_s = LIFE_S if self.rng.random() < 0.6 else self.rng.uniform(0.0, 0.5)
            named = wbkv.RequestId(self._name, self._named, self.revision_in(life_s))
        txn = self.client.txn(id=named, allow_failures=allow_failures)
        txn.when(*conditions).then(*then).otherwise(*otherwise)
        return await self.do("a transaction", self._commit(txn, timeout_s), timeout_s)

    async def _commit(self, txn: aio.Txn[bytes], timeout_s: float) -> wbkv.TxnResult[bytes]:
        result = await txn.commit(timeout=timeout_s)
        operation = OPERATION.get()
        assert operation is not None
        if operation.writes:
            told = operation.writes[-1].outcome
            if not isinstance(told, Committed) or (told.revision, told.succeeded) != (
                result.revision, result.succeeded
            ):  # fmt: skip
                raise Violation("Client", f"{operation.what} returned {result}, and was told {told}")
        return result

    async def scan(
        self, keys: wbkv.KeyRange, *, limit: int = 0, reverse: bool = False, revision: int = 0
    ) -> Pages | None:
        """Scan a range to its end, unless that fails."""
        timeout_s, simulation = self.timeout(), self.simulation
        asked = ScanCall(Range(keys.start, keys.end), limit, reverse, revision)
        call = simulation.history.invoke(self.number, asked, simulation.loop.now)
        scan = self.client.scan(keys, limit=limit, reverse=reverse, revision=revision, timeout=timeout_s)
        entries: list[Any] = []

        async def take() -> bool:
            async for entry in scan:
                entries.append(entry_of(entry))
                if self.rng.random() < 0.1:
                    await asyncio.sleep(self.rng.expovariate(10.0))
            return True

        whole = await self.do("a scan", take(), timeout_s)
        if not scan.revision:
            return None
        call.outcome = Pages(scan.revision, tuple(entries), bool(whole))
        call.returned = simulation.loop.now if whole else None
        return call.outcome if whole else None

    async def cut(
        self, what: str, call: Coroutine[Any, Any, T], revision_of: Callable[[T], int], timeout_s: float
    ) -> T | None:
        """Make a call that returns a strict revision of everything."""
        simulation = self.simulation
        recorded = simulation.history.invoke(self.number, Cut((Range(b"", None),)), simulation.loop.now)
        found = await self.do(what, call, timeout_s)
        if found is not None:
            recorded.outcome, recorded.returned = Ordered(revision_of(found)), simulation.loop.now
        return found
