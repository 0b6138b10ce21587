"""The data source `wbkv` for Spark: snapshots and changes of the store as DataFrames, and DataFrames into it.

    spark.read.format("wbkv").option("endpoints", "127.0.0.1:7400").option("prefix", "users/").load()

It is found by its name where this package is installed; else `spark.dataSource.register(WbkvSource)`.
"""

from wbkv_pipeline.source.arrow import SCHEMA
from wbkv_pipeline.source.explaining import line_of
from wbkv_pipeline.source.source import WbkvSource

__all__ = ["SCHEMA", "WbkvSource", "line_of"]
