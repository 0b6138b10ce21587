"""`wbkv bench convoy`: latency against the rate of conflicting messages, in virtual time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from kvstore.commands.arguments import positive
from multicast import PROTOCOLS, VARIANTS, Protocol
from multicast.errors import InvalidArgument
from multicast.sim.convoy import LINKS, RATES, WORKLOADS, ConvoyLoad, Curve, Summary, study


def configure(kinds: Any) -> None:
    """Declare the subcommand; `kinds` is what `add_subparsers` returned, whose type has no public name."""
    parser: argparse.ArgumentParser = kinds.add_parser(
        "convoy",
        help="latency against the rate of conflicting messages",
        description="Delivery latency in message delays δ, in virtual time, against the rate of conflicting "
        "messages, which arrive as a Poisson process. Every run is checked for order. Status 1 if a message "
        "took less than the collision-free or more than the failure-free latency.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--protocols", type=protocols_of, default=PROTOCOLS | VARIANTS, help="NAME,... (all)")
    parser.add_argument("--rates", type=_rates, default=RATES, help="messages per δ: RATE,... (0.01 to 8)")
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="pair", help="destinations (pair)")
    parser.add_argument("--links", choices=LINKS, default=LINKS[0], help="how MULTICAST travels (unequal)")
    parser.add_argument("--messages", type=positive, default=500, help="measured per rate and seed (500)")
    parser.add_argument("--seeds", type=positive, default=4, help="runs per rate (4)")
    parser.add_argument("--replicas", type=positive, default=3, help="members of a group; skeen: 1 (3)")
    add_clock(parser)


def add_clock(parser: argparse.ArgumentParser) -> None:
    """Declare the options of clocks."""
    parser.add_argument("--clock", choices=("logical", "hybrid"), default="logical", help="(logical)")
    parser.add_argument("--skew", type=_skew, help="hybrid: by how many δ the last group's is ahead (0)")


def skew_of(arguments: argparse.Namespace) -> float | None:
    """The skew of hybrid clocks; none if clocks are logical."""
    if arguments.clock == "hybrid":
        return arguments.skew or 0.0
    if arguments.skew is not None:
        raise InvalidArgument("--skew needs --clock hybrid: logical clocks do not depend on the time")
    return None


def run(arguments: argparse.Namespace) -> int:
    """Run the study and print it."""
    loads = [
        ConvoyLoad(rate=rate, workload=arguments.workload, links=arguments.links, messages=arguments.messages)
        for rate in arguments.rates
    ]
    protocols: Mapping[str, type[Protocol]] = arguments.protocols
    found: dict[str, Curve] = {}
    options = {"seeds": arguments.seeds, "replicas": arguments.replicas, "skew": skew_of(arguments)}
    for name, curve in study(protocols, loads, **options):
        found[name] = curve
        if not arguments.json:
            _show(name, curve)
    if arguments.json:
        keys = ("workload", "links", "messages", "seeds", "replicas", "clock", "skew")
        curves = {name: curve.as_json() for name, curve in found.items()}
        print(json.dumps({key: getattr(arguments, key) for key in keys} | {"protocols": curves}))
    return int(any(curve.strays() for curve in found.values()))


def _show(name: str, curve: Curve) -> None:
    alone, worst = curve.collision_free, curve.failure_free
    print(f"{name}: {alone.leader:g}δ alone, {worst.leader:g}δ at worst at leaders", end="")
    print("" if alone.follower is None else f"; {alone.follower:g}δ and {worst.follower:g}δ at followers")
    columns = f"{'mean':>7} ± {'error':<6}{'p50':>7}{'p99':>7}{'max':>7}"
    print(f"{'rate':>6}  leaders: {columns}   followers: {columns}")
    for point in curve.points:
        below = "" if point.follower is None else _summary(point.follower)
        print(f"{point.rate:>6g}  {'':9}{_summary(point.leader)}   {'':11}{below}".rstrip())
    for stray in curve.strays():
        print(f"OUT OF BOUNDS at {stray}")
    print()


def _summary(it: Summary) -> str:
    return f"{it.mean:>7.3f} ± {it.error:<6.3f}{it.p50:>7.2f}{it.p99:>7.2f}{it.max:>7.2f}"


def _rate(text: str) -> float:
    try:
        return ConvoyLoad(rate=float(text)).rate
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of messages per δ") from None


def _rates(text: str) -> list[float]:
    return [_rate(part.strip()) for part in text.split(",")]


def protocols_of(text: str) -> dict[str, type[Protocol]]:
    """Parse the value of an option: names of protocols, separated by commas."""
    known, names = PROTOCOLS | VARIANTS, [part.strip() for part in text.split(",")]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"unknown protocol {name!r}; choose from {', '.join(known)}")
    return {name: known[name] for name in names}


def _skew(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of δ") from None
