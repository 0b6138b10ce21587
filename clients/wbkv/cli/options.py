"""What the client's commands have in common: where the cluster is, and how to print."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any, Final, TypedDict

import wbkv
from wbkv.cli.text import argument, to_json
from wbkv.data import EVERYTHING, Consistency, Entry, KeyRange, between, prefix

ADVICE: Final = "Start one with `wbkv up` (needs wbkv[server]), or say where it is: --endpoints HOST:PORT"
TIMEOUT_S: Final = 10.0
INPUT_MAX: Final = 64 << 20
"""The most that is read from a file or the standard input: no cluster takes more in a transaction."""


class Reading(TypedDict):
    """Of every read of the client's."""

    revision: int
    consistency: Consistency | None
    timeout: float


def seconds(text: str) -> float:
    """Parse a time span."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text} must be more than 0 seconds")
    return number


def count(text: str) -> int:
    """Parse a number of things, at least one."""
    number = revision(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def revision(text: str) -> int:
    """Parse a revision."""
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return int(text)


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options of every command that speaks to a cluster."""
    add = parser.add_argument
    add(
        "-e",
        "--endpoints",
        metavar="HOST:PORT,...",
        help="where the cluster is: any of its nodes ($WBKV_ENDPOINTS, or 127.0.0.1:7400 to 7402)",
    )
    add("--timeout", type=seconds, default=TIMEOUT_S, metavar="S", help="how long to try (10 seconds)")
    add("--json", action="store_true", help="for programs")


def add_escaped(parser: argparse.ArgumentParser) -> None:
    r"""Whether keys and values are written with escapes."""
    parser.add_argument(
        "--escaped", action="store_true", help=r"keys and values are written with escapes: \x00 \n \\"
    )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """How up to date a read must be."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--revision", type=revision, default=0, metavar="R", help="as of this revision: a snapshot's, say"
    )
    which.add_argument(
        "--stale",
        action="store_true",
        help="a state that existed, maybe a while ago: from a node that is near",
    )


def add_range(parser: argparse.ArgumentParser) -> None:
    """Keys from one up to another, beside a prefix."""
    parser.add_argument("--from", dest="start", metavar="KEY", help="the first key")
    parser.add_argument("--to", dest="end", metavar="KEY", help="the first key that is not in it any more")


def reading(arguments: argparse.Namespace) -> Reading:
    """What `add_reading` has found, as the client takes it."""
    return {
        "revision": arguments.revision,
        "consistency": "serializable" if arguments.stale else None,
        "timeout": arguments.timeout,
    }


def range_of(arguments: argparse.Namespace, beginning: str | None) -> KeyRange | None:
    """The range that was asked for, by its beginning or by --from and --to; None: neither."""
    start, end = (
        None if text is None else argument(text, escaped=arguments.escaped)
        for text in (arguments.start, arguments.end)
    )
    if start is None and end is None:
        return None if beginning is None else prefix(argument(beginning, escaped=arguments.escaped))
    if beginning is not None:
        raise ValueError("give a prefix, or --from and --to")
    return EVERYTHING if start == b"" and end is None else between(start or b"", end)


def connect(arguments: argparse.Namespace) -> wbkv.Client[bytes]:
    """A client of the cluster that was asked for."""
    try:
        return wbkv.connect(arguments.endpoints, timeout=arguments.timeout)
    except wbkv.Unavailable as error:
        raise wbkv.Unavailable(f"{error} {ADVICE}") from None


def read_input(path: str) -> bytes:
    """A file's bytes; of `-`, those of the standard input."""
    if path == "-":
        data = sys.stdin.buffer.read(INPUT_MAX + 1)
    else:
        with open(path, "rb") as file:
            data = file.read(INPUT_MAX + 1)
    if len(data) > INPUT_MAX:
        what = "the standard input" if path == "-" else path
        raise ValueError(f"{what} is larger than {INPUT_MAX >> 20} MiB")
    return data


def print_json(what: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(what) + "\n")


def print_line(text: str) -> None:
    """One line for people."""
    sys.stdout.write(text + "\n")


def entry_json(entry: Entry[bytes]) -> dict[str, Any]:
    """A key and all that is known of it."""
    return {
        "key": to_json(entry.key),
        "value": to_json(entry.value),
        "create_revision": entry.create_revision,
        "mod_revision": entry.mod_revision,
        "version": entry.version,
    }
