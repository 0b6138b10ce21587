"""`wbkv clock`: show what groups know of the time of day, and confirm a time that they do not believe."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.config.toml import load_config


class ClockCommand:
    """Show clocks, or accept the time that a quorum of clocks shows."""

    help = "show the groups' time, or accept the time of day after a long stop"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to the parser."""
        parser.description = (
            "Revisions follow the time of day that a quorum of a group's clocks has reached. If that is more "
            "than a month (timing.clock_step_s) ahead of what the group has seen, because it was stopped for "
            "so long or because most clocks are wrong, the group goes on without the time of day. Check the "
            "clocks, and then run `wbkv clock accept --config FILE` on every machine of the cluster."
        )
        kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
        shown = kinds.add_parser("show", help="show the time of each group that a node of this machine leads")
        shown.add_argument("--json", action="store_true", help="print one JSON object")
        accept = kinds.add_parser("accept", help="let the groups led on this machine follow the time of day")
        for each in (shown, accept):
            each.add_argument("--config", type=Path, required=True, metavar="FILE", help="the configuration")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return its exit status."""
        config = load_config(arguments.config)
        if arguments.what == "accept":
            return _accept(config)
        found = {group: row for _, group, row in _led(config)}
        if arguments.json:
            print(json.dumps({"groups": [{"id": int(group), **row} for group, row in sorted(found.items())]}))
            return 0
        for group, row in sorted(found.items(), key=lambda each: int(each[0])):
            state = "held back: see `wbkv clock --help`" if row["held"] else "follows the time of day"
            wrong = "".join(f"; {member} is {by_s:+.1f} s off" for member, by_s in row["wrong"].items())
            print(f"group {group}: {state}{wrong}")
        return 0


def _answers(
    config: Config, request: Mapping[str, Any] | None = None
) -> Iterator[tuple[NodeId, dict[str, Any]]]:
    """The answers of the nodes that run on this machine."""
    from kvstore.local.status import ask  # loads what other subcommands do without

    answered = False
    for node in config.nodes:
        answer = ask(config.status_socket(node), request=request)
        if answer is not None:
            answered = True
            yield node, answer
    if not answered:
        sys.stderr.write("wbkv clock: no node of this configuration runs on this machine\n")


def _led(config: Config) -> Iterator[tuple[NodeId, str, dict[str, Any]]]:
    for node, answer in _answers(config):
        for group, about in answer.get("groups", {}).items():
            if about.get("time"):
                yield node, group, about["time"]


def _accept(config: Config) -> int:
    status = 1
    for node, answer in _answers(config, {"accept_time": True}):
        status = 0
        groups = answer.get("groups", [])
        which = f"groups {', '.join(map(str, groups))}" if groups else "no group that is held back"
        print(f"{node} leads {which}" + ("; they follow the time of day now" if groups else ""))
    return status


command = ClockCommand()
