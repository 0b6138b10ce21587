"""`wbkv compact`: discard old history."""

from __future__ import annotations

import argparse

from wbkv.cli import options


class CompactCommand:
    """Discard versions that only old reads need."""

    help = "discard history below a revision"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = "Status 1: a snapshot keeps an older revision; nothing was discarded."
        parser.add_argument(
            "revision", metavar="REVISION", type=options.count, help="the oldest revision that stays readable"
        )
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        with options.connect(arguments) as client:
            client.compact(arguments.revision)
        oldest = arguments.revision
        text = f"revisions below {oldest} are no longer readable"
        return options.print_result(arguments, {"revision": oldest}, text)


command = CompactCommand()
