"""`verify`: traces of a correct store pass all checks, and each planted violation is found."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from wbkv_pipeline.traces import read_deliveries, read_requests
from wbkv_pipeline.verifying import CHECKS, Rules, verified

from tests.campaigns import campaign
from tests.pipeline.planted import PLANTED, scenario
from tests.pipeline.slow_verifier import verify
from tests.pipeline.trace_maker import WIDTH, Maker, Trace

# Randomly


def spoil(trace: Trace, rng: random.Random) -> None:
    """Change the trace at random."""
    if rng.random() < 0.5:
        _spoil_log(trace, rng)
    else:
        _spoil_requests(trace, rng)


def _spoil_log(trace: Trace, rng: random.Random) -> None:
    rows = trace.deliveries
    at = rng.randrange(len(rows))
    row = rows[at]
    messages = [row for row in rows if row["kind"] == "message"]
    one = rng.choice(messages) if messages else row
    match rng.randrange(9):
        case 0:
            del rows[at]
        case 1:
            del rows[at]
            trace.renumber()
        case 2 if at:
            rows[at - 1], rows[at] = rows[at], rows[at - 1]
            trace.renumber()
        case 3:
            rows.insert(at, dict(row))
            if rng.random() < 0.7:
                trace.renumber()
        case 4:
            change = rng.randint(-9, 9)
            everywhere = trace.copies(one["gts"], rng.choice((None, one["group"])))
            for copy in rng.choice(([one], everywhere)):
                copy["gts"] += change
        case 5 if messages:
            one["number"] = rng.choice(messages)["number"]
        case 6 if messages:
            for copy in rng.choice(([one], trace.copies(one["gts"]))):
                copy["destinations"] = sorted(rng.sample(trace.groups, rng.randint(1, len(trace.groups))))
        case 7 if messages:
            for copy in rng.choice(([one], trace.copies(one["gts"]))):
                copy["sequence"] = (copy["sequence"] or 0) + rng.choice((1, -1, 50))
                copy["client"] = copy["client"] or trace.case * 100 + 1
        case 8:
            gone = trace.copies(one["gts"], rng.choice((None, one["group"])))
            trace.deliveries = [row for row in rows if row not in gone]
            trace.renumber()


def _spoil_requests(trace: Trace, rng: random.Random) -> None:
    requests = trace.requests
    one = rng.choice(requests)
    signed = [row for row in requests if row["client"] is not None] or [one]
    read = [row for row in requests if row["reads"]] or [one]
    match rng.randrange(9):
        case 0:
            requests.remove(one)
        case 1:
            rng.choice(signed)["partitions"] = [rng.choice(trace.groups)]
        case 2:
            again = {**rng.choice(signed)}
            if again["revision"] is not None:
                again["revision"] += rng.choice((0, 10, -10))
                requests.append(again)
        case 3:
            wrote = [row for row in signed if row["outcome"] == "ok"] or [one]
            if wrote[0]["client"] is not None:
                rng.choice(wrote)["outcome"] = rng.choice(("unknown", "failed"))
        case 4 if one["revision"] is not None:
            one["revision"] += rng.choice((-20, -10, -3, 3, 10))
        case 5 | 6 | 7:
            revisions = [0, *(message.gts for message in trace.messages)]
            for seen in rng.choice(read)["reads"]:
                if rng.random() < 0.5:
                    seen["revision"] = rng.choice(revisions)
        case 8:
            shift = rng.randint(-3000, 3000)
            one["start_us"] += shift
            one["end_us"] += shift


RANDOM = 300
"""Traces that are spoilt at random. Those with planted violations come behind them."""


def spoilt(case: int) -> Trace:
    rng = random.Random(case)
    trace = Maker(case, rng).finish()
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        if trace.requests and trace.deliveries:
            spoil(trace, rng)
    return trace


def planted() -> dict[int, tuple[Trace, str, set[str]]]:
    found = {}
    for case, (plant, checks) in enumerate(PLANTED, RANDOM + 1):
        trace = scenario(case)
        plant(trace)
        found[case] = (trace, plant.__name__, checks)
    return found


def written(folder: Path, traces: Iterable[Trace]) -> Path:
    """Write traces to files of all formats."""
    folder.mkdir()
    traces = list(traces)
    for number in range(2):
        some = traces[number::2]
        for kind in ("deliveries", "requests"):
            rows = [row for trace in some for row in getattr(trace, kind)]
            text = "".join(f"{json.dumps({k: v for k, v in row.items() if v is not None})}\n" for row in rows)
            if number:
                (folder / f"{kind}-{number}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
            else:
                (folder / f"{kind}-{number}.jsonl").write_text(text)
    return folder


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    return [spoilt(case) for case in range(1, RANDOM + 1)] + [trace for trace, _, _ in planted().values()]


@pytest.mark.parametrize(
    "untraced", [False, pytest.param(True, marks=campaign)], ids=["all-traced", "some-untraced"]
)
def test_finds_what_is_wrong_and_nothing_else(
    spark: SparkSession, tmp_path: Path, traces: list[Trace], *, untraced: bool
) -> None:
    """Random damage is found by the same checks as in the slow verifier; planted violations as declared."""
    folder = [str(written(tmp_path / "traces", traces))]
    rules = Rules(untraced_clients=untraced)
    found: dict[int, set[str]] = defaultdict(set)
    with verified(read_deliveries(spark, folder), read_requests(spark, folder), rules) as verdict:
        for row in verdict.findings.collect():
            found[row["gts"] // WIDTH].add(row["check"])
            assert row["run"] is not None or row["check"] in ("timestamps", "validity")
        assert sum(verdict.violations.values()) == verdict.findings.count()
    wrote = [row for trace in traces for row in trace.requests if row["outcome"] == "ok" and row["writes"]]
    begins = min(row["revision"] for row in wrote)
    by_definition = {
        trace.case: verify(trace, begins=begins, untraced_clients=untraced)
        for trace in traces
        if trace.case <= RANDOM
    }
    assert {case: found[case] for case in by_definition} == by_definition
    assert {name for failing in by_definition.values() for name in failing} == {
        check.name for check in CHECKS
    }
    if not untraced:
        for case, (_, name, checks) in planted().items():
            assert found[case] == checks, name


def test_the_slow_verifier_finds_what_is_planted() -> None:
    for trace, name, checks in planted().values():
        if name != "clocks_of_two_clients_may_differ":  # it has one clock
            assert verify(trace, begins=0, untraced_clients=False) == checks, name


def test_the_slow_verifier_passes_what_is_right() -> None:
    for case in range(1, 300):
        assert not verify(Maker(case, random.Random(case)).finish(), begins=0, untraced_clients=False)
