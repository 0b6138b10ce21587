"""Locust's users, which perform a workload's operations. Each is a request in Locust's figures.

Locust loads this module after it has patched the standard library for gevent. With `--processes` Locust then
forks. Objects that must not exist before a fork (gRPC's threads, channels, the client's id, the trace's file)
are made in each process when its test starts, after gRPC is set up for gevent. One client serves all users of
a process; each of its calls lets other users run.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from random import Random
from typing import Any, Final

import gevent
import wbkv
from grpc.experimental.gevent import init_gevent
from locust import LoadTestShape, User, events, task
from locust.env import Environment
from locust.rpc import Message
from locust.runners import MasterRunner, WorkerRunner

from loadtests.errors import LoadTestError, Violation
from loadtests.pacing import Pace
from loadtests.plan import STOP_S, SUMMARY, TALLY, RunPlan, read_plan
from loadtests.scenario import Scenario
from loadtests.workloads.base import Workload

logger = logging.getLogger("loadtests")

FINISH: Final = "wbkv-finish"
FINISHED: Final = "wbkv-finished"
"""Messages between Locust's processes at the end of a run."""

PLAN = read_plan()
SCENARIO = PLAN.read_scenario()
SHAPE = PLAN.read_shape(SCENARIO)


class WorkerProcess:
    """The state of a process that performs operations: a client, a trace, a workload."""

    def __init__(self, plan: RunPlan, scenario: Scenario) -> None:
        init_gevent()
        self._folder = Path(plan.folder)
        self._cpu_s = time.process_time()
        self._trace = None if plan.traces is None else _trace(plan, scenario)
        parameters = scenario.parameters
        self._client = wbkv.connect(
            plan.endpoints,
            timeout=parameters.timeout,
            consistency="serializable" if parameters.consistency == "serializable" else "strict",
            wait=10.0,
            trace=self._trace,
        )
        self.workload: Workload[Any] = scenario.workload(self._client, plan.prefix, parameters)
        self._logged: set[str] = set()
        self.save()  # the file also shows that the process has begun

    def log_once(self, name: str, error: Exception) -> None:
        """Log the first error of each class."""
        kind = f"{name}: {type(error).__name__}"
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning("%s: %s (later errors of this class are only counted)", kind, error)

    def save(self, *, ended: bool = False) -> None:
        """Write the tally to its file."""
        if self._trace is not None:
            self._trace.flush()
        cpu_s = time.process_time() - self._cpu_s
        found = {**self.workload.tally.as_json(), "cpu_s": cpu_s, "ended": ended}
        path = self._folder / f"{TALLY}{os.getpid()}.json"
        path.with_suffix(".new").write_text(json.dumps(found))
        path.with_suffix(".new").replace(path)

    def close(self) -> None:
        """Write the final tally, and close the client and the trace."""
        self.save(ended=True)
        self._client.close()
        if self._trace is not None:
            self._trace.close()


def _trace(plan: RunPlan, scenario: Scenario) -> wbkv.Trace:
    assert plan.traces is not None
    return wbkv.Trace(plan.traces, scenario=scenario.name, protocol=plan.protocol, clients=plan.users)


class StoreUser(User):
    """A user, which performs one operation after the other."""

    _names = tuple(SCENARIO.mix)
    _weights = tuple(SCENARIO.mix.values())

    def on_start(self) -> None:
        """Begin the user's schedule."""
        self._rng = Random()
        parameters = SCENARIO.parameters
        self._pace = Pace(parameters.rate, parameters.think_time, self._rng, time.monotonic())
        gevent.sleep(self._pace.wait(time.monotonic()))

    def wait_time(self) -> float:
        """Return the seconds until the next operation."""
        return self._pace.wait(time.monotonic())

    @task
    def operation(self) -> None:
        """Perform an operation of the mix. Its latency counts from its intended start."""
        process = _process(self.environment)
        name = self._rng.choices(self._names, self._weights)[0]
        begun, failure = time.monotonic(), None
        intended = self._pace.intended
        try:
            with wbkv.scenario(f"{SCENARIO.name}/{name}", intended=intended):
                process.workload.perform(name, self._rng)
        except (wbkv.Error, Violation) as error:
            failure = type(error).__name__
            process.log_once(name, error)
        took_s = time.monotonic() - (begun if intended is None else min(intended, begun))
        self.environment.events.request.fire(
            request_type=SCENARIO.name,
            name=name,
            response_time=took_s * 1000,
            response_length=0,
            exception=failure,  # errors are counted by their class: messages differ
            context={},
        )


