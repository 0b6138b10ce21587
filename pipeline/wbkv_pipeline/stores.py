"""Clusters as jobs read them: one revision as a DataFrame, without the pipeline's own records."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import wbkv
from wbkv.core.routing import endpoints_of

from wbkv_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "wbkv"
IMPORTS: Final = "wbkv.import/"
STREAMS: Final = "wbkv.stream/"
"""Keys with these prefixes are the pipeline's own records: the progress of imports and of streams' sinks."""
HELD_S: Final = 600.0


@dataclass(frozen=True)
class ClusterSnapshot:
    """A cluster at one revision."""

    endpoints: str
    cluster: str
    revision: int


def resolve(endpoints: str | None) -> str:
    """Return the endpoints by the driver's environment: that of executors may differ."""
    return ",".join(endpoints_of(endpoints))


@contextmanager
def held(endpoints: str | None, revision: int = 0) -> Iterator[ClusterSnapshot]:
    """Hold a revision, the present one if 0, against compaction while a job begins to read it."""
    where = resolve(endpoints)
    with wbkv.connect(where) as client:
        try:
            snapshot = client.snapshot(ttl=HELD_S, revision=revision)
        except wbkv.Compacted as error:
            left = f"; the oldest that is left is {error.revision}" if error.revision else ""
            raise PipelineError(f"revision {revision} is compacted{left}") from None
        with snapshot:
            yield ClusterSnapshot(where, client.topology().cluster, snapshot.revision)


def read(spark: SparkSession, state: ClusterSnapshot, prefix: str = "", splits: int = 0) -> DataFrame:
    """Return the rows of a cluster, without the pipeline's own records."""
    reader = spark.read.format(FORMAT).option("endpoints", state.endpoints)
    reader = reader.option("revision", str(state.revision))
    if prefix:
        reader = reader.option("prefix", prefix)
    if splits:
        reader = reader.option("splits", str(splits))
    return without_records(reader.load())


def without_records(rows: DataFrame) -> DataFrame:
    """Return only the rows that users have written."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    kinds = (F.col("key").startswith(F.lit(kind.encode())) for kind in (IMPORTS, STREAMS))
    return rows.where(~functools.reduce(operator.or_, kinds))
