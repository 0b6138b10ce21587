"""Spark looks for modules whose names begin with `pyspark_`, and finds the data source `wbkv` here."""
