"""Our Spark session: its master, its settings, and its output."""

from __future__ import annotations

import sys

import pytest
import wbkv_pipeline
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it


def test_a_session_is_ready_for_the_store(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    found = spark.range(2).rdd.map(lambda _: sys.executable).distinct().collect()
    assert found == [sys.executable]


def test_a_session_that_is_there_is_used_and_set(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        again = wbkv_pipeline.session("local[7]", config={"spark.sql.shuffle.partitions": "3"})
        assert again is spark
        assert spark.sparkContext.master == "local[2,3]"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before or "")


def test_nothing_is_said_at_the_start(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    assert spark.range(3).count() == 3
    assert capfd.readouterr().err == ""


def test_what_is_wrong_with_a_query_is_raised_and_not_written_as_well(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AnalysisException, match="nowhere"):
        spark.range(1).select(F.col("nowhere"))
    assert capfd.readouterr().err == ""
