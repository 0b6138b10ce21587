"""What a replica has passed over: nothing may be missing between two lines of its log.

A line says "I have everything up to here, and next comes this". So whatever else belongs between the two,
because another replica of the group delivered it (agreement), because another destination did (projections),
or because it was acknowledged to a client (completeness), is missing at this one. That needs, for each
timestamp of a group, only the last one before it that must be there: a running maximum.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from wbkv_pipeline.verifying.findings import found

SLICE_BITS: Final = 26
"""Timestamps that are looked at together: 6.5 seconds of a group's."""

ACKNOWLEDGED, ELSEWHERE, HERE = 0, 1, 2
"""Why a message must be there. Of two reasons at one timestamp, the lower comes first: what a client was told
counts against the very message that has this timestamp instead.
"""

_KINDS: Final = (
    (HERE, "agreement", "passed over a message that another replica of the group delivered"),
    (ELSEWHERE, "projection", "passed over a message that another of its destinations delivered"),
    (ACKNOWLEDGED, "completeness", "passed over a message that was acknowledged to its client"),
)


def elsewhere(by_timestamp: DataFrame) -> DataFrame:
    """Group and timestamp of what some destination delivered, but no replica of this one did."""
    missing = sql.array_except("low.destinations", "groups")
    agreed = by_timestamp.where(sql.col("low") == sql.col("high")).where(sql.size(missing) > 0)
    return agreed.select("gts", sql.explode(missing).alias("group"))


def check_gaps(
    deliveries: DataFrame, missing: DataFrame, acknowledged: DataFrame | None, *, slice_bits: int = SLICE_BITS
) -> DataFrame:
    """What each run has passed over. Of several such messages in one place, the last is told."""
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
    """For each slice that there is, the last timestamp of each kind in those before it."""
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
