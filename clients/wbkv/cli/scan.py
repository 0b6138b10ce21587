"""`wbkv scan`: print the keys of a range, in order."""

from __future__ import annotations

import argparse

from wbkv.cli import options, tables
from wbkv.cli.text import argument, escape, to_json
from wbkv.data import EVERYTHING


class ScanCommand:
    """Read a range."""

    help = "print the keys of a range with their values, in order, all as of one revision"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = "With --json, each line is an object for one key."
        add = parser.add_argument
        add("prefix", metavar="PREFIX", nargs="?", help="prefix of the keys (default: all keys)")
        options.add_range(parser)
        add("--limit", type=options.count, default=0, metavar="N", help="maximum number of keys")
        add("--after", metavar="KEY", help="continue behind this key, in the direction of the scan")
        add("--reverse", action="store_true", help="in descending order")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--keys", action="store_true", help="print only the keys")
        how.add_argument("--count", action="store_true", help="print only the number of keys")
        how.add_argument("--long", "-l", action="store_true", help="also print revisions and versions")
        options.add_reading(parser)
        options.add_escaped(parser)
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        keys = options.range_of(arguments, arguments.prefix) or EVERYTHING
        reading = options.reading(arguments)
        after = arguments.after
        if arguments.count and (arguments.limit or arguments.reverse or after is not None):
            raise ValueError("--count counts the whole range: omit --limit, --reverse and --after")
        paging = options.Paging(
            after=None if after is None else argument(after, escaped=arguments.escaped),
            limit=arguments.limit,
            reverse=arguments.reverse,
        )
        with options.connect(arguments) as client:
            if arguments.count:
                number = client.count(keys, **reading)
                return options.print_result(arguments, {"count": number}, str(number))
            if arguments.keys:
                for key in client.keys(keys, **paging, **reading):
                    options.print_json(to_json(key)) if arguments.json else options.print_line(escape(key))
                return 0
            entries = client.scan(keys, **paging, **reading)
            if arguments.json:
                for entry in entries:
                    options.print_json(options.entry_json(entry))
            else:
                tables.show_entries(entries, long=arguments.long)
        return 0


command = ScanCommand()
