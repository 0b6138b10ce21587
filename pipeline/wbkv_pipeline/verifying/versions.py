"""The versions of keys: which request wrote or removed which key, and whether that is certain."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from wbkv_pipeline.verifying.outcomes import REQUEST

BASE64: Final = "base64:"
"""The prefix of keys that are not text (`text_of` in the SDK)."""
SHARED_MAX: Final = 64
"""The longest common prefix of a range's two ends that is used."""


def bytes_of(key: Column) -> Column:
    """Return a key's bytes: ranges are ordered by bytes."""
    encoded = sql.unbase64(sql.substring(key, len(BASE64) + 1, 1 << 30))
    return sql.when(key.startswith(BASE64), encoded).otherwise(key.cast("binary"))


def versions(requests: DataFrame, pairs: DataFrame, keys: DataFrame) -> DataFrame:
    """Return one row for each key and revision: `put`, `gone`, or both if one request did both.

    `certain`: the request was acknowledged, at `ended`. Otherwise its outcome is unknown; its revision is
    that of the first message that carried it, or null if no message did. Removed ranges have a row for
    each of the `keys` in them.
    """
    writes = _acknowledged(requests).unionByName(_possible(requests, pairs))
    single = writes.where(sql.col("end").isNull()).drop("end")
    rows = single.unionByName(_in_ranges(writes.where(sql.col("end").isNotNull()), keys))
    return rows.groupBy("key", "revision").agg(
        sql.max("certain").alias("certain"),
        sql.bool_or(~sql.col("removed")).alias("put"),
        sql.bool_or("removed").alias("gone"),
        sql.min("start_us").alias("start_us"),
        sql.min(sql.when(sql.col("certain"), sql.struct("end_us", "run"))).alias("ended"),
    )


def _acknowledged(requests: DataFrame) -> DataFrame:
    rows = requests.where((sql.col("outcome") == "ok") & sql.col("revision").isNotNull())
    return _writes(rows.withColumn("certain", sql.lit(col=True)))


def _possible(requests: DataFrame, pairs: DataFrame) -> DataFrame:
    """Return what requests with an unknown outcome may have written, except those acknowledged on a retry."""
    rows = requests.where((sql.col("outcome") == "unknown") & (sql.size("writes") > 0)).drop("revision")
    rows = rows.withColumn("partitions", sql.sort_array("partitions"))
    known = pairs.where(sql.col("unknown") > 0).select(
        *(sql.col(name).alias(f"its_{name}") for name in (*REQUEST, "partitions")), "first", "ok"
    )
    same = [sql.col(name).eqNullSafe(sql.col(f"its_{name}")) for name in (*REQUEST, "partitions")]
    rows = rows.join(known, same[0] & same[1] & same[2], "left")
    rows = rows.where(sql.coalesce("ok", sql.lit(0)) == 0).withColumn("revision", sql.col("first"))
    return _writes(rows.withColumn("certain", sql.lit(col=False)))


def _writes(rows: DataFrame) -> DataFrame:
    rows = rows.select(
        "run", "start_us", "end_us", "revision", "certain", sql.explode("writes").alias("write")
    )
    return rows.select(
        bytes_of(sql.col("write.key")).alias("key"),
        bytes_of(sql.col("write.end")).alias("end"),
        sql.coalesce(sql.col("write.removed"), sql.lit(col=False)).alias("removed"),
        *("run", "start_us", "end_us", "revision", "certain"),
    )


def _in_ranges(ranges: DataFrame, keys: DataFrame) -> DataFrame:
    """Return a row for each key that a range contains.

    All keys of a range begin with the common prefix of its two ends. So ranges and keys are joined by that
    prefix, once for each length of a common prefix, instead of each range with each key.
    """
    least = sql.least(sql.length("key"), sql.length("end"), sql.lit(SHARED_MAX))
    differ = sql.transform(
        sql.sequence(sql.lit(1), least),
        lambda at: sql.substring(sql.col("key"), at, 1) != sql.substring(sql.col("end"), at, 1),
    )
    first = sql.array_position(differ, value=True)
    length = sql.when(least == 0, 0).when(first == 0, least).otherwise(first - 1).cast("int")
    ranges = ranges.withColumn("shared", length)
    ranges = ranges.withColumn("begins", sql.substring("key", sql.lit(1), sql.col("shared")))
    lengths = sorted(row[0] for row in ranges.select("shared").distinct().collect())
    if not lengths:
        return ranges.drop("end", "shared", "begins")
    several = sql.explode(sql.array(*map(sql.lit, lengths)))
    starts = keys.select(sql.col("key").alias("found"), several.alias("shared"))
    starts = starts.withColumn("begins", sql.substring("found", sql.lit(1), sql.col("shared")))
    within = (sql.col("found") >= sql.col("key")) & (
        (sql.length("end") == 0) | (sql.col("found") < sql.col("end"))
    )
    return (
        ranges.join(starts, ["shared", "begins"])
        .where(within)
        .drop("key", "end", "shared", "begins")
        .withColumnRenamed("found", "key")
    )
