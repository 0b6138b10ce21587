"""`make performance`: runs all benchmarks, a process each, and makes docs/performance.md of their results.

A benchmark that fails or takes too long keeps its former result, and the others go on. One that has a result
of this very commit, machine and command is not run again, so that an interrupted run goes on where it was.
The status is 1 if a benchmark failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from benchmarks import page
from benchmarks.record import ROOT, Machine, commit, read_all

GRACE_S: Final = 20.0
"""For a benchmark that is interrupted, to end its clusters."""


class Entry(NamedTuple):
    """A benchmark of the suite: its module, how long it may take, and whether `--long` asks for it."""

    name: str
    timeout_s: float
    long: bool = False


SUITE: Final = (
    Entry("cluster", 400.0),
    Entry("availability", 400.0),
    Entry("scan", 200.0),
    Entry("compaction", 400.0),
    Entry("watchers", 200.0),
    Entry("far_votes", 200.0),
    Entry("hot_key", 120.0),
    Entry("embedded_cost", 120.0),
    Entry("command_start", 120.0),
    Entry("store_cost", 200.0),
    Entry("store_path", 60.0),
    Entry("profile", 400.0),
    Entry("storage_cost", 200.0),
    Entry("multicast", 200.0),
    Entry("node_cost", 300.0),
    Entry("wire_cost", 60.0),
    Entry("core_cost", 200.0),
    Entry("simulator_speed", 120.0),
    Entry("checker_speed", 200.0),
    Entry("etcd", 1800.0, long=True),
    Entry("attacks", 3600.0, long=True),
    Entry("growth", 7200.0, long=True),
    Entry("spark_source", 1200.0, long=True),
    Entry("verify_speed", 1800.0, long=True),
)


def is_done(name: str, *, quick: bool) -> bool:
    """Whether there is a result of this commit, machine and command."""
    found = read_all().get(name)
    command = f"python -m benchmarks.{name}{' --quick' if quick else ''}"
    return found is not None and (found.command, found.commit, found.machine) == (
        command, commit(), Machine.here(),
    )  # fmt: skip


def run(entry: Entry, *, quick: bool) -> str | None:
    """Run one benchmark. Why it failed; None if it did not."""
    command = [sys.executable, "-m", f"benchmarks.{entry.name}", "--write", *["--quick"] * quick]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:  # noqa: S603 - our own
        try:
            status = process.wait(entry.timeout_s)
        except BaseException as error:
            end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                return f"took longer than {entry.timeout_s:g} s"
            raise
    return None if status == 0 else f"ended with status {status}"


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a benchmark, and kill it with all its processes if that does not end it."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    add = parser.add_argument
    names = [entry.name for entry in SUITE]
    add("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (all but the long ones)")
    add(
        "--long",
        action="store_true",
        help="the long ones, which need Java, etcd and gigabytes of memory",
    )
    add("--quick", action="store_true", help="small sizes: a trial, not a measurement")
    add("--again", action="store_true", help="run also what this commit has a result of")
    asked = parser.parse_args(argv)
    if unknown := set(asked.names) - set(names):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
    # A handler is reset to the default in children, while an ignored signal stays ignored, as in a
    # background job of a script: benchmarks must end when they are interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    failed = []
    for entry in SUITE:
        if entry.name not in asked.names if asked.names else entry.long != asked.long:
            continue
        if not asked.again and is_done(entry.name, quick=asked.quick):
            print(f"== {entry.name}: has a result of this commit; --again measures it anew", flush=True)
            continue
        print(f"== {entry.name}", flush=True)
        began = time.monotonic()
        if why := run(entry, quick=asked.quick):
            failed.append(f"{entry.name} {why}")
        print(f"   {why or 'done'} ({time.monotonic() - began:.0f} s)", flush=True)
    page.write()
    print(*(f"FAILED: {each}" for each in failed), "docs/performance.md is written", sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
