"""Traces: what replicas delivered and what clients asked for, as files that Spark reads.

A folder of traces has three kinds of files, told by how their names begin, as JSON lines (`.jsonl`, also
compressed: `.jsonl.gz`) or Parquet. Nodes write `deliveries-*` (`wbkv up --trace`), clients `requests-*`
(`wbkv.Trace`), and whoever breaks or changes something during a run writes `marks-*`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

DELIVERIES: Final = StructType(
    [
        StructField("run", StringType()),  # one life of a node's process: unique, whatever the node's name
        StructField("node", StringType()),
        StructField("group", IntegerType()),
        # "message"; or "begin", first of all lines of a group in a run, and "jump", where the replica took
        # over the state of another: both say in `gts` what it has already, so that lines after it continue
        # from there. Lines of one run and group are complete from there to the last one. A node that could
        # not go on recording says so in a last line "stopped", of no group, with an `error`.
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
        # Of a range that was removed: all keys from `key` up to here, "" being no end. A key of its own in
        # the same request counts more.
        StructField("end", StringType()),
        StructField("removed", BooleanType()),
    ]
)

REQUESTS: Final = StructType(
    [
        StructField("run", StringType()),  # the client process
        StructField("scenario", StringType()),
        StructField("protocol", StringType()),
        StructField("clients", IntegerType()),  # how many there were at once in this measurement
        StructField("start_us", LongType()),  # microseconds since the epoch; of the intended start, if later
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
        # Of `ok` what it wrote; of `unknown` what it may have written. Keys are text as in `wbkv.history`.
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
