"""Progress of a job on the standard error: a line for each step, and how many tasks Spark has done."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

SHOWN_S: Final = 0.5
"""Between two updates on a terminal."""
LOGGED_S: Final = 15.0
"""Between two lines in a file."""


class Step:
    """One step of a job."""

    def __init__(self) -> None:
        self.rows: int | None = None
        """The number of rows handled, if known."""
        self.result = ""
        """A summary of the result, if any."""


@contextmanager
def step(spark: SparkSession, what: str, out: TextIO | None = None) -> Iterator[Step]:
    """Show a step while the block runs, and at its end how long it took.

    The end of a step that fails is not shown: the error follows.
    """
    out = sys.stderr if out is None else out
    ended = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(spark.sparkContext.statusTracker(), what, out, ended), daemon=True
    )
    if not out.isatty():
        say(what, out)
    started = time.monotonic()
    watcher.start()
    found = Step()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()
    say(f"{what}: {summary(found, time.monotonic() - started)}", out)


def say(text: str, out: TextIO | None = None) -> None:
    """Write one line, to the standard error by default."""
    out = sys.stderr if out is None else out
    out.write(f"{text}\n")
    out.flush()


def summary(found: Step, seconds: float) -> str:
    """Return the line for the end of a step."""
    parts = [found.result] if found.result else []
    if found.rows is not None:
        parts.append(f"{found.rows:,} rows")
    text = ", ".join(parts) or "done"
    rate = "" if found.rows is None or seconds <= 0 else f", {found.rows / seconds:,.0f} rows/s"
    return f"{text} in {seconds:.1f} s{rate}"


def tasks(tracker: StatusTracker) -> tuple[int, int]:
    """Return how many tasks of Spark's active jobs are done, and how many there are."""
    done = total = 0
    for job in tracker.getActiveJobsIds():
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            about = tracker.getStageInfo(stage)
            if about is not None:
                done += about.numCompletedTasks
                total += about.numTasks
    return done, total


def _watch(tracker: StatusTracker, what: str, out: TextIO, ended: threading.Event) -> None:
    """Update one line on a terminal; elsewhere write a line from time to time."""
    live = out.isatty()
    last = (0, 0)
    if live:
        out.write(what)
        out.flush()
    while not ended.wait(SHOWN_S if live else LOGGED_S):
        now = tasks(tracker)
        if now == last or not now[1]:
            continue
        last = now
        text = f"{what}: {now[0]} of {now[1]} tasks"
        out.write(f"\r\x1b[K{text}" if live else f"{text}\n")
        out.flush()
    if live:
        out.write("\r\x1b[K")
        out.flush()
