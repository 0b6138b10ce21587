"""Traces: what replicas delivered and what clients asked for, as files that Spark reads.

A folder of traces has three kinds of files, told by how their names begin, as JSON lines (`.jsonl`, also
compressed: `.jsonl.gz`) or Parquet. Nodes write `deliveries-*` (`wbkv up --trace`), clients `requests-*`
(`wbkv.Trace`), and whoever breaks or changes something during a run writes `marks-*`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.observation import Observation
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.files import Folder

DELIVERIES: Final = StructType(
    [
        StructField("run", StringType()),  # one life of a node's process: unique, whatever the node's name
        StructField("node", StringType()),
        StructField("group", IntegerType()),
        # "message"; or "begin", first of all lines of a group in a run, and "jump", where the replica took
        # over the state of another: both say in `gts` what it has already, so that lines after it continue
        # from there. Lines of one run and group are complete from there to the last one. "stopped", of no
        # group: the node could not write any more, as the field `error` says.
        StructField("kind", StringType()),
        StructField("position", LongType()),  # 1, 2, 3, ...: the lines of a run and group, in order
        StructField("gts", LongType()),  # the message's global timestamp: the transaction's revision
        # The multicast message.
        StructField("origin", LongType()),
        StructField("number", LongType()),
        StructField("digest", LongType()),
        StructField("destinations", ArrayType(IntegerType())),
        # The client's request in it, which several messages may carry; null where there is none: bare
        # multicast, housekeeping, and requests without an id.
        StructField("client", LongType()),
        StructField("sequence", LongType()),
    ]
)
"""One row for each delivery at each replica."""

READ: Final = StructType(
    [
        StructField("key", StringType()),
        StructField("revision", LongType()),  # the mod_revision that was seen; 0: no such key
    ]
)

WRITE: Final = StructType(
    [
        StructField("key", StringType()),
        StructField("end", StringType()),  # of a range that was removed: all keys from `key` up to here
        StructField("removed", BooleanType()),
    ]
)

REQUESTS: Final = StructType(
    [
        StructField("run", StringType()),  # the client process
        StructField("scenario", StringType()),
        StructField("protocol", StringType()),
        StructField("clients", IntegerType()),  # how many there were at once in this measurement
        StructField("start_us", LongType()),  # microseconds since the epoch
        # When it should have started, if it was late: latency counts from there. Older traces have none.
        StructField("intended_us", LongType()),
        StructField("end_us", LongType()),
        StructField("client", LongType()),  # the request's id; null if it has none (reads)
        StructField("sequence", LongType()),
        StructField("partitions", ArrayType(IntegerType())),
        StructField("outcome", StringType()),  # "ok"; "failed": not executed; "unknown"
        StructField("error", StringType()),
        # Of what was executed: its place in the order. `exact`: what it read is as of just before there (a
        # transaction that wrote) or there (a read at a revision). Else at least that (a read of now).
        StructField("revision", LongType()),
        StructField("exact", BooleanType()),
        StructField("reads", ArrayType(READ)),
        # Of `ok` what it wrote; of `unknown` what it may have written. Keys are text: see `wbkv.record`.
        StructField("writes", ArrayType(WRITE)),
    ]
)
"""One row for each request of a client, when it has ended."""

MARKS: Final = StructType(
    [
        StructField("at_us", LongType()),
        StructField("name", StringType()),  # "crash", "leader" (a new one is established), ...
        StructField("node", StringType()),
        StructField("group", IntegerType()),
        StructField("scenario", StringType()),
    ]
)
"""What happened to the cluster, and when."""

# Files

_KINDS: Final = {"deliveries": DELIVERIES, "requests": REQUESTS, "marks": MARKS}
_ALSO: Final = {"deliveries": {"error"}}
"""Fields that nobody needs."""
_UNREADABLE: Final = "_unreadable"
_SAMPLE: Final = 200
"""So many lines are looked at for fields that nobody knows."""
_SHOWN: Final = 1000
"""So many unreadable lines are looked at."""


class TraceFiles(NamedTuple):
    """The files of one kind."""

    lines: list[str]
    parquet: list[str]

    def __bool__(self) -> bool:
        return bool(self.lines or self.parquet)


def find(spark: SparkSession, paths: Iterable[str]) -> dict[str, TraceFiles]:
    """Which files there are, by kind: those that are named, and those in folders and below them.

    A folder whose name is that of a file, as Spark writes them, is one.
    """
    found = {kind: TraceFiles([], []) for kind in _KINDS}
    for path in paths:
        folder = Folder(spark, path)
        if not folder.exists():
            raise PipelineError(f"{path} is not there")
        for name, _ in folder.files():
            whole = folder.child(name)
            parts = [folder.uri.rstrip("/").rsplit("/", 1)[-1], *name.split("/")]
            kinds = [kind for part in parts for kind in _KINDS if part.startswith(f"{kind}-")]
            if kinds and whole.endswith(".parquet"):
                found[kinds[0]].parquet.append(whole)
            elif kinds and whole.endswith((".jsonl", ".jsonl.gz", ".json", ".json.gz")):
                found[kinds[0]].lines.append(whole)
    if not any(found.values()):
        raise PipelineError(f"no traces (deliveries-*, requests-*, marks-*) in {', '.join(paths)}")
    return found


def read_deliveries(spark: SparkSession, paths: Iterable[str]) -> DataFrame:
    """The replicas' deliveries."""
    return _read_whole(spark, paths, "deliveries")


