"""The `wbkv` command, assembled from what is installed.

Each subcommand is an entry point of the group `wbkv.commands`. One whose packages are missing is not
offered: a client-only install has the client's commands, the server's install adds its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from typing import Protocol


class Command(Protocol):
    """What an entry point must load: a subcommand's help, its arguments, and what it does."""

    help: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; the result is the exit status."""


def installed() -> dict[str, Command]:
    """The subcommands whose packages are installed, by name."""
    found: dict[str, Command] = {}
    for entry in sorted(entry_points(group="wbkv.commands"), key=lambda entry: entry.name):
        try:
            found[entry.name] = entry.load()
        except ModuleNotFoundError:
            continue
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand. Status 2 for bad usage, 130 for Ctrl-C, else the subcommand's own."""
    parser = argparse.ArgumentParser(
        prog="wbkv", description="A partitioned key-value store on atomic multicast."
    )
    parser.add_argument("--version", action="version", version=f"wbkv {version('wbkv')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in installed().items():
        sub = commands.add_parser(name, help=command.help, description=command.help)
        command.configure(sub)
        sub.set_defaults(run=command.run)
    arguments = parser.parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except ValueError as error:
        # Everything here that refuses an argument says which and why.
        return _complain(arguments.command, error)
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(arguments.command, error)
    except KeyboardInterrupt:
        return 130
    return status


def _complain(name: str, error: Exception) -> int:
    sys.stderr.write(f"wbkv {name}: {error}\n")
    return 2
