"""Changes as a stream, and streams into the store, over failures and restarts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wbkv
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source import SCHEMA, line_of, streaming
from wbkv_pipeline.source.options import parse
from wbkv_pipeline.source.streaming import ChangesReader
from wbkv_pipeline.stores import STREAMS

TIMEOUT_S = 120


@pytest.fixture(scope="module")
def client(spark: SparkSession) -> Iterator[wbkv.Client[bytes]]:
    with wbkv.testing.cluster() as client:
        yield client


def endpoints_of(client: wbkv.Client[bytes]) -> str:
    return ",".join(client.topology().nodes.values())


def stream(spark: SparkSession, client: wbkv.Client[bytes], **options: Any) -> DataFrame:
    return spark.readStream.format("wbkv").option("endpoints", endpoints_of(client)).options(**options).load()


def ended(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()


class Failure(Exception):
    """A planned failure."""


class Kept:
    """Records the rows of each batch at each attempt, and fails at the first attempt of some."""

    def __init__(self, *failing: int) -> None:
        self.failing = set(failing)
        self.begun = threading.Event()
        self.batches: dict[int, list[set[Row]]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame.collect()
        assert len(set(rows)) == len(rows)
        self.batches.setdefault(batch, []).append(set(rows))
        self.begun.set()
        if batch in self.failing:
            self.failing.remove(batch)
            raise Failure


def test_batches_hold_whole_transactions_and_restarts_lose_and_repeat_nothing(
    spark: SparkSession, client: wbkv.Client[bytes], tmp_path: Path
) -> None:
    """Two batches fail and are repeated, while transactions over partitions go on."""
    count, kept = 100, Kept(1, 3)

    def start(most: str = "0.2", **trigger: Any) -> StreamingQuery:
        changes = stream(spark, client, prefix="s/", maxSecondsPerBatch=most)
        writer = changes.writeStream.foreachBatch(kept)
        return writer.option("checkpointLocation", str(tmp_path)).trigger(**trigger).start()

    def load() -> None:
        for number in range(count):
            keys = [f"s/{number % 50}/{part}" for part in range(4)]
            client.txn().then(
                *(wbkv.put(key, b"%d" % number) for key in keys), wbkv.put("other", b"")
            ).commit()

    query = start(processingTime="0 seconds")
    assert kept.begun.wait(TIMEOUT_S)  # by an empty batch
    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(2):
            with pytest.raises(StreamingQueryException, match="Failure"):
                ended(query)
            query = start(processingTime="0 seconds")
    finally:
        thread.join()
        query.stop()
    ended(start("3600", availableNow=True))

    assert not kept.failing
    assert [len(kept.batches[batch]) for batch in range(4)] == [1, 2, 1, 2]
    assert all(attempt == attempts[0] for attempts in kept.batches.values() for attempt in attempts)
    assert kept.batches[1][0]
    transactions: dict[int, set[bytes]] = {}
    for batch in kept.batches.values():
        whole: dict[int, set[bytes]] = {}
        for row in batch[0]:
            whole.setdefault(row.mod_revision, set()).add(row.key)
            assert row.partition == client.partition_of(row.key)
        assert not whole.keys() & transactions.keys()
        assert all(len(keys) == 4 for keys in whole.values())
        transactions |= whole
    assert len(transactions) == count


def test_what_is_written_of_a_stream_is_written_once(
    spark: SparkSession, client: wbkv.Client[bytes], tmp_path: Path
) -> None:
    began = client.revision()
    out = "concat('out/', substring(cast(key as string), 4)) as key", "value", "mod_revision as txn_id"

    def run() -> None:
        changes = stream(spark, client, prefix="in/", startingRevision=str(began))
        rows = changes.selectExpr(*out)
        writer = rows.writeStream.format("wbkv").option("endpoints", endpoints_of(client))
        ended(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())

    def forget(batch: int) -> None:
        """Make Spark forget that the batch was written."""
        (tmp_path / "commits" / str(batch)).unlink()
        (tmp_path / "commits" / f".{batch}.crc").unlink()

    for number in range(20):
        client.put(f"in/{number:02}", b"1")
    client.delete("in/07")  # after it was put: in the order of txn_id
    run()
    found = [entry.name for entry in client.scan("out/")]
    assert found == [f"out/{number:02}" for number in range(20) if number != 7]

    client.put("out/03", b"foreign")
    client.delete("out/04")
    (state,) = client.scan(STREAMS)
    recorded = json.loads(state.value)
    assert (recorded["batch"], recorded["done"]) == (0, True)
    client.put(state.key, json.dumps({**recorded, "done": False}).encode())
    forget(0)
    run()  # all its transactions are there
    assert (client.get("out/03"), client.get("out/04"), client.count("out/")) == (b"foreign", None, 18)

    client.put("in/20", b"2")
    run()
    assert client.get("out/20") == b"2"
    (state,) = client.scan(STREAMS)
    assert json.loads(state.value)["batch"] == 1


def test_a_checkpoint_of_another_cluster_is_explained(
    spark: SparkSession, client: wbkv.Client[bytes], store: wbkv.Client[bytes], tmp_path: Path
) -> None:
    def run(store: wbkv.Client[bytes]) -> None:
        writer = stream(spark, store, prefix="c").writeStream.format("noop").trigger(availableNow=True)
        ended(writer.option("checkpointLocation", str(tmp_path)).start())

    run(client)
    with pytest.raises(StreamingQueryException) as raised:
        run(store)
    clusters = client.topology().cluster, store.topology().cluster
    expected = "the checkpoint belongs to cluster {}, the endpoints to {}: ".format(*clusters)
    assert (line_of(raised.value) or "").startswith(expected)
    old = stream(spark, client, revision="7").writeStream.format("noop")
    with pytest.raises(StreamingQueryException) as raised:
        ended(old.option("checkpointLocation", str(tmp_path / "other")).start())
    assert "revision is for read, not for readStream" in (line_of(raised.value) or "")


# The planner, without Spark


@pytest.fixture
def store() -> Iterator[wbkv.Client[bytes]]:
    with wbkv.testing.cluster(nodes=1, partitions=2) as client:
        yield client


@pytest.fixture
def reader(store: wbkv.Client[bytes]) -> Iterator[Callable[..., ChangesReader]]:
    readers = []

    def make(**options: str) -> ChangesReader:
        readers.append(ChangesReader(SCHEMA, parse({"endpoints": endpoints_of(store), **options})))
        return readers[-1]

    yield make
    for each in readers:
        each.stop()


ANY: Any = None


def test_history_is_kept_from_the_committed_offset_on(
    store: wbkv.Client[bytes], reader: Callable[..., ChangesReader]
) -> None:
    query = reader()
    start = query.initialOffset()
    assert query.initialOffset() == start  # however often it is asked
    store.put("a", b"1")
    end = query.latestOffset(start, ANY)
    store.put("a", b"2")
    later = store.revision()
    query.stop()
    with pytest.raises(wbkv.Pinned):
        store.compact(end["revision"])
    query.commit(end)
    store.compact(end["revision"])
    with pytest.raises(wbkv.Pinned):
        store.compact(later)
    again = reader()  # it is started again
    with pytest.raises(PipelineError, match="is below the floor of"):
        again.partitions(start, end)
    more = again.latestOffset(end, ANY)
    rows = [
        row for part in again.partitions(end, more) for batch in again.read(part) for row in batch.to_pylist()
    ]
    assert [(row["key"], row["value"]) for row in rows] == [(b"a", b"2")]


def test_a_first_batch_that_is_repeated_begins_where_it_did(
    store: wbkv.Client[bytes], reader: Callable[..., ChangesReader]
) -> None:
    """Spark records only the end of a first batch, and asks for its begin again."""
    query = reader()
    start = query.initialOffset()
    store.put("a", b"1")
    end = query.latestOffset(start, ANY)
    again = reader()
    parts = again.partitions(again.initialOffset(), end)
    assert [batch["key"].to_pylist() for part in parts for batch in again.read(part)] == [[b"a"]]


def test_a_stream_begins_no_earlier_than_history(
    store: wbkv.Client[bytes], reader: Callable[..., ChangesReader]
) -> None:
    everything = reader(startingRevision="earliest")
    store.put("a", b"1")
    offset = everything.initialOffset()
    end = everything.latestOffset(offset, ANY)
    assert end["revision"] > offset["revision"]
    everything.commit(end)
    store.compact(end["revision"])
    late = reader(startingRevision="1")
    with pytest.raises(PipelineError, match="is below the floor of"):
        late.latestOffset(late.initialOffset(), ANY)
    rest = reader(startingRevision="earliest")
    offset = rest.initialOffset()
    assert offset["revision"] > 1
    assert rest.latestOffset(offset, ANY) == offset


def test_without_changes_there_is_no_batch(
    store: wbkv.Client[bytes], reader: Callable[..., ChangesReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    changes = wbkv.Client.changes

    def watched(client: wbkv.Client[bytes], keys: wbkv.Keys, **interval: Any) -> Iterator[wbkv.Change[bytes]]:
        looked.append(interval["after"])
        return changes(client, keys, **interval)

    monkeypatch.setattr(wbkv.Client, "changes", watched)
    query = reader(prefix="a")
    start = query.initialOffset()
    assert query.latestOffset(start, ANY) == start
    store.put("b", b"")
    assert query.latestOffset(start, ANY) == start
    assert looked[0] < looked[1]  # nothing is looked through twice
    assert query.partitions(start, start) == []
    store.put("a", b"")
    end = query.latestOffset(start, ANY)
    assert end["revision"] > start["revision"]
    monkeypatch.setattr(streaming, "QUIET_S", 0.0)  # for long: it moves on, so that history can go
    assert query.latestOffset(end, ANY)["revision"] > end["revision"]


def test_a_batch_is_bounded_by_time_from_its_first_change_on(
    store: wbkv.Client[bytes], reader: Callable[..., ChangesReader]
) -> None:
    query = reader(maxSecondsPerBatch="0.001", startingRevision=str(store.revision()))
    offset = query.initialOffset()
    revisions = [store.put("a", b"%d" % number) for number in range(5)]
    query.prepareForTriggerAvailableNow()
    store.put("a", b"too late")
    found: list[bytes] = []
    while (end := query.latestOffset(offset, ANY)) != offset:
        parts = query.partitions(offset, end)
        values = [value.as_py() for part in parts for batch in query.read(part) for value in batch["value"]]
        assert values
        first = revisions[len(found)]
        assert first <= end["revision"] <= wbkv.later(first, 0.001)
        found += values
        offset = end
    assert found == [b"0", b"1", b"2", b"3", b"4"]
