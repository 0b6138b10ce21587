"""Spark looks for modules whose names begin with `pyspark_`, and finds the data source `wbkv` here."""

from pipeline.source import WbkvSource as DefaultSource

__all__ = ["DefaultSource"]
