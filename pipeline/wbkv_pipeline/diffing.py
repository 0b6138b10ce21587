"""The differences between two states of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHANGES: Final = ("added", "removed", "changed")
COLUMNS: Final = ("value", "mod_revision")


def differences(left: DataFrame, right: DataFrame, *, ignore_revisions: bool = False) -> DataFrame:
    """Return one row for each key that differs: `change`, and the columns of both sides.

    A key is the same on both sides if its value and its mod_revision are equal. `ignore_revisions` compares
    values only, as a copy in another cluster requires.
    """
    sides = [
        side.select("key", *(F.col(name).alias(f"{which}_{name}") for name in COLUMNS))
        for which, side in (("left", left), ("right", right))
    ]
    # No key has a null mod_revision, so null means that the side lacks the key.
    there = F.col("left_mod_revision").isNotNull(), F.col("right_mod_revision").isNotNull()
    compared = ("value",) if ignore_revisions else COLUMNS
    equal = F.lit(True)  # noqa: FBT003 - Spark's
    for name in compared:
        equal &= F.col(f"left_{name}").eqNullSafe(F.col(f"right_{name}"))
    change = F.when(~there[0], "added").when(~there[1], "removed").when(~equal, "changed")
    joined = sides[0].join(sides[1], "key", "full_outer").withColumn("change", change)
    columns = (f"{which}_{name}" for name in COLUMNS for which in ("left", "right"))
    return joined.where(F.col("change").isNotNull()).select("key", "change", *columns)


def counts(different: DataFrame) -> dict[str, int]:
    """Return how many keys were added, removed and changed."""
    found = {row["change"]: row["count"] for row in different.groupBy("change").count().collect()}
    return {change: found.get(change, 0) for change in CHANGES}
