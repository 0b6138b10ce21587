"""`wbkv get`: print a key's value."""

from __future__ import annotations

import argparse
import sys

from wbkv.cli import options, tables
from wbkv.cli.text import argument, escape, shown, to_json


class GetCommand:
    """Read a key."""

    help = "print a key's value"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = "Status 1: the key is absent. A value that is not text is printed with escapes."
        parser.add_argument("key", metavar="KEY")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--raw", action="store_true", help="print only the value's bytes")
        how.add_argument("--long", "-l", action="store_true", help="also print revisions and version")
        options.add_reading(parser)
        options.add_escaped(parser)
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        key = argument(arguments.key, escaped=arguments.escaped)
        with options.connect(arguments) as client:
            entry = client.entry(key, **options.reading(arguments))
        if entry is None:
            if arguments.json:
                options.print_json({"key": to_json(key), "value": None})
            else:
                sys.stderr.write(f"wbkv get: there is no key {escape(key)}\n")
            return 1
        if arguments.raw:
            sys.stdout.buffer.write(entry.value)
        elif arguments.json:
            options.print_json(options.entry_json(entry))
        elif arguments.long:
            tables.show_entries([entry], long=True)
        else:
            options.print_line(shown(entry.value))
        return 0


command = GetCommand()
