"""Run one load after the other on a store that runs, and return the figures of each."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.comparison.client import PATIENCE_S, Setup, Task
from benchmarks.comparison.systems import System
from benchmarks.load.histogram import Histogram
from benchmarks.load.nodes import cpu_s
from benchmarks.load.processes import LoadError, Worker, await_ready, begin, reports, workers

COMMAND: Final = (sys.executable, "-P", "-c", "from benchmarks.comparison.client import main; main()")
HEAD_START_S: Final = 0.1
GRACE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one load."""

    calls: int
    per_second: float
    p50_ms: float
    p99_ms: float
    nodes_us: float
    """CPU time of a call: of all nodes of the store together."""
    clients_us: float
    """... and of all client processes."""


class Clients:
    """The client processes of a store that runs."""

    def __init__(self, system: System, found: Sequence[Worker]) -> None:
        self._system = system
        self._workers = found

    @property
    def pids(self) -> list[int]:
        """The client processes."""
        return [worker.pid for worker in self._workers]

    def measure(
        self,
        row: str,
        in_flight: int,
        warm_up_s: float,
        seconds: float,
        at_edge: Callable[[], None] = lambda: None,
    ) -> Round:
        """Keep so many calls of a row in flight. Raises `LoadError` if a call fails.

        `at_edge` is called when the warm-up ends, and when the load ends.
        """
        about = f"{self._system.name}, {row}, {in_flight} in flight"
        count = len(self._workers)
        for number, worker in enumerate(self._workers):
            share = in_flight // count + (number < in_flight % count)
            worker.say(Task(row, share, warm_up_s, seconds))
        await_ready(self._workers)
        at = time.monotonic() + HEAD_START_S
        begin(self._workers, at)
        spent = []
        for moment in (at + warm_up_s, at + warm_up_s + seconds):
            time.sleep(max(0.0, moment - time.monotonic()))
            spent.append(self._spent_s())
            at_edge()
        heard = reports(self._workers, time.monotonic() + PATIENCE_S + GRACE_S)
        failed = sum((Counter(each.errors) + Counter(each.warm_up_errors) for each in heard), Counter[str]())
        if failed:
            raise LoadError(f"{about}: calls failed: {dict(failed)}")
        latencies = Histogram()
        for each in heard:
            latencies.merge(Histogram.load(each.latencies[0]))
        answered = sum(each.answered[0] for each in heard)
        if not answered:
            raise LoadError(f"{about}: no call was answered")
        nodes, clients = (1e6 * (after - before) / answered for before, after in zip(*spent, strict=True))
        return Round(
            answered, answered / seconds,
            1000 * latencies.percentile_s(50), 1000 * latencies.percentile_s(99), nodes, clients,
        )  # fmt: skip

    def _spent_s(self) -> tuple[float, float]:
        nodes = sum(cpu_s(pid) for pid in self._system.pids.values())
        return nodes, sum(cpu_s(worker.pid) for worker in self._workers)


@contextlib.contextmanager
def clients(system: System, processes: int, command: Sequence[str] = COMMAND) -> Iterator[Clients]:
    """Client processes, connected to a store; every key is written."""
    jobs = [Setup(system.name, system.addresses, process) for process in range(processes)]
    with workers(jobs, command) as found:
        yield Clients(system, found)
