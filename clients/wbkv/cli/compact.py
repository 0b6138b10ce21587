"""`wbkv compact`: let go of old history."""

from __future__ import annotations

import argparse

from wbkv.cli import options


class CompactCommand:
    """Drop what only old reads need."""

    help = "drop history below a revision"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = "Status 1: a snapshot holds an older revision; nothing was dropped."
        parser.add_argument(
            "revision", metavar="REVISION", type=options.count, help="the oldest one that stays readable"
        )
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it."""
        with options.connect(arguments) as client:
            client.compact(arguments.revision)
        if arguments.json:
            options.print_json({"revision": arguments.revision})
        else:
            options.print_line(f"revisions below {arguments.revision} cannot be read any more")
        return 0


command = CompactCommand()
