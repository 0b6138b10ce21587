"""DataFrames written to a cluster of three: every row once."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import wbkv
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import BinaryType, StructType
from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source import WbkvSource, line_of
from wbkv_pipeline.source.options import parse
from wbkv_pipeline.source.writing import BatchWriter


@pytest.fixture(scope="module")
def client(spark: SparkSession) -> Iterator[wbkv.Client[bytes]]:
    with wbkv.testing.cluster() as client:
        yield client


@pytest.fixture
def endpoints(client: wbkv.Client[bytes]) -> str:
    return ",".join(client.topology().nodes.values())


def complaint(writer: DataFrameWriter) -> str:
    with pytest.raises(PySparkException) as raised:
        writer.save()
    line = line_of(raised.value)
    assert line is not None
    return line


def test_upserts_and_deletes(spark: SparkSession, client: wbkv.Client[bytes], endpoints: str) -> None:
    for number in range(0, 3000, 7):
        client.put(f"u/{number}", b"old")
    numbers = spark.range(3000, numPartitions=4)
    written = numbers.select(
        F.concat(F.lit("u/"), "id").alias("key"),
        F.when(F.col("id") % 10 != 0, F.concat(F.lit("v"), "id")).alias("value"),
        (F.col("id") % 10 == 1).alias("delete"),
    )
    written.write.format("wbkv").option("endpoints", endpoints).option("batchRows", 100).mode("append").save()
    found = {entry.name: entry.value for entry in client.scan("u/")}
    assert found == {f"u/{number}": b"v%d" % number for number in range(3000) if number % 10 > 1}
    assert len({entry.mod_revision for entry in client.scan("u/")}) < 100  # bounded transactions, not rows


def test_a_task_that_fails_after_it_has_written_changes_nothing_more(
    spark: SparkSession, client: wbkv.Client[bytes], endpoints: str
) -> None:
    class Failing(BatchWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            done = super().write(iterator)
            context = TaskContext.get()
            assert context is not None
            number = context.partitionId()
            with wbkv.connect(endpoints) as other:
                if other.get(f"f/foreign/{number}") is None:
                    foreign = wbkv.put(f"f/foreign/{number}", b""), wbkv.put(f"f/{number}", b"foreign")
                    other.txn().then(*foreign).commit()
                    raise RuntimeError("after all was written")
            return done

    class FailingSource(WbkvSource):
        @classmethod
        def name(cls) -> str:
            return "failing"

        def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's
            return Failing(schema, self._options, overwrite=overwrite)

    spark.dataSource.register(FailingSource)
    rows = spark.range(3, numPartitions=3).selectExpr("concat('f/', id) as key", "'mine' as value")
    rows.write.format("failing").option("endpoints", endpoints).mode("append").save()
    assert client.count("f/foreign/") == 3
    assert client.get_many(["f/0", "f/1", "f/2"]) == [b"foreign"] * 3


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a task."""
    context = object.__new__(TaskContext)
    context._partitionId = 5
    monkeypatch.setattr(TaskContext, "_taskContext", context)


SCHEMA = StructType().add("key", BinaryType()).add("value", BinaryType())


def batches(rows: list[tuple[str, str]]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), 7):
        keys, values = zip(*rows[start : start + 7], strict=True)
        yield pa.record_batch([pa.array(keys), pa.array(values)], names=["key", "value"])


