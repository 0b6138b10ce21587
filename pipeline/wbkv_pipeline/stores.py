"""A cluster as jobs see it: one revision of it, as a DataFrame, and what the pipeline itself keeps there."""

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
"""Keys that begin like this are the pipeline's own notes: how far an import, or a stream's sink, is."""
HELD_S: Final = 600.0


@dataclass(frozen=True)
class ClusterSnapshot:
    """A cluster at a revision."""

    endpoints: str
    cluster: str
    revision: int


def resolve(endpoints: str | None) -> str:
    """Where the cluster is, found out on the driver: executors have another environment."""
    return ",".join(endpoints_of(endpoints))


@contextmanager
def held(endpoints: str | None, revision: int = 0) -> Iterator[ClusterSnapshot]:
    """A revision, now's or a given one, which is not compacted while a job begins to read it."""
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
    """Its rows, without the pipeline's own notes."""
    reader = spark.read.format(FORMAT).option("endpoints", state.endpoints)
    reader = reader.option("revision", str(state.revision))
    if prefix:
        reader = reader.option("prefix", prefix)
    if splits:
        reader = reader.option("splits", str(splits))
    return without_notes(reader.load())


def without_notes(rows: DataFrame) -> DataFrame:
    """Only what users have written."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    kinds = (F.col("key").startswith(F.lit(kind.encode())) for kind in (IMPORTS, STREAMS))
    return rows.where(~functools.reduce(operator.or_, kinds))
