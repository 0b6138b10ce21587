"""The comparison with etcd as a picture, from benchmarks/results: `python -m benchmarks.comparison.plot`.

A column for each kind of call: calls per second above, CPU time of all nodes below, by calls in flight. A
line connects medians; bars go from the lowest to the highest round.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from wbkv_pipeline.reporting.style import INK, PALETTE, as_svg, plain_log, styled

from benchmarks.comparison.rows import ETCD_ROWS
from benchmarks.comparison.table import comparisons
from benchmarks.record import ROOT, Figure, Result, read_all

PICTURE: Final = ROOT / "docs" / "images" / "etcd.svg"
COLUMNS: Final = {"put": "A put", "get": "A strict get", "two": "Two puts"}
"""By what etcd does: the title."""
LINES: Final = {
    "put": ("wbkv, unary", PALETTE[0], "o", "-"),
    "get": ("wbkv, unary", PALETTE[0], "o", "-"),
    "two": ("wbkv, unary, two partitions", PALETTE[0], "o", "-"),
    "two-session": ("wbkv, session, two partitions", PALETTE[2], "^", "--"),
    "one-session": ("wbkv, session, one partition", PALETTE[1], "D", "--"),
    "get-session": ("wbkv, session", PALETTE[2], "^", "--"),
}
"""By row: label, colour, marker, dashes."""
PANELS: Final = {"calls": "calls per second", "CPU of all nodes": "CPU of all nodes per call, µs"}


def draw(figures: Sequence[Figure]) -> Picture:
    """Draw all panels."""
    found = comparisons(figures)
    columns = [kind for kind in COLUMNS if any(ETCD_ROWS[each.row] == kind for each in found)]
    picture = Picture(figsize=(3.1 * len(columns) + 0.6, 5.6), layout="constrained")
    panels = picture.subplots(len(PANELS), len(columns), squeeze=False, sharex=True, sharey="row")
    for row, (what, label) in zip(panels, PANELS.items(), strict=True):
        for kind, axes in zip(columns, row, strict=True):
            mine = [each for each in found if ETCD_ROWS[each.row] == kind]
            of_etcd = {each.level: each.etcd[what] for each in mine}
            _line(axes, of_etcd, ("etcd, unary", INK, "s", "-"))
            for name in dict.fromkeys(each.row for each in mine):
                ours = {each.level: each.ours[what] for each in mine if each.row == name}
                _line(axes, ours, LINES[name])
            plain_log(axes, "x")
            plain_log(axes, "y")
            axes.minorticks_off()
        row[0].set_ylabel(label)
    for kind, above, below in zip(columns, panels[0], panels[-1], strict=True):
        above.set_title(COLUMNS[kind])
        above.legend(loc="upper left")
        below.set_xlabel("calls in flight")
    return picture


def _line(axes: Axes, figures: Mapping[int, Figure], style: tuple[str, str, str, str]) -> None:
    """Draw figures by their levels."""
    label, colour, marker, dashes = style
    samples = [figure.samples for figure in figures.values()]
    medians = [statistics.median(each) for each in samples]
    below = [middle - min(each) for each, middle in zip(samples, medians, strict=True)]
    above = [max(each) - middle for each, middle in zip(samples, medians, strict=True)]
    axes.errorbar(
        list(figures), medians, yerr=[below, above], label=label, color=colour,
        marker=marker, linestyle=dashes, markersize=4, elinewidth=0.8,
    )  # fmt: skip


def made(result: Result) -> str:
    """The picture of a result, as SVG."""
    with styled():
        return as_svg(draw(result.figures), "etcd")


if __name__ == "__main__":
    PICTURE.write_text(made(read_all()["etcd"]), encoding="utf-8")
