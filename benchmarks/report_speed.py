"""How long a report of many requests takes, and how much memory.

    python -m benchmarks.report_speed --requests 10000000

The requests are made by Spark: 3 protocols, 4 numbers of clients, 3 numbers of destinations, 20 minutes, and
a crash. Memory is the most that Java and Python had resident, Spark's own cache of the requests included.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import wbkv_pipeline
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from wbkv_pipeline import reporting
from wbkv_pipeline.traces import MARKS, REQUESTS

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


def cpu_s(pid: int) -> float:
    """Of a process so far: on a busy machine it says more than the time that passes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb(pid: int) -> float:
    """The most that a process had resident."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--form", choices=("parquet", "json"), default="parquet")
    arguments = parser.parse_args()
    spark = wbkv_pipeline.session(arguments.master, name="report_speed")
    spark.sparkContext.setLogLevel("ERROR")
    marks = spark.createDataFrame(
        [(CRASH, "crash", "n1", 1, None), (CRASH + 2_000_000, "leader", "n2", 1, None)], MARKS
    )
    with tempfile.TemporaryDirectory() as folder:
        made = time.perf_counter()
        requests(spark, arguments.requests).write.format(arguments.form).save(f"{folder}/requests")
        print(f"made {arguments.requests:,} requests in {time.perf_counter() - made:.0f} s")
        rows = spark.read.schema(REQUESTS).format(arguments.form).load(f"{folder}/requests")
        java = java_pid(spark)
        started, used = time.perf_counter(), cpu_s(java)
        report = reporting.measure(rows, marks)
        measured, used = time.perf_counter(), cpu_s(java) - used
        page = reporting.write(spark, report, f"{folder}/report")
        written = time.perf_counter()
        size = Path(page.removeprefix("file:")).stat().st_size
    print(f"measured in {measured - started:.1f} s, {used:.1f} s of CPU")
    print(f"drawn and written in {written - measured:.1f} s, page {size / 1e6:.1f} MB")
    print(f"peak memory: Java {peak_mb(java):,.0f} MB, Python {peak_mb(os.getpid()):,.0f} MB")
    spark.stop()


if __name__ == "__main__":
    main()
