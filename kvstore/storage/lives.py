"""How many lives of a node in a row have ended badly, soon after their start.

LMDB trusts its pages: a damaged one may end the process, by an assertion or a signal, at the read that finds
it, and again in the next life. So a node that has died several times in a row has its environments checked in
another process before it opens them. The count is in a file beside them. It need not survive the machine: a
process that dies leaves what it has written. A process that was ended from outside has not died of its pages:
a caller that knows this does not count it (`forgive`).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from kvstore.config.private import open_private

FILE: Final = "lives"

DEATHS: Final = 2
"""Lives that must have ended badly before the environments are checked."""

SETTLED_S: Final = 60.0
"""A life that has lasted so long has not died of what it reads at its start."""


def begin(path: Path) -> int:
    """Note the beginning of a life; return how many before it have ended badly in a row."""
    deaths = _read(path)
    _write(path, deaths + 1)
    return deaths


def is_check_due(deaths: int) -> bool:
    """Whether environments are to be checked: at the second death, and ever more rarely after that."""
    return deaths >= DEATHS and deaths & (deaths - 1) == 0


def settle(path: Path) -> None:
    """Note that this life goes well, or has ended well."""
    if _read(path):
        _write(path, 0)


def forgive(path: Path) -> None:
    """Do not count the last life, which was ended from outside. Call this before `begin`."""
    if deaths := _read(path):
        _write(path, deaths - 1)


def suspect(path: Path) -> None:
    """Let the next life begin with a check: this one ends because LMDB could not read its pages."""
    _write(path, DEATHS)


def _read(path: Path) -> int:
    try:
        return max(0, int((path / FILE).read_bytes()[:20]))
    except (OSError, ValueError):
        return 0


def _write(path: Path, deaths: int) -> None:
    # Without space the count is not kept. The node starts all the same, unless its disk is damaged, too.
    with (
        contextlib.suppress(OSError),
        open(open_private(path / FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file,
    ):
        file.write(b"%d" % deaths)
