"""`wbkv bench throughput`: starts a cluster, loads it with clients, and prints what they measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from benchmarks.load.measuring import Measurement, measure
from benchmarks.load.nodes import running, serve_profiled
from benchmarks.load.plan import Plan, PlanError
from benchmarks.load.processes import LoadError
from kvstore.config.checks import CLOCKS, DURABILITY
from kvstore.local.supervise import ClusterError
from multicast import PROTOCOLS, VARIANTS

DESCRIPTION: Final = """\
Measures messages per second, their latency, and their CPU time in each process. Starts a cluster of real
processes in a temporary folder. Clients in processes of their own keep a number of messages in flight or,
with --rate, send at a fixed rate, each message to a random set of groups. Figures are medians of the
rounds."""

OPTIONS: Final[tuple[tuple[str, str, type[int] | type[float] | type[str], str, str], ...]] = (
    ("protocol", "protocol", str, "NAME", ", ".join([*PROTOCOLS, *VARIANTS])),
    ("level", "level", str, "LEVEL", "multicast: plain messages; store: a put for each partition"),
    ("groups", "groups", int, "N", "groups, or partitions"),
    ("dest", "dest", int, "N", "groups that each message goes to"),
    ("payload", "payload", int, "BYTES", "of a message, or of a value"),
    ("processes", "processes", int, "N", "processes of clients"),
    ("warm-up", "warm_up_s", float, "S", "seconds before the first round"),
    ("seconds", "seconds", float, "S", "of a round"),
    ("rounds", "rounds", int, "N", "number of rounds"),
    ("patience", "patience_s", float, "S", "how long clients wait for an answer"),
    ("durability", "durability", str, "WHAT", " or ".join(DURABILITY)),
    ("seed", "seed", int, "N", "of random choices"),
)
"""Options, the plan's names of them, their types, and what they mean."""

FOLDERS: Final = {
    "trace": "at the store level: where to write traces for `wbkv pipeline`",
    "samples": "where to write files with a row for each message",
    "profile": "where to write profiles of nodes, for `python -m pstats`",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    usual, add = Plan(), parser.add_argument
    for option, name, kind, metavar, meaning in OPTIONS:
        default = getattr(usual, name)
        add(f"--{option}", type=kind, dest=name, default=default, metavar=metavar,
            help=f"{meaning} ({default})")  # fmt: skip
    add("--replicas", type=int, metavar="N", help="members of a group (3; skeen: 1)")
    most = f"messages in flight ({usual.clients}); with --rate, at most"
    add("--clients", type=int, metavar="N", help=most)
    add("--rate", type=float, metavar="N", help="messages per second; latency counts from their due times")
    add("--clock", metavar="WHAT", help=f"{' or '.join(CLOCKS)} (logical; at the store level hybrid)")
    add("--regions", action="store_true", help="emulate regions, with round trips of 60, 75 and 130 ms")
    for option, what in FOLDERS.items():
        add(f"--{option}", type=Path, metavar="DIR", help=what)
    add("--json", action="store_true", help="print one JSON object")


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan of the arguments. Raises `ValueError`, which names the option that is wrong."""
    given = {name: getattr(arguments, name) for _, name, *_ in OPTIONS}
    clients = arguments.clients
    if clients is None and arguments.rate is None:
        clients = Plan().clients
    if arguments.replicas == 0:
        raise ValueError("--replicas: 0 is not in 1..99")
    try:
        plan = Plan(
            **given, replicas=arguments.replicas or 0, clients=clients, rate=arguments.rate,
            clock=arguments.clock or "", regions=arguments.regions,
        )  # fmt: skip
    except PlanError as error:
        options = {name: option for option, name, *_ in OPTIONS}
        raise ValueError(f"--{options.get(error.name, error.name)}: {error.problem}") from None
    if arguments.trace is not None and plan.level != "store":
        raise ValueError("--trace: only the store level records traces; add --level store")
    for name in FOLDERS:
        folder: Path | None = getattr(arguments, name)
        if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"--{name}: {folder} is not a new or empty folder")
    return plan


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. The status is 1 if no message was answered."""
    plan = plan_of(arguments)
    options: dict[str, Any] = {"trace": arguments.trace}
    if arguments.profile is not None:
        options["command"] = serve_profiled(arguments.profile)
    try:
        with running(plan, **options) as cluster:
            found = measure(plan, cluster, arguments.samples, trace=arguments.trace)
    except (ClusterError, LoadError) as error:
        raise ValueError(str(error)) from error
    print(json.dumps(found.as_json()) if arguments.json else table(found))
    return int(not found.messages)


def table(found: Measurement) -> str:
    """The measurement as a table for readers."""
    plan = found.plan
    loop = f"{plan.clients} in flight" if plan.rate is None else f"{plan.rate:g}/s"
    lines = [
        f"{plan.protocol}, {plan.level}: {plan.groups} groups of {plan.replicas}, {plan.dest} of them to a "
        f"message; {loop}; {plan.rounds} rounds of {plan.seconds:g} s",
        "",
        f"{'':16}{'median':>12}{'lowest':>12}{'highest':>12}",
        _row("messages/s", found.throughput, min(found.throughput_rounds), max(found.throughput_rounds), 0),
    ]
    for name, median in found.latency_ms.items():
        low, high = found.latency_spread_ms.get(name, (float("nan"),) * 2)
        lines.append(_row(f"{name}, ms", median, low, high, 2))
    cpu = ", ".join(f"{name} {us:,.0f}" for name, us in found.cpu_us.items())
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(found.errors_by_kind.items()))
    lines += ["", f"us of CPU per message: {cpu}", f"errors: {kinds or 'none'}"]
    if plan.rate is not None:
        lines.append(f"sent late: {found.late}, not sent: {found.unsent}")
    return "\n".join(lines)


def _row(name: str, median: float, low: float, high: float, digits: int) -> str:
    return f"{name:16}" + "".join(f"{figure:12,.{digits}f}" for figure in (median, low, high))
