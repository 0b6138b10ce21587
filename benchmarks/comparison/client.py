"""A process of clients: it connects once, and makes the calls of one task after the other.

Lines of JSON, as in `benchmarks.load.worker`: a `Setup` comes in and "ready" goes out; then for each task a
`Task` comes in, "ready" goes out, `Begin` comes in, and a `Report` goes out. It ends with its input.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import threading
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import msgspec
import uvloop

from benchmarks.comparison.calls import SYSTEMS, Calls
from benchmarks.load.loops import ClosedLoop
from benchmarks.load.tally import Tally
from benchmarks.load.worker import READY, Begin, Report, run

PATIENCE_S = 10.0
"""How long a call may take, also at the end of a task."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process connects to."""

    system: str
    addresses: list[str]
    process: int


@dataclass(frozen=True, slots=True)
class Task:
    """One load: this process keeps so many calls of a row in flight."""

    row: str
    in_flight: int
    warm_up_s: float
    seconds: float


class Lines:
    """Standard input, line by line, for an event loop; its end ends the process."""

    def __init__(self, events: asyncio.AbstractEventLoop) -> None:
        self._came: asyncio.Queue[bytes] = asyncio.Queue()
        # Without a buffer: a thread that holds one's lock is in the way of the end.
        self._input = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - to the end
        self._events = events
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while line := self._input.readline():
            self._events.call_soon_threadsafe(self._came.put_nowait, line)
        os._exit(0)

    async def next(self, kind: type[T]) -> T:
        """Return the next line's content."""
        return msgspec.json.decode(await self._came.get(), type=kind)


async def serve(lines: Lines, output: BinaryIO) -> None:
    """Connect, then carry out tasks until the input ends."""
    setup = await lines.next(Setup)
    rng = random.Random(f"{setup.system}/{setup.process}")
    calls = SYSTEMS[setup.system](setup.addresses, rng)
    await calls.open()
    if setup.process == 0:
        await calls.preload()
    gc.collect()
    gc.freeze()
    say(output, READY)
    while True:
        task = await lines.next(Task)
        say(output, READY)
        begin = await lines.next(Begin)
        say(output, msgspec.json.encode(await work(calls, task, begin.at)) + b"\n")


async def work(calls: Calls, task: Task, at: float) -> Report:
    """Carry out a task that begins at `at`."""
    tally = Tally(at + task.warm_up_s, task.seconds, 1, by_start=False)
    call = calls.row(task.row)
    events = asyncio.get_running_loop()

    async def once() -> None:
        await call()

    loop = ClosedLoop(
        lambda _: events.create_task(once()), tuple, tally,
        in_flight=task.in_flight, ramp_s=task.warm_up_s / 2, patience_s=PATIENCE_S,
    )  # fmt: skip
    await run([loop], at, at + task.warm_up_s + task.seconds, PATIENCE_S)
    latencies = [each.dump() for each in tally.latencies]
    return Report(tally.answered, latencies, dict(tally.errors), dict(tally.warm_up_errors))


def say(output: BinaryIO, line: bytes) -> None:
    """Write a line."""
    output.write(line)
    output.flush()


def main() -> None:
    """Serve the parent process."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Lines(runner.get_loop()), sys.stdout.buffer))
