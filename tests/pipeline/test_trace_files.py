"""Reading traces: incomplete last lines, bad lines, all formats of files; and the job that verifies them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.jobs import verify
from wbkv_pipeline.traces import find, read_deliveries, read_requests, torn_lines

from tests.pipeline.planted import a_replica_misses_a_message, scenario
from tests.pipeline.trace_maker import Row


def lines(rows: list[Row]) -> str:
    return "".join(f"{json.dumps({k: v for k, v in row.items() if v is not None})}\n" for row in rows)


def run(spark: SparkSession, *argv: str) -> int:
    parser = argparse.ArgumentParser()
    verify.configure(parser)
    return verify.run(parser.parse_args(argv), spark)


def test_a_torn_end_is_no_bad_line(spark: SparkSession, tmp_path: Path) -> None:
    trace = scenario(1)
    whole = lines(trace.deliveries)
    (tmp_path / "deliveries-1.jsonl").write_text(whole + whole[:50])
    table = spark.createDataFrame(
        [{"run": "a", "outcome": "ok", "client": 2**62}], "run string, outcome string, client bigint"
    )
    table.write.parquet(str(tmp_path / "requests-2.parquet"))
    files = find(spark, [str(tmp_path)])
    assert torn_lines(spark, files["deliveries"], "deliveries") == 1
    assert read_deliveries(spark, [str(tmp_path)]).count() == len(trace.deliveries)
    assert read_requests(spark, [str(tmp_path)]).first()["client"] == 2**62  # type: ignore[index] # there is one
    (tmp_path / "deliveries-1.jsonl").write_text(whole[:50] + "\n" + whole)
    with pytest.raises(PipelineError, match="is not a valid line of"):
        torn_lines(spark, files["deliveries"], "deliveries")


def test_bad_input(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nowhere: no such file"):
        find(spark, [str(tmp_path / "nowhere")])
    with pytest.raises(PipelineError, match="no traces"):
        find(spark, [str(tmp_path)])
    (tmp_path / "deliveries-1.jsonl").write_text('{"run": "a", "grop": 1}\n')
    with pytest.raises(PipelineError, match="deliveries: 'grop' is not a known field"):
        read_deliveries(spark, [str(tmp_path)])


def test_the_job(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With deliveries only, the checks that need requests are left out, and reported as such."""
    trace = scenario(1)
    a_replica_misses_a_message(trace)
    (tmp_path / "deliveries-1.jsonl").write_text(lines(trace.deliveries))
    output = tmp_path / "output"
    assert run(spark, str(tmp_path), "--json", "--output", str(output)) == 1
    result = json.loads(capsys.readouterr().out)
    found = {check["check"]: check["violations"] for check in result["checks"]}
    assert (found["agreement"], found["order"], found["reads"]) == (1, 0, None)
    assert result["sample"][0]["run"] == "c1n0-0"
    assert spark.read.parquet(str(output)).count() == 1
