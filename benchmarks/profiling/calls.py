"""Note the calls of a client process: see `events`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.profiling.dumps import dump_on_signal
from benchmarks.profiling.events import Events


def watch(folder: Path) -> None:
    """Note the calls of this client process, and write them into the folder on request."""
    events = Events()
    events.hook_calls()
    dump_on_signal(folder, events.take)
