"""Runs load tests: starts a cluster, and for each scenario loads the keys, runs Locust, and checks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import wbkv
import wbkv.testing

from loadtests.errors import LoadTestError
from loadtests.faults import NodeCrash
from loadtests.plan import STOP_S, SUMMARY, TALLY, VARIABLE, RunPlan
from loadtests.scenario import Scenario, read_scenario
from loadtests.shape import Shape, read_shape
from loadtests.workloads.base import Tally, Workload

GRACE_S: Final = 30.0
"""How long Locust may take to end."""
_LOCUSTFILE: Final = Path(__file__).parent / "locustfile.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The user's choices for a run."""

    scenarios: Sequence[str]
    overrides: Sequence[str] = ()
    shape: str | None = None
    users: int = 20
    spawn_rate: float = 20.0
    seconds: int = 10
    processes: int = 1
    endpoints: Sequence[str] = ()
    """Of a running cluster. Without any, a cluster is started."""
    nodes: int = 3
    partitions: int = 3
    kill_after: float | None = None
    web: str | None = None
    """HOST:PORT of Locust's page."""
    output: Path
    traces: Path | None = None
    protocol: str | None = None
    max_failures: float = 100.0
    """The largest percentage of failed requests."""


@dataclass(slots=True)
class ScenarioResult:
    """The result of a scenario."""

    scenario: Scenario
    prefix: str
    tally: Tally = field(default_factory=Tally)
    summary: list[dict[str, Any]] = field(default_factory=list)
    cpu_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    """The reasons for a failed run."""

    @property
    def requests(self) -> int:
        """The number of all requests."""
        tally = self.tally
        counts = (tally.ok, tally.refused, tally.failed, tally.unknown)
        return sum(each.total() for each in counts) + len(tally.violations)


