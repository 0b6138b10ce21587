"""The report as one self-contained HTML page: inline plots, no scripts, light and dark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from wbkv_pipeline.reporting.drawing import Plot
from wbkv_pipeline.reporting.plots import LINES
from wbkv_pipeline.reporting.recovery import Row
from wbkv_pipeline.reporting.report import MOST_CRASHES, Report
from wbkv_pipeline.reporting.style import INK, protocol_name
from wbkv_pipeline.reporting.warnings import moment

Column = tuple[str, Callable[[Row], str]]

MOST_ROWS: Final = 200
"""Most rows of a table on the page; Parquet has all."""
FOLDED: Final = 40
"""Tables with more rows than this are collapsed."""

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1c1e; --soft: #5c6370; --ground: #ffffff;
        --line: #d9dce1; --warn: #fff4d6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #a0a7b4; --ground: #15171a; --line: #363b43; --warn: #3b3012; }
}
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; color: var(--ink); background: var(--ground);
       font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.2rem 0 .4rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p, li { max-width: 48rem; } .soft, figcaption { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; } figure { margin: 1rem 0; }
figure svg { max-width: 100%; height: auto; color: var(--ink); }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line);
         text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .text { text-align: left; } th { color: var(--soft); font-weight: 600; }
.warnings { background: var(--warn); padding: .6rem 1rem .6rem 2rem; border-radius: .4rem; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem 1rem; max-width: 46rem; }
"""

_DEFINITIONS: Final = (
    ("Throughput", "successful requests per second, counted where they end, since only then are they done."),
    (
        "Latency",
        "from a request's start (the intended start, if the client was late) to its end, of successful "
        "requests, counted where they start: what a client experiences that asks at that moment. Counted at "
        "the end, an outage would show no latency while it lasts.",
    ),
    (
        "Seconds",
        "from the start of the first request of a measurement to the end of the last one, without the "
        "warm-up. After ten seconds without any request in flight, a new stretch begins; the time between "
        "stretches does not count.",
    ),
    ("Measurement", "all requests of one scenario, protocol and number of clients."),
)


def page(report: Report, plots: Mapping[str, Plot]) -> str:
    """Return the HTML of a report."""
    title = escape(report.options.title)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}</style></head><body>",
            f"<h1>{title}</h1>",
            *_measured(report),
            *_warnings(report),
            *_scenarios(report, plots),
            *_curves(report, plots),
            *_over_time(report, plots),
            *_recovery(report, plots),
            *_outcomes(report),
            *_definitions(report),
            "</body></html>\n",
        ]
    )


def _measured(report: Report) -> Iterator[str]:
    seen = report.overview
    times = report.rows("stretches")
    first, last = min(row["begin_us"] for row in times), max(row["end_us"] for row in times)
    yield (
        f'<p class="soft">{seen["requests"]:,} requests, {seen["ok"]:,} of them ok, by {seen["runs"]:,} '
        f"client {_plural('process', seen['runs'], 'es')}, in {len(report.rows('scenarios')):,} "
        f"{_plural('measurement', len(report.rows('scenarios')))}; from {moment(first)} to {moment(last)} "
        f"({(last - first) / 1e6:,.1f} s). Warm-up cut off: {report.options.skip_s:g} s. Percentiles: "
        f"{'exact' if report.exact else 'approximate, rank within 1/10,000'}.</p>"
    )


def _warnings(report: Report) -> Iterator[str]:
    if report.warnings:
        yield '<h2>Warnings</h2><ul class="warnings">'
        yield from (f"<li>{escape(each)}</li>" for each in report.warnings)
        yield "</ul>"


def _scenarios(report: Report, plots: Mapping[str, Plot]) -> Iterator[str]:
    yield "<h2>Scenarios</h2>"
    yield from _table(
        report.rows("scenarios"),
        ("scenario", _text("scenario")),
        *_WHO,
        ("seconds", _figure("seconds")),
        *_FIGURES,
        ("not ok", _count("not_ok")),
    )
    yield from _plot(
        plots,
        "percentiles",
        "Latency percentiles of each measurement; the line reaches to the slowest request.",
    )


