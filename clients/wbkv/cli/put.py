"""`wbkv put`: write a key."""

from __future__ import annotations

import argparse

from wbkv.cli import options
from wbkv.cli.text import argument


class PutCommand:
    """Write a key."""

    help = "write a key, and print the revision"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("key", metavar="KEY")
        parser.add_argument("value", metavar="VALUE", nargs="?", help="the value; - reads the standard input")
        parser.add_argument("--file", metavar="FILE", help="read the value from a file")
        options.add_escaped(parser)
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        if (arguments.value is None) == (arguments.file is None):
            raise ValueError("give a value, or - to read it from the standard input, or --file FILE")
        key = argument(arguments.key, escaped=arguments.escaped)
        if arguments.value in (None, "-"):
            value = options.read_input("-" if arguments.file is None else arguments.file)
        else:
            value = argument(arguments.value, escaped=arguments.escaped)
        with options.connect(arguments) as client:
            revision = client.put(key, value)
        return options.print_result(arguments, {"revision": revision}, f"revision {revision}")


command = PutCommand()
