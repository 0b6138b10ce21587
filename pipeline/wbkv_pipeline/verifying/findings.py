"""Findings: the violations of all checks, as rows of one table."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

FINDING: Final = StructType(
    [
        StructField("check", StringType()),
        StructField("what", StringType()),  # in words
        StructField("group", IntegerType()),
        StructField("run_id", LongType()),  # of a replica: see `wbkv_pipeline.verifying.lines.run_id`
        StructField("run", StringType()),  # of a client; of a replica, once it was looked up
        StructField("gts", LongType()),
        StructField("message", StringType()),  # origin:number:digest
        StructField("details", StringType()),  # JSON
    ]
)


def found(
    rows: DataFrame,
    check: str | Column,
    what: str | Column,
    *,
    details: dict[str, Column],
    group: Column | None = None,
    run_id: Column | None = None,
    run: Column | None = None,
    gts: Column | None = None,
    message: Column | None = None,
) -> DataFrame:
    """Turn each row into a finding. `message` has the fields origin, number and digest."""
    values = {
        "check": sql.lit(check) if isinstance(check, str) else check,
        "what": sql.lit(what) if isinstance(what, str) else what,
        "group": group,
        "run_id": run_id,
        "run": run,
        "gts": gts,
        "message": None if message is None else name_of(message),
        "details": sql.to_json(sql.struct(*(value.alias(name) for name, value in details.items()))),
    }
    return rows.select(
        *(
            (sql.lit(None) if (value := values[field.name]) is None else value)
            .cast(field.dataType)
            .alias(field.name)
            for field in FINDING
        )
    )


def name_of(message: Column) -> Column:
    """Return the printed form of a message's id."""
    parts = (message["origin"], message["number"], message["digest"])
    return sql.when(message.isNotNull(), sql.concat_ws(":", *parts))