def read_requests(spark: SparkSession, paths: Iterable[str]) -> DataFrame:
    """The clients' requests."""
    return _read_whole(spark, paths, "requests")


def read_marks(spark: SparkSession, paths: Iterable[str]) -> DataFrame:
    """What happened to the cluster."""
    return _read_whole(spark, paths, "marks")


def _read_whole(spark: SparkSession, paths: Iterable[str], kind: str) -> DataFrame:
    files = find(spark, list(paths))[kind]
    torn_lines(spark, files, kind)
    return read(spark, files, kind)


def read(
    spark: SparkSession, files: TraceFiles, kind: str, unreadable: Observation | None = None
) -> DataFrame:
    """Return the readable rows of these files.

    `unreadable` counts the other lines (as `lines`) when the rows are first used. If there are any, the
    caller asks `torn_lines` whether they may be left out.
    """
    schema = _KINDS[kind]
    rows = spark.createDataFrame([], schema)
    if files.parquet:
        rows = _read_parquet(spark, files.parquet, kind)
    if files.lines:
        _refuse_strange_fields(spark, files.lines, kind)
        lines = _read_lines(spark, files.lines, kind)
        if unreadable is not None:
            lines = lines.observe(unreadable, sql.count(_UNREADABLE).alias("lines"))
        lines = lines.where(sql.col(_UNREADABLE).isNull() & _any_value(schema.names[0])).drop(_UNREADABLE)
        rows = rows.unionByName(lines) if files.parquet else lines
    return rows


def _read_lines(spark: SparkSession, files: list[str], kind: str) -> DataFrame:
    schema = StructType([*_KINDS[kind], StructField(_UNREADABLE, StringType())])
    return spark.read.schema(schema).option("columnNameOfCorruptRecord", _UNREADABLE).json(files)


def _any_value(name: str) -> Column:
    """True, but Spark does not know: it refuses queries that need no column besides the unreadable lines."""
    return sql.coalesce(sql.col(name).cast("string"), sql.lit("")) != "\0"


def _read_parquet(spark: SparkSession, files: list[str], kind: str) -> DataFrame:
    rows = spark.read.parquet(*files)
    there = {field.name: field.dataType for field in rows.schema}
    _refuse(kind, there.keys())
    for field in _KINDS[kind]:
        if there.get(field.name, field.dataType).simpleString() != field.dataType.simpleString():
            kinds = f"{there[field.name].simpleString()}, not {field.dataType.simpleString()}"
            raise PipelineError(f"{kind}: the column {field.name} is {kinds}")
    return rows.select(*(_column(field, there) for field in _KINDS[kind]))


def _column(field: StructField, there: Iterable[str]) -> Column:
    if field.name in there:
        return sql.col(field.name)
    return sql.lit(None).cast(field.dataType).alias(field.name)


def _refuse_strange_fields(spark: SparkSession, files: list[str], kind: str) -> None:
    """A misspelt field would be missed silently. The first lines will have it, if any have."""
    some = spark.read.text(files).limit(_SAMPLE)
    names = some.select(sql.explode(sql.json_object_keys("value")).alias("name")).distinct()
    _refuse(kind, [row["name"] for row in names.collect()])


def _refuse(kind: str, names: Iterable[str]) -> None:
    strange = sorted(set(names) - set(_KINDS[kind].names) - _ALSO.get(kind, set()))
    if strange:
        raise PipelineError(f"{kind} have no field {strange[0]!r}")


def torn_lines(spark: SparkSession, files: TraceFiles, kind: str) -> int:
    """How many files end in a line that was not written to its end, as those of killed processes may.

    Raises `PipelineError` if any other line is unreadable.
    """
    if not files.lines:
        return 0
    rows = _read_lines(spark, files.lines, kind).where(sql.col(_UNREADABLE).isNotNull())
    some = _KINDS[kind].names[0]  # Spark refuses queries for unreadable lines alone
    bad = rows.select("_metadata.file_path", _UNREADABLE, some).limit(_SHOWN).collect()
    if not bad:
        return 0
    offset = sql.struct(sql.col("_metadata.file_block_start"), sql.monotonically_increasing_id())
    lines = spark.read.text(sorted({row["file_path"] for row in bad})).where(sql.trim("value") != "")
    ends = lines.select("value", offset.alias("offset"), sql.col("_metadata.file_path").alias("file"))
    last = ends.groupBy("file").agg(sql.max_by("value", "offset").alias("line")).collect()
    torn = {(row["file"], row["line"]) for row in last}
    count = 0
    for file, line, _ in bad:
        if (file, line) not in torn:
            raise PipelineError(f"{file}: cannot read the line {_cut(line)!r}")
        torn.remove((file, line))
        count += 1
    return count


def _cut(line: str, length: int = 200) -> str:
    return line if len(line) <= length else f"{line[:length]}..."
