"""`wbkv completion`: print a completion script for a shell."""

from __future__ import annotations

import argparse
from typing import Final

from wbkv.cli import options

SHELLS: Final = ("bash", "fish", "zsh")


class CompletionCommand:
    """Print a completion script."""

    help = "print a script by which a shell completes commands and options"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = (
            "The script has the commands that are installed now:\n"
            "  bash  wbkv completion bash > ~/.local/share/bash-completion/completions/wbkv\n"
            "  zsh   wbkv completion zsh > ~/.zfunc/_wbkv       (a folder of $fpath)\n"
            "  fish  wbkv completion fish > ~/.config/fish/completions/wbkv.fish"
        )
        parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        try:
            import shtab
        except ModuleNotFoundError:
            raise ValueError("this needs the package shtab: pip install 'wbkv[cli]'") from None
        from wbkv.cli.main import full_parser

        options.print_line(shtab.complete(full_parser(), arguments.shell))
        return 0


command = CompletionCommand()
