"""How long `verify` takes: traces of three groups of three replicas, as Parquet, with the requests that they
carry, made and checked by Spark.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from typing import Any

import wbkv_pipeline
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from wbkv_pipeline import traces
from wbkv_pipeline.verifying import verified

from benchmarks.record import Benchmark, Figure

DESTINATIONS = [[0], [1], [2], [0], [1, 2], [0, 1], [2], [0, 1, 2], [1], [0, 2]]
"""Of ten messages. They repeat, so that positions can be computed."""
KEYS = 100_000


def per_message() -> float:
    return 3 * sum(map(len, DESTINATIONS)) / len(DESTINATIONS)


def made(spark: SparkSession, count: int, files: int) -> tuple[DataFrame, DataFrame]:
    turn = sql.col("id") % len(DESTINATIONS)
    sets = sql.array(*(sql.array(*map(sql.lit, groups)) for groups in DESTINATIONS))
    messages = spark.range(0, count, numPartitions=files).select(
        "id",
        ((sql.col("id") + 1) * 1024).alias("gts"),
        sql.get(sets, turn.cast("int")).alias("destinations"),
        (1 + sql.col("id") % 64).alias("client"),
        sql.floor(sql.col("id") / 64).alias("sequence"),
    )
    copies = messages.select("*", sql.explode("destinations").alias("group")).select(
        "*", sql.explode(sql.array(*map(sql.lit, ("n1", "n2", "n3")))).alias("node")
    )
    deliveries = copies.select(
        _run().alias("run"),
        "node",
        "group",
        sql.lit("message").alias("kind"),
        _position().alias("position"),
        "gts",
        sql.lit(7).cast("bigint").alias("origin"),
        sql.col("id").alias("number"),
        sql.xxhash64("id").alias("digest"),
        *("destinations", "client", "sequence"),
    )
    begins = spark.range(9).select(
        sql.concat(sql.lit("n"), (1 + sql.floor(sql.col("id") / 3)).cast("string")).alias("node"),
        (sql.col("id") % 3).cast("int").alias("group"),
    )
    firsts = begins.select(
        _run().alias("run"),
        *("node", "group"),
        sql.lit("begin").alias("kind"),
        sql.lit(1).cast("bigint").alias("position"),
        sql.lit(0).cast("bigint").alias("gts"),
    )
    before = sql.when(sql.col("id") >= KEYS, (sql.col("id") - KEYS + 1) * 1024).otherwise(0).cast("bigint")
    key = sql.concat(sql.lit("key/"), (sql.col("id") % KEYS).cast("string"))
    requests = messages.select(
        sql.lit("client").alias("run"),
        (sql.col("id") * 100).alias("start_us"),
        (sql.col("id") * 100 + 5000).alias("end_us"),
        *("client", "sequence", sql.col("destinations").alias("partitions")),
        sql.lit("ok").alias("outcome"),
        sql.col("gts").alias("revision"),
        sql.lit(col=True).alias("exact"),
        sql.array(sql.struct(key.alias("key"), before.alias("revision"))).alias("reads"),
        sql.array(
            sql.struct(
                key.alias("key"),
                sql.lit(None).cast("string").alias("end"),
                sql.lit(col=False).alias("removed"),
            )
        ).alias("writes"),
    )
    return deliveries.unionByName(firsts, allowMissingColumns=True), requests


def _run() -> Column:
    return sql.concat(sql.col("node"), sql.lit("-20260101T000000Z-0123abcd"))


def _position() -> Column:
    """Behind the beginning, and behind what the group has got in all turns before and in this one."""
    turns, turn = sql.floor(sql.col("id") / len(DESTINATIONS)), sql.col("id") % len(DESTINATIONS)
    position = sql.lit(0)
    for group in range(3):
        mine = [group in groups for groups in DESTINATIONS]
        counts = [sum(mine[:n]) for n in range(len(mine))]
        here = turns * sum(mine) + sql.get(sql.array(*map(sql.lit, counts)), turn.cast("int")) + 2
        position = sql.when(sql.col("group") == group, here).otherwise(position)
    return position.cast("bigint")


def measure(sizes: Any) -> Iterator[Figure]:
    """Make traces, and verify them."""
    config = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "16"}
    spark = wbkv_pipeline.session("local[2]", name="verify_speed", config=config)
    with tempfile.TemporaryDirectory() as folder:
        rows = made(spark, int(sizes.deliveries / per_message()), 8)
        for kind, table in zip(("deliveries", "requests"), rows, strict=True):
            table.write.parquet(f"{folder}/{kind}-all.parquet")
        took = []
        for _ in range(sizes.rounds):
            began = time.monotonic()
            files = traces.find(spark, [folder])
            deliveries = traces.read(spark, files["deliveries"], "deliveries")
            with verified(deliveries, traces.read(spark, files["requests"], "requests")) as verdict:
                took.append(time.monotonic() - began)
            if any(verdict.violations.values()):
                raise SystemExit(f"clean traces were rejected: {verdict.violations}")
    count = verdict.counts.deliveries
    yield Figure.of(f"`pipeline verify`, {count:,} deliveries", "s", took)
    yield Figure.of(f"`pipeline verify`, {count:,} deliveries", "/s", [count / each for each in took])
    spark.stop()


BENCHMARK = Benchmark(
    "verify_speed", "tools", __doc__, measure, {"deliveries": (10_000_000, 20_000), "rounds": (1, 1)}
)

if __name__ == "__main__":
    BENCHMARK.main()
