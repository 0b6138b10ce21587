from __future__ import annotations

from collections.abc import Iterator

import pytest
import wbkv
from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source import batch_log
from wbkv_pipeline.source.batch_log import BatchLog
from wbkv_pipeline.stores import STREAMS


@pytest.fixture
def store() -> Iterator[wbkv.Client[bytes]]:
    with wbkv.open() as client:
        yield client


def test_all_attempts_of_a_batch_have_one_deadline(store: wbkv.Client[bytes]) -> None:
    first = BatchLog(store, "q").begin(0, rewrite=False)
    assert first is not None
    assert first > store.revision()
    assert BatchLog(store, "q").begin(0, rewrite=False) == first
    assert BatchLog(store, "other").begin(0, rewrite=False) != first


def test_a_batch_that_is_complete_is_not_begun_again(store: wbkv.Client[bytes]) -> None:
    query = BatchLog(store, "q")
    first = query.begin(0, rewrite=False)
    query.finish(0)
    assert query.begin(0, rewrite=False) is None
    second = query.begin(1, rewrite=False)
    assert second is not None
    assert first is not None
    assert second > first
    query.finish(0)  # a late one
    assert query.begin(1, rewrite=False) == second
    BatchLog(store, "nothing was written").finish(0)
    assert [entry.name for entry in store.scan(STREAMS)] == [STREAMS + "q"]


def test_an_old_checkpoint_is_refused(store: wbkv.Client[bytes]) -> None:
    query = BatchLog(store, "q")
    query.begin(5, rewrite=False)
    with pytest.raises(PipelineError, match="batch 4 of the query q comes after its batch 5"):
        query.begin(4, rewrite=True)


def test_a_late_batch_is_rejected(store: wbkv.Client[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_log, "DEADLINE_S", 0.0)
    query = BatchLog(store, "q")
    query.begin(5, rewrite=False)
    with pytest.raises(
        PipelineError, match=r"which of its rows were written is no longer known.*rewrite=true"
    ):
        query.begin(5, rewrite=False)
    monkeypatch.undo()
    anew = query.begin(5, rewrite=True)
    assert query.begin(5, rewrite=True) == anew
    assert query.begin(5, rewrite=False) == anew


def test_of_two_tasks_that_begin_at_once_one_decides(
    store: wbkv.Client[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = BatchLog(store, "q"), BatchLog(store, "q")
    found: list[int | None] = []
    read = wbkv.Client.entry

    def entry(client: wbkv.Client[bytes], key: wbkv.Key) -> wbkv.Entry[bytes] | None:
        seen = read(client, key)
        if not found:
            found.append(None)
            found[0] = fast.begin(0, rewrite=False)
        return seen

    monkeypatch.setattr(wbkv.Client, "entry", entry)
    assert slow.begin(0, rewrite=False) == found[0]


def test_a_malformed_record_is_reported(store: wbkv.Client[bytes]) -> None:
    for value in (b"hello", b'{"batch": 1}', b"[]"):
        store.put(STREAMS + "q", value)
        with pytest.raises(PipelineError, match=r"the key wbkv.stream/q does not hold a streaming query"):
            BatchLog(store, "q").begin(1, rewrite=False)
