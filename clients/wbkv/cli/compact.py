"""`wbkv compact`: discard old history."""

from __future__ import annotations

import argparse

from wbkv.cli import options


class CompactCommand:
    """Discard versions that only old reads need."""

    help = "discard history below a revision, or older than some time"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = "Status 1: a snapshot keeps an older revision; nothing was discarded."
        parser.add_argument(
            "revision", metavar="REVISION", nargs="?", type=options.count,
            help="the oldest revision that stays readable",
        )  # fmt: skip
        keep = "keep the history of so long, by the cluster's time: 90s, 15m, 12h, 1d"
        parser.add_argument("--keep", metavar="TIME", type=options.duration, help=keep)
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        if (arguments.revision is None) == (arguments.keep is None):
            raise ValueError("give a revision, or --keep TIME")
        with options.connect(arguments) as client:
            oldest = client.compact(arguments.revision, keep=arguments.keep)
        text = f"revisions below {oldest} are no longer readable"
        return options.print_result(arguments, {"revision": oldest}, text)


command = CompactCommand()