def _curves(report: Report, plots: Mapping[str, Plot]) -> Iterator[str]:
    yield "<h2>Latency against throughput</h2>"
    drawn = sorted(each for each in plots if each.startswith("curves-"))
    if not drawn:
        yield (
            "<p>No curves: they need a number of clients in the trace, and measurements with several "
            "numbers, or of several protocols.</p>"
        )
    else:
        yield (
            '<p class="soft">As in the paper\'s Figures 4 (local) and 5 (wide-area network): each point is a '
            "measurement with another number of clients, each panel another number of destination "
            "partitions. Thin lines reach from the 10th to the 90th percentile. Lower and further "
            "right is better.</p>"
        )
    for each in drawn:
        yield from _plot(plots, each)
    rows = report.rows("ratios_over_panels")
    shown = [row for row in rows if row["protocol"] == _reference(rows)]
    if shown:
        yield f"<h3>{escape(protocol_name(_reference(rows)))} compared, at equal numbers of clients</h3>"
        yield from _table(
            shown,
            ("scenario", _text("scenario")),
            ("clients", _count("clients")),
            ("against", lambda row: protocol_name(row["against"])),
            ("panels", _count("panels")),
            ("throughput, times", _spread("throughput_ratio")),
            ("latency, times lower", _spread("latency_ratio")),
        )
        yield '<p class="soft">Mean over the panels (smallest to largest). Above 1 is better.</p>'
    yield "<h3>By number of destinations</h3>"
    yield from _table(
        report.rows("destinations"),
        ("scenario", _text("scenario")),
        *_WHO,
        ("destinations", lambda row: f"{row['destinations']}" if row["destinations"] else "?"),
        *_FIGURES,
    )


def _over_time(report: Report, plots: Mapping[str, Plot]) -> Iterator[str]:
    yield "<h2>Over time</h2>"
    yield (
        f'<p class="soft">Bins of {report.bin_s:g} s. Throughput counts requests where they end, latency '
        f"where they start. At most {LINES} measurements of a scenario are drawn, those with the most "
        "requests, each with its longest stretch; all are in the table <code>over_time</code>.</p>"
    )
    for each in sorted(each for each in plots if each.startswith("over-time-")):
        yield from _plot(plots, each)


def _recovery(report: Report, plots: Mapping[str, Plot]) -> Iterator[str]:
    yield "<h2>Recovery</h2>"
    if not report.crashes:
        why = (
            "no mark of a crash while requests were in flight" if report.marks else "the traces have no marks"
        )
        yield f"<p>No recovery time-line: {why}.</p>"
        return
    yield (
        '<p class="soft">As in the paper\'s last figure. Red: from the crash until new leaders are '
        "established. Affected group: requests to a partition that lost its leader; other groups: all other "
        "requests. 90%: the first bin with 90% of the throughput before the crash, if the mean of it and the "
        f"next two bins reaches that, too. At most {MOST_CRASHES} crashes are shown.</p>"
    )
    for crash in report.crashes:
        what = [f"node {node}" for node in crash.nodes] + [f"group {group}" for group in crash.groups]
        yield f"<h3>Crash {crash.number}, {moment(crash.at_us)}{escape(_in_brackets(what))}</h3>"
        yield from _plot(plots, f"recovery-{crash.number}")
        yield from _table(
            [row for row in report.rows("recovery") if row["crash"] == crash.number],
            ("", lambda row: _SERIES[row["series"]]),
            ("requests/s before", _figure("before")),
            ("lowest", _figure("lowest")),
            ("ms before", _figure("usual_ms")),
            ("slowest ms", _figure("worst_ms")),
            ("leader after s", _figure("leader_s")),
            ("90% after s", _figure("recovered_s")),
            ("leader to 90% s", _figure("cleared_s")),
        )


def _outcomes(report: Report) -> Iterator[str]:
    yield "<h2>Outcomes</h2>"
    yield from _table(
        report.rows("outcomes"),
        ("scenario", _text("scenario")),
        *_WHO,
        ("outcome", _text("outcome")),
        ("requests", _count("count")),
        ("share", lambda row: f"{row['share']:.3%}"),
        ("error", _text("error")),
    )


