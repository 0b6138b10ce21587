"""Warnings: reasons to doubt the figures of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import combinations
from typing import TYPE_CHECKING, Final

from wbkv_pipeline.reporting import recovery
from wbkv_pipeline.reporting.recovery import Row

if TYPE_CHECKING:
    from wbkv_pipeline.reporting.report import Report


FEW: Final = 1_000
"""With fewer requests, the 99th percentile is one of the ten slowest."""
_MANY_NOT_OK: Final = 0.001
_NAMED: Final = 5


def find_warnings(report: Report) -> list[str]:
    """Return the warnings, most important first."""
    return [
        *_clocks(report.overview),
        *_overlaps(report.rows("stretches")),
        *_not_ok(report.rows("outcomes")),
        *_thin(report.rows("scenarios")),
        *_marks(report),
        *_unsteady(report.rows("recovery")),
        *_coarser(report),
    ]


def name(row: Row) -> str:
    """Return the name of a measurement, for sentences."""
    parts = [row["scenario"] or "(no scenario)"]
    if row["protocol"]:
        parts.append(row["protocol"])
    if row["clients"]:
        parts.append(f"{row['clients']:,} client{'' if row['clients'] == 1 else 's'}")
    return " / ".join(parts)


def moment(at_us: int) -> str:
    """Format a time as logs do."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _clocks(overview: Row) -> Iterator[str]:
    if overview["backwards"]:
        yield (
            f"Clock problem: {overview['backwards']:,} requests end before they start. They are left out; "
            "other times of the same clients may be wrong by as much."
        )
    if overview["untimed"]:
        yield f"{overview['untimed']:,} requests have no start or no end. They are left out."


def _overlaps(times: Sequence[Row]) -> Iterator[str]:
    """Scenarios may mix in one load; different protocols or numbers of clients are different experiments."""
    found = [
        f"{name(one)} and {name(other)}"
        for one, other in combinations(sorted(times, key=lambda row: row["begin_us"]), 2)
        if (one["protocol"], one["clients"]) != (other["protocol"], other["clients"])
        and other["begin_us"] < one["end_us"]
    ]
    if found:
        yield (
            f"Runs overlap in time: {_some(found)}. If they shared a machine they disturbed each other; "
            "if not, a clock is wrong."
        )


def _not_ok(outcomes: Sequence[Row]) -> Iterator[str]:
    shares: dict[str, float] = {}
    for row in outcomes:
        if row["outcome"] != "ok":
            shares[name(row)] = shares.get(name(row), 0.0) + row["share"]
    found = [f"{each} ({share:.2%})" for each, share in shares.items() if share > _MANY_NOT_OK]
    if found:
        yield (
            f"Requests that did not succeed: {_some(found)}. They count neither for throughput nor for "
            "latency; the table of outcomes lists them."
        )


def _thin(scenarios: Sequence[Row]) -> Iterator[str]:
    cut = [name(row) for row in scenarios if not row["seconds"]]
    if cut:
        yield f"Shorter than the warm-up, so without figures: {_some(cut)}."
    few = [
        f"{name(row)} ({row['samples']:,})" for row in scenarios if row["seconds"] and row["samples"] < FEW
    ]
    if few:
        yield f"Few samples, so high percentiles mean little: {_some(few)}."


def _marks(report: Report) -> Iterator[str]:
    covered = list(recovery.covered(report.rows("stretches")))
    outside = [
        f"{mark['name']} at {moment(mark['at_us'])}"
        for mark in report.marks
        if not any(begin <= mark["at_us"] <= end for begin, end in covered)
    ]
    if outside:
        yield f"Marks at times without requests, which are left out: {_some(outside)}. Do the clocks agree?"
    without = [f"crash {crash.number}" for crash in report.crashes if crash.leader_us is None]
    if without:
        yield f"No mark of a new leader: {_some(without)}."


def _unsteady(figures: Sequence[Row]) -> Iterator[str]:
    found = [f"crash {number}" for number in sorted({row["crash"] for row in figures if row["unsteady"]})]
    if found:
        yield (
            f"Throughput was below 90% of its mean even before the crash ({_some(found)}): recovery times "
            "may be chance. Wider bins may help."
        )


def _coarser(report: Report) -> Iterator[str]:
    widths = {report.bin_s, report.crash_bin_s} - {report.options.bin_s}
    if widths:
        wide = " and ".join(f"{width:g} s" for width in sorted(widths))
        yield f"Bins of {report.options.bin_s:g} s would be too many to show; some have {wide}."
    if not report.exact:
        yield "Percentiles are approximate: their rank errs by at most one request in 10,000."


def _some(found: Sequence[str]) -> str:
    """Return the first of them, and how many there are besides."""
    more = len(found) - _NAMED
    return ", ".join(found[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
