"""Checks that each read returned the latest earlier version of its key, in the order of revisions.

Only certain violations are reported. A write with an unknown outcome may or may not have happened. A key may
have had a value before the trace began. The writes of clients without a trace, if there are any, are unknown.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from wbkv_pipeline.verifying.findings import found
from wbkv_pipeline.verifying.versions import bytes_of

VERSION = "struct<revision:bigint,put:boolean,gone:boolean>"


def reads_of(requests: DataFrame) -> DataFrame:
    """Return one row for each key that a request has read."""
    rows = requests.where((sql.col("outcome") == "ok") & (sql.size("reads") > 0))
    rows = rows.select(
        *("run", "start_us", "end_us", "revision"),
        sql.coalesce("exact", sql.lit(col=False)).alias("exact"),
        (sql.size("writes") > 0).alias("writes"),
        sql.explode("reads").alias("read"),
    )
    return rows.select(
        bytes_of(sql.col("read.key")).alias("key"),
        sql.col("read.revision").alias("seen"),
        *("run", "start_us", "end_us", "revision", "exact", "writes"),
    )


def explained(reads: DataFrame, versions: DataFrame, *, clock_skew_us: int) -> DataFrame:
    """Return each read with the versions that decide whether it is correct:

    - `latest`: the last certain version at or below the read's revision; below it, if the read is part of a
      transaction that writes;
    - `acknowledged`: the last certain version that was acknowledged before the read began, by the same
      process's clock, or by another's, which may differ by `clock_skew_us`;
    - `removed`: the last removal at or below the read's revision; `removed_ever`: the last one of all;
    - `version`: the version that the read saw;
    - `may_be_put`, `may_be_gone`: whether a request did so that has no known position in the order.

    One pass over the reads and versions of a key finds all of them.
    """
    nothing = sql.lit(None)
    events = versions.select(
        "key",
        sql.struct("revision", "put", "gone").cast(VERSION).alias("written"),
        "certain",
        sql.col("start_us").alias("written_us"),
        sql.col("revision").alias("position"),
        sql.lit(1).alias("rank"),
        sql.col("revision").alias("seen"),
        sql.col("ended.end_us").alias("at_us"),
        sql.col("ended.end_us").alias("at_own_us"),
        sql.col("ended.run").alias("run"),
        nothing.cast("struct<start_us:bigint,end_us:bigint,exact:boolean,writes:boolean>").alias("read"),
    ).unionByName(
        reads.select(
            "key",
            nothing.cast(VERSION).alias("written"),
            nothing.cast("boolean").alias("certain"),
            nothing.cast("bigint").alias("written_us"),
            sql.col("revision").alias("position"),
            sql.when(sql.col("exact") & sql.col("writes"), 0).otherwise(2).alias("rank"),
            "seen",
            (sql.col("start_us") - clock_skew_us).alias("at_us"),
            sql.col("start_us").alias("at_own_us"),
            "run",
            sql.struct("start_us", "end_us", "exact", "writes").alias("read"),
        )
    )
    # A version whose request ended in the microsecond in which the read began sorts after the read.
    of_key = Window.partitionBy("key")
    by_position = of_key.orderBy("position", "rank").rowsBetween(Window.unboundedPreceding, -1)
    by_time = of_key.orderBy("at_us", sql.col("read").isNull()).rowsBetween(Window.unboundedPreceding, -1)
    by_own = Window.partitionBy("key", "run").orderBy("at_own_us", sql.col("read").isNull())
    by_own = by_own.rowsBetween(Window.unboundedPreceding, -1)
    at_seen = Window.partitionBy("key", "seen")
    certain = sql.when(sql.col("certain"), sql.col("written"))
    gone = sql.when(sql.col("written.gone"), sql.col("written.revision"))
    lost = sql.col("written").isNotNull() & sql.col("written.revision").isNull()
    rows = events.withColumns(
        {
            "latest": sql.max(certain).over(by_position),
            "removed": sql.max(gone).over(by_position),
            "acknowledged": sql.greatest(sql.max(certain).over(by_time), sql.max(certain).over(by_own)),
            "removed_ever": sql.max(gone).over(of_key),
            "may_be_put": sql.max(lost & sql.col("written.put")).over(of_key),
            "may_be_gone": sql.max(lost & sql.col("written.gone")).over(of_key),
            "version": sql.max("written").over(at_seen),
            "version_us": sql.max(sql.when(sql.col("certain"), sql.col("written_us"))).over(at_seen),
            "version_run": sql.max(sql.when(sql.col("certain"), sql.col("run"))).over(at_seen),
        }
    )
    return rows.where(sql.col("read").isNotNull()).select(
        *("key", "run", "seen", sql.col("position").alias("revision"), "read.*"),
        *("latest", "removed", "acknowledged", "removed_ever", "may_be_put", "may_be_gone"),
        *("version", "version_us", "version_run"),
    )


def doubtful(rows: DataFrame, *, untraced_clients: bool, begins: int | None, clock_skew_us: int) -> DataFrame:
    """Return the incorrect reads, with the reason in `what`, and, with a null `what`, the reads of a version
    that no request of the trace has written.

    `begins`: the first revision that the trace has written, or None. Earlier versions are unknown.
    """
    seen, exact = sql.col("seen"), sql.col("exact")
    bound = sql.when(exact, sql.col("latest")).otherwise(sql.greatest("latest", "acknowledged"))
    removed = sql.when(exact, sql.col("removed")).otherwise(sql.col("removed_ever"))
    rows = rows.withColumn("bound", bound).withColumn("gone_at", removed)
    absent = seen == 0
    there = sql.col("bound.put") & ~sql.col("bound.gone")
    gone_since = sql.coalesce(sql.col("gone_at") > sql.col("bound.revision"), sql.lit(col=False))
    skew = sql.when(sql.col("run").eqNullSafe(sql.col("version_run")), 0).otherwise(clock_skew_us)
    missed = absent & there & ~gone_since & ~sql.col("may_be_gone") & sql.lit(not untraced_clients)
    removal = sql.col("version").isNotNull() & ~sql.col("version.put")
    what = (
        sql.when(exact & (seen > sql.col("revision")), "saw a version above its own revision")
        .when(~absent & (seen < sql.col("bound.revision")), "saw an old version: a later one was there")
        .when(missed, "saw no such key, which was there")
        .when(~absent & removal, "saw a version that is a removal")
        .when(~absent & (sql.col("version_us") > sql.col("end_us") + skew), "saw what was written later")
    )
    strange = ~absent & sql.col("version").isNull() & (seen >= sql.lit(begins)) & ~sql.col("may_be_put")
    return rows.withColumn("what", what).where(sql.col("what").isNotNull() | strange)


def check_reads(doubts: DataFrame) -> DataFrame:
    """Return the reads that no version of their key explains."""
    return _found(doubts.where(sql.col("what").isNotNull()), "reads", sql.col("what"))


def check_strange(
    doubts: DataFrame, by_timestamp: DataFrame | None, matches: DataFrame, *, untraced_clients: bool
) -> DataFrame:
    """Check reads of versions that no request of the trace has written.

    A failed request must have no effect, and the trace of an acknowledged request has all its writes. Other
    requests are not in the trace, which is allowed if there are clients without one.
    """
    strange = doubts.where(sql.col("what").isNull())
    if by_timestamp is None:
        rows = strange.withColumns({"asked": sql.lit(None).cast("array<struct<ok:bigint,unknown:bigint>>")})
    else:
        messages = by_timestamp.select(
            sql.col("gts").alias("seen"),
            sql.col("low.client").alias("client"),
            sql.col("low.sequence").alias("sequence"),
            sql.sort_array("low.destinations").alias("destinations"),
        )
        rows = strange.join(messages, "seen", "left").join(
            matches.select("client", "sequence", "asked"), ["client", "sequence"], "left"
        )
        mine = sql.filter(
            "asked", lambda one: one["partitions"].isNull() | (one["partitions"] == sql.col("destinations"))
        )
        rows = rows.withColumn("asked", sql.when(sql.size(mine) > 0, mine))
    known = sql.col("asked").isNotNull()
    ok = sql.exists("asked", lambda one: one["ok"] > 0)
    unknown = sql.exists("asked", lambda one: one["unknown"] > 0)
    failed = rows.where(known & ~ok & ~unknown)
    others = rows.where(known & ok) if untraced_clients else rows.where(~known | ok)
    return _found(failed, "failed", sql.lit("saw a write of a failed request")).unionByName(
        _found(others, "reads", sql.lit("saw a version that no client has written"))
    )


def _found(rows: DataFrame, check: str, what: Column) -> DataFrame:
    return found(
        rows,
        check,
        what,
        run=sql.col("run"),
        gts=sql.col("revision"),
        details={
            "key": sql.col("key").cast("string"),
            "seen": sql.col("seen"),
            "exact": sql.col("exact"),
            "latest": sql.col("latest.revision"),
            "acknowledged": sql.col("acknowledged.revision"),
            "start_us": sql.col("start_us"),
        },
    )
