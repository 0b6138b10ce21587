"""Finds messages that a replica has skipped: nothing may be missing between two lines of its log.

A line claims that the replica has everything up to the timestamp of the line before it, and that this message
comes next. So a message between the two timestamps is missing at this replica if another replica of the group
delivered it (agreement), if another destination did (projection), or if it was acknowledged to a client
(completeness). For each timestamp of a group, the check needs only the last earlier one that must be there: a
running maximum.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from wbkv_pipeline.verifying.findings import found

SLICE_BITS: Final = 26
"""Size of the slices of timestamps that one window covers: 6.5 seconds of a group."""

ACKNOWLEDGED, ELSEWHERE, HERE = 0, 1, 2
"""Why a message must be in the log. Of two reasons at one timestamp, the lower sorts first: an
acknowledgement counts against another message that the log has at its timestamp.
"""

_KINDS: Final = (
    (HERE, "agreement", "skipped a message that another replica of the group delivered"),
    (ELSEWHERE, "projection", "skipped a message that another of its destinations delivered"),
    (ACKNOWLEDGED, "completeness", "skipped a message that was acknowledged to its client"),
)


def elsewhere(by_timestamp: DataFrame) -> DataFrame:
    """Return group and timestamp of messages that only other destinations have delivered."""
    missing = sql.array_except("low.destinations", "groups")
    agreed = by_timestamp.where(sql.col("low") == sql.col("high")).where(sql.size(missing) > 0)
    return agreed.select("gts", sql.explode(missing).alias("group"))


def check_gaps(
    deliveries: DataFrame, missing: DataFrame, acknowledged: DataFrame | None, *, slice_bits: int = SLICE_BITS
) -> DataFrame:
    """Return what each run has skipped. Of several messages skipped between two lines, only the last."""
    rows = _reason(deliveries, HERE, copies=True).unionByName(_reason(missing, ELSEWHERE))
    if acknowledged is not None:
        rows = rows.unionByName(_reason(acknowledged.distinct(), ACKNOWLEDGED))
    rows = rows.withColumn("slice", sql.shiftright("gts", slice_bits))
    inside = Window.partitionBy("group", "slice").orderBy("gts", "reason")
    earlier = inside.rowsBetween(Window.unboundedPreceding, -1)
    reasons = [reason for reason, _, _ in _KINDS]
    rows = rows.withColumns({_last(reason): sql.max(_of(reason)).over(earlier) for reason in reasons})
    rows = rows.where(sql.col("reason") == HERE).join(_before_slices(rows), ["group", "slice"], "left")
    latest = sql.greatest(*(name(reason) for reason in reasons for name in (_last, _before)))
    rows = rows.where(sql.col("since") < latest)
    kinds = sql.array(
        *(
            sql.struct(
                sql.lit(check).alias("check"),
                sql.lit(what).alias("what"),
                sql.greatest(_last(reason), _before(reason)).alias("missing"),
            )
            for reason, check, what in _KINDS
        )
    )
    passed_over = sql.col("kind.missing")
    passed = (
        rows.select("group", "gts", "since", "copies", sql.explode(kinds).alias("kind"))
        .where(sql.col("since") < passed_over)
        .select("group", "gts", "kind", sql.explode("copies").alias("copy"))
        .where(sql.col("copy.since") < passed_over)
    )
    return found(
        passed,
        sql.col("kind.check"),
        sql.col("kind.what"),
        group=sql.col("group"),
        run_id=sql.col("copy.run_id"),
        gts=passed_over,
        details={
            "after": sql.col("copy.since"),
            "delivered_instead": sql.col("gts"),
            "position": sql.col("copy.position"),
        },
    )


def _reason(rows: DataFrame, reason: int, *, copies: bool = False) -> DataFrame:
    kind = "array<struct<run_id:bigint,position:bigint,since:bigint>>"
    kept = sql.transform(
        "copies", lambda copy: sql.struct(copy["run_id"], copy["position"], copy["since"])
    ).cast(kind)
    return (rows.where(sql.col("low").isNotNull()) if copies else rows).select(
        "group",
        "gts",
        sql.lit(reason).alias("reason"),
        (sql.col("since") if copies else sql.lit(None)).cast("bigint").alias("since"),
        (kept if copies else sql.lit(None).cast(kind)).alias("copies"),
    )


def _before_slices(rows: DataFrame) -> DataFrame:
    """Return for each slice the last timestamp of each reason in earlier slices."""
    reasons = [reason for reason, _, _ in _KINDS]
    slices = rows.groupBy("group", "slice").agg(
        *(sql.max(_of(reason)).alias(_last(reason)) for reason in reasons)
    )
    earlier = Window.partitionBy("group").orderBy("slice").rowsBetween(Window.unboundedPreceding, -1)
    return slices.select(
        "group", "slice", *(sql.max(_last(reason)).over(earlier).alias(_before(reason)) for reason in reasons)
    )


def _of(reason: int) -> Column:
    return sql.when(sql.col("reason") == reason, sql.col("gts"))


def _last(reason: int) -> str:
    return f"last_{reason}"


def _before(reason: int) -> str:
    return f"before_{reason}"
