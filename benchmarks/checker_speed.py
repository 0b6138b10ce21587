"""How long the checker takes for a large history, and how much memory.

The histories are clean: a serial store, in virtual time, executes each transaction at some moment between its
invocation and its outcome. Tests use the same generator.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wbkv import checker

from benchmarks.record import Benchmark, Figure

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a generated history is like."""

    model: str = "list-append"
    transactions: int = 1_000
    processes: int = 20
    keys: int = 32
    """In use at a time; a key is replaced by a fresh one after `writes` writes."""
    writes: int = 64
    operations: int = 4
    fail: float = 0.02
    unknown: float = 0.02
    revisions: bool = True


class _Store:
    """Executes one transaction after the other."""

    def __init__(self, shape: Shape) -> None:
        self._lists = shape.model == "list-append"
        self._lists_of: dict[str, list[int]] = {}
        self._values: dict[str, int] = {}
        self.revision = 0

    def execute(self, operations: list[list[Any]]) -> list[list[Any]]:
        self.revision += 1
        return [self._one(*operation) for operation in operations]

    def _one(self, function: str, key: str, value: Any) -> list[Any]:
        if function == "append":
            self._lists_of.setdefault(key, []).append(value)
        elif function == "w":
            self._values[key] = value
        else:
            value = list(self._lists_of.get(key, ())) if self._lists else self._values.get(key)
        return [function, key, value]


class _Requests:
    """Random transactions over keys that are replaced when they have been written often enough."""

    def __init__(self, shape: Shape, rng: random.Random) -> None:
        self._shape = shape
        self._rng = rng
        self._write = "append" if shape.model == "list-append" else "w"
        self._keys = [f"k{number}" for number in range(shape.keys)]
        self._next_key = shape.keys
        self._written = dict.fromkeys(self._keys, 0)

    def transaction(self) -> list[list[Any]]:
        return [self._operation() for _ in range(self._rng.randint(1, 2 * self._shape.operations - 1))]

    def _operation(self) -> list[Any]:
        index = self._rng.randrange(len(self._keys))
        key = self._keys[index]
        if self._rng.random() < 0.5:
            return ["r", key, None]
        self._written[key] += 1
        value = self._written[key]
        if value == self._shape.writes:
            self._keys[index] = f"k{self._next_key}"
            self._written[self._keys[index]] = 0
            self._next_key += 1
        return [self._write, key, value]


def simulate(shape: Shape, seed: int) -> Iterator[Event]:
    """The events of a strictly serializable history, in the order of time."""
    rng = random.Random(seed)
    store, requests = _Store(shape), _Requests(shape, rng)
    results: dict[int, tuple[list[list[Any]], int]] = {}
    under_way: dict[int, list[list[Any]]] = {}
    agenda = [(rng.randrange(1_000), "invoke", process) for process in range(shape.processes)]
    heapq.heapify(agenda)
    fresh, left = shape.processes, shape.transactions
    while agenda:
        now, what, process = heapq.heappop(agenda)
        event: Event = {"type": what, "process": process, "time": now}
        if what == "invoke":
            if not left:
                continue
            left -= 1
            event["txn"] = under_way[process] = requests.transaction()
            luck = rng.random()
            outcome = (
                "fail" if luck < shape.fail else "unknown" if luck < shape.fail + shape.unknown else "ok"
            )
            done = now + rng.randint(2, 2_000)
            heapq.heappush(agenda, (done, outcome, process))
            if outcome == "ok":
                heapq.heappush(agenda, (rng.randint(now + 1, done - 1), "execute", process))
            elif outcome == "unknown" and rng.random() < 0.7:
                heapq.heappush(agenda, (now + rng.randint(1, 10_000), "execute", process))
        elif what == "execute":
            results[process] = store.execute(under_way[process]), store.revision
            continue
        else:
            event["txn"] = under_way[process]
            if what == "ok":
                event["txn"], revision = results.pop(process)
                if shape.revisions and any(function != "r" for function, _, _ in event["txn"]):
                    event["revision"] = revision
            if what == "unknown":
                heapq.heappush(agenda, (now + 1, "invoke", fresh))
                fresh += 1
            else:
                heapq.heappush(agenda, (now + rng.randint(1, 500), "invoke", process))
        yield event


def write(shape: Shape, seed: int, path: Path) -> None:
    """The history as a file."""
    with path.open("w") as file:
        file.write(json.dumps({"history": shape.model, "version": 1}) + "\n")
        file.writelines(json.dumps(event) + "\n" for event in simulate(shape, seed))


def measure(sizes: Any) -> Iterator[Figure]:
    """Histories of both models, of few and of many processes."""
    for model, processes in itertools.product(("list-append", "register"), (20, 100)):
        shape = Shape(model, sizes.transactions, processes)
        cpus: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "history.jsonl"
            write(shape, 1, path)
            for _ in range(sizes.rounds):
                began = time.process_time()
                with path.open("rb") as file:
                    verdict = checker.check(checker.read(file))
                cpus.append(time.process_time() - began)
        if not verdict.holds:
            raise SystemExit(f"a clean history was rejected: {verdict.names()}")
        operations = verdict.counts["operations"]
        name = f"checker, {model}, {processes} processes: operations"
        yield Figure.of(name, "per second of CPU", [operations / cpu for cpu in cpus])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Figure.of(f"checker, {operations:,} operations: peak memory", "MiB", [peak])


BENCHMARK = Benchmark(
    "checker_speed", "tools", __doc__, measure, {"transactions": (50_000, 500), "rounds": (2, 1)}
)

if __name__ == "__main__":
    BENCHMARK.main()
