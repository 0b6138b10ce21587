"""Computes a report from traces: Spark computes the tables.

Only tables leave Spark, and each has a bounded number of rows, however many requests there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.progress import step
from wbkv_pipeline.reporting import measurements, recovery, tables, warnings
from wbkv_pipeline.reporting.measurements import MEASUREMENT, PANEL

MOST_MEASUREMENTS: Final = 1_000
"""Each number of destinations and each repetition counts."""
MOST_BINS: Final = 1_000
"""Of a stretch, or around a crash. Bins become wider to stay within this."""
MOST_BINS_IN_ALL: Final = 50_000
MOST_MARKS: Final = 1_000
MOST_CRASHES: Final = 20
EXACT_REQUESTS: Final = 20_000_000
"""With more requests, percentiles are approximate."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The user's choices for a report."""

    bin_s: float = 0.3
    skip_s: float = 0.0
    title: str = "Load test"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bin_s) and self.bin_s >= 0.001):
            raise PipelineError(f"--bin {self.bin_s:g}: the width of bins must be at least 0.001 s")
        if not (math.isfinite(self.skip_s) and self.skip_s >= 0):
            raise PipelineError(f"--skip {self.skip_s:g}: the warm-up must be 0 s or more")

    @property
    def skip_us(self) -> int:
        """The length of the warm-up, which is cut off."""
        return round(self.skip_s * 1e6)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of bounded size, fetched from Spark."""

    schema: StructType
    rows: list[Row]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the table as a DataFrame."""
        values = [[row[name] for name in self.schema.names] for row in self.rows]
        return spark.createDataFrame(values, self.schema)

    def parquet(self) -> bytes:
        """Return the content of a Parquet file."""
        out = pyarrow.BufferOutputStream()
        pq.write_table(pyarrow.Table.from_pylist(self.rows, schema=to_arrow_schema(self.schema)), out)
        return bytes(out.getvalue().to_pybytes())


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a report."""

    options: ReportOptions
    overview: Row
    tables: Mapping[str, ReportTable]
    marks: Sequence[Row]
    crashes: Sequence[recovery.Crash]
    bin_s: float
    crash_bin_s: float
    exact: bool
    warnings: Sequence[str]

    def rows(self, name: str) -> list[Row]:
        """Return the rows of a table."""
        return self.tables[name].rows


def measure(requests: DataFrame, marks: DataFrame, options: ReportOptions | None = None) -> Report:
    """Compute all tables from requests and marks, as `wbkv_pipeline.traces` reads them.

    Spark persists the requests meanwhile, since several passes use them.
    """
    everything = measurements.asked(requests).persist()
    try:
        return _measure(everything, marks, options or ReportOptions())
    finally:
        everything.unpersist()


def _measure(everything: DataFrame, marks: DataFrame, options: ReportOptions) -> Report:
    spark, skip_us = everything.sparkSession, options.skip_us
    with step(spark, "reading requests") as reading:
        overview = _fetched(measurements.overview(everything)).rows[0]
        reading.rows = overview["requests"]
    if not overview["requests"]:
        raise PipelineError("these traces have no requests")
    exact = overview["requests"] <= EXACT_REQUESTS
    requests = measurements.timed(everything)
    found: dict[str, ReportTable] = {}
    with step(spark, "finding measurements") as finding:
        finer = _fetched(measurements.stretches(requests), (*PANEL, "stretch"), most=MOST_MEASUREMENTS)
        panels = finer.frame(spark)
        found["stretches"] = _fetched(measurements.merged(panels), (*MEASUREMENT, "stretch"))
        stretches = found["stretches"].rows
        finding.result = (
            f"{len({tuple(row[key] for key in MEASUREMENT) for row in stretches}):,} measurements"
        )
    lengths_us = [row["end_us"] - row["begin_us"] for row in stretches]
    if max(lengths_us, default=-1) < skip_us:
        raise PipelineError(_nothing_left(overview, max(lengths_us, default=0), options))
    times = found["stretches"].frame(spark)
    mine = measurements.in_stretches(requests, times)
    with step(spark, "throughput and latency of each"):
        found["scenarios"] = _fetched(tables.summary(mine, times, skip_us=skip_us, exact=exact), MEASUREMENT)
        by_panel = measurements.in_stretches(requests, panels, PANEL)
        points = tables.by_destinations(by_panel, panels, skip_us=skip_us, exact=exact)
        found["destinations"] = _fetched(points, PANEL)
        compared = tables.ratios(found["destinations"].frame(spark))
        found["ratios"] = _fetched(compared, ("scenario", "destinations", "clients", "protocol", "against"))
        overall = tables.ratios_over_panels(found["ratios"].frame(spark))
        found["ratios_over_panels"] = _fetched(overall, ("scenario", "clients", "protocol", "against"))
        found["outcomes"] = _fetched(tables.outcomes(everything), (*MEASUREMENT, "outcome", "error"))
    bin_us = bin_width(options.bin_s, lengths_us)
    with step(spark, f"over time, in bins of {bin_us / 1e6:g} s"):
        bins = tables.over_time(mine, times, bin_us, exact=exact)
        found["over_time"] = _fetched(bins, (*MEASUREMENT, "stretch", "bin"))
    with step(spark, "crashes") as looking:
        in_order = marks.where("at_us is not null").orderBy("at_us", "name", "group")
        known = _fetched(in_order.limit(MOST_MARKS)).rows
        crashes = recovery.crashes(known, stretches, skip_us)[:MOST_CRASHES]
        crash_bin_us = bin_width(options.bin_s, [crash.to_us - crash.from_us for crash in crashes])
        around = recovery.timeline(requests, crashes, crash_bin_us, exact=exact)
        nothing = ReportTable(around.schema, [])
        found["timeline"] = _fetched(around, ("crash", "series", "bin")) if crashes else nothing
        found["recovery"] = ReportTable(recovery.FIGURES, recovery.figures(crashes, found["timeline"].rows))
        looking.result = f"{len(crashes):,}"
    report = Report(
        options=options,
        overview=overview,
        tables=found,
        marks=known,
        crashes=crashes,
        bin_s=bin_us / 1e6,
        crash_bin_s=crash_bin_us / 1e6,
        exact=exact,
        warnings=[],
    )
    return replace(report, warnings=warnings.find_warnings(report))


def bin_width(wanted_s: float, lengths_us: Sequence[int]) -> int:
    """Return the width of bins: the wanted one, or its smallest multiple with few enough bins."""
    wanted_us = round(wanted_s * 1e6)
    width = max(max(lengths_us, default=0) / MOST_BINS, sum(lengths_us) / MOST_BINS_IN_ALL)
    return wanted_us * max(1, math.ceil(width / wanted_us))


def _nothing_left(overview: Row, longest_us: int, options: ReportOptions) -> str:
    if overview["untimed"] + overview["backwards"] == overview["requests"]:
        return f"none of the {overview['requests']:,} requests has an end after its start: nothing to measure"
    return (
        f"--skip {options.skip_s:g} leaves no requests: the longest measurement has {longest_us / 1e6:g} s; "
        "choose a lower --skip"
    )


def _fetched(frame: DataFrame, order: Sequence[str] = (), *, most: int | None = None) -> ReportTable:
    """Fetch a table. Its size must not depend on the number of requests, unless `most` limits it."""
    rows = [row.asDict() for row in (frame if most is None else frame.limit(most + 1)).collect()]
    if most is not None and len(rows) > most:
        raise PipelineError(
            f"more than {most:,} measurements (scenario, protocol, clients, destinations, repetition) exceed "
            "the limit of a page; give fewer traces at a time"
        )
    rows.sort(key=lambda row: tuple(row[name] for name in order))
    return ReportTable(frame.schema, rows)
