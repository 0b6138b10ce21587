"""Reports from traces of load tests and benchmarks: tables, plots, and a page.

`measured` says what belongs together, `tables` and `recovery` have the figures and their definitions, as
functions over DataFrames; `making` computes all of them, `plots` and `page` show them, `writing` makes files
of them.
"""

from wbkv_pipeline.reporting.making import Options, Report, Table, measure
from wbkv_pipeline.reporting.writing import write

__all__ = ["Options", "Report", "Table", "measure", "write"]
