"""The table of the comparison: a line for each row and level, with the figures of both stores."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from benchmarks.comparison.rows import ETCD_ROWS, FIGURES, ROWS, level_of, name_of
from benchmarks.record import Figure, number

SHOWN: Final = ("calls", "p50", "CPU of all nodes", "CPU of all clients")
"""Columns of the table, each for both stores."""


class Comparison(NamedTuple):
    """What is compared, at which level, and the figures of etcd and ours by their names."""

    row: str
    level: int
    etcd: Mapping[str, Figure]
    ours: Mapping[str, Figure]

    @property
    def title(self) -> str:
        """What is compared. Rows of sessions say what etcd's calls are."""
        return ROWS[self.row] + (" (etcd: unary calls)" if self.row.endswith("-session") else "")

    @property
    def ratio(self) -> float:
        """Calls per second of ours, divided by those of etcd: medians."""
        ours, etcd = (statistics.median(each["calls"].samples) for each in (self.ours, self.etcd))
        return ours / etcd


def comparisons(figures: Sequence[Figure]) -> list[Comparison]:
    """What can be compared of these figures, in the order of rows and levels."""
    found = {figure.name: figure for figure in figures}

    def of(system: str, row: str, level: int) -> dict[str, Figure]:
        names = {what: name_of(system, row, level, what) for what in FIGURES}
        return {what: found[name] for what, name in names.items() if name in found}

    levels = sorted({level_of(name) for name in found})
    made = [
        Comparison(row, level, of("etcd", ETCD_ROWS[row], level), of("wbkv", row, level))
        for row in ROWS
        for level in levels
    ]
    return [each for each in made if each.etcd and each.ours]


def cells(figures: Sequence[Figure]) -> Iterator[list[str]]:
    """The table: a heading, and a line for each comparison, with the lowest and the highest round."""
    heads = [f"{who}: {what}" for what in SHOWN for who in ("etcd", "wbkv")]
    yield ["", "in flight", *heads[:2], "ratio", *heads[2:]]
    for each in comparisons(figures):
        shown = [_cell(whose[what]) for what in SHOWN for whose in (each.etcd, each.ours)]
        yield [each.title, str(each.level), *shown[:2], f"{each.ratio:.2f}", *shown[2:]]


def _cell(figure: Figure) -> str:
    if len(figure.samples) == 1:
        return figure.median
    return f"{figure.median} ({number(min(figure.samples))} - {number(max(figure.samples))})"


def text(rows: Sequence[Sequence[str]]) -> str:
    """The table for a terminal: a column is as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
