"""How long the checker takes for a large history, and how much memory.

The histories are clean: a serial store, in virtual time, executes each transaction at some moment between its
invocation and its outcome. Tests use the same generator.
"""

from __future__ import annotations

import argparse
import heapq
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
        place = self._rng.randrange(len(self._keys))
        key = self._keys[place]
        if self._rng.random() < 0.5:
            return ["r", key, None]
        self._written[key] += 1
        value = self._written[key]
        if value == self._shape.writes:
            self._keys[place] = f"k{self._next_key}"
            self._written[self._keys[place]] = 0
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=250_000, help="of 4 operations (250000)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print("history       processes  operations  MB    read s  check s  CPU s  peak MB")
    for model in ("list-append", "register"):
        for processes in (20, 100):
            shape = Shape(model, arguments.transactions, processes)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "history.jsonl"
                write(shape, arguments.seed, path)
                cpu, begin = time.process_time(), time.perf_counter()
                with path.open("rb") as file:
                    recording = checker.read(file)
                middle = time.perf_counter()
                verdict = checker.check(recording)
                end, cpu = time.perf_counter(), time.process_time() - cpu
                size = path.stat().st_size / 1e6
            if not verdict.holds:
                raise SystemExit(f"a clean history was refused: {verdict.names()}")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{model:12}  {processes:9}  {verdict.counts['operations']:10,}  {size:4.0f}",
                f"{middle - begin:6.1f}  {end - middle:7.1f}  {cpu:5.1f}  {peak:7.0f}",
                sep="  ",
                flush=True,
            )


if __name__ == "__main__":
    main()
