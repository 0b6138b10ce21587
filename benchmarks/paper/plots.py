"""The paper's figures from our results, as SVG and PNG, in the style of the pipeline's reports."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from wbkv_pipeline.reporting.style import (
    INK,
    as_png,
    as_svg,
    number,
    plain,
    plain_log,
    protocol_name,
    protocol_styles,
    styled,
)

from benchmarks.paper.analysis import Measured, mean_ms, throughput
from benchmarks.paper.bins import BIN_S
from benchmarks.paper.conflicts import BOUNDS, Conflicts
from benchmarks.paper.crashes import Crashes
from benchmarks.paper.curves import MODERATE
from benchmarks.paper.points import Found, Results

EVENT: Final = "#CC3311"
SERIES: Final = (
    ("affected", "affected group", "#D55E00", "-"),
    ("others", "other groups", "#0072B2", "--"),
    ("clients", "all clients", INK, ":"),
)
TITLES: Final = {
    "whitebox-hybrid": "WbCast, hybrid clocks",
    "whitebox-everywhere": "WbCast, delivered everywhere at once",
}
ACROSS: Final = 3
COLOURS: Final = 64
PLAIN: Final[dict[str, Any]] = {}
DOTS: Final[dict[str, Any]] = {"marker": "o", "markersize": 4}


def write(results: Results, folder: Path) -> list[Path]:
    """Draw all figures that have results. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with styled():
        for name, figure in _figures(results):
            for ending, content in (("svg", as_svg(figure, name).encode()), ("png", _small(as_png(figure)))):
                path = folder / f"{name}.{ending}"
                path.write_bytes(content)
                written.append(path)
    return written


def _figures(results: Results) -> Iterator[tuple[str, Figure]]:
    for experiment, title in (("lan", "Local area"), ("wan", "Wide area: three emulated regions")):
        measured = Measured.read(results, experiment)
        if measured.turns:
            marked = MODERATE if experiment == "wan" else None
            yield f"evaluation-{experiment}", curves(measured, title, marked)
    crashes = Crashes.read(results)
    for area in crashes.areas:
        name = area.lower().replace(", ", "-")
        yield f"evaluation-recovery-{name}", recovery(crashes.median_crash(area), area)
    conflicts = Conflicts.read(results)
    if conflicts.variants:
        yield "evaluation-convoy", convoy(conflicts)


# Figures 4 and 5


def curves(measured: Measured, title: str, moderate: int | None = None) -> Figure:
    """Mean latency over throughput as clients become more, a panel for each number of destinations.

    Points are medians over rounds; those with the most clients are ringed, those at moderate load boxed.
    """
    panels = measured.destinations
    figure, grid = _grid(len(panels), width=3.2, height=2.7)
    styles = protocol_styles(measured.protocols)
    for axes, dest in zip(grid, panels, strict=False):
        for protocol in measured.protocols:
            colour, marker = styles[protocol]
            found = [
                (clients, measured.median(protocol, dest, clients, throughput),
                 measured.median(protocol, dest, clients, mean_ms))
                for clients in measured.clients
            ]  # fmt: skip
            points = [(clients, x, y) for clients, x, y in found if x is not None and y is not None]
            xs, ys = [x for _, x, _ in points], [y for _, _, y in points]
            axes.plot(xs, ys, color=colour, marker=marker, markersize=4)
            for clients, x, y in points:
                mark = "o" if clients == measured.clients[-1] else "s" if clients == moderate else None
                if mark:
                    axes.plot(x, y, marker=mark, markersize=10, fillstyle="none", color=INK, alpha=0.6)
        axes.set_title(f"{dest} destination{'' if dest == 1 else 's'}")
        axes.set_xmargin(0.12)
        plain_log(axes, "x")
        plain_log(axes, "y")
        axes.set_xlabel("messages/s")
    for axes in grid[::ACROSS]:
        axes.set_ylabel("mean latency (ms)")
    for protocol in measured.protocols:
        colour, marker = styles[protocol]
        grid[0].plot([], [], color=colour, marker=marker, markersize=4, label=protocol_name(protocol))
    marks = f"ringed: {measured.clients[-1]:,} clients"
    marks += f"; boxed: {moderate:,}" if moderate in measured.clients[:-1] else ""
    _head(figure, f"{title} ({marks})")
    return figure


