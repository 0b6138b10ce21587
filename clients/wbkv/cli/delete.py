"""`wbkv del`: remove a key, or all keys of a range."""

from __future__ import annotations

import argparse
import sys

import wbkv
from wbkv.cli import options
from wbkv.cli.text import argument
from wbkv.data import EVERYTHING


class DeleteCommand:
    """Remove keys."""

    help = "remove a key, or all keys of a range, and print how many were removed"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = (
            "A range is removed in one transaction if no partition has more than 10,000 keys of it. "
            "--all asks for confirmation."
        )
        parser.add_argument("key", metavar="KEY", nargs="?", help="the one key to remove")
        options.add_range(parser)
        parser.add_argument("--yes", action="store_true", help="remove --all keys without asking")
        options.add_escaped(parser)
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        keys = options.range_of(arguments)
        if (arguments.key is None) == (keys is None):
            raise ValueError("give a key, or --prefix, or --from and --to, or --all")
        if keys == EVERYTHING and not arguments.all:
            raise ValueError("this range contains all keys: pass --all to remove them all")
        asks = arguments.all and not arguments.yes
        if asks and not (sys.stdin and sys.stdin.isatty()):  # it is None if the descriptor is closed
            raise ValueError("--all removes every key: pass --yes, too, to confirm it. Nothing was deleted")
        with options.connect(arguments) as client:
            if asks:
                _confirm(client)
            target = argument(arguments.key, escaped=arguments.escaped) if keys is None else keys
            deleted = client.delete(target)
        return options.print_result(arguments, {"deleted": deleted}, f"{deleted} deleted")


def _confirm(client: wbkv.Client[bytes]) -> None:
    """Ask on the terminal. Raises `ValueError` unless the answer is yes."""
    name = client.topology().cluster
    sys.stderr.write(f"This removes every key of the cluster {name}. Type yes to go on: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() != "yes":
        raise ValueError("not confirmed. Nothing was deleted")


command = DeleteCommand()
