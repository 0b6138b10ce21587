"""The program `wbkv`. Ctrl-C ends it without a traceback, also while it imports what it needs.

It is outside of the package `wbkv`, whose import takes a good part of a second.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130
"""The exit status, as of a program that SIGINT has ended."""


def main() -> int:
    """Run the command. Return the exit status."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))  # `_interruptible` replaces it for a while
    from wbkv.cli.main import main as run

    return run()