def _definitions(report: Report) -> Iterator[str]:
    yield "<h2>What the figures mean</h2><dl>"
    yield from (f"<dt>{term}</dt><dd>{meaning}</dd>" for term, meaning in _DEFINITIONS)
    yield "</dl>"
    names = ", ".join(f"<code>{each}</code>" for each in report.tables)
    yield f'<p class="soft">All tables are beside this page as Parquet, in <code>tables</code>: {names}.</p>'


_SERIES: Final = {"affected": "affected group", "others": "other groups", "clients": "all clients"}


def _table(rows: Sequence[Row], *columns: Column) -> Iterator[str]:
    """Yield a table: text is aligned left, figures right."""
    left = ("scenario", "protocol", "against", "outcome", "error", "")
    marks = [' class="text"' if title in left else "" for title, _ in columns]
    folded = len(rows) > FOLDED
    if folded:
        yield f"<details><summary>{min(len(rows), MOST_ROWS):,} rows</summary>"
    yield '<div class="wide"><table><thead><tr>'
    yield "".join(f"<th{mark}>{escape(title)}</th>" for (title, _), mark in zip(columns, marks, strict=True))
    yield "</tr></thead><tbody>"
    for row in rows[:MOST_ROWS]:
        cells = (
            f"<td{mark}>{escape(cell(row))}</td>" for (_, cell), mark in zip(columns, marks, strict=True)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield f"</tbody></table></div>{'</details>' if folded else ''}"
    if len(rows) > MOST_ROWS:
        yield f'<p class="soft">{len(rows) - MOST_ROWS:,} more rows are in the Parquet table.</p>'


def _plot(plots: Mapping[str, Plot], which: str, caption: str = "") -> Iterator[str]:
    plot = plots.get(which)
    if plot is not None:
        under = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        yield f'<figure role="img" aria-label="{escape(plot.title)}">'
        yield f"{inline(plot.svg, which)}{under}</figure>"


def inline(svg: str, prefix: str) -> str:
    """Return a plot as part of a page: with unique ids, in the page's colour of text."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", body)
    body = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{prefix}-\1"', body)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    return body.replace(INK, "currentColor").replace("fill: #ffffff", "fill: none")


def _text(column: str) -> Callable[[Row], str]:
    return lambda row: row[column] or "-"


def _count(column: str) -> Callable[[Row], str]:
    return lambda row: f"{row[column]:,}"


def _figure(column: str) -> Callable[[Row], str]:
    return lambda row: figure(row[column])


def _spread(column: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        if row[column] is None:
            return "-"
        return f"{row[column]:.2f} ({row[f'{column}_min']:.2f} to {row[f'{column}_max']:.2f})"

    return cell


def figure(value: float | None) -> str:
    """Format a figure with three digits, or all digits before the point."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _plural(word: str, count: int, ending: str = "s") -> str:
    return word if count == 1 else word + ending


def _in_brackets(parts: Sequence[str]) -> str:
    return f" ({', '.join(parts)})" if parts else ""


def _reference(rows: Sequence[Row]) -> str:
    """Return the protocol that others are compared with: the paper's, if it is among them."""
    names = sorted({row["protocol"] for row in rows})
    return "whitebox" if "whitebox" in names or not names else str(names[0])


_WHO: Final[tuple[Column, ...]] = (
    ("protocol", lambda row: protocol_name(row["protocol"]) if row["protocol"] else "-"),
    ("clients", lambda row: f"{row['clients']:,}" if row["clients"] else "-"),
)
_FIGURES: Final[tuple[Column, ...]] = (
    ("samples", _count("samples")),
    ("requests/s", _figure("throughput")),
    ("mean ms", _figure("mean_ms")),
    ("p50", _figure("p50_ms")),
    ("p90", _figure("p90_ms")),
    ("p99", _figure("p99_ms")),
    ("p99.9", _figure("p999_ms")),
    ("max", _figure("max_ms")),
)
