"""Spark looks for modules whose names begin with `pyspark_`, and finds the data source `wbkv` here."""

from wbkv_pipeline.source import WbkvSource as DefaultSource

__all__ = ["DefaultSource"]
