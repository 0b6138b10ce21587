"""`wbkv bench`: measures the protocols in virtual time, and clusters under load."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from benchmarks import convoy_command as convoy
from benchmarks.load import command as load
from benchmarks.paper.claims import PAPER_DELAYS
from kvstore.commands.arguments import positive
from kvstore.wire.frames import ORDERING_CODEC
from multicast import PROTOCOLS, VARIANTS, Protocol
from multicast.sim.delays import Measured, cost, group_size, measure

DESTINATIONS = (1, 2, 4, 6, 8, 10)


KINDS = {
    "throughput": ("throughput and latency of a cluster of real processes", load.DESCRIPTION),
    "delays": (
        "delivery latency in message delays",
        "Delivery latency in message delays δ, in virtual time with every link at δ: alone, "
        "and the worst found when the arrival of a conflicting message is searched over a grid.",
    ),
    "theorem4": (
        "check the paper's Theorem 4",
        "Measures clock-update latency C and commit latency D of each protocol, and checks "
        "that the failure-free latency is C plus the collision-free latency. Status 1 if it is not.",
    ),
    "messages": (
        "messages and bytes per multicast",
        "Counts what one multicast sends between processes without collisions. Answers to "
        "clients do not count; bytes are those of the node's wire format, one message in a frame.",
    ),
}
"""Subcommands, but for the convoy: what they measure, in short and at length."""


class BenchCommand:
    """Measurements, each a subcommand."""

    help = "measure the protocols: throughput, delays, Theorem 4, the convoy effect, messages and bytes"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        kinds = parser.add_subparsers(dest="kind", metavar="WHAT", required=True)
        throughput, delays, theorem, messages = (
            kinds.add_parser(kind, help=what, description=about) for kind, (what, about) in KINDS.items()
        )
        load.configure(throughput)
        for sub in (delays, theorem):
            sub.add_argument("--grid", type=positive, default=8, help="steps per δ of the search (8)")
            convoy.add_clock(sub)
        for sub in (delays, theorem, messages):
            sub.add_argument("--json", action="store_true", help="print one JSON object")
            sub.add_argument("--variants", action="store_true", help="also variants the paper does not have")
            sub.add_argument("--replicas", type=positive, default=3, help="members of a group; skeen: 1 (3)")
        convoy.configure(kinds)
        messages.add_argument("--payload", type=positive, default=20, help="bytes of the message (20)")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the subcommand."""
        if arguments.kind == "throughput":
            return load.run(arguments)
        if arguments.kind == "convoy":
            return convoy.run(arguments)
        protocols = PROTOCOLS | (VARIANTS if arguments.variants else {})
        if arguments.kind == "messages":
            return _messages(arguments, protocols)
        found = {
            name: measure(protocol, arguments.grid, arguments.replicas, skew=convoy.skew_of(arguments))
            for name, protocol in protocols.items()
        }
        return _delays(arguments, found) if arguments.kind == "delays" else _theorem(arguments, found)


def _delays(arguments: argparse.Namespace, found: dict[str, Measured]) -> int:
    if arguments.json:
        print(json.dumps({name: shape(measured) for name, measured in found.items()}))
        return 0
    rows: list[tuple[str, ...]] = [
        ("", "alone, leader", "follower", "worst, leader", "follower", "paper", "m' arrives at")
    ]
    known = PAPER_DELAYS if arguments.clock == "logical" else {}
    for name, it in found.items():
        paper = "{}δ and {}δ".format(*known[name]) if name in known else "-"
        arrivals = " and ".join(f"{at:g}δ" for at in it.worst_arrivals)
        latencies = (it.collision_free.leader, it.collision_free.follower)
        worst = (it.failure_free.leader, it.failure_free.follower)
        rows.append((name, *map(_delta, latencies), *map(_delta, worst), paper, arrivals))
    _table(rows)
    return 0


def shape(measured: Measured) -> dict[str, dict[str, float | None]]:
    """The JSON object of one protocol."""
    kinds = {"collision_free": measured.collision_free, "failure_free": measured.failure_free}
    return {name: {"leader": it.leader, "follower": it.follower} for name, it in kinds.items()}


def _theorem(arguments: argparse.Namespace, found: dict[str, Measured]) -> int:
    if arguments.json:
        report = {
            name: {
                "clock_update": it.clock_update,
                "commit": it.commit,
                "collision_free": it.collision_free.leader,
                "failure_free": it.failure_free.leader,
                "holds": it.theorem_holds,
            }
            for name, it in found.items()
        }
        print(json.dumps(report))
    else:
        rows: list[tuple[str, ...]] = [("", "C", "D", "CFL", "C + CFL", "FFL found", "")]
        for name, it in found.items():
            alone = it.collision_free.leader
            latencies = (it.clock_update, it.commit, alone, it.clock_update + alone, it.failure_free.leader)
            rows.append((name, *map(_delta, latencies), "holds" if it.theorem_holds else "DOES NOT HOLD"))
        _table(rows)
    return int(not all(it.theorem_holds for it in found.values()))


def _messages(arguments: argparse.Namespace, protocols: dict[str, type[Protocol]]) -> int:
    sizes = (arguments.replicas, arguments.payload)
    report = {
        name: {str(groups): _cost(protocol, groups, *sizes) for groups in DESTINATIONS}
        for name, protocol in protocols.items()
    }
    if arguments.json:
        print(json.dumps(report))
        return 0
    for what in ("messages", "bytes"):
        rows = [(f"{what}, to groups:", *map(str, DESTINATIONS))]
        for name, costs in report.items():
            size = group_size(protocols[name], arguments.replicas)
            rows.append((f"{name} (groups of {size})", *(str(each[what]) for each in costs.values())))
        _table(rows)
    return 0


def _cost(protocol: type[Protocol], groups: int, replicas: int, payload: int) -> dict[str, int]:
    found = cost(protocol, groups, replicas, payload)
    return {"messages": len(found), "bytes": sum(ORDERING_CODEC.size_of(message) for _, _, message in found)}


def _delta(delays: float | None) -> str:
    return "-" if delays is None else f"{delays:g}δ"


def _table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *rest = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first, *(cell.strip().rjust(len(cell)) for cell in rest)]).rstrip())
    print()


command = BenchCommand()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command without `wbkv`."""
    parser = argparse.ArgumentParser(prog="wbkv bench", description=command.help, allow_abbrev=False)
    command.configure(parser)
    try:
        return command.run(parser.parse_args(argv))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"wbkv bench: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
