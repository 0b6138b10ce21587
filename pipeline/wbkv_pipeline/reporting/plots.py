"""The plots of a report, each a function of rows of its tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wbkv_pipeline.reporting.recovery import Crash, Row
from wbkv_pipeline.reporting.style import (
    DASHES,
    INK,
    PALETTE,
    label,
    number,
    plain,
    plain_log,
    protocol_name,
    protocol_styles,
)

Measurement = tuple[str, int]
"""Protocol and number of clients of a measurement, within one scenario."""

LINES: Final = 8
"""Most lines of one plot over time: measurements with the most requests are drawn."""
MOST_ROWS: Final = 30
"""Most measurements in the plot of percentiles."""
_DOTS: Final = (
    ("p50_ms", "p50", "o"),
    ("p90_ms", "p90", "s"),
    ("p99_ms", "p99", "^"),
    ("p999_ms", "p99.9", "D"),
)
_FEWEST_BINS: Final = 5
_EVENT: Final = "#CC3311"
_NAME_WIDTH: Final = 0.12
"""Space for the name of an event, as a share of the plot."""
_MOST_NAMES: Final = 8
_WARM_UP: Final = "#8a8f98"
_SERIES: Final = (
    ("affected", "affected group", "#D55E00", "-"),
    ("others", "other groups", "#0072B2", "--"),
    ("clients", "all clients", INK, ":"),
)


def percentiles(summary: Sequence[Row]) -> Figure | None:
    """Draw latency percentiles of each measurement, on one logarithmic scale."""
    rows = [row for row in summary if row["samples"]][:MOST_ROWS]
    if not rows:
        return None
    figure = Figure(figsize=(8, 1.3 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    styles = protocol_styles(row["protocol"] for row in rows)
    for index, row in enumerate(rows):
        colour = styles[row["protocol"]][0]
        axes.plot([row["p50_ms"], row["max_ms"]], [index, index], color=colour, linewidth=1, alpha=0.5)
        axes.plot(row["max_ms"], index, color=colour, marker="|", linestyle="none", markersize=7)
        for column, _, marker in _DOTS:
            axes.plot(row[column], index, color=colour, marker=marker, linestyle="none", markersize=4.5)
    for _, name, marker in (*_DOTS, ("", "max", "|")):
        axes.plot([], [], color=INK, marker=marker, linestyle="none", markersize=5, label=name)
    axes.set_yticks(range(len(rows)), [f"{row['scenario'] or 'no scenario'}: {label(row)}" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    plain_log(axes, "x")
    axes.set_xlabel("latency (ms)")
    figure.legend(loc="outside upper right", ncols=5)
    return figure


def over_time(
    scenario: str, bins: Sequence[Row], bin_s: float, skip_s: float, marks: Sequence[Row]
) -> Figure | None:
    """Draw throughput and latency of a scenario's measurements, each from its own start.

    `marks` have a `name`, and `at_s` since the start.
    """
    lines = _chosen(bins, bin_s)
    if not lines:
        return None
    figure = Figure(figsize=(8, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    looks = _looks(list(lines))
    for key, rows in lines.items():
        middle = [row["at_s"] + bin_s / 2 for row in rows]
        above.plot(middle, [row["throughput"] for row in rows], label=label(rows[0]), **looks[key])
        below.plot(middle, [_or_nan(row["p50_ms"]) for row in rows], **looks[key])
        below.plot(middle, [_or_nan(row["p99_ms"]) for row in rows], alpha=0.45, **looks[key])
    _mark(above, below, marks)
    for axes in (above, below):
        if skip_s:
            axes.axvspan(0, skip_s, color=_WARM_UP, alpha=0.18, linewidth=0)
        axes.set_xlim(left=0)
    above.set_ylim(bottom=0)
    plain(above, "y")
    plain_log(below, "y")
    above.set_ylabel("requests/s")
    below.set_ylabel("latency (ms)")
    below.set_xlabel("seconds since the measurement began")
    above.set_title(
        f"{scenario or 'no scenario'}: throughput, in bins of {number(bin_s)} s", pad=14 if marks else 6
    )
    below.set_title("latency: p50, and p99 paler")
    if len(lines) > 1:
        figure.legend(loc="outside right upper")
    return figure


def _chosen(bins: Sequence[Row], bin_s: float) -> dict[Measurement, list[Row]]:
    """Return the full bins of the longest stretch of each measurement to draw.

    Measurements with few bins are left out, and so are those with the fewest requests beyond `LINES`.
    """
    stretches: dict[tuple[str, int, int], list[Row]] = {}
    for row in bins:
        if row["seconds"] >= 0.999 * bin_s:
            stretches.setdefault((row["protocol"], row["clients"], row["stretch"]), []).append(row)
    longest: dict[Measurement, list[Row]] = {}
    for (protocol, clients, _), rows in sorted(stretches.items()):
        if len(rows) >= _FEWEST_BINS and len(rows) > len(longest.get((protocol, clients), ())):
            longest[protocol, clients] = sorted(rows, key=lambda row: row["bin"])
    requests = {key: sum(row["completed"] for row in rows) for key, rows in longest.items()}
    busiest = sorted(longest, key=lambda key: (-requests[key], key))[:LINES]
    return {key: longest[key] for key in sorted(busiest)}


def _looks(keys: Sequence[Measurement]) -> dict[Measurement, dict[str, Any]]:
    """Return a colour for each protocol and dashes by clients; with one protocol, a colour for each line."""
    protocols = {protocol for protocol, _ in keys}
    if len(protocols) == 1:
        return {key: {"color": PALETTE[index % len(PALETTE)]} for index, key in enumerate(keys)}
    styles = protocol_styles(protocols)
    numbers = sorted({clients for _, clients in keys})
    dashes = {clients: DASHES[index % len(DASHES)] for index, clients in enumerate(numbers)}
    return {key: {"color": styles[key[0]][0], "linestyle": dashes[key[1]]} for key in keys}


def curves(scenario: str, points: Sequence[Row]) -> Figure | None:
    """Draw the paper's Figures 4 and 5: mean latency against throughput as the number of clients grows.

    There is a panel for each number of destinations, and a line for each protocol through points of growing
    numbers of clients. A thin line at a point reaches from the 10th to the 90th percentile.
    """
    points = [row for row in points if row["samples"] and row["throughput"] and row["clients"]]
    panels = sorted({row["destinations"] for row in points})
    if not panels:
        return None
    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(max(6.0, 3.3 * across), 0.6 + 3.0 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    styles = protocol_styles(row["protocol"] for row in points)
    for index, axes in enumerate(grid.flat):
        if index >= len(panels):
            axes.set_axis_off()
            continue
        _panel(axes, [row for row in points if row["destinations"] == panels[index]], styles)
        axes.set_title(_destinations(panels[index]))
    for axes in grid[:, 0]:
        axes.set_ylabel("mean latency (ms)")
    for index in range(len(panels)):
        if index + across >= len(panels):
            grid.flat[index].set_xlabel("throughput (requests/s)")
            grid.flat[index].tick_params(labelbottom=True)
    for name, (colour, marker) in styles.items():
        grid.flat[0].plot([], [], color=colour, marker=marker, markersize=4, label=protocol_name(name))
    figure.legend(loc="outside upper right", ncols=4)
    figure.suptitle(scenario or "no scenario", x=0.01, ha="left")
    return figure


def _panel(axes: Axes, rows: Sequence[Row], styles: Mapping[str, tuple[str, str]]) -> None:
    for protocol in sorted({row["protocol"] for row in rows}):
        colour, marker = styles[protocol]
        mine = sorted((row for row in rows if row["protocol"] == protocol), key=lambda row: row["clients"])
        across = [row["throughput"] for row in mine]
        low, high = ([row[column] for row in mine] for column in ("p10_ms", "p90_ms"))
        axes.vlines(across, low, high, colors=colour, alpha=0.4, lw=1)
        axes.plot(across, [row["mean_ms"] for row in mine], color=colour, marker=marker, markersize=4)
    reference = max(row["clients"] for row in rows)
    for row in rows:
        if row["clients"] == reference:
            ring: dict[str, Any] = {"marker": "o", "markersize": 10, "fillstyle": "none", "color": INK}
            axes.plot(row["throughput"], row["mean_ms"], alpha=0.6, **ring)
    axes.set_xmargin(0.12)
    plain_log(axes, "x")
    plain_log(axes, "y")
    corner: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "bottom", "fontsize": 7}
    axes.text(0.98, 0.02, f"ringed: {reference:,} clients", **corner)


def timeline(crash: Crash, bins: Sequence[Row], figures: Sequence[Row], bin_s: float) -> Figure | None:
    """Draw the paper's last figure: the effect of a crash on the affected group, the others, all clients."""
    bins = [row for row in bins if row["crash"] == crash.number]
    if not bins:
        return None
    figure = Figure(figsize=(8, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    end = _interesting(crash, figures)
    for series, name, colour, dashes in _SERIES:
        rows = sorted((row for row in bins if row["series"] == series), key=lambda row: row["bin"])
        rows = [row for row in rows if row["at_s"] <= end]
        if not rows:
            continue
        middle = [row["at_s"] + bin_s / 2 for row in rows]
        above.plot(middle, [row["throughput"] for row in rows], color=colour, linestyle=dashes, label=name)
        # A bin between two empty ones has no line to it, so each bin has a dot.
        latency = [_or_nan(row["mean_ms"]) for row in rows]
        below.plot(middle, latency, color=colour, linestyle=dashes, marker=".", markersize=3)
    for axes in (above, below):
        if crash.leader_s is not None:
            axes.axvspan(0, crash.leader_s, color=_EVENT, alpha=0.16, linewidth=0)
        axes.axvline(0, color=_EVENT, linewidth=1)
    events = [{"at_s": 0.0, "name": "crash"}]
    if crash.leader_s is not None:
        events.append({"at_s": crash.leader_s, "name": "new leader"})
    _mark(above, None, events)
    above.set_ylim(bottom=0)
    plain(above, "y")
    plain_log(below, "y")
    above.set_ylabel("requests/s")
    below.set_ylabel("mean latency (ms)")
    below.set_xlabel("seconds since the crash")
    above.set_title(f"throughput, in bins of {number(bin_s)} s", pad=14)
    below.set_title("mean latency of requests that start then")
    figure.legend(loc="outside upper right", ncols=3)
    return figure


def _interesting(crash: Crash, figures: Sequence[Row]) -> float:
    """Return the end of the time axis: some seconds after the recovery."""
    mine = [row for row in figures if row["crash"] == crash.number]
    over: list[float | None] = [crash.leader_s, *(row["recovered_s"] for row in mine)]
    known = [each for each in over if each is not None]
    return max(10.0, 2 * max(known) + 3) if len(known) == len(over) else math.inf


def _mark(above: Axes, below: Axes | None, marks: Sequence[Row]) -> None:
    """Draw lines at events, with names above the plot. Names that would overlap are joined."""
    for mark in marks:
        for axes in (above, below):
            if axes is not None:
                axes.axvline(mark["at_s"], color=_EVENT, linewidth=0.9, linestyle=(0, (4, 3)))
    left, right = above.get_xlim()
    names: list[tuple[float, str]] = []
    for mark in sorted(marks, key=lambda mark: mark["at_s"]):
        if names and mark["at_s"] - names[-1][0] < _NAME_WIDTH * (right - left):
            names[-1] = names[-1][0], f"{names[-1][1]}, {mark['name']}"
        else:
            names.append((mark["at_s"], mark["name"]))
    for at_s, name in names[:_MOST_NAMES]:
        above.annotate(
            name,
            (at_s, 1),
            xycoords=("data", "axes fraction"),
            xytext=(2, 1),
            textcoords="offset points",
            fontsize=7.5,
            color=_EVENT,
            annotation_clip=False,
        )


def _destinations(count: int) -> str:
    return "unknown destinations" if not count else f"{count} destination{'' if count == 1 else 's'}"


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
