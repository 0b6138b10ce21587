"""Options and output that the client's commands share."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from typing import Any, Final, TypedDict

import wbkv
from wbkv.cli.text import argument, to_json
from wbkv.data import EVERYTHING, Consistency, Entry, KeyRange, between, prefix

ADVICE: Final = "Start one with `wbkv up` (needs wbkv[server]), or pass its address: --endpoints HOST:PORT"
TIMEOUT_S: Final = 10.0
UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
INPUT_MAX: Final = 64 << 20
"""The maximum size of an input: no cluster accepts a larger transaction."""


class Reading(TypedDict):
    """The arguments of every read."""

    revision: int
    consistency: Consistency | None
    timeout: float


class Paging(TypedDict):
    """The arguments that select a part of a scan."""

    after: bytes | None
    limit: int
    reverse: bool


def seconds(text: str) -> float:
    """Parse a time span."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text} must be more than 0 seconds")
    return number


def duration(text: str) -> float:
    """Parse a time span with a unit: 90s, 15m, 12h, 1d."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number with s, m, h or d, such as 90s, 15m, 12h or 1d"
        )
    return float(found[1]) * UNITS_S[found[2]]


def count(text: str) -> int:
    """Parse a number of at least 1."""
    number = revision(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def revision(text: str) -> int:
    """Parse a revision."""
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 10^16 - 1")
    return int(text)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that connects to a cluster."""
    add = parser.add_argument
    add(
        "-e",
        "--endpoints",
        metavar="HOST:PORT,...",
        help="addresses of one or more nodes (default: $WBKV_ENDPOINTS, or 127.0.0.1:7400 to 7402)",
    )
    add("--timeout", type=seconds, default=TIMEOUT_S, metavar="S", help="time limit in seconds (default: 10)")
    add("--json", action="store_true", help="print JSON")


def add_escaped(parser: argparse.ArgumentParser) -> None:
    """Add the option for keys and values with escapes."""
    parser.add_argument(
        "--escaped", action="store_true", help=r"keys and values are written with escapes: \x00 \n \\"
    )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the options for the revision and consistency of a read."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--revision", type=revision, default=0, metavar="R", help="read at this revision")
    which.add_argument(
        "--stale", action="store_true", help="read a past state from any replica (serializable, may be stale)"
    )


def add_range(parser: argparse.ArgumentParser) -> None:
    """Add the options for a range: by its prefix, by its bounds, or all keys."""
    add = parser.add_argument
    add("--prefix", dest="start_of", metavar="PREFIX", help="all keys with this prefix")
    add("--from", dest="start", metavar="KEY", help="inclusive lower bound")
    add("--to", dest="end", metavar="KEY", help="exclusive upper bound")
    add("--all", action="store_true", help="all keys of the store")


def reading(arguments: argparse.Namespace) -> Reading:
    """Return the values of `add_reading`'s options, as arguments of the client."""
    return {
        "revision": arguments.revision,
        "consistency": "serializable" if arguments.stale else None,
        "timeout": arguments.timeout,
    }


def range_of(arguments: argparse.Namespace, beginning: str | None = None) -> KeyRange | None:
    """Return the range that was passed: a prefix, as an argument or by --prefix; by --from and --to; or by
    --all. None if there is none of these.
    """
    start, end, *prefixes = (
        None if text is None else argument(text, escaped=arguments.escaped)
        for text in (arguments.start, arguments.end, arguments.start_of, beginning)
    )
    found = [prefix(start_of) for start_of in prefixes if start_of is not None]
    if start is not None or end is not None:
        found.append(EVERYTHING if start == b"" and end is None else between(start or b"", end))
    if arguments.all:
        found.append(EVERYTHING)
    if len(found) > 1:
        raise ValueError("pass a prefix, or --from and --to, or --all: only one of them")
    return found[0] if found else None


def connect(arguments: argparse.Namespace) -> wbkv.Client[bytes]:
    """Connect to the cluster."""
    try:
        return wbkv.connect(arguments.endpoints, timeout=arguments.timeout)
    except wbkv.Unavailable as error:
        raise wbkv.Unavailable(f"{error} {ADVICE}") from None


def read_input(path: str) -> bytes:
    """Read a file; `-` is the standard input."""
    if path == "-":
        data = sys.stdin.buffer.read(INPUT_MAX + 1)
    else:
        with open(path, "rb") as file:
            data = file.read(INPUT_MAX + 1)
    if len(data) > INPUT_MAX:
        what = "the standard input" if path == "-" else path
        raise ValueError(f"{what} exceeds the limit of {INPUT_MAX >> 20} MiB")
    return data


def print_json(what: Any) -> None:
    """Print one line of JSON."""
    sys.stdout.write(json.dumps(what) + "\n")


def print_result(arguments: argparse.Namespace, found: Any, text: str) -> int:
    """Print what was found as JSON if that was asked for, else the text. Return the status of success."""
    if arguments.json:
        print_json(found)
    else:
        print_line(text)
    return 0


def print_line(text: str) -> None:
    """Print one line of text."""
    sys.stdout.write(text + "\n")


def entry_json(entry: Entry[bytes]) -> dict[str, Any]:
    """Return a key with its value and revisions, for JSON."""
    return {
        "key": to_json(entry.key), "value": to_json(entry.value), "create_revision": entry.create_revision,
        "mod_revision": entry.mod_revision, "version": entry.version,
    }  # fmt: skip
