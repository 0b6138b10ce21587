"""How fast Spark reads and writes the store, and what a read costs the nodes' memory.

A cluster of three and Spark share this machine. Rows have keys of 16 bytes and values of 100. A read is timed
from `load` until every column of every row has been looked at; a write from the DataFrame to the last reply.
Nodes are started anew before the reads. Memory is each node's peak during them, above what it had before: its
own, looked at every 20 ms; and all that is resident, which also counts the pages of the store's mapped file
that were read, the system's cache.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from pathlib import Path

import wbkv
import wbkv_pipeline
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from kvstore.local.cluster import LocalCluster, local_cluster


def status_mb(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0]) / 1024


class Memory(threading.Thread):
    """Watches how much memory processes have."""

    def __init__(self, watched: list[int]) -> None:
        super().__init__(daemon=True)
        for pid in watched:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
        self.own = {pid: status_mb(pid, "RssAnon") for pid in watched}
        self.resident = {pid: status_mb(pid, "VmRSS") for pid in watched}
        self.peak = dict(self.own)
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            for pid, peak in self.peak.items():
                self.peak[pid] = max(peak, status_mb(pid, "RssAnon"))

    def report(self) -> None:
        self.ended.set()
        self.join()
        for pid, peak in self.peak.items():
            resident = status_mb(pid, "VmHWM")
            print(
                f"node {pid}: own memory at most {peak - self.own[pid]:+.0f} MB on {self.own[pid]:.0f}, "
                f"with mapped files {resident - self.resident[pid]:+.0f} MB on {self.resident[pid]:.0f}"
            )


def pids(cluster: LocalCluster) -> list[int]:
    return [pid for node in cluster.nodes if (pid := cluster.pid(node)) is not None]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    rows = arguments.rows
    spark = wbkv_pipeline.session(arguments.master, name="benchmark")
    with local_cluster() as cluster:
        endpoints = ",".join(cluster.addresses)
        write(spark, endpoints, 1000, 2)  # Spark is warm
        took = write(spark, endpoints, rows, 4)
        print(f"write: {rows / took:,.0f} rows/s ({took:.1f} s)")
        with wbkv.connect(cluster.addresses) as client:
            start = time.perf_counter()
            pages = client.scan_columns(revision=client.revision())
            count = sum(page.count for page in pages)
            took = time.perf_counter() - start
            print(f"one client without Spark: {count / took:,.0f} rows/s ({took:.1f} s)")
        for node in cluster.nodes:  # else what they needed to write would hide what they need to read
            cluster.stop(node)
        for node in cluster.nodes:
            cluster.start(node)
        cluster.wait_serving()
        memory = Memory(pids(cluster))
        memory.start()
        rates = []
        for _ in range(arguments.rounds):
            loaded, took = read(spark, endpoints, rows)
            rates.append(rows / took)
            print(f"read: {rows / took:,.0f} rows/s ({took:.1f} s, of which load {loaded:.1f} s)")
        print(f"read: median {statistics.median(rates):,.0f} rows/s")
        memory.report()
    spark.stop()


if __name__ == "__main__":
    main()
