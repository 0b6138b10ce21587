"""Names of the figures of `benchmarks.profile`, and the tables of docs/performance.md that they make."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.comparison.rows import ROWS
from benchmarks.profiling.layers import IDLE, LAYERS
from benchmarks.record import Figure, Result, number

_CPU: Final = re.compile(r"(\S+), (\d+) in flight, (nodes|clients): (.+)")
_LINE: Final = re.compile(r"(\S+), time line, ([^:]+): (.+)")

CALLS: Final = "calls"


def name_of(row: str, level: int, whose: str, layer: str) -> str:
    """Return the name of a figure of CPU time."""
    return f"{row}, {level} in flight, {whose}: {layer}"


def line_name(row: str, process: str, what: str) -> str:
    """Return the name of a figure of the time line."""
    return f"{row}, time line, {process}: {what}"


Medians = dict[tuple[str, int, str, str], float]
"""By row, level, whose (nodes or clients), and layer."""


def medians(figures: Sequence[Figure]) -> Medians:
    """Return the medians of figures of CPU time."""
    found = ((_CPU.fullmatch(figure.name), figure) for figure in figures)
    return {
        (name[1], int(name[2]), name[3], name[4]): statistics.median(figure.samples)
        for name, figure in found
        if name is not None
    }


def cpu_table(after: Result, before: Result | None) -> Iterator[str]:
    """A table for each row: CPU time of a call in all three nodes, by layer and level, then in clients.

    With a result from before, of another commit, each cell has both.
    """
    if before is not None and before.commit == after.commit:
        before = None
    new, old = medians(after.figures), {} if before is None else medians(before.figures)
    for row in ROWS:
        levels = sorted({level for of, level, _, _ in new if of == row})
        if not levels:
            continue
        yield f"{ROWS[row].capitalize()}, µs for each call:\n"
        yield "| in flight | " + " | ".join(map(str, levels)) + " |"
        yield "|---" * (len(levels) + 1) + "|"
        for title, pick in _lines(row, new):
            cells = [_both(pick(old, level), pick(new, level)) for level in levels]
            yield f"| {title} | {' | '.join(cells)} |"
        yield ""
    for result, what in ((before, "before"), (after, "after" if before is not None else "")):
        if result is not None:
            about = f"`{result.command}` (commit {result.commit}); {result.machine}"
            when = f"load average {result.load:g}; {result.date}."
            yield f"{what.capitalize()}: {about}; {when}".removeprefix(": ")


class _Pick:
    """Picks the figure of a line at a level; None if there is none."""

    def __init__(self, row: str, whose: str, layers: Sequence[str]) -> None:
        self._row = row
        self._whose = whose
        self._layers = layers

    def __call__(self, found: Medians, level: int) -> float | None:
        keys = [(self._row, level, self._whose, layer) for layer in self._layers]
        values = [found[key] for key in keys if key in found]
        return sum(values) if values else None


def _lines(row: str, found: Medians) -> Iterator[tuple[str, _Pick]]:
    there = {layer for of, _, whose, layer in found if of == row and whose == "nodes"}
    busy = [layer for layer in LAYERS if layer != IDLE]
    for layer in busy:
        if layer in there:
            yield layer, _Pick(row, "nodes", [layer])
    yield "**CPU of the three nodes**", _Pick(row, "nodes", busy)
    yield "idle, of the three nodes", _Pick(row, "nodes", [IDLE])
    yield "CPU of the clients", _Pick(row, "clients", busy)
    yield "calls per second", _Pick(row, "nodes", [CALLS])


def _both(before: float | None, after: float | None) -> str:
    new = "" if after is None else number(after)
    return new if before is None else f"{number(before)} → {new}"


def lines_table(result: Result) -> Iterator[str]:
    """The time line of a lone call of each row."""
    found: dict[str, list[tuple[float, str, str]]] = {}
    for figure in result.figures:
        if name := _LINE.fullmatch(figure.name):
            found.setdefault(name[1], []).append((statistics.median(figure.samples), name[2], name[3]))
    for row, events in found.items():
        yield f"{ROWS[row].capitalize()}:\n\n```text"
        yield from (f"{at_ms:7.3f} ms  {where:11} {what}" for at_ms, where, what in events)
        yield "```\n"
