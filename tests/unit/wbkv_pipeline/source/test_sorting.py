from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from wbkv_pipeline.source.sorting import Sorter


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def batch(rows: list[tuple[int, bytes, bytes | None]]) -> pa.RecordBatch:
    groups, keys, values = zip(*rows, strict=True)
    arrays = [pa.array(groups, pa.int32()), pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
    return pa.record_batch(arrays, names=["group", "key", "value"])


@pytest.mark.parametrize("memory", [1 << 30, 20_000, 1])
def test_any_order_of_rows_becomes_the_same(memory: int, folder: Path) -> None:
    rng = Random(7)
    rows: list[tuple[int, bytes, bytes | None]] = [
        (
            rng.randrange(3),
            rng.randbytes(rng.randrange(1, 4)) + b"%d" % number,
            rng.choice([None, b"", b"v" * 99]),
        )
        for number in range(3000)
    ]
    expected = sorted(rows, key=lambda row: row[:2])
    for _ in range(2):
        rng.shuffle(rows)
        with Sorter(memory) as sorter:
            for start in range(0, len(rows), 100):
                sorter.add(batch(rows[start : start + 100]))
            assert (sorter.files > 0) == (memory < 1 << 30)
            assert (len(list(folder.iterdir())) > 0) == (memory < 1 << 30)
            assert list(sorter.rows()) == expected
            assert list(sorter.rows()) == expected  # as often as one likes
        assert not list(folder.iterdir())


def test_nothing_is_left_of_a_task_that_fails(folder: Path) -> None:
    def fail() -> None:
        with Sorter(1) as sorter:
            sorter.add(batch([(1, b"a", b"b")]))
            next(sorter.rows())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not list(folder.iterdir())


def test_no_rows() -> None:
    with Sorter() as sorter:
        assert list(sorter.rows()) == []
