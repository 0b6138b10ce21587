"""One measurement: a warm-up, rounds, and the medians of what they gave, with their spread."""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.load.histogram import Histogram
from benchmarks.load.nodes import check_cluster, cpu_s, spent_s
from benchmarks.load.plan import Plan
from benchmarks.load.processes import LoadError, Worker, begin, reports, workers
from benchmarks.load.worker import Job, Report
from kvstore.local.cluster import LocalCluster
from kvstore.local.folder import CONFIG

HEAD_START_S: Final = 0.2
"""From the order to begin to the beginning."""
GRACE_S: Final = 30.0
"""For processes that are slow to say what they have measured."""
BEGIN_S: Final = 90.0
"""For client processes to connect and begin."""

PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0}


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured: medians over the rounds; NaN where nothing was answered."""

    plan: Plan
    throughput: float
    """Messages per second that all their destinations have answered."""
    throughput_rounds: list[float]
    latency_ms: dict[str, float]
    """mean, p50, p90, p99, max. From an open loop, since the intended start."""
    latency_rounds_ms: dict[str, list[float]]
    latency_spread_ms: dict[str, tuple[float, float]]
    """The lowest and the highest round's."""
    errors: int
    errors_by_kind: dict[str, int]
    """All that failed after the warm-up; "unanswered" are those that had no answer within `patience_s`."""
    warm_up_errors: dict[str, int]
    cpu_us: dict[str, float]
    """CPU time of a message: of each node, of the clients, and of all."""
    cpu_rounds_us: dict[str, list[float]]
    messages: int
    """Answered in all rounds."""
    late: int
    """Messages of an open loop that were sent more than 10 ms after their time."""
    unsent: int
    """Those that were not sent at all."""
    began_us: int
    """When the warm-up began: time of day."""

    def as_json(self) -> dict[str, Any]:
        """For programs. What could not be measured is null."""
        found = _without_nan(asdict(self))
        assert isinstance(found, dict)
        return found


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def measure(
    plan: Plan, cluster: LocalCluster, samples: Path | None = None, *, trace: Path | None = None
) -> Measurement:
    """Measure it. Raises `PlanError` if the cluster is another, and `LoadError` if clients cannot work.

    `samples` is a folder for files with a row for each message: see `Samples`. `trace` is one for traces of
    the SDK's calls, at the store level. Nodes may be killed meanwhile, from another thread.
    """
    check_cluster(plan, cluster)
    for folder in (samples, trace):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        Job(plan, str(cluster.data / CONFIG), process, _text(samples), _text(trace))
        for process in range(plan.processes)
    ]
    with workers(jobs) as found:
        at = time.monotonic() + HEAD_START_S
        began_us = round((time.time() - time.monotonic() + at) * 1e6)
        begin(found, at)
        spent = []
        for number in range(plan.rounds + 1):
            time.sleep(max(0.0, at + plan.warm_up_s + number * plan.seconds - time.monotonic()))
            spent.append(_spent(cluster, found))
        heard = reports(found, time.monotonic() + plan.patience_s + GRACE_S)
    return summary(plan, heard, spent, began_us)


def _text(folder: Path | None) -> str | None:
    return None if folder is None else str(folder.absolute())


def _spent(cluster: LocalCluster, found: Sequence[Worker]) -> dict[str, float]:
    clients = 0.0
    for worker in found:
        with contextlib.suppress(FileNotFoundError):
            clients += cpu_s(worker.pid)
    return {**spent_s(cluster), "clients": clients}


def summary(
    plan: Plan, heard: Sequence[Report], spent: Sequence[Mapping[str, float]], began_us: int
) -> Measurement:
    """What the reports of all processes, and the CPU time spent by the ends of the rounds, come to."""
    answered = [sum(report.answered[number] for report in heard) for number in range(plan.rounds)]
    latencies = [_merged([report.latencies[number] for report in heard]) for number in range(plan.rounds)]
    by_round = [_figures(each) for each in latencies if each.count]
    names = ("mean", *PERCENTILES, "max")
    errors = sum((Counter(report.errors) for report in heard), Counter())
    warm_up = sum((Counter(report.warm_up_errors) for report in heard), Counter())
    rates = [count / plan.seconds for count in answered]
    latency = {name: [each[name] for each in by_round] for name in names}
    cpu = _cpu_us(answered, spent)
    return Measurement(
        plan=plan,
        throughput=statistics.median(rates),
        throughput_rounds=rates,
        latency_ms={name: _median(rounds) for name, rounds in latency.items()},
        latency_rounds_ms=latency,
        latency_spread_ms={name: (min(each), max(each)) for name, each in latency.items() if each},
        errors=errors.total(),
        errors_by_kind=dict(errors),
        warm_up_errors=dict(warm_up),
        cpu_us={name: _median(rounds) for name, rounds in cpu.items()},
        cpu_rounds_us=cpu,
        messages=sum(answered),
        late=sum(report.late for report in heard),
        unsent=sum(report.unsent for report in heard),
        began_us=began_us,
    )


def _merged(dumped: Sequence[Mapping[str, float]]) -> Histogram:
    found = Histogram()
    for each in dumped:
        found.merge(Histogram.load(each))
    return found


def _figures(latencies: Histogram) -> dict[str, float]:
    found = {name: latencies.percentile_s(percent) for name, percent in PERCENTILES.items()}
    found |= {"mean": latencies.mean_s, "max": latencies.max_s}
    return {name: 1000 * value for name, value in found.items()}


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def _cpu_us(answered: Sequence[int], spent: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """CPU time of a message in each round, of processes that ran from the first round to the last."""
    there = [name for name in spent[0] if all(name in each for each in spent)]
    rounds = [
        {name: 1e6 * (after[name] - before[name]) / count for name in there}
        for count, before, after in zip(answered, spent, spent[1:], strict=False)
        if count
    ]
    found = {name: [each[name] for each in rounds] for name in there}
    return {**found, "all": [sum(each.values()) for each in rounds]}


class BackgroundMeasurement:
    """A measurement in a thread of its own, while its caller does something to the cluster.

    It has begun when the constructor returns: the clients are connected, and the warm-up is running.
    """

    def __init__(self, plan: Plan, cluster: LocalCluster, samples: Path) -> None:
        self._found: Measurement | None = None
        self._error: BaseException | None = None

        def load() -> None:
            try:
                self._found = measure(plan, cluster, samples)
            except BaseException as error:  # noqa: BLE001 - raised again by `wait`
                self._error = error

        self._thread = threading.Thread(target=load, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + BEGIN_S
        while not any(samples.glob("samples-*")):  # clients open their files when they begin
            if time.monotonic() > deadline:
                raise LoadError(f"the clients have not begun after {BEGIN_S:g} s")
            self.sleep(0.01)

    def sleep(self, seconds: float) -> None:
        """Let it go on for so long. Raises `LoadError` if it has failed."""
        self._thread.join(seconds)
        if not self._thread.is_alive() and self._error is not None:
            raise LoadError(f"the load has ended: {self._error}") from self._error

    def wait(self) -> Measurement:
        """What was measured, when it has ended."""
        self._thread.join()
        self.sleep(0)
        assert self._found is not None
        return self._found
