"""`wbkv help`: describe the command, or a subcommand."""

from __future__ import annotations

import argparse


class HelpCommand:
    """Print what `--help` prints."""

    help = "list all commands, or describe one"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        about = "the command (default: all commands)"
        parser.add_argument("command", metavar="COMMAND", nargs="*", help=about)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        from wbkv.cli.main import main

        return main([*arguments.command, "--help"])


command = HelpCommand()
