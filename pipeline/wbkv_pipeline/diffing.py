"""What differs between two states of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHANGES: Final = ("added", "removed", "changed")
COLUMNS: Final = ("value", "mod_revision")


def differences(left: DataFrame, right: DataFrame, *, ignore_revisions: bool = False) -> DataFrame:
    """One row for each key that is not the same on both sides: `change`, and what each side has.

    The same are keys with equal values that were written by the same transaction; `ignore_revisions`: with
    equal values, as a copy in another cluster has.
    """
    sides = [
        side.select("key", *(F.col(name).alias(f"{which}_{name}") for name in COLUMNS))
        for which, side in (("left", left), ("right", right))
    ]
    # In neither side a key's mod_revision is null, so that null means: no such key.
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
    """How many keys were added, removed, changed."""
    found = {row["change"]: row["count"] for row in different.groupBy("change").count().collect()}
    return {change: found.get(change, 0) for change in CHANGES}
