"""Groups the requests of a trace into measurements, and finds how long each lasted.

A *measurement* is all requests of one scenario, protocol and number of clients. Clients record only requests,
so the duration of a measurement follows from these. A *stretch* is a time in which it ran. It begins
with the start of its first request and ends with the end of its last one. A new stretch begins only after ten
seconds without any request in flight. Requests that wait for a crashed node are in flight, so an outage is
never cut out. A repeated measurement has several stretches, and the time between them does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

MEASUREMENT: Final = ("scenario", "protocol", "clients")
PANEL: Final = (*MEASUREMENT, "destinations")
"""A measurement with one number of destination partitions: a point of a latency-throughput curve."""
SILENCE_US: Final = 10_000_000
_SECOND_US: Final = 1_000_000
_ERROR_LENGTH: Final = 200


def asked(requests: DataFrame) -> DataFrame:
    """Return the columns that a report needs. Unknown values are "" or 0, so that they group and join.

    A late request starts at its intended start: a client that waits for a slow store also waits for the
    requests that it could not send meanwhile. `destinations` is the number of partitions. Errors are cut to
    200 characters.
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
    """Return one row about all requests `asked`: their number, runs and times, and how many have no valid
    times: no start or end (`untimed`), or an end before the start (`backwards`).
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
    """Return the requests `asked` that have valid times. Only they are measured."""
    return requests.where(F.col("latency_us") >= 0)


def stretches(requests: DataFrame) -> DataFrame:
    """Return the stretches of each measurement and number of destinations: `begin_us` to `end_us`.

    Requests are first aggregated by the second in which they start, so that only seconds are sorted, however
    many requests there are.
    """
    second = F.floor(F.col("start_us") / _SECOND_US).alias("second")
    seconds = requests.groupBy(*PANEL, second).agg(
        F.min("start_us").alias("begin_us"), F.max("end_us").alias("end_us")
    )
    return _joined(seconds, PANEL, SILENCE_US)


def merged(finer: DataFrame, keys: Sequence[str] = MEASUREMENT) -> DataFrame:
    """Merge stretches by fewer keys: those that touch or overlap become one."""
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
    """Add to each request its stretch, and its start and end relative to the stretch's begin."""
    near = F.broadcast(times.select(*keys, "stretch", "begin_us", F.col("end_us").alias("stretch_end_us")))
    inside = F.col("start_us").between(F.col("begin_us"), F.col("stretch_end_us"))
    return (
        requests.join(near, list(keys))
        .where(inside)
        .withColumn("started_us", F.col("start_us") - F.col("begin_us"))
        .withColumn("ended_us", F.col("end_us") - F.col("begin_us"))
    )


def is_ok() -> Column:
    """Return the condition that a request succeeded."""
    return F.col("outcome") == "ok"
