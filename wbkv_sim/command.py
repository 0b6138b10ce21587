"""`wbkv sim`: run the simulator over many seeds, or show one run message by message."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import logging
import multiprocessing
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kvstore.commands.arguments import positive
from kvstore.commands.demo import demonstrate
from kvstore.simulation import scenario_of
from multicast import PROTOCOLS, VARIANTS
from multicast.errors import InvalidArgument
from multicast.messages import Multicast
from multicast.sim import FAULTS, Outcome, Scenario, Simulation, Workload, simulate
from multicast.sim.diagram import render_svg
from multicast.sim.trace import DELIVER, Arrow, Flow, FlowRecorder, Mark, text_lines
from multicast.topology import Topology
from wbkv_sim.run import simulate_store
from wbkv_sim.workloads import WORKLOADS

MESSAGES, MESSAGES_SHOWN = 200, 3
STORE_WINDOW, STORE_THINK_S = 2, 0.12
REPLICAS, REPLICAS_ALONE = 3, {"skeen": 1}
"""Default number of members of each group; some protocols need groups of one."""
_PROTOCOLS = PROTOCOLS | VARIANTS

JOBS_MAX = 64


def seed_range(text: str) -> range:
    """Parse FIRST:END, or one seed."""
    first, colon, end = text.partition(":")
    try:
        found = range(int(first), int(end) if colon else int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed, nor a range FIRST:END of seeds") from None
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is an empty range of seeds: END must be above FIRST")
    return found


@dataclass
class Tally:
    """The totals of many runs."""

    runs: int = 0
    delivered: int = 0
    protocol_messages: int = 0
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a run."""
        self.runs += 1
        self.delivered += outcome.delivered
        self.protocol_messages += outcome.messages
        if outcome.violation is not None:
            self.failures.append(outcome)


