"""The frame of commands on a cluster's groups: a subcommand shows each group, another changes something."""

from __future__ import annotations

import argparse
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvstore.config.model import Config
from kvstore.config.toml import load_config


class GroupsCommand(ABC):
    """A command with two subcommands, which both have the cluster's configuration as an argument."""

    help: str
    name: str
    description: str
    show: tuple[str, str]
    """The name of the subcommand that shows the groups, and its help."""
    change: tuple[str, str]
    """The same of the one that changes something."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to the parser."""
        parser.description = self.description
        kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
        shown, changed = (kinds.add_parser(name, help=about) for name, about in (self.show, self.change))
        shown.add_argument("--json", action="store_true", help="print one JSON object")
        self.add_arguments(changed)
        for each in (shown, changed):
            each.add_argument("--config", type=Path, required=True, metavar="FILE", help="the configuration")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return its exit status."""
        config = load_config(arguments.config)
        try:
            if arguments.what != self.show[0]:
                return self.carry_out(config, arguments)
            rows = sorted(self.rows(config), key=lambda row: row["id"])
        except (OSError, TimeoutError) as error:
            sys.stderr.write(f"wbkv {self.name}: {error}\n")
            return 1
        if arguments.json:
            print(json.dumps({"groups": rows}))
        else:
            for row in rows:
                print(f"group {row['id']}{self.line(row)}")
        return 0

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the subcommand that changes something, but for the configuration."""

    @abstractmethod
    def rows(self, config: Config) -> Sequence[dict[str, Any]]:
        """Return what is shown of each group, as JSON has it. `id` is the group's."""

    @abstractmethod
    def line(self, row: dict[str, Any]) -> str:
        """Return a row as text, after the name of the group."""

    @abstractmethod
    def carry_out(self, config: Config, arguments: argparse.Namespace) -> int:
        """Change something; return the exit status."""
