"""A whole run: a cluster, each scenario loaded, performed by Locust and checked, and a report of it all."""

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
"""How long Locust itself may take to end."""
_LOCUSTFILE: Final = Path(__file__).parent / "locustfile.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a person may choose."""

    scenarios: Sequence[str]
    overrides: Sequence[str] = ()
    shape: str | None = None
    users: int = 20
    spawn_rate: float = 20.0
    seconds: int = 10
    processes: int = 1
    endpoints: Sequence[str] = ()
    """Of a cluster that is up; without any, one is started."""
    nodes: int = 3
    partitions: int = 3
    kill_after: float | None = None
    web: str | None = None
    """HOST:PORT of Locust's page."""
    output: Path
    traces: Path | None = None
    protocol: str | None = None
    max_failures: float = 100.0
    """Percent of requests that may fail."""


@dataclass(slots=True)
class ScenarioResult:
    """What became of a scenario."""

    scenario: Scenario
    prefix: str
    tally: Tally = field(default_factory=Tally)
    summary: list[dict[str, Any]] = field(default_factory=list)
    cpu_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    """Why the run has failed."""

    @property
    def requests(self) -> int:
        """All of them."""
        tally = self.tally
        counts = (tally.ok, tally.refused, tally.failed, tally.unknown)
        return sum(each.total() for each in counts) + len(tally.violations)


class Run:
    """All scenarios, one after the other, on one cluster. Making it checks the scenarios."""

    def __init__(self, options: RunOptions) -> None:
        if find_spec("locust") is None:
            raise LoadTestError("load tests need Locust: install wbkv[loadtests]")
        self._options = options
        self.scenarios = [read_scenario(name, options.overrides) for name in options.scenarios]
        self._shape = None if options.shape is None else read_shape(options.shape)
        self._cluster: wbkv.testing.RunningCluster | None = None
        self._trace: wbkv.Trace | None = None
        self._interrupted = False
        self.prefix = f"loadtest/{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}/"

    @property
    def _protocol(self) -> str | None:
        """How the cluster orders, if that is known."""
        return self._options.protocol or ("whitebox" if self._cluster is not None else None)

    def results(self) -> Generator[ScenarioResult]:
        """Run everything. Whoever does not take all results ends it there."""
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
                # What is loaded is traced as well: whoever verifies asks who has written what was read.
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
        """Load, perform and check one. Its keys and files have a name that no other one has."""
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
            result.wrong.append(f"Locust has ended with status {status}: see {folder / 'locust.log'}")
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
            # In a session of its own, Locust does not hear Ctrl-C by itself: all its processes at once would.
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
        """Until it ends. Ctrl-C ends it: what was done is checked, and no other scenario begins."""
        try:
            return process.wait()
        except KeyboardInterrupt:
            self._interrupted = True
            say("ending; Ctrl-C again gives up")
            process.send_signal(signal.SIGINT)
            try:
                return process.wait(GRACE_S)
            except subprocess.TimeoutExpired as late:
                raise LoadTestError(f"Locust does not end within {GRACE_S:g} s") from late
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _collect(self, folder: Path, result: ScenarioResult) -> None:
        """What Locust's processes have left."""
        for path in sorted(folder.glob(f"{TALLY}*.json")):
            found = json.loads(path.read_text())
            result.tally.add(found)
            result.cpu_s += found["cpu_s"]
            if not found["ended"]:
                result.wrong.append(f"a process of Locust has died: {path} is not all that it has done")
        with contextlib.suppress(FileNotFoundError):
            result.summary = json.loads((folder / SUMMARY).read_text())
        tally = result.tally
        if not tally.ok:
            result.wrong.append("nothing was performed")
        failures = tally.failed.total() + tally.unknown.total()
        if failures * 100 > self._options.max_failures * result.requests:
            result.wrong.append(f"{failures} of {result.requests} operations have failed")


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
    """Run a job of `wbkv pipeline`. Its status."""
    start = "import sys, wbkv.cli.main; sys.exit(wbkv.cli.main.main())"
    command = [sys.executable, "-c", start, "pipeline", job, *arguments]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - ours


def say(line: str) -> None:
    """Tell whoever has started this."""
    print(f"[loadtests] {line}", flush=True)
