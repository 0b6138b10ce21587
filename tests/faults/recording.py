"""Random transactions of threads and tasks against a real cluster, recorded as a history for the checker."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

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
    """A read, or a write of a value that no other step writes."""

    key: str
    value: bytes | None
    """None: a read."""


class Worker:
    """One thread's or task's choices."""

    def __init__(self, model: Model, number: int, seed: int) -> None:
        self.lists = model == "list-append"
        self._rng = random.Random(f"{seed}/{number}")
        self._numbers = itertools.count(number, WORKERS_MAX)

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


@wbkv.transactional
def perform(tx: wbkv.Transaction[bytes], worker: Worker, steps: Sequence[Step]) -> None:
    for key, value in steps:
        if value is None:
            tx.get(key)
        elif worker.lists:
            tx.append(key, value)
        else:
            tx.put(key, value)


@wbkv.transactional
async def perform_async(tx: wbkv.aio.Transaction[bytes], worker: Worker, steps: Sequence[Step]) -> None:
    for key, value in steps:
        if value is None:
            await tx.get(key)
        elif worker.lists:
            await tx.append(key, value)
        else:
            tx.put(key, value)


def _ask(client: Any, worker: Worker, kind: str, steps: Sequence[Step]) -> Any:
    """Call the client of threads, or that of tasks, which returns an awaitable."""
    key, value = steps[0]
    if kind == "single" and value is None:
        return client.get_many([step.key for step in steps])
    if kind == "single":
        return (client.append if worker.lists else client.put)(key, value)
    if kind == "txn":
        return client.txn().then(*worker.operations(steps)).commit()
    txn = client.txn().when(wbkv.exists(key)).then(*worker.operations(steps))
    return txn.otherwise(*worker.operations(worker.steps())).commit()


def work(client: wbkv.Client[bytes], worker: Worker, go_on: Callable[[], bool]) -> None:
    """A thread's transactions."""
    while go_on():
        kind, steps = worker.kind(), worker.steps()
        with contextlib.suppress(wbkv.Error):
            if kind == "interactive":
                with client.transaction() as tx:
                    perform(tx, worker, steps)
            elif kind == "transactional":
                perform(client, worker, steps)
            else:
                _ask(client, worker, kind, steps)


async def work_async(client: wbkv.aio.Client[bytes], worker: Worker, go_on: Callable[[], bool]) -> None:
    """A task's transactions."""
    while go_on():
        kind, steps = worker.kind(), worker.steps()
        with contextlib.suppress(wbkv.Error):
            if kind == "interactive":
                async with client.transaction() as tx:
                    await perform_async(tx, worker, steps)
            elif kind == "transactional":
                await perform_async(client, worker, steps)
            else:
                await _ask(client, worker, kind, steps)


# A recording


class RecordingPlan(NamedTuple):
    """What one recording does: with how many threads and tasks, on which cluster."""

    addresses: Sequence[str]
    model: Model
    threads: int
    tasks: int
    first: int
    """The number of its first worker."""
    seed: int
    timeout_s: float = 10.0


def record(plan: RecordingPlan, file: Path, go_on: Callable[[], bool]) -> None:
    """Work until told otherwise, and record it."""
    workers = [Worker(plan.model, plan.first + i, plan.seed) for i in range(plan.threads + plan.tasks)]

    async def tasks(history: wbkv.History) -> None:
        connecting = wbkv.aio.connect(plan.addresses, timeout=plan.timeout_s, wait=READY_S, history=history)
        async with connecting as client:
            await asyncio.gather(*(work_async(client, each, go_on) for each in workers[plan.threads :]))

    with (
        wbkv.History(file, model=plan.model) as history,
        wbkv.connect(plan.addresses, timeout=plan.timeout_s, wait=READY_S, history=history) as client,
        ThreadPoolExecutor(plan.threads + 1) as pool,
    ):
        running = [pool.submit(work, client, worker, go_on) for worker in workers[: plan.threads]]
        running.append(pool.submit(lambda: asyncio.run(tasks(history))))
        for each in running:
            each.result()


# One history of several


def merge(files: Sequence[Path], out: Path) -> None:
    """Write one history of several of one machine; processes get numbers of their own."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(file.open()) for file in files]
        headers = {file.readline() for file in opened}
        if len(headers) != 1:
            raise ValueError(f"these are histories of different kinds: {headers}")
        target = stack.enter_context(out.open("w"))
        target.write(headers.pop())
        numbers: dict[tuple[int, int], int] = {}
        parts = (_events(i, file) for i, file in enumerate(opened))
        for _, i, event in heapq.merge(*parts, key=lambda part: part[0]):
            event["process"] = numbers.setdefault((i, event["process"]), len(numbers))
            target.write(json.dumps(event, separators=(",", ":")) + "\n")


def _events(number: int, lines: Iterable[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for line in lines:
        event = json.loads(line)
        yield event["time"], number, event
