"""Groups deliveries by message, and checks each message by itself."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from wbkv_pipeline.verifying.findings import found
from wbkv_pipeline.verifying.lines import MESSAGE, ORDER, POSITIONS, STRAY

IDENTITY = ("origin", "number", "digest")


def delivered(lines: DataFrame) -> DataFrame:
    """Return one row for each group and timestamp: the message delivered there, and the runs that did.

    `low` and `high` are equal if all runs agree about the message. Both are null if no message has this
    timestamp, only lines with a problem. `since` is the lowest of all copies.
    """
    is_message = sql.col("kind") == MESSAGE
    message = sql.when(is_message, sql.struct(*IDENTITY, "destinations", "client", "sequence"))
    copy = sql.struct("run_id", "position", "since", "problem", "before", is_message.alias("is_message"))
    # Partitioned by timestamp alone, since `messages` groups by it next.
    return (
        lines.repartition("gts")
        .groupBy("gts", "group")
        .agg(
            sql.min(message).alias("low"),
            sql.max(message).alias("high"),
            sql.min("since").alias("since"),
            sql.max("problem").alias("problem"),
            sql.collect_list(copy).alias("copies"),
        )
    )


def messages(deliveries: DataFrame) -> DataFrame:
    """Return one row for each timestamp, from `delivered`: the message, and the groups that delivered it."""
    return (
        deliveries.where(sql.col("low").isNotNull())
        .groupBy("gts")
        .agg(
            sql.min("low").alias("low"),
            sql.max("high").alias("high"),
            sql.collect_set("group").alias("groups"),
        )
    )


_PROBLEMS = (
    (POSITIONS, "positions", "the line does not follow the one before it: lines are missing or repeated"),
    (ORDER, "order", "the timestamp is not above that of the line before it"),
    (STRAY, "validity", "delivered in a group that is not one of the message's destinations"),
)


def check_lines(deliveries: DataFrame) -> DataFrame:
    """Check single lines: positions, order of timestamps, destinations."""
    kinds = sql.array(
        *(
            sql.struct(sql.lit(bit).alias("bit"), sql.lit(check).alias("check"), sql.lit(what).alias("what"))
            for bit, check, what in _PROBLEMS
        )
    )
    rows = (
        deliveries.where(sql.col("problem") > 0)
        .select("gts", "group", "low", sql.explode("copies").alias("copy"))
        .where(sql.col("copy.problem") > 0)
        .select("*", sql.explode(kinds).alias("kind"))
        .where(sql.col("copy.problem").bitwiseAND(sql.col("kind.bit")) > 0)
    )
    return found(
        rows,
        sql.col("kind.check"),
        sql.col("kind.what"),
        group=sql.col("group"),
        run_id=sql.col("copy.run_id"),
        gts=sql.col("gts"),
        message=sql.when(sql.col("copy.is_message"), sql.col("low")),
        details={"position": sql.col("copy.position"), "line_before": sql.col("copy.before")},
    )


def check_repeats(deliveries: DataFrame) -> DataFrame:
    """Check integrity at one timestamp: no run delivers a message twice. `check_twice` does the rest."""
    runs = sql.transform(sql.filter("copies", lambda copy: copy["is_message"]), lambda copy: copy["run_id"])
    rows = deliveries.where(sql.size("copies") > 1).withColumn("runs", runs)
    rows = rows.where(sql.size("runs") > sql.size(sql.array_distinct("runs")))
    once = sql.array_distinct("runs")
    times = sql.size(sql.filter("runs", lambda run: run == sql.col("run_id")))
    rows = rows.select("*", sql.explode(once).alias("run_id")).withColumn("times", times)
    return found(
        rows.where(sql.col("times") > 1),
        "integrity",
        "delivered more than once in one run",
        group=sql.col("group"),
        run_id=sql.col("run_id"),
        gts=sql.col("gts"),
        message=sql.col("low"),
        details={"times": sql.col("times")},
    )


def several_timestamps(by_timestamp: DataFrame) -> DataFrame:
    """Return the messages with more than one timestamp, with the lowest and highest."""
    either = sql.explode(sql.array_distinct(sql.array(_identity("low"), _identity("high"))))
    return (
        by_timestamp.select("gts", either.alias("message"))
        .select("gts", "message.*")
        .groupBy(*IDENTITY)
        .agg(sql.min("gts").alias("first"), sql.max("gts").alias("last"))
        .where(sql.col("first") < sql.col("last"))
    )


def check_timestamps(by_timestamp: DataFrame, several: DataFrame) -> DataFrame:
    """Check that timestamps and messages match one to one, at all replicas of all groups, in all runs."""
    shared = by_timestamp.where(sql.col("low") != sql.col("high"))
    identity = [sql.col(f"low.{name}") == sql.col(f"high.{name}") for name in IDENTITY]
    same = identity[0] & identity[1] & identity[2]
    at_one = found(
        shared,
        "timestamps",
        sql.when(same, "replicas differ in the message's destinations or request").otherwise(
            "two messages have one timestamp"
        ),
        gts=sql.col("gts"),
        message=sql.col("low"),
        details={"one": sql.col("low"), "other": sql.col("high")},
    )
    at_many = found(
        several,
        "timestamps",
        "one message has several timestamps",
        gts=sql.col("first"),
        message=sql.struct(*IDENTITY),
        details={"lowest": sql.col("first"), "highest": sql.col("last")},
    )
    return at_one.unionByName(at_many)


def check_twice(deliveries: DataFrame, several: DataFrame) -> DataFrame:
    """Check integrity across timestamps: no run delivers a message at two timestamps."""
    copies = deliveries.where(sql.col("low").isNotNull()).select("gts", "group", "low.*", "copies")
    rows = (
        copies.join(several.select(*IDENTITY), [*IDENTITY])
        .select("gts", "group", *IDENTITY, sql.explode("copies.run_id").alias("run_id"))
        .groupBy(*IDENTITY, "group", "run_id")
        .agg(sql.min("gts").alias("first"), sql.max("gts").alias("last"))
        .where(sql.col("first") < sql.col("last"))
    )
    return found(
        rows,
        "integrity",
        "delivered more than once in one run, at different timestamps",
        group=sql.col("group"),
        run_id=sql.col("run_id"),
        gts=sql.col("last"),
        message=sql.struct(*IDENTITY),
        details={"lowest": sql.col("first"), "highest": sql.col("last")},
    )


def _identity(message: str) -> Column:
    return sql.struct(*(sql.col(f"{message}.{name}").alias(name) for name in IDENTITY))
