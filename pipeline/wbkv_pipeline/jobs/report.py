"""`wbkv pipeline report`: writes tables, plots and a page of what load tests and benchmarks measured."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from wbkv_pipeline import command, reporting
from wbkv_pipeline.progress import step
from wbkv_pipeline.reporting import console, writing
from wbkv_pipeline.traces import read_marks, read_requests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

help = command.JOBS["report"]  # noqa: A001 - the interface of jobs


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    usual = reporting.ReportOptions()
    add = parser.add_argument
    add("traces", nargs="+", metavar="TRACES", help="folders or files with requests-* and, if any, marks-*")
    add("--output", required=True, metavar="DIR", help="a new folder, or one of an earlier report")
    add(
        "--bin",
        type=float,
        default=usual.bin_s,
        metavar="SECONDS",
        help=f"width of time bins ({usual.bin_s:g})",
    )
    add(
        "--skip",
        type=float,
        default=usual.skip_s,
        metavar="SECONDS",
        help="warm-up to cut off each measurement (0)",
    )
    add("--title", default=usual.title, metavar="TEXT", help=f"title of the page ({usual.title})")
    add("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, spark: SparkSession) -> int:
    """Write the report, and print its summary. Return the exit status."""
    options = reporting.ReportOptions(bin_s=arguments.bin, skip_s=arguments.skip, title=arguments.title)
    writing.check(spark, arguments.output)
    requests = read_requests(spark, arguments.traces)
    marks = read_marks(spark, arguments.traces)
    report = reporting.measure(requests, marks, options)
    with step(spark, "drawing and writing"):
        page = reporting.write(spark, report, arguments.output)
    if arguments.json:
        sys.stdout.write(json.dumps(_shape(report, page)) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in console.lines(report, page))
    return 0


def _shape(report: reporting.Report, page: str) -> dict[str, Any]:
    return {
        "page": page,
        "overview": report.overview,
        "scenarios": report.rows("scenarios"),
        "recovery": report.rows("recovery"),
        "warnings": list(report.warnings),
    }


if __name__ == "__main__":
    sys.exit(command.submit())
