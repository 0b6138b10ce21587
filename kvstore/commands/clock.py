"""`wbkv clock`: show what groups know of the time of day, and confirm a time that they do not believe."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvstore.commands.groups import GroupsCommand
from kvstore.config.addresses import NodeId
from kvstore.config.model import Config


class ClockCommand(GroupsCommand):
    """Show clocks, or accept the time that a quorum of clocks shows."""

    help = "show the groups' time, or accept the time of day after a long stop"
    name = "clock"
    description = (
        "Revisions follow the time of day that a quorum of a group's clocks has reached. If that is more "
        "than a month (timing.clock_step_s) ahead of what the group has seen, because it was stopped for "
        "so long or because most clocks are wrong, the group goes on without the time of day. Check the "
        "clocks, and then run `wbkv clock accept --config FILE` on every machine of the cluster."
    )
    show = ("show", "show the time of each group that a node of this machine leads")
    change = ("accept", "let the groups led on this machine follow the time of day")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing: `accept` has no other arguments."""

    def rows(self, config: Config) -> Sequence[dict[str, Any]]:
        """Return what the leaders on this machine know of the time."""
        found = {int(group): row for group, row in _led(config)}
        return [{"id": group, **row} for group, row in found.items()]

    def line(self, row: dict[str, Any]) -> str:
        """Return whether a group follows the time of day, and which clocks are wrong."""
        state = "held back: see `wbkv clock --help`" if row["held"] else "follows the time of day"
        wrong = "".join(f"; {member} is {by_s:+.1f} s off" for member, by_s in row["wrong"].items())
        return f": {state}{wrong}"

    def carry_out(self, config: Config, arguments: argparse.Namespace) -> int:
        """Accept the time of day."""
        for node, answer in _answers(config, {"accept_time": True}):
            groups = answer.get("groups", [])
            which = f"groups {', '.join(map(str, groups))}" if groups else "no group that is held back"
            print(f"{node} leads {which}" + ("; they follow the time of day now" if groups else ""))
        return 0


def _answers(
    config: Config, request: Mapping[str, Any] | None = None
) -> Iterator[tuple[NodeId, dict[str, Any]]]:
    """The answers of the nodes that run on this machine. Raises `OSError` if none does."""
    from kvstore.local.status import ask  # loads what other subcommands do without

    answered = False
    for node in config.nodes:
        answer = ask(config.status_socket(node), request=request)
        if answer is not None:
            answered = True
            yield node, answer
    if not answered:
        raise OSError("no node of this configuration runs on this machine; start one with `wbkv serve`")


def _led(config: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    for _, answer in _answers(config):
        for group, about in answer.get("groups", {}).items():
            if about.get("time"):
                yield group, about["time"]


command = ClockCommand()
