"""Make a history for `wbkv check`: random transactions against a real cluster, from several processes.

    python -m benchmarks.record_history --seconds 10 --model list-append --out run.jsonl

Every process has threads and tasks, which use all the ways there are to make a transaction. With `--kill`,
one node after the other is killed and started again meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import itertools
import json
import multiprocessing
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import wbkv
from wbkv.record.history import Model

KINDS = ("single", "txn", "conditional", "interactive", "transactional")
KEYS = 32
"""In use at a time."""
PERIOD_S = 1.0
"""After this, others are used: lists that only grow would make histories of nothing but reads."""
OPERATIONS = 4
WORKERS_MAX = 1 << 16
READY_S = 30.0
"""How long a cluster whose nodes are being killed may not be found."""


class Step(NamedTuple):
    """A read, or a write of something that nobody else writes."""

    key: str
    value: bytes | None
    """None: a read."""


class Worker:
    """One thread's or task's choices."""

    def __init__(self, model: Model, number: int, seed: int) -> None:
        self.lists = model == "list-append"
        self._rng = random.Random(f"{seed}/{number}")
        self._numbers = itertools.count(number, WORKERS_MAX)
        self.ended = 0
        self.failed = 0

    def kind(self) -> str:
        return self._rng.choice(KINDS)

    def steps(self) -> list[Step]:
        period = int(time.monotonic() / PERIOD_S)
        return [self._step(period) for _ in range(self._rng.randint(1, OPERATIONS))]

    def _step(self, period: int) -> Step:
        key = f"{'l' if self.lists else 'r'}{period}/{self._rng.randrange(KEYS)}"
        if self._rng.random() < 0.5:
            return Step(key, None)
        return Step(key, b"%d%s" % (next(self._numbers), b"," if self.lists else b""))

    def operations(self, steps: Iterable[Step]) -> list[wbkv.Operation]:
        write = wbkv.append if self.lists else wbkv.put
        return [wbkv.get(key) if value is None else write(key, value) for key, value in steps]


# For threads


@wbkv.transactional
def perform(tx: wbkv.Transaction[bytes], worker: Worker, steps: Sequence[Step]) -> None:
    for key, value in steps:
        if value is None:
            tx.get(key)
        elif worker.lists:
            tx.append(key, value)
        else:
            tx.put(key, value)


def work(client: wbkv.Client[bytes], worker: Worker, go_on: Callable[[], bool]) -> None:
    """A thread's transactions."""
    while go_on():
        try:
            _one(client, worker)
            worker.ended += 1
        except wbkv.Error:
            worker.failed += 1


def _one(client: wbkv.Client[bytes], worker: Worker) -> None:
    kind, steps = worker.kind(), worker.steps()
    key, value = steps[0]
    if kind == "single" and value is None:
        client.get_many([step.key for step in steps])
    elif kind == "single":
        assert value is not None
        (client.append if worker.lists else client.put)(key, value)
    elif kind == "txn":
        client.txn().then(*worker.operations(steps)).commit()
    elif kind == "conditional":
        txn = client.txn().when(wbkv.exists(key)).then(*worker.operations(steps))
        txn.otherwise(*worker.operations(worker.steps())).commit()
    elif kind == "interactive":
        with client.transaction() as tx:
            perform(tx, worker, steps)
    else:
        perform(client, worker, steps)


# For tasks


@wbkv.transactional
async def perform_async(tx: wbkv.aio.Transaction[bytes], worker: Worker, steps: Sequence[Step]) -> None:
    for key, value in steps:
        if value is None:
            await tx.get(key)
        elif worker.lists:
            await tx.append(key, value)
        else:
            tx.put(key, value)


async def work_async(client: wbkv.aio.Client[bytes], worker: Worker, go_on: Callable[[], bool]) -> None:
    """A task's transactions."""
    while go_on():
        try:
            await _one_async(client, worker)
            worker.ended += 1
        except wbkv.Error:
            worker.failed += 1


async def _one_async(client: wbkv.aio.Client[bytes], worker: Worker) -> None:
    kind, steps = worker.kind(), worker.steps()
    key, value = steps[0]
    if kind == "single" and value is None:
        await client.get_many([step.key for step in steps])
    elif kind == "single":
        assert value is not None
        await (client.append if worker.lists else client.put)(key, value)
    elif kind == "txn":
        await client.txn().then(*worker.operations(steps)).commit()
    elif kind == "conditional":
        txn = client.txn().when(wbkv.exists(key)).then(*worker.operations(steps))
        await txn.otherwise(*worker.operations(worker.steps())).commit()
    elif kind == "interactive":
        async with client.transaction() as tx:
            await perform_async(tx, worker, steps)
    else:
        await perform_async(client, worker, steps)


