"""`wbkv watch`: print changes, transaction by transaction."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from wbkv.cli import options
from wbkv.cli.text import argument, escape, to_json
from wbkv.data import EVERYTHING, Change, Event, KeyRange, prefix


class WatchCommand:
    """Follow changes until Ctrl-C."""

    help = "print every change of keys, as it happens"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = (
            "Every transaction once, whole, in the order of revisions, until Ctrl-C (status 130) or --limit. "
            "With --json, each line is an object for one transaction. "
            "Status 5: history after that revision was compacted; scan, and watch after the scan's revision."
        )
        add = parser.add_argument
        add("prefix", metavar="PREFIX", nargs="*", help="prefix of the keys (default: all keys)")
        options.add_range(parser)
        after = "print all changes above this revision (default: from now on)"
        add("--after", type=options.revision, metavar="R", help=after)
        add("--limit", type=options.count, metavar="N", help="end after this number of transactions")
        options.add_escaped(parser)
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        ranges = _ranges(arguments)
        with options.connect(arguments) as client, client.watch(*ranges, after=arguments.after) as changes:
            sys.stderr.write(f"watching after revision {changes.revision}\n")
            sys.stderr.flush()
            for number, change in enumerate(changes, 1):
                if arguments.json:
                    options.print_json(_json(change))
                else:
                    for event in change.events:
                        options.print_line(_line(change.revision, event))
                sys.stdout.flush()
                if number == arguments.limit:
                    break
        return 0


def _ranges(arguments: argparse.Namespace) -> list[KeyRange]:
    prefixes = [prefix(argument(text, escaped=arguments.escaped)) for text in arguments.prefix]
    interval = options.range_of(arguments)
    return [*prefixes, *([] if interval is None else [interval])] or [EVERYTHING]


def _json(change: Change[bytes]) -> dict[str, Any]:
    events = [
        {
            "key": to_json(event.key), "value": None if event.value is None else to_json(event.value),
            "create_revision": event.create_revision, "version": event.version,
        }
        for event in change.events
    ]  # fmt: skip
    return {"revision": change.revision, "events": events}


def _line(revision: int, event: Event[bytes]) -> str:
    if event.value is None:
        return f"{revision}  del  {escape(event.key)}"
    return f"{revision}  put  {escape(event.key)}  {escape(event.value)}"


command = WatchCommand()
