"""The convoy study as a picture: mean and maximum of latency against the rate, and the bounds of the paper.

    wbkv bench convoy --json --workload uneven > uneven.json
    python -m benchmarks.convoy_plot pair.json uneven.json hybrid.json --out docs/images/convoy.svg

Each workload with logical clocks gets a panel of its own; one more compares the clocks of the white-box
protocol, if there are files with hybrid ones.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from wbkv_pipeline.reporting.style import (
    INK,
    PALETTE,
    as_svg,
    plain_log,
    protocol_name,
    protocol_styles,
    styled,
)

TITLES = {
    "pair": "All messages to the same two groups",
    "uneven": "The same, and local messages in one of them",
    "random": "Each message to two of six groups",
}


def draw(reports: Sequence[dict[str, Any]]) -> Figure:
    """All panels, two in a row."""
    logical = [it for it in reports if it["clock"] == "logical"]
    hybrid = [it for it in reports if it["clock"] == "hybrid"]
    rows = (len(logical) + bool(hybrid) + 1) // 2
    names = sorted({name for it in logical for name in it["protocols"]})
    styles = protocol_styles(names)
    figure = Figure(figsize=(8.4, 3.2 * rows + 0.3), layout="constrained")
    panels = list(figure.subplots(rows, 2, squeeze=False).flat)
    highest = max(
        curve["failure_free"]["leader"] for report in logical for curve in report["protocols"].values()
    )
    for report in logical:
        axes = panels.pop(0)
        axes.set_title(TITLES[report["workload"]])
        for name, curve in report["protocols"].items():
            _line(axes, curve, *styles[name])
        _bounds(axes, report["protocols"]["whitebox"], INK)
        axes.set_ylim(0, highest + 1)
        _finish(axes)
    if hybrid:
        _clocks(panels.pop(0), [*logical, *hybrid], hybrid[0]["workload"])
    for axes in panels:
        axes.remove()
    handles = [
        Line2D([], [], color=styles[name][0], marker=styles[name][1], markersize=4, label=protocol_name(name))
        for name in names
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _line(axes: Axes, curve: dict[str, Any], colour: str, marker: str, label: str | None = None) -> None:
    """Draw the mean, and the maximum as a thin line."""
    rates = [point["rate"] for point in curve["points"]]
    means = [point["leader"]["mean"] for point in curve["points"]]
    highest = [point["leader"]["max"] for point in curve["points"]]
    axes.plot(rates, means, color=colour, marker=marker, markersize=4, label=label)
    axes.plot(rates, highest, color=colour, linewidth=0.6, alpha=0.6)


def _bounds(axes: Axes, curve: dict[str, Any], colour: str) -> None:
    """Draw collision-free and failure-free latency."""
    for kind in ("collision_free", "failure_free"):
        bound = curve[kind]["leader"]
        axes.axhline(bound, color=colour, linewidth=0.9, linestyle="--")
        axes.annotate(
            f"{bound:g}δ", (0.01, bound), xycoords=("axes fraction", "data"), va="bottom", color=colour
        )


def _clocks(axes: Axes, reports: Sequence[dict[str, Any]], workload: str) -> None:
    axes.set_title(f"WbCast's clocks ({workload})")
    found = [it for it in reports if it["workload"] == workload]
    for report, colour, marker in zip(found, PALETTE, "osD^v", strict=False):
        curve = report["protocols"]["whitebox"]
        label = "logical" if report["clock"] == "logical" else f"hybrid, skew {report['skew'] or 0:g}δ"
        _line(axes, curve, colour, marker, label)
        _bounds(axes, curve, colour)
        axes.set_ylim(2, max(axes.get_ylim()[1], curve["failure_free"]["leader"] + 0.5))
    axes.legend(loc="lower left", ncols=2)
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.set_xlabel("messages per δ at a group")
    axes.set_ylabel("delivered at all leaders after, δ")
    plain_log(axes, "x")
    axes.minorticks_off()


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the files, write the picture."""
    parser = argparse.ArgumentParser(description="Draws what `wbkv bench convoy --json` printed.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="each the output of one call")
    parser.add_argument("--out", type=Path, required=True, help="the SVG file to write")
    found = parser.parse_args(arguments)
    try:
        reports = [json.loads(path.read_text(encoding="utf-8")) for path in found.files]
    except (OSError, ValueError) as error:
        parser.error(f"cannot read the results: {error}")
    if not all("whitebox" in it["protocols"] for it in reports):
        parser.error("a file has no results of the white-box protocol; add whitebox to --protocols")
    if not any(it["clock"] == "logical" for it in reports):
        parser.error("no file has logical clocks")
    with styled():
        found.out.write_text(as_svg(draw(reports), "convoy"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