if SHAPE is not None:
    _stages = SHAPE

    class StagedShape(LoadTestShape):
        """Locust's interface to our shape."""

        def tick(self) -> tuple[int, float] | None:
            """Return the number of users now, and the rate of change; None at the end."""
            wanted = _stages.users_at(self.get_run_time(), PLAN.users, PLAN.seconds)
            if wanted is None:
                return None
            return wanted, max(abs(wanted - self.get_current_user_count()), 1)


def _process(environment: Environment) -> WorkerProcess:
    found: WorkerProcess = environment.wbkv_process  # type: ignore[attr-defined]  # put there when the test starts
    return found


@events.test_start.add_listener
def _begin(environment: Environment, **_: object) -> None:
    """Begin the first test. A second test of the web page continues with the state of the first."""
    if isinstance(environment.runner, MasterRunner) or hasattr(environment, "wbkv_process"):
        return
    try:
        environment.wbkv_process = WorkerProcess(PLAN, SCENARIO)  # type: ignore[attr-defined]  # see `_process`
    except (wbkv.Error, LoadTestError) as error:
        logger.error("%s", error)  # noqa: TRY400 - its message says it all
        environment.process_exit_code = 2
        assert environment.runner is not None
        environment.runner.quit()


@events.test_stop.add_listener
def _pause(environment: Environment, **_: object) -> None:
    if hasattr(environment, "wbkv_process"):
        _process(environment).save()


class RunEnding:
    """Ends a run of several processes.

    Locust's master waits only half a second for the last figures of its workers, whose users may take longer
    to finish their operations. So the master asks the workers to finish first.
    """

    def __init__(self, runner: MasterRunner) -> None:
        self._runner = runner
        self._finished: set[str] = set()
        runner.register_message(FINISHED, self._worker_finished)
        events.test_stop.add_listener(self._finish)

    def _worker_finished(self, msg: Message, **_: object) -> None:
        self._finished.add(msg.node_id)

    def _finish(self, **_: object) -> None:
        self._finished.clear()
        asked = set(self._runner.clients)
        self._runner.send_message(FINISH)
        with gevent.Timeout(STOP_S + 5.0, exception=False):
            while not asked <= self._finished:
                gevent.sleep(0.01)


@events.init.add_listener
def _end_together(environment: Environment, **_: object) -> None:
    runner = environment.runner
    options = environment.parsed_options

    def finish(**_: object) -> None:
        assert isinstance(runner, WorkerRunner)
        runner.stop()
        runner._send_stats()  # noqa: SLF001 - there is no other way to send them at once
        runner.send_message(FINISHED)

    if isinstance(runner, WorkerRunner):
        runner.register_message(FINISH, finish, concurrent=True)
    elif isinstance(runner, MasterRunner) and options is not None and options.headless:
        RunEnding(runner)


@events.quitting.add_listener
def _end(environment: Environment, **_: object) -> None:
    if hasattr(environment, "wbkv_process"):
        if environment.runner is not None:
            environment.runner.stop()
        _process(environment).close()


def _summary(environment: Environment) -> list[dict[str, Any]]:
    """Return Locust's figures of each operation and of all."""
    entries = [*environment.stats.entries.values(), environment.stats.total]
    return [
        {
            "name": entry.name,
            "requests": entry.num_requests,
            "failures": entry.num_failures,
            "per_second": entry.total_rps,
            "mean_ms": entry.avg_response_time,
            **{f"p{share:g}_ms": entry.get_response_time_percentile(share / 100) for share in (50, 95, 99)},
            "max_ms": entry.max_response_time,
        }
        for entry in entries
    ]


@events.init.add_listener
def _attend(environment: Environment, **_: object) -> None:
    """In Locust's first process: write the figures at the end, and end the run if its parent dies."""
    # The loop's clock stood still while modules were loaded, which would shorten the run.
    gevent.get_hub().loop.update_now()
    if os.getppid() != PLAN.parent:
        return

    def write_summary(**_: object) -> None:
        Path(PLAN.folder, SUMMARY).write_text(json.dumps(_summary(environment)))

    def watch() -> None:
        while os.getppid() == PLAN.parent:
            gevent.sleep(1.0)
        if environment.runner is not None:
            environment.runner.quit()

    events.quit.add_listener(write_summary)
    gevent.spawn(watch)
