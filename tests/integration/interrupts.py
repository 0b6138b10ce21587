"""Commands as the background of a script starts them (`command &`): with SIGINT ignored."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

IGNORING_SIGINT: Final = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")
"""Stands before a command."""


def children_that_ignore_sigint(pid: int) -> int:
    """The number of child processes that leave SIGINT to their parent."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(bool(int(ignored(child), 16) & 0b10) for child in found)


def ignored(pid: str) -> str:
    """The signals that a process ignores, as a hexadecimal mask."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("SigIgn:"))


def until(holds: Callable[[], object], timeout_s: float) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
