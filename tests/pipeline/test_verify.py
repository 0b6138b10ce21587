"""`verify`: traces of a store that works pass all checks, and each planted violation is found, where it should."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable

from pyspark.sql import DataFrame, SparkSession

from pipeline.traces import DELIVERIES, REQUESTS
from pipeline.verifying import Rules, verified
from tests.pipeline.slow_verifier import verify
from tests.pipeline.trace_maker import WIDTH, Maker, Message, Row, Trace

# Planting


def made(case: int, seed: int, *, groups: int = 2) -> Maker:
    return Maker(case, random.Random(seed), groups=groups)


def tables(spark: SparkSession, traces: Iterable[Trace]) -> tuple[DataFrame, DataFrame]:
    traces = list(traces)
    deliveries = [row for trace in traces for row in trace.deliveries]
    requests = [row for trace in traces for row in trace.requests]
    return spark.createDataFrame(deliveries, DELIVERIES), spark.createDataFrame(requests, REQUESTS)


def found_in(spark: SparkSession, traces: list[Trace], rules: Rules) -> dict[int, set[str]]:
    """The names of the checks that fail, by case."""
    found: dict[int, set[str]] = defaultdict(set)
    with verified(*tables(spark, traces), rules) as verdict:
        for row in verdict.findings.collect():
            found[row["gts"] // WIDTH].add(row["check"])
    return dict(found)


# Randomly


def spoil(trace: Trace, rng: random.Random) -> None:
    """Change something, anything."""
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


def test_as_by_definition(spark: SparkSession) -> None:
    """Traces that were spoilt at random fail the same checks as by the slow verifier."""
    traces = []
    for case in range(1, 401):
        rng = random.Random(case)
        trace = Maker(case, rng).finish()
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            if trace.requests and trace.deliveries:
                spoil(trace, rng)
        traces.append(trace)
    wrote = [row for trace in traces for row in trace.requests if row["outcome"] == "ok" and row["writes"]]
    begins = min(row["revision"] for row in wrote)
    for untraced in (False, True):
        found = found_in(spark, traces, Rules(untraced_clients=untraced))
        expected = {
            trace.case: failing
            for trace in traces
            if (failing := verify(trace, begins=begins, untraced_clients=untraced))
        }
        assert found == expected
        names = {name for failing in expected.values() for name in failing}
        assert len(names) == 11  # no check was left out
