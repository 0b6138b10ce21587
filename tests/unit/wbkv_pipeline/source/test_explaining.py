from __future__ import annotations

import os

import pytest
import wbkv
from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source.explaining import explained, line_of


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # so that it is put back
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK")
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_PORT", "1")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (wbkv.Unavailable("no node\n  answers"), "wbkv: reading: no node answers"),
        (wbkv.Compacted("it is gone", 7), "wbkv: reading: that was compacted (it is gone)"),
        (wbkv.InvalidRequest("it is wrong"), "wbkv: reading: InvalidRequest: it is wrong"),
        (ValueError("no such thing"), "wbkv: reading: no such thing"),
        (PipelineError("wbkv: as it is"), "wbkv: as it is"),
    ],
)
def test_what_is_expected_becomes_one_line(error: Exception, line: str) -> None:
    with pytest.raises(PipelineError) as raised, explained("reading"):
        raise error
    assert str(raised.value) == line
    assert os.environ["SPARK_HIDE_TRACEBACK"]


def test_what_is_not_expected_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), explained("reading"):
        raise ZeroDivisionError
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_only_workers_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHON_WORKER_FACTORY_PORT")
    with pytest.raises(PipelineError), explained("reading"):
        raise wbkv.Unavailable("x")
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_the_line_is_found_again() -> None:
    shown = "[FAILED] no: wbkv_pipeline.errors.PipelineError: wbkv: reading: it is gone\n SQLSTATE: 38000"
    assert line_of(RuntimeError(shown)) == "reading: it is gone"
    assert line_of(RuntimeError("something else")) is None
