"""`wbkv del`: remove a key, or all keys of a range."""

from __future__ import annotations

import argparse

from wbkv.cli import options
from wbkv.cli.text import argument
from wbkv.data import EVERYTHING


class DeleteCommand:
    """Remove keys."""

    help = "remove a key, or all keys of a range, and print how many were removed"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = "All keys of a range are removed in one transaction."
        parser.add_argument("key", metavar="KEY", nargs="?")
        parser.add_argument("--prefix", metavar="PREFIX", help="all keys with this prefix")
        parser.add_argument("--all", action="store_true", help="all keys of the store")
        options.add_range(parser)
        options.add_escaped(parser)
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        keys = EVERYTHING if arguments.all else options.range_of(arguments, arguments.prefix)
        if (arguments.key is None) == (keys is None):
            raise ValueError("give a key, or --prefix, or --from and --to, or --all")
        if keys == EVERYTHING and not arguments.all:
            raise ValueError("this range contains all keys: pass --all to remove them all")
        with options.connect(arguments) as client:
            target = argument(arguments.key, escaped=arguments.escaped) if keys is None else keys
            deleted = client.delete(target)
        return options.print_result(arguments, {"deleted": deleted}, f"{deleted} deleted")


command = DeleteCommand()
