"""Draws the plots of a report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from wbkv_pipeline.reporting import plots, style
from wbkv_pipeline.reporting.report import Report


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot as SVG and as PNG."""

    title: str
    svg: str
    png: bytes


def draw(report: Report) -> dict[str, Plot]:
    """Return all plots that have data, by file name."""
    drawn: dict[str, Plot] = {}
    with style.styled():
        for name, title, figure in _figures(report):
            if figure is not None:
                drawn[name] = Plot(title, style.as_svg(figure, name), style.as_png(figure))
    return drawn


def _figures(report: Report) -> Iterator[tuple[str, str, Figure | None]]:
    yield "percentiles", "latency percentiles", plots.percentiles(report.rows("scenarios"))
    scenarios = sorted({row["scenario"] for row in report.rows("scenarios")})
    names = _file_names(scenarios)
    for scenario in scenarios:
        points = [
            row for row in report.rows("destinations") if row["scenario"] == scenario and row["clients"]
        ]
        if len({(row["protocol"], row["clients"]) for row in points}) > 1:
            title = f"latency against throughput, {scenario}"
            yield f"curves-{names[scenario]}", title, plots.curves(scenario, points)
    for scenario in scenarios:
        bins = [row for row in report.rows("over_time") if row["scenario"] == scenario]
        figure = plots.over_time(
            scenario, bins, report.bin_s, report.options.skip_s, _marks_of(report, scenario)
        )
        yield f"over-time-{names[scenario]}", f"throughput and latency over time, {scenario}", figure
    for crash in report.crashes:
        figure = plots.timeline(crash, report.rows("timeline"), report.rows("recovery"), report.crash_bin_s)
        yield f"recovery-{crash.number}", f"recovery from crash {crash.number}", figure


def _marks_of(report: Report, scenario: str) -> list[dict[str, Any]]:
    """Return marks with their seconds since the start; none if a plot has several measurements."""
    times = [row for row in report.rows("stretches") if row["scenario"] == scenario]
    if len(times) != 1:
        return []
    begin, end = times[0]["begin_us"], times[0]["end_us"]
    inside = [mark for mark in report.marks if begin <= mark["at_us"] <= end]
    return [{"at_s": (mark["at_us"] - begin) / 1e6, "name": mark["name"]} for mark in inside]


def _file_names(scenarios: list[str]) -> dict[str, str]:
    """Return a portable file name for each scenario. A number distinguishes equal names."""
    names: dict[str, str] = {}
    for scenario in scenarios:
        plain = re.sub(r"[^a-z0-9]+", "-", scenario.lower()).strip("-")[:60] or "unnamed"
        name, count = plain, 1
        while name in names.values():
            count += 1
            name = f"{plain}-{count}"
        names[scenario] = name
    return names
