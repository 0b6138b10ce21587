"""How fast Spark reads and writes the store, and what a read costs the nodes' memory.

A cluster of three and Spark share this machine. Rows have keys of 16 bytes and values of 100. A read is timed
from `load` until every column of every row has been looked at; a write from the DataFrame to the last reply.
Nodes are started anew before the reads. Memory is each node's peak during them, above what it had before: its
own, looked at every 20 ms; and all that is resident, which also counts the pages of the store's mapped file
that were read, the system's cache.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wbkv
import wbkv_pipeline
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from benchmarks.load.nodes import memory_mib, pids
from benchmarks.record import Benchmark, Figure
from kvstore.local.cluster import local_cluster


class Memory(threading.Thread):
    """Watches how much memory processes have."""

    def __init__(self, watched: list[int]) -> None:
        super().__init__(daemon=True)
        for pid in watched:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
        self.own = {pid: memory_mib(pid) for pid in watched}
        self.resident = {pid: memory_mib(pid, "VmRSS") for pid in watched}
        self.peak = dict(self.own)
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            for pid, peak in self.peak.items():
                self.peak[pid] = max(peak, memory_mib(pid))

    def figures(self) -> Iterator[Figure]:
        """What was added to each node's memory."""
        self.ended.set()
        self.join()
        own = [peak - self.own[pid] for pid, peak in self.peak.items()]
        all_of_it = [memory_mib(pid, "VmHWM") - before for pid, before in self.resident.items()]
        yield Figure.of("Spark, read: own memory added to a node", "MiB", own)
        yield Figure.of("Spark, read: resident memory added, mapped files included", "MiB", all_of_it)


def write(spark: SparkSession, endpoints: str, rows: int, tasks: int) -> float:
    made = spark.range(rows, numPartitions=tasks).select(
        F.format_string("key/%012d", "id").alias("key"), F.lit("v" * 100).alias("value")
    )
    start = time.perf_counter()
    made.write.format("wbkv").option("endpoints", endpoints).mode("append").save()
    return time.perf_counter() - start


def read(spark: SparkSession, endpoints: str, rows: int) -> tuple[float, float]:
    """Seconds until `load` is done, and until all is read."""
    start = time.perf_counter()
    frame = spark.read.format("wbkv").option("endpoints", endpoints).load()
    loaded = time.perf_counter() - start
    every = frame.select(
        F.count("*").alias("rows"),
        *(F.sum(F.length(name)) for name in ("key", "value")),
        *(F.max(name) for name in ("create_revision", "mod_revision", "version", "partition")),
    )
    found = every.collect()[0]
    assert found.rows == rows, found
    return loaded, time.perf_counter() - start


def measure(sizes: Any) -> Iterator[Figure]:
    """Write once, read with and without Spark."""
    rows = sizes.rows
    spark = wbkv_pipeline.session("local[2]", name="benchmark")
    with local_cluster() as cluster:
        endpoints = ",".join(cluster.addresses)
        write(spark, endpoints, 1000, 2)  # Spark is warm
        yield Figure.of("Spark, bulk write: rows", "/s", [rows / write(spark, endpoints, rows, 4)])
        with wbkv.connect(cluster.addresses) as client:
            start = time.perf_counter()
            count = sum(page.count for page in client.scan_columns(revision=client.revision()))
            rate = count / (time.perf_counter() - start)
            yield Figure.of("one client without Spark, `scan_columns`: rows", "/s", [rate])
        for node in cluster.nodes:  # else what they needed to write would hide what they need to read
            cluster.stop(node)
        for node in cluster.nodes:
            cluster.start(node)
        cluster.wait_serving()
        memory = Memory(pids(cluster))
        memory.start()
        found = [read(spark, endpoints, rows) for _ in range(sizes.rounds)]
        yield Figure.of("Spark, `load`", "s", [loaded for loaded, _ in found])
        yield Figure.of("Spark, snapshot read from `load` on: rows", "/s", [rows / took for _, took in found])
        yield from memory.figures()
    spark.stop()


BENCHMARK = Benchmark(
    "spark_source", "tools", __doc__, measure, {"rows": (1_000_000, 20_000), "rounds": (3, 2)}
)

if __name__ == "__main__":
    BENCHMARK.main()