@pytest.mark.usefixtures("task")
def test_a_second_attempt_has_no_effect_whatever_the_order_of_its_rows(
    client: wbkv.Client[bytes], endpoints: str
) -> None:
    writer = BatchWriter(SCHEMA, parse({"endpoints": endpoints, "batchRows": "5"}), overwrite=False)
    rows = [(f"s/{number}", "mine") for number in range(100)]
    first = writer.write(batches(rows))
    client.put("s/3", b"foreign")
    client.delete("s/4")
    Random(1).shuffle(rows)
    assert writer.write(batches(rows)) == first
    assert (client.get("s/3"), client.get("s/4"), client.count("s/")) == (b"foreign", None, 99)
    with pytest.raises(PipelineError, match="differs from an earlier attempt") as raised:
        writer.write(batches([*rows[:50], ("s/other", "x"), *rows[51:]]))
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("task")
def test_a_job_has_a_name_that_goes_over_runs_of_it(client: wbkv.Client[bytes], endpoints: str) -> None:
    options = {"endpoints": endpoints, "jobId": "nightly"}
    BatchWriter(SCHEMA, parse(options), overwrite=False).write(batches([("j", "1")]))
    client.put("j", b"foreign")
    BatchWriter(SCHEMA, parse(options), overwrite=False).write(batches([("j", "1")]))
    assert client.get("j") == b"foreign"
    BatchWriter(SCHEMA, parse({**options, "jobId": "next"}), overwrite=False).write(batches([("j", "1")]))
    assert client.get("j") == b"1"


def test_rows_of_one_txn_id_are_one_transaction(
    spark: SparkSession, client: wbkv.Client[bytes], endpoints: str
) -> None:
    rows = spark.range(900, numPartitions=3).select(
        F.concat(F.lit("t/"), "id").alias("key"),
        F.col("id").cast("string").alias("value"),
        F.concat(F.lit("txn"), (F.col("id") % 90).cast("string")).alias("txn_id"),
    )
    same = spark.range(30).select(
        F.lit("t/same").alias("key"), F.col("id").cast("string").alias("value"), F.col("id").alias("txn_id")
    )
    writer = rows.repartition(2, "txn_id").write.format("wbkv").option("endpoints", endpoints)
    writer.mode("append").save()
    same.coalesce(1).write.format("wbkv").option("endpoints", endpoints).mode("append").save()
    revisions: dict[int, set[int]] = {}
    for entry in client.scan("t/"):
        if entry.name != "t/same":
            revisions.setdefault(int(entry.value) % 90, set()).add(entry.mod_revision)
    assert len(revisions) == 90
    assert all(len(found) == 1 for found in revisions.values())
    assert len(set.union(*revisions.values())) == 90
    last = client.entry("t/same")
    assert last is not None
    assert (last.value, last.version) == (b"29", 30)  # in the order of ids
    torn = rows.write.format("wbkv").option("endpoints", endpoints).mode("append")
    with pytest.raises(Exception, match="txn_id") as caught:
        torn.save()  # ids are all over the tasks
    assert "repartition" in str(line_of(caught.value))


@pytest.mark.usefixtures("task")
@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        (
            "x",
            "x" * (2 << 20),
            "value exceeds the cluster's limit of 1048576 bytes .*, in row 3 of this task",
        ),
        ("bad/0", "", "key b'bad/0' occurs twice in a task"),
        ("", "", "key is empty, in row 3 of this task"),
    ],
)
def test_nothing_is_written_if_a_row_is_bad(
    key: str, value: str, line: str, client: wbkv.Client[bytes], endpoints: str
) -> None:
    writer = BatchWriter(SCHEMA, parse({"endpoints": endpoints, "batchRows": "1"}), overwrite=False)
    with pytest.raises(PipelineError, match=line):
        writer.write(batches([("bad/0", "a"), ("bad/1", "b"), (key, value)]))
    assert client.count("bad/") == 0


def test_bad_input_is_explained_in_one_line(
    spark: SparkSession, client: wbkv.Client[bytes], endpoints: str
) -> None:
    rows = spark.createDataFrame([("bad/0", "b"), (None, "b")], "key string, value string").coalesce(1)
    writer = rows.write.format("wbkv").option("endpoints", endpoints)
    assert "overwrite would remove all other keys" in complaint(writer.mode("overwrite"))
    assert complaint(writer.mode("append")) == "key is null, in row 2 of this task"
    assert client.count("bad/") == 0
    assert "batchRows must be at most 4096" in complaint(writer.option("batchRows", 5000))
    assert "no column key" in complaint(rows.select("value").write.format("wbkv").mode("append"))
    writer = rows.write.format("wbkv").mode("append").option("endpoints", "127.0.0.1:1")
    assert complaint(writer) == "writing: no node answers on 127.0.0.1:1: is the cluster up?"
