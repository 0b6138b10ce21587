"""Spark starts slowly, so all tests in this folder share one session, in one process of pytest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import wbkv_pipeline
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The Spark session. A task may fail twice before its job fails."""
    config = {
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.memory": "1g",
        # Each query runs once, on little data: compilation by Java and Spark costs more than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    session = wbkv_pipeline.session("local[2,3]", name="tests", config=config)
    java = session.sparkContext._gateway.proc  # type: ignore[union-attr] # there is one while it runs
    yield session
    session.stop()
    java.stdin.close()  # which ends it
    java.wait(timeout=60)
