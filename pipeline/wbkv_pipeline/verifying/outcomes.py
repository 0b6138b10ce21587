"""Matches requests with the messages that carried them: validity, completeness, exactly once.

A request is identified by client, sequence number and set of partitions, as in the store's sessions. Several
messages may carry one request, since a client without an answer retries. The request takes effect at the
first of them; the store answers the others with the first one's result.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from wbkv_pipeline.verifying.findings import found

REQUEST: Final = ("client", "sequence")
SESSION: Final = (600 * 10_000) << 10
"""Ten minutes, in revisions. The store may execute a request again that is retried later, unless the
request had a deadline of its own, which traces do not record.
"""


def matched(by_timestamp: DataFrame | None, requests: DataFrame | None) -> DataFrame:
    """Return one row for each client and sequence number: the client's trace of it, and its messages.

    `asked` (by the client's trace) and `carried` (by the replicas') are arrays with one element for each set
    of partitions, or null.
    """
    asked = carried = None
    if requests is not None:
        ok = sql.col("outcome") == "ok"
        # Only a request that wrote certainly has its own revision: a read may have that of what it read.
        own = sql.when(ok & (sql.size("writes") > 0), sql.col("revision"))
        asked = (
            requests.where(sql.col("client").isNotNull() & sql.col("sequence").isNotNull())
            .groupBy(*REQUEST, sql.sort_array("partitions").alias("partitions"))
            .agg(
                sql.min(own).alias("lowest"),
                sql.max(own).alias("highest"),
                sql.count_if(ok).alias("ok"),
                sql.count_if(sql.col("outcome") == "failed").alias("failed"),
                sql.count_if(sql.col("outcome") == "unknown").alias("unknown"),
                sql.min("run").alias("run"),
            )
            .groupBy(*REQUEST)
            .agg(
                sql.collect_list(
                    sql.struct("partitions", "lowest", "highest", "ok", "failed", "unknown", "run")
                ).alias("asked")
            )
        )
    if by_timestamp is not None:
        carried = (
            by_timestamp.where(sql.col("low.client").isNotNull())
            .groupBy(
                sql.col("low.client").alias("client"),
                sql.col("low.sequence").alias("sequence"),
                sql.sort_array("low.destinations").alias("destinations"),
            )
            .agg(sql.sort_array(sql.collect_set("gts")).alias("timestamps"))
            .groupBy(*REQUEST)
            .agg(sql.collect_list(sql.struct("destinations", "timestamps")).alias("carried"))
        )
    if asked is None or carried is None:
        rows = asked if asked is not None else carried
        assert rows is not None
        nothing = sql.lit(None)
        if asked is None:
            kind = (
                "array<struct<partitions:array<int>,lowest:bigint,highest:bigint,ok:bigint,failed:bigint,"
                "unknown:bigint,run:string>>"
            )
            return rows.withColumn("asked", nothing.cast(kind))
        return rows.withColumn(
            "carried", nothing.cast("array<struct<destinations:array<int>,timestamps:array<bigint>>>")
        )
    return asked.join(carried, [*REQUEST], "full_outer")


def paired(matches: DataFrame) -> DataFrame:
    """Return one row for each request of a client's trace, with the timestamps of its messages.

    Where the client's trace has no partitions, messages to any partitions count.
    """
    mine = sql.filter(
        "carried",
        lambda one: (
            sql.col("asked.partitions").isNull() | (one["destinations"] == sql.col("asked.partitions"))
        ),
    )
    return (
        matches.where(sql.col("asked").isNotNull())
        .select(*REQUEST, sql.explode("asked").alias("asked"), "carried")
        .select(
            *REQUEST,
            "asked.*",
            sql.array_sort(sql.flatten(sql.transform(mine, lambda one: one["timestamps"]))).alias(
                "timestamps"
            ),
        )
        .withColumn("timestamps", sql.coalesce("timestamps", sql.array().cast("array<bigint>")))
        .withColumn("first", sql.get("timestamps", sql.lit(0)))
    )


def check_validity(matches: DataFrame, *, untraced_clients: bool) -> DataFrame:
    """Check validity: a client of the trace has sent what was delivered, to these partitions."""
    asked = sql.col("asked")
    known = sql.exists(
        "asked",
        lambda one: one["partitions"].isNull() | (one["partitions"] == sql.col("carried.destinations")),
    )
    rows = matches.where(sql.col("carried").isNotNull())
    if untraced_clients:
        rows = rows.where(asked.isNotNull())
    rows = rows.select(*REQUEST, "asked", sql.explode("carried").alias("carried"))
    rows = rows.where(asked.isNull() | ~known)
    return found(
        rows,
        "validity",
        sql.when(asked.isNull(), "delivered, but no client has sent this request").otherwise(
            "delivered to other partitions than the client sent the request to"
        ),
        gts=sql.get("carried.timestamps", sql.lit(0)),
        details={
            "client": sql.col("client"),
            "sequence": sql.col("sequence"),
            "destinations": sql.col("carried.destinations"),
            "sent_to": asked["partitions"],
        },
    )


def unseen(pairs: DataFrame) -> DataFrame:
    """Return group and timestamp of acknowledged requests that no log has."""
    lost = sql.col("lowest").isNotNull() & ~sql.array_contains("timestamps", sql.col("lowest"))
    return pairs.where(lost).select(sql.col("lowest").alias("gts"), sql.explode("partitions").alias("group"))


def check_once(pairs: DataFrame) -> DataFrame:
    """Check exactly-once: a request has one revision, that of the first message that carried it.

    Requests with a rejected attempt are left out: their first accepted message is unknown.
    """
    several = pairs.where((sql.col("lowest") < sql.col("highest")) & _near("lowest", "highest"))
    later = pairs.where(
        (sql.col("failed") == 0)
        & (sql.col("first") < sql.col("lowest"))
        & _near("first", "lowest")
        & sql.array_contains("timestamps", sql.col("lowest"))
    )
    parts = [
        found(
            rows,
            "once",
            what,
            run=sql.col("run"),
            gts=sql.col("lowest"),
            details={
                name: sql.col(name) for name in ("client", "sequence", "partitions", "highest", "timestamps")
            },
        )
        for rows, what in (
            (several, "one request was acknowledged at several revisions"),
            (later, "a request took effect at another message than the first that carried it"),
        )
    ]
    return parts[0].unionByName(parts[1])


def _near(low: str, high: str) -> Column:
    return sql.col(high) - sql.col(low) < SESSION
