"""A run of the whole store with clients of the SDK, watchers, faults and checkers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvstore.config.history import KeepHistory
from kvstore.simulation.checks import Replay
from kvstore.simulation.store import StoreCluster
from multicast.sim.checkers import Checker
from multicast.sim.clients import Workload as Load
from multicast.sim.faults import ClientDeath, Fault
from multicast.sim.run import Outcome, Scenario
from wbkv_sim.clients import ClientProcess, StoreClient
from wbkv_sim.liars import Liar
from wbkv_sim.slow_readers import SlowReader
from wbkv_sim.watchers import Watcher
from wbkv_sim.workloads import WORKLOADS


class StoreSimulation(StoreCluster):
    """A run of the store. What clients do is a workload, by its name."""

    watching = 2
    """How many watch all changes."""
    lying = 1
    """How many carry revisions that they have invented."""
    reading_slowly = 1
    """How many do not read what they have asked for, in runs with all faults."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        workload: str = "bank",
        observers: Sequence[Checker] = (),
        *,
        keep_history_s: int | None = None,
    ) -> None:
        """`keep_history_s` is how long leaders keep history, in seconds; without it, for ever."""
        self.keep_history = KeepHistory(keep_history_s)
        self._workload_name = workload
        self.limits = WORKLOADS[workload].limits
        self.store_clients: list[StoreClient] = []
        self.watchers: list[Watcher] = []
        self.liars: list[Liar] = []
        self.slow_readers: list[SlowReader] = []
        self.lock_holders: dict[Any, int] = {}
        """Locks that clients hold, and the tokens that they hold them by."""
        self.healed_at = float("inf")
        self._last = 0
        """The last change, when all clients are done."""
        super().__init__(scenario, seed, observers)

    def _make_clients(self, workload: Load) -> None:
        self.workload = WORKLOADS[self._workload_name](self.placement, workload.think_s)
        for number in range(workload.clients):
            share = workload.messages // workload.clients
            share += number < workload.messages % workload.clients
            self.store_clients.append(StoreClient(self, number, share))
        self.watchers = [Watcher(self, number) for number in range(self.watching)]
        self.liars = [Liar(self, number) for number in range(self.lying)]
        if self.scenario.faults == "all":
            self.slow_readers = [SlowReader(self, number) for number in range(self.reading_slowly)]

    @property
    def _processes_of_clients(self) -> Sequence[ClientProcess]:
        return [*self.store_clients, *self.watchers, *self.liars, *self.slow_readers]

    def inject(self, fault: Fault) -> None:
        """Clients die, too."""
        if isinstance(fault, ClientDeath):
            self.store_clients[fault.client].die()
        else:
            super().inject(fault)

    def heal(self) -> None:
        """End all faults."""
        self.healed_at = self.loop.now
        super().heal()

    def start(self) -> None:
        """Start all nodes, and then clients."""
        super().start()
        for process in self._processes_of_clients:
            process.start()

    @property
    def done_at(self) -> float:
        """The last change that a watcher has to see, if that is known yet."""
        if not self._last and self.healed and all(client.idle for client in self.store_clients):
            self._last = self.last_change()
        return self._last or float("inf")

    def converged(self) -> bool:
        """Whether also all clients have what they asked for."""
        return all(process.idle for process in self._processes_of_clients) and super().converged()

    def _what_is_missing(self) -> str:
        for client in self.store_clients:
            if not client.idle:
                calls = [call for call in self.history.calls if call.returned is None]
                return f"{client.loop.name} does not end; its calls without an answer: {calls[-3:]}"
        for watcher in self.watchers:
            if not watcher.idle:
                return f"{watcher.loop.name} has seen nothing after {watcher.seen_upto}, of {self.done_at}"
        return super()._what_is_missing()

    def _check_found(self, found: Replay) -> None:
        self.workload.check(self.history, found.final)


def simulate_store(
    scenario: Scenario, seed: int, workload: str, *, keep_history_s: int | None = None
) -> Outcome:
    """One run from one seed."""
    return StoreSimulation(scenario, seed, workload, keep_history_s=keep_history_s).run()
