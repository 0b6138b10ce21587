"""Snapshots as DataFrames, on a cluster of three."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import wbkv
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, InputPartition, LessThan
from wbkv_pipeline.source import SCHEMA, WbkvSource, line_of

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def client(spark: SparkSession) -> Iterator[wbkv.Client[bytes]]:
    with wbkv.testing.cluster() as client:
        with client.batch() as batch:
            for number in range(1500):
                batch.put(f"a/{number:04}", b"v" * (number % 50))
                batch.put(f"b/{number:04}", b"w")
        with client.batch() as batch:
            for number in range(0, 1500, 3):
                batch.put(f"a/{number:04}", b"again")
                batch.delete(f"b/{number:04}")
        yield client


def endpoints_of(client: wbkv.Client[bytes]) -> str:
    return ",".join(client.topology().nodes.values())


@pytest.fixture
def load(spark: SparkSession, client: wbkv.Client[bytes]) -> Callable[..., DataFrame]:
    def load(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("wbkv").option("endpoints", endpoints_of(client)).options(**options)
        return (reader if schema is None else reader.schema(schema)).load()

    return load


def rows(
    client: wbkv.Client[bytes], revision: int, keys: wbkv.Keys = wbkv.EVERYTHING
) -> set[tuple[Any, ...]]:
    """The rows that a DataFrame must have."""
    return {(*entry, client.partition_of(entry.key)) for entry in client.scan(keys, revision=revision)}


def complaint(action: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as raised:
        action()
    line = line_of(raised.value)
    assert line is not None
    assert line in "".join(str(raised.value).splitlines()[:2])  # where a person sees it
    return line


def test_a_dataframe_is_one_revision_however_often_it_is_used(
    client: wbkv.Client[bytes], load: Callable[..., DataFrame]
) -> None:
    expected = rows(client, client.revision())
    frame = load()
    columns = load("mod_revision bigint, key binary")
    assert columns.count() == 2500
    client.put("a/0001", b"later")
    client.delete(wbkv.prefix("b/000"))
    try:
        assert frame.schema == SCHEMA
        found = frame.collect()
        assert len(found) == 2500
        assert {tuple(row) for row in found} == expected
        again = frame.alias("x").join(frame.alias("y"), "key").filter("x.mod_revision = y.mod_revision")
        assert again.count() == 2500
        assert {tuple(row) for row in columns.collect()} == {(row[3], row[0]) for row in expected}
    finally:
        for entry in expected:
            if entry[0].startswith((b"b/000", b"a/0001")):
                client.put(entry[0], entry[1])


def binary(text: str) -> Column:
    return F.lit(text).cast("binary")


def test_filters_of_one_query_do_not_become_another_ones(
    spark: SparkSession, load: Callable[..., DataFrame]
) -> None:
    """Spark would mix them up: within one query, and from one query to the next."""
    key = F.col("key")
    for pushed in ("false", "true"):
        spark.conf.set(PUSHDOWN, pushed)
        frame = load()
        some = frame.filter((key >= binary("b/0004")) & (key < binary("b/0006")))
        both = frame.filter(key == binary("a/0005")).union(some)
        assert {row.key for row in both.collect()} == {b"a/0005", b"b/0004", b"b/0005"}
    assert frame.count() == 2500


def test_what_the_store_can_answer_is_asked_of_it_if_wanted(
    spark: SparkSession, client: wbkv.Client[bytes], load: Callable[..., DataFrame]
) -> None:
    spark.conf.set(PUSHDOWN, "true")
    one = load(pushFilters="true").filter((F.col("key") == binary("a/0005")) & (F.length("value") == 5))
    assert [row.value for row in one.collect()] == [b"v" * 5]
    assert one.rdd.getNumPartitions() == 1


def test_tasks_together_read_what_is_selected(client: wbkv.Client[bytes]) -> None:
    options = {"endpoints": endpoints_of(client), "pushFilters": "true", "splits": "12"}
    source = WbkvSource(options)
    source.schema()
    every = rows(client, client.revision())

    def found(*filters: Filter) -> tuple[int, set[tuple[Any, ...]]]:
        reader = source.reader(SCHEMA)
        assert list(reader.pushFilters(list(filters))) == []
        parts = reader.partitions() or [InputPartition(None)]  # as Spark does
        batches = [batch for part in parts for batch in reader.read(part)]
        got = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        assert len(set(got)) == len(got)
        return len(parts), set(got)

    parts, got = found()
    assert parts > 6
    assert got == every
    partition = client.partition_of(b"a/0005")
    middle = [
        GreaterThan(("key",), b"a/0100"),
        LessThan(("key",), b"b/0200"),
        EqualTo(("partition",), partition),
    ]
    parts, got = found(*middle)
    assert parts > 1
    assert got == {row for row in every if b"a/0100" < row[0] < b"b/0200" and row[5] == partition}
    lookup = In(("key",), (b"a/0005", b"a/0700", b"a/0701", b"none"))
    assert found(lookup)[1] == {row for row in every if row[0] in lookup.value}
    assert found(lookup, middle[2])[1] == {r for r in every if r[0] in lookup.value and r[5] == partition}
    assert found(EqualTo(("partition",), 99)) == (1, set())
    assert found(LessThan(("key",), b"a"), GreaterThan(("key",), b"a")) == (1, set())


def test_ranges(client: wbkv.Client[bytes], load: Callable[..., DataFrame]) -> None:
    found = load(startHex=b"a/1490".hex(), end="b/0002").collect()
    assert {tuple(row) for row in found} == rows(client, client.revision(), wbkv.between("a/1490", "b/0002"))


def test_an_old_revision_as_long_as_it_is_there(spark: SparkSession) -> None:
    with wbkv.testing.cluster(nodes=1, partitions=1) as client:
        reader = spark.read.format("wbkv").option("endpoints", *client.topology().nodes.values())
        client.put("old", b"1")
        old = client.revision()
        client.put("old", b"2")
        reader = reader.option("snapshotTtl", "0.001")  # over before anything else happens
        frame = reader.load()
        assert reader.option("revision", old).load().collect()[0].value == b"1"
        compact(client)
        line = complaint(frame.collect)
        assert re.search(r"load it again.*: that was compacted .revision .* is below the floor of \d+", line)
        line = complaint(reader.option("revision", old).load)
        assert re.search(rf"reading revision {old}: that was compacted .*{old} is below the floor", line)
        assert "FutureRevision" in complaint(reader.option("revision", wbkv.later(old, 3600)).load)


def compact(client: wbkv.Client[bytes]) -> None:
    """Compact all history. Later revisions, not a clock, end the time to live of snapshots."""
    for _ in range(1000):
        try:
            client.compact(client.revision())
        except wbkv.Pinned:
            client.put("something", b"")
        else:
            return
    pytest.fail("a snapshot does not end")


def test_bad_input_is_explained_in_one_line(spark: SparkSession, load: Callable[..., DataFrame]) -> None:
    unreachable = spark.read.format("wbkv").option("endpoints", "127.0.0.1:1")
    assert complaint(unreachable.load) == "reading: no node answers on 127.0.0.1:1: is the cluster up?"
    assert complaint(unreachable.schema("key binary").load().collect).endswith("is the cluster up?")
    badly = spark.read.format("wbkv").option("endpoints", "localhost")
    assert complaint(badly.load) == "reading: an endpoint must be HOST:PORT, not 'localhost'"
    assert complaint(lambda: load(prefx="a")) == "there is no option prefx: did you mean prefix?"
    assert complaint(load("name string").collect).startswith("there is no column name, only key, value")
    assert "for write and writeStream, not for read" in complaint(load(batchRows="5").collect)
