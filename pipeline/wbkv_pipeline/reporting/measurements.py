"""The requests of a trace as something to measure: what belongs together, and from when to when it lasted.

A *measurement* is all requests of one scenario, protocol and number of clients. Clients record only requests,
so how long a measurement lasted is seen from them. A *stretch* is a time in which it was under way: it begins
where its first request starts, ends where the last one ends, and another one begins only after a silence of
ten seconds without any request in flight. Requests that wait for a crashed node are in flight, so an outage
is never cut out. Measurements that were repeated have several stretches, and the time between them does not
count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

MEASUREMENT: Final = ("scenario", "protocol", "clients")
PANEL: Final = (*MEASUREMENT, "destinations")
"""A measurement, apart for each number of destination partitions: a point of a latency-throughput curve."""
SILENCE_US: Final = 10_000_000
_SECOND_US: Final = 1_000_000
_ERROR_LENGTH: Final = 200


def asked(requests: DataFrame) -> DataFrame:
    """What a report needs of requests. What is not known is "" or 0, so that it groups and joins as a value.

    A request that was late starts where it was intended to: whoever waits for a slow store waits, too, for
    the requests that it did not send meanwhile. `destinations` is the number of partitions. An error's text
    is cut to its first 200 characters.
    """
    start_us = F.when(F.col("start_us").isNotNull(), F.least("start_us", "intended_us"))
    return requests.select(
        F.coalesce("run", F.lit("")).alias("run"),
        F.coalesce("scenario", F.lit("")).alias("scenario"),
        F.coalesce("protocol", F.lit("")).alias("protocol"),
        F.coalesce("clients", F.lit(0)).alias("clients"),
        start_us.alias("start_us"),
        "end_us",
        (F.col("end_us") - start_us).alias("latency_us"),
        "partitions",
        F.when(F.col("partitions").isNull(), 0).otherwise(F.size("partitions")).alias("destinations"),
        F.coalesce("outcome", F.lit("unknown")).alias("outcome"),
        F.substring(F.coalesce("error", F.lit("")), 1, _ERROR_LENGTH).alias("error"),
    )


def overview(requests: DataFrame) -> DataFrame:
    """One row about all that was `asked`: how many requests and runs, from when to when, and how many have no
    place in time: without a start or an end (`untimed`), or with an end before the start (`backwards`).
    """
    return requests.agg(
        F.count("*").alias("requests"),
        F.count_if(F.col("outcome") == "ok").alias("ok"),
        F.count_distinct("run").alias("runs"),
        F.min("start_us").alias("first_us"),
        F.max("end_us").alias("last_us"),
        F.count_if(F.col("latency_us").isNull()).alias("untimed"),
        F.count_if(F.col("latency_us") < 0).alias("backwards"),
    )


def timed(requests: DataFrame) -> DataFrame:
    """Those of the requests `asked` that have a place in time. Only they are measured."""
    return requests.where(F.col("latency_us") >= 0)


def stretches(requests: DataFrame) -> DataFrame:
    """When each measurement was under way, for each number of destinations: `begin_us` to `end_us`.

    Requests are first summed up by the second in which they start, so that ordering what is left in time is
    ordering of seconds, however many requests there are.
    """
    second = F.floor(F.col("start_us") / _SECOND_US).alias("second")
    seconds = requests.groupBy(*PANEL, second).agg(
        F.min("start_us").alias("begin_us"), F.max("end_us").alias("end_us")
    )
    return _joined(seconds, PANEL, SILENCE_US)


def merged(finer: DataFrame, keys: Sequence[str] = MEASUREMENT) -> DataFrame:
    """Stretches by fewer keys: where finer ones touch or overlap they are one."""
    return _joined(finer, keys, 0)


def _joined(times: DataFrame, keys: Sequence[str], gap_us: int) -> DataFrame:
    in_order = Window.partitionBy(*keys).orderBy("begin_us", "end_us")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    apart = F.col("begin_us") > F.max("end_us").over(before) + gap_us
    first = F.coalesce(apart, F.lit(True))  # noqa: FBT003 - a literal of Spark
    return (
        times.withColumn("first", first.cast("int"))
        .withColumn("stretch", F.sum("first").over(in_order).cast("int"))
        .groupBy(*keys, "stretch")
        .agg(F.min("begin_us").alias("begin_us"), F.max("end_us").alias("end_us"))
    )


def in_stretches(requests: DataFrame, times: DataFrame, keys: Sequence[str] = MEASUREMENT) -> DataFrame:
    """Requests, each with its stretch, and its start and end counted from where that begins."""
    near = F.broadcast(times.select(*keys, "stretch", "begin_us", F.col("end_us").alias("stretch_end_us")))
    inside = F.col("start_us").between(F.col("begin_us"), F.col("stretch_end_us"))
    return (
        requests.join(near, list(keys))
        .where(inside)
        .withColumn("started_us", F.col("start_us") - F.col("begin_us"))
        .withColumn("ended_us", F.col("end_us") - F.col("begin_us"))
    )


def is_ok() -> Column:
    """Whether a request succeeded."""
    return F.col("outcome") == "ok"
