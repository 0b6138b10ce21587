"""The summary of a report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wbkv_pipeline.reporting.page import figure
from wbkv_pipeline.reporting.report import Report, Row
from wbkv_pipeline.reporting.warnings import name

_COLUMNS = ("requests/s", "mean ms", "p50", "p99", "p99.9", "not ok")


def lines(report: Report, page: str) -> Iterator[str]:
    """Yield a table of measurements, the recoveries, the warnings, and the page's URI."""
    rows = [_cells(row) for row in report.rows("scenarios")]
    yield from _table([("", *_COLUMNS), *rows])
    for row in report.rows("recovery"):
        if row["series"] == "affected" or (row["series"] == "clients" and not _has_groups(report, row)):
            yield (
                f"crash {row['crash']}: new leader after {figure(row['leader_s'])} s, "
                f"back at 90% of the throughput after {figure(row['recovered_s'])} s"
            )
    yield from (f"warning: {each}" for each in report.warnings)
    yield f"page: {page}"


def _cells(row: Row) -> tuple[str, ...]:
    columns = ("throughput", "mean_ms", "p50_ms", "p99_ms", "p999_ms")
    return name(row), *(figure(row[column]) for column in columns), f"{row['not_ok']:,}"


def _has_groups(report: Report, row: Row) -> bool:
    return any(crash.number == row["crash"] and crash.groups for crash in report.crashes)


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells])
