"""The frame of a benchmark: its sizes, its command line, and the file that keeps what it measured.

A benchmark is a module with a `Benchmark`, whose `measure` yields figures. `--quick` takes small sizes,
`--write` keeps the result in `benchmarks/results`, from which `benchmarks.page` makes docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
PAGE: Final = ROOT / "docs" / "performance.md"
DIGITS: Final = 4
"""Significant digits of a sample: the rest is noise."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of a table: what was measured, in which unit, with one sample for each round."""

    name: str
    unit: str
    samples: list[float]

    @classmethod
    def of(cls, name: str, unit: str, samples: Sequence[float]) -> Figure:
        """A figure whose samples are rounded."""
        return cls(name, unit, [float(f"{sample:.{DIGITS}g}") for sample in samples])

    @property
    def median(self) -> str:
        """The median over rounds, with its unit."""
        return f"{number(statistics.median(self.samples))} {self.unit}".rstrip()

    @property
    def spread(self) -> str:
        """The lowest and the highest round, and how many rounds there were."""
        if len(self.samples) == 1:
            return "one round"
        return f"{number(min(self.samples))} - {number(max(self.samples))} ({len(self.samples)})"


@dataclass(frozen=True, slots=True)
class Machine:
    """What figures depend on, without the name of the host."""

    cores: int
    python: str
    kernel: str

    @classmethod
    def here(cls) -> Machine:
        """The machine that runs this process."""
        python = f"{platform.python_implementation()} {platform.python_version()}"
        return cls(len(os.sched_getaffinity(0)), python, f"{platform.system()} {kernel_version()}")

    def __str__(self) -> str:
        return f"{self.cores} cores, {self.python}, {self.kernel}"


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of a benchmark measured, and where: the content of a file."""

    name: str
    layer: str
    command: str
    commit: str
    machine: Machine
    load: float
    """Load average of the machine before the run, the benchmark before it included."""
    date: str
    figures: list[Figure]

    def write(self, folder: Path = RESULTS) -> None:
        """Replace the benchmark's file atomically. It has a line for each figure."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        new = path.with_name(path.name + ".new")
        about = {field: getattr(self, field) for field in self.__slots__ if field != "figures"}
        lines = [f"{json(field)}: {json(value)}," for field, value in about.items()]
        figures = ",\n".join(map(json, self.figures))
        new.write_text("\n".join(["{", *lines, f'"figures": [\n{figures}\n]', "}\n"]), encoding="utf-8")
        new.replace(path)


def json(value: object) -> str:
    """A value as JSON on one line."""
    return msgspec.json.encode(value).decode()


def read_all(folder: Path = RESULTS) -> dict[str, Result]:
    """The last result of each benchmark that has one."""
    found = [msgspec.json.decode(path.read_bytes(), type=Result) for path in sorted(folder.glob("*.json"))]
    return {result.name: result for result in found}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark: `measure` gets the sizes as attributes and yields figures, each when it is known."""

    name: str
    """The module's name below `benchmarks`."""
    layer: str
    about: str
    measure: Callable[[Any], Iterator[Figure]]
    sizes: Mapping[str, tuple[int | float, int | float] | tuple[str, str]]
    """By option: in full, and with `--quick`. Texts are options of other kinds."""
    prints: bool = True
    """Whether each figure is printed: some benchmarks print tables of their own."""
    part: str = ""
    """The option that asks for some of the figures. What several runs have measured of the same commit, with
    the same sizes on the same machine, is kept together.
    """

    def main(self, argv: Sequence[str] | None = None) -> None:
        """Measure, print, and keep the result if asked to."""
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks.{self.name}", description=self.about, allow_abbrev=False
        )
        parser.add_argument("--quick", action="store_true", help="small sizes: a trial, not a measurement")
        parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
        for name, (full, quick) in self.sizes.items():
            option = f"--{name.replace('_', '-')}"
            kind = type(full)
            usual = f"{full or 'all'}; with --quick {quick or 'all'}"
            parser.add_argument(option, type=kind, metavar="NAMES" if kind is str else "N", help=usual)
        given = parser.parse_args(argv)
        for name, sizes in self.sizes.items():
            if getattr(given, name) is None:
                setattr(given, name, sizes[given.quick])
        result = Result(
            self.name, self.layer, self.command(given), commit(), Machine.here(),
            round(os.getloadavg()[0], 1), datetime.now(UTC).date().isoformat(), [],
        )  # fmt: skip
        for figure in self.measure(given):
            if self.prints:
                print(f"{figure.name}: {figure.median}, {figure.spread}", flush=True)
            result.figures.append(figure)
        if given.write:
            self.completed(result).write()

    def completed(self, result: Result, folder: Path = RESULTS) -> Result:
        """Return a result with the figures of other parts that are kept, if they go together."""
        kept = read_all(folder).get(self.name) if self.part else None
        same = ("command", "commit", "machine")
        if kept is None or any(getattr(kept, field) != getattr(result, field) for field in same):
            return result
        figures = {figure.name: figure for figure in (*kept.figures, *result.figures)}
        return replace(result, figures=list(figures.values()))

    def command(self, given: argparse.Namespace) -> str:
        """The command that measures the same: options that differ from their defaults."""
        words = [f"python -m benchmarks.{self.name}", *["--quick"] * given.quick]
        for name, sizes in self.sizes.items():
            if name != self.part and (value := getattr(given, name)) != sizes[given.quick]:
                words.append(f"--{name.replace('_', '-')} {value}")
        return " ".join(words)


def number(value: float) -> str:
    """A number with about three significant digits, for a table."""
    size = abs(value)
    return f"{value:.3g}" if size < 1 else f"{value:,.{2 if size < 10 else 1 if size < 100 else 0}f}"


def kernel_version() -> str:
    """The kernel's version without what a distributor appends to it."""
    return platform.release().partition("-")[0].partition("+")[0]


def commit() -> str:
    """The commit that is checked out; with a plus sign if files other than results have changed since."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 - the user's git
        return done.stdout.strip()

    ours = [f":!{path.relative_to(ROOT)}" for path in (RESULTS, PAGE)]
    try:
        changed = bool(git("status", "--porcelain", "--", ".", *ours))
        return git("rev-parse", "--short", "HEAD") + "+" * changed
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
