"""The data source `wbkv` for Spark: reads snapshots and changes of the store, and writes DataFrames to it.

    spark.read.format("wbkv").option("endpoints", "127.0.0.1:7400").option("prefix", "users/").load()

Spark finds it by its name where this package is installed; else call `spark.dataSource.register(WbkvSource)`.
`options` declares the options, `source` makes readers and writers.
"""

from wbkv_pipeline.source.arrow import SCHEMA
from wbkv_pipeline.source.explaining import line_of
from wbkv_pipeline.source.source import WbkvSource

__all__ = ["SCHEMA", "WbkvSource", "line_of"]