# The recovery figure


def recovery(crash: Found, area: str) -> Figure:
    """Throughput and latency around a crash; red until the new leader is established."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for series, name, colour, dashes in SERIES:
        rows = crash["series"][series]
        middle = [row["at_s"] + BIN_S / 2 for row in rows]
        above.plot(middle, [row["throughput"] for row in rows], color=colour, linestyle=dashes, label=name)
        latency = [float("nan") if row["mean_ms"] is None else row["mean_ms"] for row in rows]
        below.plot(middle, latency, color=colour, linestyle=dashes, marker=".", markersize=3)
    for axes in (above, below):
        axes.axvspan(0, crash["leader_s"], color=EVENT, alpha=0.2, linewidth=0)
        recovered = crash["figures"]["clients"]["recovered_s"]
        if recovered is not None:
            axes.axvline(recovered, color=EVENT, linewidth=0.9, linestyle=(0, (4, 3)))
    above.set_ylim(bottom=0)
    plain(above, "y")
    plain_log(below, "y")
    above.set_ylabel("messages/s")
    below.set_ylabel("mean latency (ms)")
    below.set_xlabel("seconds since the crash")
    above.set_title(f"throughput, in bins of {number(BIN_S)} s; dashed: clients are back at 90%")
    below.set_title("mean latency of messages that begin then")
    _head(figure, f"A leader crashes, {area}; red until there is another")
    return figure


# The convoy effect


def convoy(conflicts: Conflicts) -> Figure:
    """Latency at leaders over the rate of conflicting messages, a panel for each variant.

    Lines with dots are real nodes, lines without are virtual time; the collision-free and the failure-free
    latency are drawn across.
    """
    figure, grid = _grid(len(conflicts.variants), width=3.2, height=2.5)
    for axes, variant in zip(grid, conflicts.variants, strict=False):
        _panel(axes, conflicts, variant)
    for axes in grid[::ACROSS]:
        axes.set_ylabel("delivery latency (δ)")
    for label, look in (("mean", "-"), ("p99", "--")):
        grid[0].plot([], [], color=INK, linestyle=look, label=f"virtual time, {label}")
        grid[0].plot([], [], color=INK, linestyle=look, label=f"real nodes, {label}", **DOTS)
    _head(figure, "Conflicting messages")
    return figure


def _panel(axes: Axes, conflicts: Conflicts, variant: str) -> None:
    colour = protocol_styles([variant])[variant][0] if variant in BOUNDS else INK
    for found, look in ((conflicts.virtual, PLAIN), (conflicts.real, DOTS)):
        rows = found.get(variant, [])
        for what, dashes in (("mean", "-"), ("p99", "--")):
            values = [row["leader"][what] for row in rows]
            axes.plot([row["rate"] for row in rows], values, color=colour, linestyle=dashes, **look)
    for bound in BOUNDS.get(variant, ()):
        axes.axhline(bound, color=EVENT, linewidth=0.9)
        axes.annotate(
            f"{bound:g}δ", (1, bound), xycoords=("axes fraction", "data"), xytext=(-2, 2),
            textcoords="offset points", ha="right", fontsize=7.5, color=EVENT,
        )  # fmt: skip
    axes.set_title(TITLES.get(variant, protocol_name(variant)))
    axes.set_ylim(0, 14)
    plain_log(axes, "x")
    axes.set_xlabel("messages per δ")


def _small(png: bytes) -> bytes:
    """Reduce the colours: these pictures are in the repository."""
    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(COLOURS).save(out, format="png", optimize=True)
    return out.getvalue()


def _grid(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    across = min(ACROSS, count)
    down = -(-count // ACROSS)
    figure = Figure(figsize=(max(6.0, width * across), 0.6 + height * down), layout="constrained")
    grid = list(figure.subplots(down, across, squeeze=False, sharey=True).flat)
    for axes in grid[count:]:
        axes.set_axis_off()
    return figure, grid


def _head(figure: Figure, title: str) -> None:
    figure.legend(loc="outside upper right", ncols=4)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
