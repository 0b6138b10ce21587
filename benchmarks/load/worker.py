"""A process of clients: reads its job from standard input, and writes what it measured to standard output.

Lines of JSON: a `Job` comes in, "ready" goes out, then `Begin` comes in, the moment at which all processes
begin, and a `Report` goes out. If the input ends before that, the parent process is gone, and this one ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import uvloop

from benchmarks.load import targets
from benchmarks.load.loops import SWEEP_S, ClosedLoop, Loop, OpenLoop, Send
from benchmarks.load.plan import Plan, chooser
from benchmarks.load.tally import Samples, Tally
from kvstore.config.toml import load_config

READY: Final = b'"ready"\n'


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a process."""

    plan: Plan
    config: str
    """The cluster's file."""
    process: int
    samples: str | None = None
    trace: str | None = None
    """Folders, if there is to be anything in them."""


@dataclass(frozen=True, slots=True)
class Begin:
    """When to begin: a time of the machine's monotonic clock, and what to add to it for the time of day."""

    at: float
    wall_s: float


@dataclass(slots=True)
class Report:
    """What a process has measured."""

    answered: list[int]
    """In each round."""
    latencies: list[dict[str, float]]
    """In each round: see `Histogram.dump`."""
    errors: dict[str, int]
    warm_up_errors: dict[str, int]
    late: int = 0
    """Messages of an open loop that were sent too late."""
    unsent: int = 0
    """Those that were not sent at all, since `clients` were in flight."""


async def work(job: Job, begin: asyncio.Future[Begin], output: BinaryIO) -> Report:
    """Connect, wait for the moment to begin, and run the plan's loops."""
    plan, config = job.plan, load_config(job.config)
    async with contextlib.AsyncExitStack() as stack:
        regions = targets.regions(config) if plan.level == "multicast" else [None]
        lanes: list[tuple[int, Send]] = []
        for lane, region in enumerate(regions):
            if plan.share(job.process, lane, len(regions)) != 0:
                target = targets.target(plan, config, region, f"{plan.seed}/{job.process}/{lane}", job.trace)
                lanes.append((lane, await stack.enter_async_context(target)))
        gc.collect()
        gc.freeze()
        output.write(READY)
        output.flush()
        start = await begin
        samples: Samples | None = None
        if job.samples is not None:
            samples = stack.enter_context(Samples(Path(job.samples), job.process, start.wall_s))
        first = start.at + plan.warm_up_s
        open_ = plan.rate is not None
        tally = Tally(first, plan.seconds, plan.rounds, by_start=open_, samples=samples)
        loops = [loop_of(plan, job.process, lane, len(regions), send, tally) for lane, send in lanes]
        await run(loops, start.at, start.at + plan.end_s, plan.patience_s)
    return Report(
        tally.answered,
        [each.dump() for each in tally.latencies],
        dict(tally.errors),
        dict(tally.warm_up_errors),
        sum(loop.late for loop in loops),
        sum(loop.unsent for loop in loops),
    )


def loop_of(plan: Plan, process: int, lane: int, lanes: int, send: Send, tally: Tally) -> Loop:
    """One lane's share of the load."""
    name = f"{plan.seed}/{process}/{lane}"
    choose = chooser(plan.groups, plan.dest, random.Random(name))
    in_flight = plan.share(process, lane, lanes)
    if plan.rate is None:
        assert in_flight is not None
        ramp_s, patience_s = plan.warm_up_s / 2, plan.patience_s
        return ClosedLoop(send, choose, tally, in_flight=in_flight, ramp_s=ramp_s, patience_s=patience_s)
    return OpenLoop(
        send, choose, tally, rate=plan.rate / (plan.processes * lanes), rng=random.Random(f"{name}/times"),
        in_flight=in_flight, patience_s=plan.patience_s,
    )  # fmt: skip


async def run(loops: list[Loop], begin: float, end: float, patience_s: float) -> None:
    """Run the loops from begin to end, then wait until everything is answered, or for `patience_s`."""
    await asyncio.sleep(begin - time.monotonic())
    for loop in loops:
        loop.start()
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, SWEEP_S))
        for loop in loops:
            loop.sweep()
    for loop in loops:
        loop.stop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await asyncio.gather(*(loop.idle.wait() for loop in loops))
    for loop in loops:
        loop.give_up()


def main() -> None:
    """Run the job that is on standard input."""
    # Without a buffer: a thread that holds one's lock is in the way of the end.
    lines, output = open(0, "rb", buffering=0, closefd=False), sys.stdout.buffer  # noqa: SIM115 - to the end
    job = msgspec.json.decode(lines.readline(), type=Job)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        events = runner.get_loop()
        begin: asyncio.Future[Begin] = events.create_future()

        def listen() -> None:
            line = lines.readline()
            if line:
                events.call_soon_threadsafe(begin.set_result, msgspec.json.decode(line, type=Begin))
                lines.readline()
            os._exit(1)  # the input has ended: the parent process is gone

        threading.Thread(target=listen, daemon=True).start()
        report = runner.run(work(job, begin, output))
    output.write(msgspec.json.encode(report) + b"\n")
    output.flush()
