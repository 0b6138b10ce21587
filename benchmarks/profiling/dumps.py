"""Ask a process for what it has found so far: a signal goes to it, and it writes a file.

The handler runs in the main thread, between two bytecodes; in an idle process uvloop wakes up for it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.load import LoadError

SIGNAL: Final = signal.SIGUSR2
WAIT_S: Final = 10.0


def dump_on_signal(folder: Path, found: Callable[[], object]) -> None:
    """Write what `found` returns into the folder whenever the signal arrives, each time into a new file."""
    number = 0

    def dump(*_: object) -> None:
        nonlocal number
        path = _path(folder, os.getpid(), number)
        number += 1
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(found()))
        new.replace(path)

    signal.signal(SIGNAL, dump)


def _path(folder: Path, pid: int, number: int) -> Path:
    return folder / f"{pid}-{number}.json"


class Dumps:
    """The files of several processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: dict[int, int] = {}

    def collect(self, pids: Iterable[int]) -> dict[int, Any]:
        """Return what each process has found so far. Raises `LoadError` if one does not answer."""
        wanted = {pid: _path(self._folder, pid, self._numbers.get(pid, 0)) for pid in pids}
        for pid in wanted:
            os.kill(pid, SIGNAL)
            self._numbers[pid] = self._numbers.get(pid, 0) + 1
        deadline = time.monotonic() + WAIT_S
        while not all(path.exists() for path in wanted.values()):
            if time.monotonic() > deadline:
                raise LoadError(f"a process does not say what it has found after {WAIT_S:g} s")
            time.sleep(0.001)
        return {pid: msgspec.json.decode(path.read_bytes()) for pid, path in wanted.items()}