class Run:
    """A run of several scenarios, one after the other, on one cluster. The constructor validates them."""

    def __init__(self, options: RunOptions) -> None:
        if find_spec("locust") is None:
            raise LoadTestError("load tests need Locust: pip install 'wbkv[loadtests]'")
        self._options = options
        self.scenarios = [read_scenario(name, options.overrides) for name in options.scenarios]
        self._shape = None if options.shape is None else read_shape(options.shape)
        self._cluster: wbkv.testing.RunningCluster | None = None
        self._trace: wbkv.Trace | None = None
        self._interrupted = False
        self.prefix = f"loadtest/{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}/"

    @property
    def _protocol(self) -> str | None:
        """The name of the cluster's protocol, if known."""
        return self._options.protocol or ("whitebox" if self._cluster is not None else None)

    def results(self) -> Generator[ScenarioResult]:
        """Run the scenarios, and yield their results. Closing the generator ends the run."""
        options = self._options
        with contextlib.ExitStack() as stack:
            endpoints = list(options.endpoints)
            if not endpoints:
                running = wbkv.testing.running_cluster(
                    options.nodes, options.partitions, trace=options.traces
                )
                say(f"starting a cluster of {options.nodes} nodes with {options.partitions} partitions")
                self._cluster = stack.enter_context(running)
                endpoints = self._cluster.addresses
            if options.traces is not None:
                # Loading is traced as well: verifying needs the writers of all versions that are read.
                self._trace = stack.enter_context(wbkv.Trace(options.traces, protocol=self._protocol))
            client = stack.enter_context(wbkv.connect(endpoints, timeout=30.0, trace=self._trace))
            times: Counter[str] = Counter()
            for name, scenario in zip(options.scenarios, self.scenarios, strict=True):
                times[scenario.name] += 1
                again = f"-{times[scenario.name]}" if times[scenario.name] > 1 else ""
                yield self._run(name, scenario, scenario.name + again, client, endpoints)
                if self._interrupted:
                    return

    def _run(
        self, given: str, scenario: Scenario, name: str, client: wbkv.Client[bytes], endpoints: list[str]
    ) -> ScenarioResult:
        """Load, perform and check one scenario. Its keys and files have a unique name."""
        result = ScenarioResult(scenario, f"{self.prefix}{name}/")
        workload: Workload[Any] = scenario.workload(client, result.prefix, scenario.parameters)
        say(f"{scenario.name}: {scenario.about or 'no description'}")
        begun = time.monotonic()
        with wbkv.scenario(f"{scenario.name}/load"):
            workload.load()
        say(f"{scenario.name}: loaded under {result.prefix} in {time.monotonic() - begun:.1f} s")
        folder = self._options.output / "locust" / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in (*folder.glob(f"{TALLY}*.json"), folder / SUMMARY):
            old.unlink(missing_ok=True)
        status = self._perform(self._plan(given, folder, endpoints, result.prefix), scenario, client)
        if status:
            result.wrong.append(f"Locust ended with status {status}: see {folder / 'locust.log'}")
        self._collect(folder, result)
        result.wrong += result.tally.violations
        result.wrong += workload.check(result.tally)
        return result

    def _plan(self, given: str, folder: Path, endpoints: list[str], prefix: str) -> RunPlan:
        options = self._options
        return RunPlan(
            scenario=given,
            overrides=list(options.overrides),
            shape=options.shape,
            endpoints=endpoints,
            prefix=prefix,
            folder=str(folder.resolve()),
            traces=None if options.traces is None else str(options.traces.resolve()),
            protocol=self._protocol,
            users=options.users,
            seconds=options.seconds,
            parent=os.getpid(),
        )

    def _perform(self, plan: RunPlan, scenario: Scenario, client: wbkv.Client[bytes]) -> int:
        options = self._options
        file = Path(plan.folder) / "plan.json"
        plan.write(file)
        command = _command(options, self._shape or scenario.shape, Path(plan.folder))
        with contextlib.ExitStack() as stack:
            if options.kill_after is not None:
                assert self._cluster is not None, "checked with the options"
                crash = NodeCrash(self._cluster, client, self._trace)
                begun = Path(plan.folder).glob
                stack.enter_context(crash.within(lambda: any(begun(f"{TALLY}*.json")), options.kill_after))
            output = None
            if options.web is None:
                output = stack.enter_context(open(Path(plan.folder) / "locust.log", "wb"))
                say(f"{scenario.name}: {options.users} users, {options.seconds} s; see {output.name}")
            environment = {**os.environ, VARIABLE: str(file)}
            # In a session of its own, Locust gets no SIGINT from Ctrl-C, which would reach all its processes.
            return self._wait(
                subprocess.Popen(  # noqa: S603 - ours
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the process. Ctrl-C ends it; the scenario is still checked, and no other one begins."""
        try:
            return process.wait()
        except KeyboardInterrupt:
            self._interrupted = True
            say("ending; press Ctrl-C again to abort")
            process.send_signal(signal.SIGINT)
            try:
                return process.wait(GRACE_S)
            except subprocess.TimeoutExpired as late:
                raise LoadTestError(f"Locust did not end within {GRACE_S:g} s") from late
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _collect(self, folder: Path, result: ScenarioResult) -> None:
        """Collect the tallies and figures of Locust's processes."""
        for path in sorted(folder.glob(f"{TALLY}*.json")):
            found = json.loads(path.read_text())
            result.tally.add(found)
            result.cpu_s += found["cpu_s"]
            if not found["ended"]:
                result.wrong.append(f"a process of Locust died: its tally {path} is incomplete")
        with contextlib.suppress(FileNotFoundError):
            result.summary = json.loads((folder / SUMMARY).read_text())
        tally = result.tally
        if not tally.ok:
            result.wrong.append("no operation succeeded")
        failures = tally.failed.total() + tally.unknown.total()
        if failures * 100 > self._options.max_failures * result.requests:
            limit = f"more than {self._options.max_failures:g}%"
            result.wrong.append(f"{failures} of {result.requests} operations failed, {limit}")


def _command(options: RunOptions, shape: Shape | None, folder: Path) -> list[str]:
    command = [sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE), "--stop-timeout", str(STOP_S)]
    command += ["--exit-code-on-error", "0", "--html", str(folder / "locust.html")]
    if shape is None:
        command += ["--users", str(options.users), "--spawn-rate", f"{options.spawn_rate:g}"]
    if options.web is None:
        command += ["--headless", "--only-summary"]
        command += [] if shape is not None else ["--run-time", f"{options.seconds}s"]
    else:
        host, _, port = options.web.rpartition(":")
        command += ["--web-host", host, "--web-port", port]
    if options.processes > 1:
        port = str(_free_port())
        command += ["--processes", str(options.processes), "--master-bind-host", "127.0.0.1"]
        command += ["--master-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port]
    return command


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def pipeline(job: str, *arguments: str) -> int:
    """Run a job of `wbkv pipeline`, and return its exit status."""
    start = "import sys, wbkv.cli.main; sys.exit(wbkv.cli.main.main())"
    command = [sys.executable, "-c", start, "pipeline", job, *arguments]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - ours


def say(line: str) -> None:
    """Print a line of progress."""
    print(f"[loadtests] {line}", flush=True)
