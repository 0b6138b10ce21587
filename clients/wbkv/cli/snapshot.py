"""`wbkv snapshot`: keep a revision of the whole store readable for a while."""

from __future__ import annotations

import argparse
from typing import Final

from wbkv.cli import options

TTL_S: Final = 60.0


class SnapshotCommand:
    """Take or release a snapshot."""

    help = "take a snapshot, and print the revision to read it at"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = (
            "It ends after --ttl. Read it with --revision: wbkv get KEY --revision R, wbkv scan --revision R."
        )
        add = parser.add_argument
        ttl = "how long it stays readable, in seconds (default: 60)"
        add("--ttl", type=options.seconds, default=TTL_S, metavar="S", help=ttl)
        release = "end the snapshot of this name instead; a rejected compact names it"
        add("--release", metavar="NAME", help=release)
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command. The snapshot outlives it: it is not closed here."""
        with options.connect(arguments) as client:
            if arguments.release:
                client.release(arguments.release)
                return 0
            revision = client.snapshot(ttl=arguments.ttl).revision
        found = {"revision": revision, "ttl": arguments.ttl}
        return options.print_result(arguments, found, f"revision {revision}")


command = SnapshotCommand()
