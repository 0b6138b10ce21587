"""Counts of a process's messages by round and outcome; and, on request, a row for each message."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from benchmarks.load.histogram import Histogram

ROWS: Final = 4096
"""Rows that are written together."""
COLUMNS: Final = ("start_us", "end_us", "process", "groups", "outcome")


class Samples:
    """A file of rows, one for each message. Times are those of the clock on the wall, in microseconds."""

    def __init__(self, folder: Path, process: int, wall_s: float) -> None:
        """`wall_s` is what to add to a time for the time of day: the same in all processes."""
        self._file = (folder / f"samples-{process}.csv").open("w", encoding="ascii", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(COLUMNS)
        self._process = process
        self._wall_s = wall_s
        self._rows: list[tuple[Any, ...]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write()
        self._file.close()

    def add(self, start: float, end: float, dest: Iterable[int], outcome: str) -> None:
        """Add a row."""
        start_us, end_us = (round((at + self._wall_s) * 1e6) for at in (start, end))
        self._rows.append((start_us, end_us, self._process, " ".join(map(str, dest)), outcome))
        if len(self._rows) >= ROWS:
            self._write()

    def _write(self) -> None:
        self._writer.writerows(self._rows)
        self._rows.clear()


class Sample(NamedTuple):
    """One answered message: times of day, in microseconds."""

    start_us: int
    end_us: int
    groups: tuple[int, ...]


def read_samples(folder: Path) -> list[Sample]:
    """Answered messages, from the files of all client processes."""
    found = []
    for path in sorted(folder.glob("samples-*.csv")):
        with path.open(newline="") as file:
            found += [
                Sample(int(row["start_us"]), int(row["end_us"]), tuple(map(int, row["groups"].split())))
                for row in csv.DictReader(file)
                if row["outcome"] == "ok"
            ]
    return found


class Tally:
    """Counts for each round. What happens before the first is the warm-up's, and not counted."""

    def __init__(
        self, first: float, seconds: float, rounds: int, *, by_start: bool, samples: Samples | None = None
    ) -> None:
        """`first` is when the first round begins. With `by_start`, a latency is one of the round in which its
        message was to be sent, whenever it is answered: an open loop's. Else it is of that in which it was.
        """
        self._first = first
        self._seconds = seconds
        self._by_start = by_start
        self._samples = samples
        self.answered = [0] * rounds
        self.latencies = [Histogram() for _ in range(rounds)]
        self.errors: Counter[str] = Counter()
        """By kind, from the first round to the very end."""
        self.warm_up_errors: Counter[str] = Counter()

    def _round(self, at: float) -> int:
        return math.floor((at - self._first) / self._seconds)

    def ended(self, start: float, end: float, dest: Iterable[int], error: str | None) -> None:
        """Count a message that all its destinations have answered, or that has failed."""
        ended = self._round(end)
        rounds = len(self.answered)
        if error is not None:
            (self.warm_up_errors if ended < 0 else self.errors)[error] += 1
        else:
            if 0 <= ended < rounds:
                self.answered[ended] += 1
            counted = self._round(start) if self._by_start else ended
            if 0 <= counted < rounds:
                self.latencies[counted].add(end - start)
        if self._samples is not None:
            self._samples.add(start, end, dest, error or "ok")
