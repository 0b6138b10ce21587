"""Reports from traces of load tests and benchmarks: tables, plots, and a page.

`measurements` says what belongs together, `tables` and `recovery` have the figures and their definitions, as
functions over DataFrames; `report` computes all of them, `plots` and `page` show them, `writing` makes files
of them.
"""

from wbkv_pipeline.reporting.report import Report, ReportOptions, ReportTable, measure
from wbkv_pipeline.reporting.writing import write

__all__ = ["Report", "ReportOptions", "ReportTable", "measure", "write"]
