"""The format of traces, which record the deliveries of replicas and the requests of clients.

A folder of traces has three kinds of files, distinguished by the beginning of their names, as JSON lines
(`.jsonl`, compressed `.jsonl.gz`) or Parquet. Nodes write `deliveries-*` (`wbkv up --trace`), clients write
`requests-*` (`wbkv.Trace`), and a program that crashes or changes nodes during a run writes `marks-*`.
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
        StructField("run", StringType()),  # one life of a node's process: unique, also among nodes
        StructField("node", StringType()),
        StructField("group", IntegerType()),
        # "message": a delivery. "begin": the first line of a group in a run. "jump": the replica took over
        # the state of another. "begin" and "jump" have in `gts` the timestamp up to which the replica has
        # everything; the lines of the run and group are complete from there to the last one. "stopped", of
        # no group: the node could not write any more, for the reason in the field `error`.
        StructField("kind", StringType()),
        StructField("position", LongType()),  # 1, 2, 3, ...: numbers the lines of a run and group
        StructField("gts", LongType()),  # the message's global timestamp: the transaction's revision
        # The id of the multicast message.
        StructField("origin", LongType()),
        StructField("number", LongType()),
        StructField("digest", LongType()),
        StructField("destinations", ArrayType(IntegerType())),
        # The client's request in the message. Several messages may carry one request. Null for bare
        # multicast, housekeeping, and requests without an id.
        StructField("client", LongType()),
        StructField("sequence", LongType()),
    ]
)
"""One row for each delivery at each replica."""

READ: Final = StructType(
    [
        StructField("key", StringType()),
        StructField("revision", LongType()),  # the mod_revision of the version read; 0: no such key
    ]
)

WRITE: Final = StructType(
    [
        StructField("key", StringType()),
        StructField("end", StringType()),  # of a removed range from `key`: the exclusive upper bound
        StructField("removed", BooleanType()),
    ]
)

REQUESTS: Final = StructType(
    [
        StructField("run", StringType()),  # the client process
        StructField("scenario", StringType()),
        StructField("protocol", StringType()),
        StructField("clients", IntegerType()),  # how many concurrent clients this measurement had
        StructField("start_us", LongType()),  # microseconds since the epoch
        # When it should have started, if it was late: latency counts from there. Older traces lack it.
        StructField("intended_us", LongType()),
        StructField("end_us", LongType()),
        StructField("client", LongType()),  # the request's id; null if it has none (reads)
        StructField("sequence", LongType()),
        StructField("partitions", ArrayType(IntegerType())),
        StructField("outcome", StringType()),  # "ok"; "failed": not executed; "unknown"
        StructField("error", StringType()),
        # The position in the order of an executed request. `exact`: it read the state just before that
        # revision (a transaction that wrote) or at it (a read at a revision). Otherwise it read a state at
        # least as recent (a strict read).
        StructField("revision", LongType()),
        StructField("exact", BooleanType()),
        StructField("reads", ArrayType(READ)),
        # What an `ok` request wrote, or an `unknown` one may have written. Keys are as in `wbkv.History`.
        StructField("writes", ArrayType(WRITE)),
    ]
)
"""One row for each request of a client, written when it ends."""

MARKS: Final = StructType(
    [
        StructField("at_us", LongType()),
        StructField("name", StringType()),  # "crash", "leader" (a new one is established), ...
        StructField("node", StringType()),
        StructField("group", IntegerType()),
        StructField("scenario", StringType()),
    ]
)
"""Events in the cluster: crashes, new leaders."""

# Files

_KINDS: Final = {"deliveries": DELIVERIES, "requests": REQUESTS, "marks": MARKS}
_ALSO: Final = {"deliveries": {"error"}}
"""Valid fields that are not read."""
_UNREADABLE: Final = "_unreadable"
_SAMPLE: Final = 200
"""How many lines are searched for unknown fields."""
_SHOWN: Final = 1000
"""How many unreadable lines are examined."""


class TraceFiles(NamedTuple):
    """The trace files of one kind."""

    lines: list[str]
    parquet: list[str]

    def __bool__(self) -> bool:
        return bool(self.lines or self.parquet)


def find(spark: SparkSession, paths: Iterable[str]) -> dict[str, TraceFiles]:
    """Return the trace files, by kind: the named ones, and those in and below the named folders.

    A folder with the name of a trace file, as Spark writes them, counts as one file.
    """
    found = {kind: TraceFiles([], []) for kind in _KINDS}
    for path in paths:
        folder = Folder(spark, path)
        if not folder.exists():
            raise PipelineError(f"{path}: no such file or folder")
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
    """Return the deliveries of replicas."""
    return _read_whole(spark, paths, "deliveries")


def read_requests(spark: SparkSession, paths: Iterable[str]) -> DataFrame:
    """Return the requests of clients."""
    return _read_whole(spark, paths, "requests")


def read_marks(spark: SparkSession, paths: Iterable[str]) -> DataFrame:
    """Return the marks."""
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
    """Return a condition that is always true and uses a column.

    Spark rejects queries that use no column besides the unreadable lines, and does not see through this one.
    """
    return sql.coalesce(sql.col(name).cast("string"), sql.lit("")) != "\0"


def _read_parquet(spark: SparkSession, files: list[str], kind: str) -> DataFrame:
    rows = spark.read.parquet(*files)
    there = {field.name: field.dataType for field in rows.schema}
    _refuse(kind, there.keys())
    for field in _KINDS[kind]:
        if there.get(field.name, field.dataType).simpleString() != field.dataType.simpleString():
            kinds = f"{there[field.name].simpleString()}, not {field.dataType.simpleString()}"
            raise PipelineError(f"{kind}: the column {field.name} has the type {kinds}")
    return rows.select(*(_column(field, there) for field in _KINDS[kind]))


def _column(field: StructField, there: Iterable[str]) -> Column:
    if field.name in there:
        return sql.col(field.name)
    return sql.lit(None).cast(field.dataType).alias(field.name)


def _refuse_strange_fields(spark: SparkSession, files: list[str], kind: str) -> None:
    """Raise if the first lines have an unknown field: Spark would ignore a misspelt one silently."""
    some = spark.read.text(files).limit(_SAMPLE)
    names = some.select(sql.explode(sql.json_object_keys("value")).alias("name")).distinct()
    _refuse(kind, [row["name"] for row in names.collect()])


def _refuse(kind: str, names: Iterable[str]) -> None:
    strange = sorted(set(names) - set(_KINDS[kind].names) - _ALSO.get(kind, set()))
    if strange:
        raise PipelineError(f"{kind}: {strange[0]!r} is not a known field ({', '.join(_KINDS[kind].names)})")


def torn_lines(spark: SparkSession, files: TraceFiles, kind: str) -> int:
    """Return how many files end in an incomplete line, as those of killed processes may.

    Raises `PipelineError` if any other line is unreadable.
    """
    if not files.lines:
        return 0
    rows = _read_lines(spark, files.lines, kind).where(sql.col(_UNREADABLE).isNotNull())
    some = _KINDS[kind].names[0]  # Spark rejects queries for unreadable lines alone
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
            raise PipelineError(f"{file}: the line {_cut(line)!r} is not a valid line of {kind}")
        torn.remove((file, line))
        count += 1
    return count


def _cut(line: str, length: int = 200) -> str:
    return line if len(line) <= length else f"{line[:length]}..."
