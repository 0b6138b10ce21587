"""Writes a report to a folder, on any file system that Spark can write to.

`report.html` is written last: a folder that has it is complete.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.files import Folder
from wbkv_pipeline.reporting.drawing import draw
from wbkv_pipeline.reporting.page import page
from wbkv_pipeline.reporting.report import Report

PAGE: Final = "report.html"
TABLES: Final = "tables"
PLOTS: Final = "plots"


def check(spark: SparkSession, output: str) -> None:
    """Raise `PipelineError` if the folder has other files than an earlier report, before any work."""
    names = {name.partition("/")[0] for name, _ in Folder(spark, output).files()}
    if "" in names:
        raise PipelineError(f"--output {output} is a file, not a folder: name a new folder")
    others = sorted(names - {PAGE, TABLES, PLOTS} if PAGE in names else names)
    if others:
        raise PipelineError(f"--output {output} has other files in it ({others[0]}): name a new folder")


def write(spark: SparkSession, report: Report, output: str) -> str:
    """Write tables, plots and the page. Return the page's URI."""
    check(spark, output)
    folder = Folder(spark, output)
    for name in (PAGE, TABLES, PLOTS):
        Folder(spark, folder.child(name)).remove()
    tables = Folder(spark, folder.child(TABLES))
    for name, table in report.tables.items():
        tables.write(f"{name}.parquet", table.parquet())
    drawn = draw(report)
    plots = Folder(spark, folder.child(PLOTS))
    for name, plot in drawn.items():
        plots.write(f"{name}.svg", plot.svg.encode())
        plots.write(f"{name}.png", plot.png)
    folder.write(PAGE, page(report, drawn).encode())
    return folder.child(PAGE)
