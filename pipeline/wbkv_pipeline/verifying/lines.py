"""Compares each line of a replica's log with the line before it.

A window over all lines of a run and group would be one task, however many lines there are. Positions identify
neighbours, so the lines are cut into stretches, and the last line of each is in the next stretch, too.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

STRETCH: Final = 4000
"""Lines of a stretch: Spark's windows hold this many in memory by default."""

POSITIONS: Final = 1
"""The line does not follow the one before it."""
ORDER: Final = 2
"""Its timestamp is not above the one before it."""
STRAY: Final = 4
"""Its group is not among the message's destinations."""

BEGIN: Final = "begin"
MESSAGE: Final = "message"
JUMP: Final = "jump"
STOPPED: Final = "stopped"


def run_id(run: str = "run") -> Column:
    """Hash a run's name to a number, which is shorter. (Among a million runs, two collide with a probability
    of one in thirty million.)
    """
    return sql.xxhash64(run)


def followed(deliveries: DataFrame, stretch: int = STRETCH) -> DataFrame:
    """Return all deliveries, and those other lines that have a `problem`.

    `since` is the timestamp of the line before: up to it, the run has everything that precedes this line. It
    is null if the two lines do not fit together, so that one mistake is not reported twice.
    """
    position = sql.col("position")
    number = sql.floor(position / stretch)
    last = position % stretch == stretch - 1
    lines = deliveries.select(
        run_id().alias("run_id"),
        *("group", "kind", "position", "gts", "origin", "number", "digest", "destinations"),
        *("client", "sequence"),
        sql.explode(sql.when(last, sql.array(number, number + 1)).otherwise(sql.array(number))).alias(
            "stretch"
        ),
    )
    window = Window.partitionBy("run_id", "group", "stretch").orderBy("position", "gts")
    same = (
        (sql.lag("kind").over(window) == MESSAGE)
        & (sql.lag("origin").over(window) == sql.col("origin"))
        & (sql.lag("number").over(window) == sql.col("number"))
        & (sql.lag("digest").over(window) == sql.col("digest"))
    )
    lines = (
        lines.withColumns(
            {
                "before": sql.lag("position").over(window),
                "before_gts": sql.lag("gts").over(window),
                "same": sql.coalesce(same, sql.lit(col=False)),
            }
        )
        .where(position >= sql.col("stretch") * stretch)  # drops the copies from the stretch before
        .drop("stretch")
    )
    problem = sql.when(_misplaced(), POSITIONS).when(_not_above(), ORDER).otherwise(0)
    message = sql.col("kind") == MESSAGE
    stray = message & ~sql.array_contains("destinations", sql.col("group"))
    return (
        lines.withColumn("problem", problem)
        .withColumn("since", sql.when(sql.col("problem") == 0, sql.col("before_gts")))
        .withColumn("problem", sql.col("problem") + sql.when(stray, STRAY).otherwise(0))
        .where(message | (sql.col("problem") > 0))
        .drop("before_gts", "same")
    )


def _misplaced() -> Column:
    """Whether positions are not 1, 2, 3, ..., or a line other than the first is a "begin"."""
    first = sql.col("position") == 1
    begins = sql.col("kind") == BEGIN
    follows = sql.coalesce(sql.col("position") == sql.col("before") + 1, sql.lit(col=False))
    alone = sql.col("before").isNull()
    return (first != begins) | sql.when(first, ~alone).otherwise(~follows)


def _not_above() -> Column:
    """Whether the timestamp does not exceed that of the line before.

    The same message at the same timestamp is a repetition, which `messages.check_repeats` finds. A state that
    a replica took over may have the replica's own timestamp.
    """
    gts, before = sql.col("gts"), sql.col("before_gts")
    jump = sql.col("kind") == JUMP
    return sql.when(jump | sql.col("same"), gts < before).otherwise(gts <= before) & before.isNotNull()
