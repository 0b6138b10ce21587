"""Reports on traces of load tests and benchmarks: tables, plots, and a page.

`measurements` groups requests, `tables` and `recovery` define the figures as functions of DataFrames,
`report` computes them, `plots` and `page` show them, `writing` writes the files.
"""

from wbkv_pipeline.reporting.report import Report, ReportOptions, ReportTable, measure
from wbkv_pipeline.reporting.writing import write

__all__ = ["Report", "ReportOptions", "ReportTable", "measure", "write"]
