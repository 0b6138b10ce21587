"""Figures from the files of the points: medians over rounds, peaks, and ratios between neighbours in time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.paper.points import Found, Results
from benchmarks.paper.runner import failures


@dataclass(frozen=True, slots=True)
class Turn:
    """One protocol's turn in one round of a point."""

    protocol: str
    dest: int
    clients: int
    round: int
    throughput: float
    latency_ms: Mapping[str, float]
    cpu_us: Mapping[str, float]
    errors: int
    received: Mapping[str, float]
    """What nodes read for one multicast: "read_bytes" and "reads"."""


Value = Callable[[Turn], float]


def throughput(turn: Turn) -> float:
    """Messages answered by all their destinations, each second."""
    return turn.throughput


def mean_ms(turn: Turn) -> float:
    """The mean latency that clients saw."""
    return turn.latency_ms["mean"]


def cpu_us(turn: Turn) -> float:
    """CPU time of all nodes and clients for one message."""
    return turn.cpu_us["all"]


def read_bytes(turn: Turn) -> float:
    """What nodes read for one multicast; NaN if that was not counted."""
    return turn.received.get("read_bytes", math.nan)


def reads(turn: Turn) -> float:
    """How often nodes read something for one multicast; NaN if that was not counted."""
    return turn.received.get("reads", math.nan)


@dataclass(frozen=True, slots=True)
class Peak:
    """The best median throughput over numbers of clients, and that number of clients."""

    throughput: float
    clients: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two protocols that took turns: the median over rounds, and the extremes."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        """The ratio of at least one round."""
        return cls(statistics.median(ratios), min(ratios), max(ratios))


@dataclass(slots=True)
class Origin:
    """What the files of an experiment say of their making: why points failed, commits, and load averages."""

    failed: list[str] = field(default_factory=list)
    commits: set[str] = field(default_factory=set)
    loads: list[float] = field(default_factory=list)

    def files(self, results: Results, experiment: str) -> Iterator[Found]:
        """Yield the contents of all files, and note how each was made."""
        for found in results.all(experiment):
            self.failed += [f"{experiment} {found['name']}: {why}" for why in failures(found)]
            self.commits.add(str(found.get("commit", "unknown")))
            self.loads.append(float(found.get("load_before", 0.0)))
            yield found


@dataclass(slots=True)
class Measured(Origin):
    """All turns of an experiment."""

    turns: list[Turn] = field(default_factory=list)

    @classmethod
    def read(cls, results: Results, experiment: str) -> Measured:
        """Read an experiment from its files."""
        measured = cls()
        for found in measured.files(results, experiment):
            load: Mapping[str, Any] = found["plan"]["load"]
            measured.turns += [
                Turn(
                    turn["protocol"], load["dest"], load["clients"], turn["round"], turn["throughput"],
                    turn["latency_ms"], turn["cpu_us"], turn["errors"], turn.get("received", {}),
                )
                for turn in found.get("turns", ())
                if "failed" not in turn
            ]  # fmt: skip
        return measured

    @property
    def protocols(self) -> list[str]:
        """Protocols, in the order in which they took turns."""
        return list(dict.fromkeys(turn.protocol for turn in self.turns))

    @property
    def destinations(self) -> list[int]:
        """Numbers of destinations that were measured."""
        return sorted({turn.dest for turn in self.turns})

    @property
    def clients(self) -> list[int]:
        """Numbers of clients that were measured."""
        return sorted({turn.clients for turn in self.turns})

    def at(self, protocol: str, dest: int, clients: int) -> list[Turn]:
        """The rounds of a point for one protocol."""
        return [
            turn
            for turn in self.turns
            if (turn.protocol, turn.dest, turn.clients) == (protocol, dest, clients)
        ]

    def median(self, protocol: str, dest: int, clients: int, value: Value) -> float | None:
        """The median of a value over rounds; None if no round succeeded."""
        found = self.at(protocol, dest, clients)
        return statistics.median(map(value, found)) if found else None

    def peak(self, protocol: str, dest: int) -> Peak | None:
        """The peak of a protocol; None if nothing was measured."""
        medians = [(self.median(protocol, dest, clients, throughput), clients) for clients in self.clients]
        known = [Peak(found, clients) for found, clients in medians if found is not None]
        return max(known, key=lambda peak: peak.throughput, default=None)

    def ratio(self, above: str, below: str, dest: int, clients: int, value: Value) -> Ratio | None:
        """One protocol's value divided by another's in the same round: both are neighbours in time."""
        first = {turn.round: value(turn) for turn in self.at(above, dest, clients)}
        second = {turn.round: value(turn) for turn in self.at(below, dest, clients)}
        both = sorted(first.keys() & second.keys())
        return Ratio.of([first[each] / second[each] for each in both]) if both else None


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean; None if a value is missing, or all are."""
    known = list(values)
    present = [value for value in known if value is not None]
    return statistics.fmean(present) if known and len(present) == len(known) else None


def ratio_of_means(above: Iterable[float | None], below: Iterable[float | None]) -> float | None:
    """The ratio of the means, in which large values count more than in the mean of ratios."""
    first, second = mean_of(above), mean_of(below)
    return None if first is None or second is None else first / second