# A process


class Load(NamedTuple):
    """What one process does."""

    addresses: Sequence[str]
    model: Model
    threads: int
    tasks: int
    first: int
    """The number of its first worker."""
    seed: int
    timeout_s: float = 10.0


def record(load: Load, file: Path, go_on: Callable[[], bool]) -> list[Worker]:
    """Work until told otherwise, and record it."""
    workers = [Worker(load.model, load.first + i, load.seed) for i in range(load.threads + load.tasks)]
    failures: list[BaseException] = []

    def run(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    async def tasks(history: wbkv.History) -> None:
        connecting = wbkv.aio.connect(load.addresses, timeout=load.timeout_s, wait=READY_S, history=history)
        async with connecting as client:
            await asyncio.gather(*(work_async(client, each, go_on) for each in workers[load.threads :]))

    with (
        wbkv.History(file, model=load.model) as history,
        wbkv.connect(load.addresses, timeout=load.timeout_s, wait=READY_S, history=history) as client,
    ):
        targets: list[Callable[[], None]] = [lambda: asyncio.run(tasks(history))]
        targets += [partial(work, client, worker, go_on) for worker in workers[: load.threads]]
        running = [threading.Thread(target=run, args=(target,)) for target in targets]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    for failure in failures:
        raise failure
    return workers


def _process(load: Load, file: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    workers = record(load, file, lambda: time.monotonic() < until)
    print(f"{sum(each.ended for each in workers)} ended, {sum(each.failed for each in workers)} failed")


# One history of several


def merge(files: Sequence[Path], out: Path) -> int:
    """One history of several of one machine, whose processes have numbers of their own. How many events."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(file.open()) for file in files]
        headers = {file.readline() for file in opened}
        if len(headers) != 1:
            raise ValueError(f"these are histories of different kinds: {headers}")
        target = stack.enter_context(out.open("w"))
        target.write(headers.pop())
        numbers: dict[tuple[int, int], int] = {}
        count = 0
        parts = (_events(i, file) for i, file in enumerate(opened))
        for _, i, event in heapq.merge(*parts, key=lambda part: part[0]):
            event["process"] = numbers.setdefault((i, event["process"]), len(numbers))
            target.write(json.dumps(event, separators=(",", ":")) + "\n")
            count += 1
    return count


def _events(number: int, lines: Iterable[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for line in lines:
        event = json.loads(line)
        yield event["time"], number, event


def disturb(running: wbkv.testing.RunningCluster, seconds: float, pause_s: float = 2.0) -> None:
    """Kill one node after the other, and start it again."""
    until = time.monotonic() + seconds - pause_s
    for node in itertools.cycle(running.nodes):
        time.sleep(pause_s)
        if time.monotonic() >= until:
            return
        running.kill(node)
        time.sleep(pause_s)
        running.start(node)


def main() -> None:
    parser = argparse.ArgumentParser(description="record a history of a real cluster")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--model", choices=get_args(Model), default="list-append")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2, help="in each process")
    parser.add_argument("--tasks", type=int, default=16, help="in each process")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=10.0, help="a short one leaves more unknown")
    parser.add_argument("--kill", action="store_true", help="kill nodes, one after the other")
    asked = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        wbkv.testing.running_cluster(asked.nodes, asked.partitions) as running,
    ):
        files = [Path(folder) / f"{i}.jsonl" for i in range(asked.processes)]
        load = Load(running.addresses, asked.model, asked.threads, asked.tasks, 0, asked.seed, asked.timeout)
        loads = [load._replace(first=i * (asked.threads + asked.tasks)) for i in range(len(files))]
        processes = [
            context.Process(target=_process, args=(load, file, asked.seconds))
            for load, file in zip(loads, files, strict=True)
        ]
        for process in processes:
            process.start()
        if asked.kill:
            disturb(running, asked.seconds)
        for process in processes:
            process.join()
            if process.exitcode:
                raise SystemExit(f"a process has ended with status {process.exitcode}")
        print(f"{merge(files, asked.out)} events in {asked.out}")


if __name__ == "__main__":
    main()
