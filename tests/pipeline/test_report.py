"""Reports from traces whose figures are known, or computed independently."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import wbkv
import wbkv.testing
from pyspark.sql import SparkSession
from wbkv_pipeline import command, reporting
from wbkv_pipeline.jobs import report as job
from wbkv_pipeline.reporting import measurements, tables
from wbkv_pipeline.traces import MARKS, REQUESTS

from tests.campaigns import campaign

S = 1_000_000
T0 = 1_790_000_000 * S
SKIP_S = 1.0
CRASH = T0 + 1_020 * S
ROUNDED = 1e-9

Request = dict[str, Any]


def request(scenario: str, start: int, end: int, **more: Any) -> Request:
    usual = {"run": "r", "protocol": None, "clients": None, "partitions": [1], "outcome": "ok", "error": None}
    return {"scenario": scenario, "start_us": start, "end_us": end, **usual, **more}


def exact() -> list[Request]:
    """A request each 10 ms for 10 s, to one partition, latency 5 ms; then the same once more, later."""
    begins = (T0, T0 + 100 * S)
    return [
        request("exact", begin + index * 10_000, begin + index * 10_000 + 5_000)
        for begin in begins
        for index in range(1_000)
    ]


def mixed(rng: random.Random) -> list[Request]:
    """Everything at once: protocols one after the other, with some clients each, in a closed loop."""
    rows = []
    begin = T0 + 300 * S
    for protocol in ("whitebox", "fastcast", "mine"):
        for clients in (1, 4):
            for client in range(clients):
                at = begin + rng.randrange(1_000)
                while at < begin + 4 * S:
                    end = at + int(rng.lognormvariate(9.5, 0.7))
                    outcome = rng.choices(("ok", "failed", "unknown"), (96, 3, 1))[0]
                    error = None if outcome == "ok" else f"error {rng.randrange(15)}"
                    partitions = rng.sample(range(5), rng.randint(1, 3))
                    about = {"run": f"{protocol}{client}", "protocol": protocol, "clients": clients}
                    rows.append(
                        request(
                            "mixed", at, end, **about, partitions=partitions, outcome=outcome, error=error
                        )
                    )
                    at = end + rng.randrange(500)
            begin += 20 * S
    return rows


def outage() -> list[Request]:
    """100 requests/s to group 3 and as many to others. For 6 s from the crash, those to group 3 wait."""
    rows = []
    for index in range(4_000):
        start = T0 + 1_000 * S + index * 10_000
        waits = CRASH - 10_000 <= start < CRASH + 6 * S
        end = CRASH + 6 * S + 1_000 if waits else start + 10_000
        rows.append(request("outage", start, end, partitions=[1, 3]))
        rows.append(request("outage", start, start + 10_000, partitions=[0, 1]))
    return rows


def strange() -> list[Request]:
    at = T0 + 2_000 * S
    return [
        request("strange", at, at - 5),
        request("strange", at, None, outcome="unknown"),  # type: ignore[arg-type] # what is to be counted
        request("strange", at, at + 2 * S, partitions=None, outcome=None),
    ]


def late() -> list[Request]:
    """A request each 100 ms was intended, of 1 ms each; at first they wait for one of 2 s."""
    rows = []
    free = T0 + 2_500 * S
    for index in range(100):
        intended = T0 + 2_500 * S + index * 100_000
        start = max(intended, free)
        free = start + (2 * S if index == 0 else 1_000)
        given = intended if start > intended else None
        rows.append(request("late", start, free, intended_us=given))
    return rows


TRACE = [*late(), *exact(), *mixed(random.Random(7)), *outage(), *strange()]
EVENTS = [
    {"at_us": CRASH, "name": "crash", "node": "n3", "group": 3, "scenario": None},
    {"at_us": CRASH + 2_500_000, "name": "leader", "node": "n1", "group": 3, "scenario": None},
    {"at_us": CRASH + 900 * S, "name": "crash", "node": "n3", "group": 3, "scenario": None},
]


@pytest.fixture(scope="module")
def report(spark: SparkSession) -> reporting.Report:
    requests = spark.createDataFrame([[row.get(name) for name in REQUESTS.names] for row in TRACE], REQUESTS)
    marks = spark.createDataFrame([[row[name] for name in MARKS.names] for row in EVENTS], MARKS)
    return reporting.measure(requests, marks, reporting.ReportOptions(skip_s=SKIP_S, title="Known"))


def of(report: reporting.Report, table: str, **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in report.rows(table) if all(row[name] == value for name, value in wanted.items())]


def expected(rows: list[Request]) -> dict[str, Any]:
    """Compute the figures of requests without a pause independently."""
    begin, end = min(row["start_us"] for row in rows), max(row["end_us"] for row in rows)
    warm = begin + SKIP_S * S
    good = [row for row in rows if row["outcome"] == "ok"]
    seconds = (end - warm) / S
    latency = np.array([row["end_us"] - row["start_us"] for row in good if row["start_us"] >= warm]) / 1e3
    completed = sum(row["end_us"] >= warm for row in good)
    quantiles = {f"p{name}_ms": np.percentile(latency, float(name[:2] + "." + name[2:])) for name in
                 ("10", "50", "90", "99", "999")}  # fmt: skip
    return {
        "seconds": seconds,
        "completed": completed,
        "throughput": completed / seconds,
        "samples": len(latency),
        "mean_ms": latency.mean(),
        "stddev_ms": latency.std(),
        "max_ms": latency.max(),
        "not_ok": sum(row["end_us"] >= warm for row in rows) - completed,
        **quantiles,
    }


def test_throughput_and_latency_of_a_regular_load_are_what_they_must_be(report: reporting.Report) -> None:
    (row,) = of(report, "scenarios", scenario="exact")
    # Two times 9.995 s without the first second; of 1,000 requests 900 start, and 900 end, after it.
    assert row["stretches"] == 2
    assert row["seconds"] == pytest.approx(2 * 8.995)
    assert row["completed"] == row["samples"] == 1_800
    assert row["throughput"] == pytest.approx(1_800 / 17.99)
    assert {row[name] for name in ("mean_ms", "p50_ms", "p999_ms", "max_ms")} == {5.0}
    assert row["stddev_ms"] == 0


def test_latency_counts_from_the_intended_start(report: reporting.Report) -> None:
    (row,) = of(report, "scenarios", scenario="late")
    # After the first second, the first request that should have begun is 1 s late, and behind nine others.
    assert row["max_ms"] == pytest.approx(1_000 + 10)
    bins = of(report, "over_time", scenario="late")
    assert [each["samples"] for each in bins[:4]] == [3, 3, 3, 3]


def test_figures_are_those_that_another_way_gives(report: reporting.Report) -> None:
    for protocol in ("whitebox", "fastcast", "mine"):
        for clients in (1, 4):
            who = {"scenario": "mixed", "protocol": protocol, "clients": clients}
            mine = [row for row in TRACE if all(row[name] == value for name, value in who.items())]
            (row,) = of(report, "scenarios", **who)
            assert {name: row[name] for name in expected(mine)} == pytest.approx(expected(mine), rel=ROUNDED)
            for count in (1, 2, 3):
                (point,) = of(report, "destinations", **who, destinations=count)
                few = expected([row for row in mine if len(row["partitions"]) == count])
                assert {name: point[name] for name in few} == pytest.approx(few, rel=ROUNDED)


def test_bins_count_throughput_at_ends_and_latency_at_starts(report: reporting.Report) -> None:
    who = {"scenario": "mixed", "protocol": "whitebox", "clients": 4}
    mine = [row for row in TRACE if all(row[name] == value for name, value in who.items())]
    begin, end = min(row["start_us"] for row in mine), max(row["end_us"] for row in mine)
    rows = of(report, "over_time", **who)
    width = 300_000
    assert [row["bin"] for row in rows] == list(range(-(-(end - begin) // width)))
    last = len(rows) - 1
    good = [row for row in mine if row["outcome"] == "ok"]
    done = Counter(min(last, (row["end_us"] - begin) // width) for row in good)
    for row in rows:
        began = [each for each in good if (each["start_us"] - begin) // width == row["bin"]]
        latency = [(each["end_us"] - each["start_us"]) / 1e3 for each in began]
        assert row["completed"] == done[row["bin"]]
        assert row["throughput"] == pytest.approx(done[row["bin"]] / row["seconds"])
        assert row["samples"] == len(latency)
        if latency:
            assert row["p99_ms"] == pytest.approx(np.percentile(latency, 99))
            assert row["mean_ms"] == pytest.approx(np.mean(latency))
    assert sum(row["seconds"] for row in rows) == pytest.approx((end - begin) / S)


def test_bins_without_requests_are_there(report: reporting.Report) -> None:
    affected = {"crash": 1, "series": "affected"}
    empty = [row for row in of(report, "timeline", **affected) if 0 <= row["at_s"] < 5.9]
    assert len(empty) == 20
    assert {row["completed"] for row in empty} == {0}


def test_the_interval_of_a_recovery_is_exact(report: reporting.Report) -> None:
    assert len(report.crashes) == 1
    (affected,) = of(report, "recovery", series="affected")
    assert affected["before"] == pytest.approx(100)
    assert affected["usual_ms"] == 10
    assert affected["lowest"] == 0
    assert affected["leader_s"] == 2.5
    assert affected["recovered_s"] == 6.0
    assert affected["cleared_s"] == 3.5
    assert affected["worst_ms"] == pytest.approx(6_001, abs=10)
    (others,) = of(report, "recovery", series="others")
    assert others["recovered_s"] == 0
    assert others["before"] == pytest.approx(100)
    (clients,) = of(report, "recovery", series="clients")
    assert clients["recovered_s"] == 6.0
    assert clients["lowest"] == pytest.approx(100)


def test_protocols_are_compared_at_equal_numbers_of_clients(report: reporting.Report) -> None:
    rows = of(report, "ratios", clients=4, destinations=2, protocol="whitebox", against="mine")
    (mine,) = of(report, "destinations", scenario="mixed", protocol="mine", clients=4, destinations=2)
    (wb,) = of(report, "destinations", scenario="mixed", protocol="whitebox", clients=4, destinations=2)
    assert [row["throughput_ratio"] for row in rows] == [pytest.approx(wb["throughput"] / mine["throughput"])]
    assert [row["latency_ratio"] for row in rows] == [pytest.approx(mine["mean_ms"] / wb["mean_ms"])]
    assert len(report.rows("ratios")) == 3 * 2 * 6  # destinations, clients, ordered pairs
    overall = of(report, "ratios_over_panels", clients=4, protocol="whitebox", against="mine")
    compared = of(report, "ratios", clients=4, protocol="whitebox", against="mine")
    assert [row["latency_ratio"] for row in overall] == [
        pytest.approx(np.mean([row["latency_ratio"] for row in compared]))
    ]
    assert overall[0]["panels"] == 3


def test_outcomes_add_up_and_rare_errors_are_together(report: reporting.Report) -> None:
    who = {"scenario": "mixed", "protocol": "mine", "clients": 4}
    rows = of(report, "outcomes", **who)
    mine = [row for row in TRACE if all(row[name] == value for name, value in who.items())]
    kinds = Counter(row["outcome"] for row in mine)
    for outcome, count in kinds.items():
        assert sum(row["count"] for row in rows if row["outcome"] == outcome) == count
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    failed = [row["error"] for row in rows if row["outcome"] == "failed"]
    assert len(failed) == 11
    assert "(others)" in failed


def test_requests_without_valid_times_are_left_out_with_a_warning(report: reporting.Report) -> None:
    assert report.overview["requests"] == len(TRACE)
    said = "\n".join(report.warnings)
    assert "1 requests end before they start" in said
    assert "1 requests have no start or no end" in said
    assert "Marks at times without requests, which are left out: crash at" in said


def test_approximate_percentiles_are_within_what_is_stated(spark: SparkSession) -> None:
    latencies = [int(random.Random(index).lognormvariate(9, 1)) for index in range(20_000)]
    rows = [request("many", T0 + index, T0 + index + each) for index, each in enumerate(latencies)]
    frame = spark.createDataFrame([[row.get(name) for name in REQUESTS.names] for row in rows], REQUESTS)
    found = measurements.asked(frame).agg(*tables.latencies(tables.QUANTILES, exact=False))
    (row,) = tables.unpacked(found, tables.QUANTILES).collect()
    for name, quantile in tables.QUANTILES.items():
        low, high = (100 * (quantile + sign / tables.ACCURACY) for sign in (-1, 1))
        near = np.percentile(latencies, low, method="lower"), np.percentile(latencies, high, method="higher")
        assert near[0] <= row[f"{name}_ms"] * 1e3 <= near[1]


@campaign  # docs/pipeline.md makes one, too
def test_a_report_of_a_real_load(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, output = tmp_path / "traces", tmp_path / "report"
    traces.mkdir()
    with wbkv.testing.cluster(trace=traces) as client:
        for index in range(200):
            with wbkv.scenario("write"):
                client.put(f"key/{index}", b"x")
            with wbkv.scenario("read"):
                client.get(f"key/{index}")
    arguments = [str(traces), "--output", str(output), "--title", "Real", "--bin", "0.01", "--json"]
    assert command.execute("report", job, arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["scenario"] for row in said["scenarios"]] == ["read", "write"]
    assert {row["completed"] for row in said["scenarios"]} == {200}
    page = (output / "report.html").read_text()
    assert "400 requests, 400 of them ok" in page
    assert "No recovery time-line: the traces have no marks." in page
    assert {path.stem for path in (output / "tables").glob("*.parquet")} >= {
        "scenarios",
        "over_time",
        "outcomes",
    }
    kept = pq.read_table(output / "tables" / "scenarios.parquet").to_pylist()
    assert [row["p50_ms"] for row in kept] == [row["p50_ms"] for row in said["scenarios"]]
    for plot in ("percentiles", "over-time-read", "over-time-write"):
        assert (output / "plots" / f"{plot}.png").read_bytes().startswith(b"\x89PNG")
        assert (output / "plots" / f"{plot}.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{tmp}/absent", "--output", "{tmp}/o"], "{tmp}/absent: no such file or folder"),
        (
            ["{tmp}/empty", "--output", "{tmp}/o"],
            "no traces (deliveries-*, requests-*, marks-*) in {tmp}/empty",
        ),
        (["{tmp}/marks", "--output", "{tmp}/o"], "these traces have no requests"),
        (["{tmp}/t", "--output", "{tmp}/full"], "has other files in it (mine.txt)"),
        (["{tmp}/t", "--output", "{tmp}/full/mine.txt"], "is a file, not a folder"),
        (["{tmp}/t", "--output", "{tmp}/o", "--bin", "0"], "--bin 0: the width of bins must be at least"),
        (["{tmp}/t", "--output", "{tmp}/o", "--skip", "60"], "--skip 60 leaves no requests: "),
    ],
)
def test_bad_input_is_explained_in_one_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    for name in ("empty", "marks", "t", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "marks" / "marks-1.jsonl").write_text(json.dumps(EVENTS[0]) + "\n")
    (tmp_path / "t" / "requests-1.jsonl").write_text(json.dumps(request("a", T0, T0 + S)) + "\n")
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert command.execute("report", job, [each.format(tmp=tmp_path) for each in arguments]) == 2
    (line,) = [
        each for each in capsys.readouterr().err.splitlines() if each.startswith("wbkv pipeline report:")
    ]
    assert said.format(tmp=tmp_path) in line
    assert not (tmp_path / "o").exists()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