class SimCommand:
    """Run many seeds, or show one in detail."""

    help = "simulate a protocol or the store under faults, with checkers after every step"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to the parser."""
        parser.epilog = (
            "Status 0: no violation. 1: a violation was found. 2: invalid arguments. 130: interrupted. "
            "A run shown with --trace or --diagram has 3 messages and no faults by default; "
            "to show a run of a campaign, pass the campaign's --messages and --faults, too."
        )
        add = parser.add_argument
        add("--protocol", choices=sorted(_PROTOCOLS), default="whitebox", help="protocol to run (whitebox)")
        add("--store", choices=sorted(WORKLOADS), help="run the whole store, with clients of this workload")
        add("--groups", type=positive, default=3, help="number of groups (3)")
        add("--replicas", type=positive, help="members of each group, an odd number (3; skeen: 1)")
        add("--clients", type=positive, default=4, help="number of clients (4)")
        number = f"of all clients together ({MESSAGES}; when shown: {MESSAGES_SHOWN})"
        add("--messages", type=positive, help=number)
        add("--faults", choices=FAULTS, help="kinds of faults (all; when shown: none)")
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--seeds", type=seed_range, default=range(50), metavar="FIRST:END", help="seeds to run (0:50)"
        )
        which.add_argument("--seed", type=int, help="the only seed to run")
        add("--jobs", type=positive, default=os.cpu_count(), help="number of parallel runs (one per core)")
        add("--json", action="store_true", help="print one JSON object")
        add("--trace", action="store_true", help="print the message flow of one run")
        add("--diagram", type=Path, metavar="FILE.svg", help="draw the message flow of one run")
        add("--everything", action="store_true", help="show heartbeats and other bookkeeping, too")
        add("--demo", action="store_true", help="a short, explained demonstration; ignores other options")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return its exit status."""
        if arguments.demo:
            return demonstrate()
        shown = arguments.trace or arguments.diagram is not None
        if shown and arguments.seed is None:
            raise InvalidArgument("--trace and --diagram show one run; give its --seed")
        if shown and arguments.json:
            raise InvalidArgument("--json reports on campaigns; leave out --trace and --diagram")
        if arguments.everything and not shown:
            raise InvalidArgument("--everything needs --trace or --diagram; add one of them")
        if shown and arguments.store is not None:
            raise InvalidArgument("--trace and --diagram show the ordering protocol only; leave out --store")
        faults = arguments.faults or ("none" if shown else "all")
        messages = arguments.messages or (MESSAGES_SHOWN if shown else MESSAGES)
        workload = Workload(clients=min(arguments.clients, messages), messages=messages)
        if shown and arguments.faults is None:
            workload = dataclasses.replace(workload, repeats=0.0)
        replicas = arguments.replicas or REPLICAS_ALONE.get(arguments.protocol, REPLICAS)
        scenario = Scenario(_PROTOCOLS[arguments.protocol], arguments.groups, replicas, faults, workload)
        if arguments.store is not None:
            clients = dataclasses.replace(workload, window=STORE_WINDOW, think_s=STORE_THINK_S)
            scenario = scenario_of(
                faults, arguments.groups, replicas, workload=clients, protocol=scenario.protocol
            )
        scenario.protocol.check_topology(Topology.uniform(arguments.groups, replicas))
        if shown:
            return self._show(arguments, scenario)
        seeds = arguments.seeds if arguments.seed is None else range(arguments.seed, arguments.seed + 1)
        return self._campaign(arguments, scenario, seeds)

    def _show(self, arguments: argparse.Namespace, scenario: Scenario) -> int:
        recorder = FlowRecorder()
        simulation = Simulation(scenario, arguments.seed, observers=[recorder])
        recorder.loop = simulation.loop
        outcome = simulation.run()
        if arguments.trace:
            for line in text_lines(recorder.flow, everything=arguments.everything):
                print(line)
        if arguments.diagram is not None:
            title = (
                f"{arguments.protocol}, {scenario.groups} groups of {scenario.replicas}, seed {outcome.seed}"
            )
            start_s, end_s = (None, None) if arguments.everything else story(recorder.flow)
            svg = render_svg(
                recorder.flow, start_s=start_s, end_s=end_s, everything=arguments.everything, title=title
            )
            arguments.diagram.write_text(svg)
            print(f"wrote {arguments.diagram}", file=sys.stderr)
        about = f"{scenario.workload.messages} messages, faults: {scenario.faults}"
        print(f"seed {outcome.seed}, {about}: {outcome.violation or 'no violation'}", file=sys.stderr)
        if arguments.trace and outcome.violation is not None:
            print(f"VIOLATION {outcome.violation}")
        return int(outcome.violation is not None)

    def _campaign(self, arguments: argparse.Namespace, scenario: Scenario, seeds: range) -> int:
        tally = Tally()
        started = time.monotonic()
        progress = sys.stderr.isatty() and not arguments.json
        interrupted = False
        try:
            run = partial(_outcome, scenario, arguments.store)
            for outcome in outcomes(run, seeds, min(arguments.jobs, len(seeds), JOBS_MAX)):
                tally.add(outcome)
                if outcome.violation is not None and not arguments.json:
                    print(("\r" if progress else "") + f"seed {outcome.seed}: {outcome.violation}")
                if progress:
                    found = f"{len(tally.failures)} violations"
                    print(f"\r{tally.runs}/{len(seeds)} runs, {found} ", end="", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            interrupted = True
        if progress:
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
        seconds = time.monotonic() - started
        if arguments.json:
            print(json.dumps(report(arguments, scenario, seeds, tally) | {"seconds": round(seconds, 3)}))
        else:
            print(
                f"{tally.runs} of {len(seeds)} runs, {scenario.groups} groups of {scenario.replicas}, "
                f"faults: {scenario.faults}; {tally.delivered} deliveries, "
                f"{tally.protocol_messages} protocol messages ({tally.protocol_messages / seconds:,.0f}/s); "
                f"{len(tally.failures)} violations"
            )
            for outcome in tally.failures[:3]:
                print(f"see it: {replay(arguments, scenario, outcome)}")
        return 130 if interrupted else int(bool(tally.failures))


def story(flow: Flow) -> tuple[float | None, float | None]:
    """From the first MULTICAST to the last delivery: elections before it would only squeeze the picture."""
    asked = [e.at for e in flow.events if isinstance(e, Arrow) and isinstance(e.message, Multicast)]
    delivered = [e.at for e in flow.events if isinstance(e, Mark) and e.kind == DELIVER]
    if not asked or not delivered:
        return None, None
    margin_s = (max(delivered) - min(asked)) * 0.15
    return max(0.0, min(asked) - margin_s), max(delivered) + margin_s


def outcomes(run: Callable[[int], Outcome], seeds: range, jobs: int) -> Iterator[Outcome]:
    """Run the seeds in parallel; yield outcomes in order. The worker processes end with this one."""
    if jobs == 1:
        yield from map(run, seeds)
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # An interrupt while a pool starts would leave processes that nothing ends.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with multiprocessing.Pool(jobs, _worker) as pool:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            yield from pool.imap(run, seeds)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        signal.signal(signal.SIGTERM, before)


def _worker() -> None:
    """Leave Ctrl-C to the parent; die with the parent, however it dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


def _outcome(scenario: Scenario, store: str | None, seed: int) -> Outcome:
    log = logging.getLogger("kvstore")
    if not log.hasHandlers():  # nodes warn of faults, which here are meant
        log.addHandler(logging.NullHandler())
    outcome = simulate(scenario, seed) if store is None else simulate_store(scenario, seed, store)
    outcome.error = None
    return outcome


def replay(arguments: argparse.Namespace, scenario: Scenario, outcome: Outcome) -> str:
    """The command that repeats a run."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "wbkv" else "wbkv"
    return (
        f"{shlex.quote(program)} sim --protocol {arguments.protocol} --groups {scenario.groups} "
        f"--replicas {scenario.replicas} --clients {scenario.workload.clients} "
        f"--messages {scenario.workload.messages} "
        f"--faults {scenario.faults} --seed {outcome.seed} "
        + ("--trace" if arguments.store is None else f"--store {arguments.store}")
    )


def report(
    arguments: argparse.Namespace, scenario: Scenario, seeds: range, tally: Tally
) -> dict[str, object]:
    """The object that `--json` prints."""
    return {
        "protocol": arguments.protocol,
        "store": arguments.store,
        "groups": scenario.groups,
        "replicas": scenario.replicas,
        "clients": scenario.workload.clients,
        "messages": scenario.workload.messages,
        "faults": scenario.faults,
        "seeds": f"{seeds.start}:{seeds.stop}",
        "runs": tally.runs,
        "delivered": tally.delivered,
        "protocol_messages": tally.protocol_messages,
        "violations": len(tally.failures),
        "failures": [
            {"seed": o.seed, "what": o.violation, "replay": replay(arguments, scenario, o)}
            for o in tally.failures
        ],
    }


command = SimCommand()
