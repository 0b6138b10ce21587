"""How long a report of many requests takes, and how much memory.

The requests are made by Spark: 3 protocols, 4 numbers of clients, 3 numbers of destinations, 20 minutes, and
a crash. Memory is the most that Java and Python had resident, Spark's own cache of the requests included.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

import pipeline
from benchmarks.load.nodes import cpu_s, memory_mib
from benchmarks.record import Benchmark, Figure
from pipeline import reporting
from pipeline.traces import MARKS, REQUESTS

T0 = 1_790_000_000_000_000
SPAN_US = 100_000_000
CRASH = T0 + SPAN_US // 2


def requests(spark: SparkSession, count: int) -> DataFrame:
    """Rows as clients write them, reads and writes left out. 12 measurements follow each other."""
    part = F.floor(F.col("id") * 12 / count)
    within = (F.col("id") * 12 / count - part) * SPAN_US
    start = (F.lit(T0) + part * SPAN_US + within).cast("bigint")
    latency = F.exp(7.5 + 0.6 * F.randn(1)).cast("bigint")
    width = (1 + F.floor(3 * F.rand(2))).cast("int")
    known = {
        "run": F.concat(F.lit("run"), F.col("id") % 8),
        "scenario": F.lit("LAN"),
        "protocol": F.element_at(
            F.array(*map(F.lit, ("whitebox", "fastcast", "ftskeen"))), (part % 3 + 1).cast("int")
        ),
        "clients": F.pow(F.lit(10), F.floor(part / 3)).cast("int"),
        "start_us": start,
        "end_us": start + latency,
        "partitions": F.sequence(F.lit(0), width - 1),
        "outcome": F.when(F.rand(3) < 0.999, "ok").otherwise("failed"),
        "error": F.lit(None).cast("string"),
    }
    columns = [
        known.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in REQUESTS.fields
    ]
    return spark.range(count).select(*columns)


def java_pid(spark: SparkSession) -> int:
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - it has the process
    assert gateway is not None
    return int(gateway.proc.pid)


def measure(sizes: Any) -> Iterator[Figure]:
    """Make requests, and report on them."""
    spark = pipeline.session("local[2]", name="report_speed")
    spark.sparkContext.setLogLevel("ERROR")
    marks = spark.createDataFrame(
        [(CRASH, "crash", "n1", 1, None), (CRASH + 2_000_000, "leader", "n2", 1, None)], MARKS
    )
    with tempfile.TemporaryDirectory() as folder:
        requests(spark, sizes.requests).write.parquet(f"{folder}/requests")
        rows = spark.read.schema(REQUESTS).parquet(f"{folder}/requests")
        java = java_pid(spark)
        started, used = time.perf_counter(), cpu_s(java)
        report = reporting.measure(rows, marks)
        used = cpu_s(java) - used
        reporting.write(spark, report, f"{folder}/report")
        took = time.perf_counter() - started
    name = f"`pipeline report`, {sizes.requests:,} requests"
    yield Figure.of(name, "s", [took])
    yield Figure.of(f"{name}: CPU of Java", "s", [used])
    peaks = [memory_mib(pid, "VmHWM") for pid in (java, os.getpid())]
    yield Figure.of(f"{name}: peak memory of Java and Python", "MiB", [sum(peaks)])
    spark.stop()


BENCHMARK = Benchmark("report_speed", "tools", __doc__, measure, {"requests": (10_000_000, 20_000)})

if __name__ == "__main__":
    BENCHMARK.main()
