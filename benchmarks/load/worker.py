"""A process of clients. It is told on its standard input what to do, and says on its output what came of it.

Lines of JSON: a `Job` comes in, "ready" goes out, then the moment comes in at which all processes begin, and
a `Report` goes out. When the input ends before that, whoever started this process is gone, and it ends, too.
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
    """What a process is to do."""

    plan: Plan
    config: str
    """The cluster's file."""
    process: int
    samples: str | None = None
    trace: str | None = None
    """Folders, if there is to be anything in them."""


@dataclass(frozen=True, slots=True)
class Begin:
    """When: a time of the machine's monotonic clock, and what to add to that for the time of day."""

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
    """Those that were not sent at all, for want of room."""


async def work(job: Job, begin: asyncio.Future[Begin], output: BinaryIO) -> Report:
    """Connect, wait for the others, and do it."""
    plan, config = job.plan, load_config(job.config)
    async with contextlib.AsyncExitStack() as stack:
        places = targets.places(config) if plan.level == "multicast" else [None]
        lanes: list[tuple[int, Send]] = []
        for lane, place in enumerate(places):
            if plan.share(job.process, lane, len(places)) != 0:
                target = targets.target(plan, config, place, f"{plan.seed}/{job.process}/{lane}", job.trace)
                lanes.append((lane, await stack.enter_async_context(target)))
        gc.collect()
        gc.freeze()
        output.write(READY)
        output.flush()
        told = await begin
        samples: Samples | None = None
        if job.samples is not None:
            samples = stack.enter_context(Samples(Path(job.samples), job.process, told.wall_s))
        first = told.at + plan.warm_up_s
        open_ = plan.rate is not None
        tally = Tally(first, plan.seconds, plan.rounds, by_start=open_, samples=samples)
        loops = [loop_of(plan, job.process, lane, len(places), send, tally) for lane, send in lanes]
        await run(loops, told.at, told.at + plan.end_s, plan.patience_s)
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
    """From beginning to end, and then until everything is answered or nobody waits any more."""
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
    """Do what is asked for on the standard input."""
    # Without a buffer: a thread that holds one's lock is in the way of the end.
    lines, output = open(0, "rb", buffering=0, closefd=False), sys.stdout.buffer  # noqa: SIM115 - to the end
    job = msgspec.json.decode(lines.readline(), type=Job)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        events = runner.get_loop()
        begin: asyncio.Future[Begin] = events.create_future()

        def listen() -> None:
            line = lines.readline()
            if line:
                told = msgspec.json.decode(line, type=Begin)
                events.call_soon_threadsafe(begin.set_result, told)
                lines.readline()
            os._exit(1)  # the input has ended, and with it whoever would read what we say

        threading.Thread(target=listen, daemon=True).start()
        report = runner.run(work(job, begin, output))
    output.write(msgspec.json.encode(report) + b"\n")
    output.flush()
