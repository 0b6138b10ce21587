"""Runs all checks: from traces to a table of checks, and the rows that violate them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.observation import Observation

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.verifying import gaps, lines, messages, outcomes, reads, versions

REPLICAS: Final = "the replicas' deliveries"
CLIENTS: Final = "the clients' requests"
LINE_FIELDS: Final = ("run", "group", "kind", "position", "gts")
"""The fields of every line."""


class Check(NamedTuple):
    """A check: its claim, what it counts, and the traces that it needs."""

    name: str
    says: str
    of: str
    """A field of `CheckedCounts`."""
    needs: tuple[str, ...]


CHECKS: Final = (
    Check("positions", "each replica's log is complete", "lines", (REPLICAS,)),
    Check("validity", "a client sent what was delivered, to these groups", "deliveries", (REPLICAS,)),
    Check("integrity", "no replica delivers a message twice", "deliveries", (REPLICAS,)),
    Check("order", "timestamps grow at every replica", "deliveries", (REPLICAS,)),
    Check("timestamps", "a message has one timestamp, everywhere", "deliveries", (REPLICAS,)),
    Check("agreement", "replicas of a group deliver the same messages", "deliveries", (REPLICAS,)),
    Check("projection", "all destinations deliver a message", "deliveries", (REPLICAS,)),
    Check("completeness", "acknowledged requests were delivered", "acknowledged", (REPLICAS, CLIENTS)),
    Check("once", "a request takes effect once, at the first of its messages", "acknowledged", (CLIENTS,)),
    Check("failed", "failed requests have no effect", "reads", (REPLICAS, CLIENTS)),
    Check("reads", "every read returns the latest earlier version", "reads", (CLIENTS,)),
)


class CheckedCounts(NamedTuple):
    """How much was checked."""

    lines: int = 0
    deliveries: int = 0
    stopped: int = 0
    """Runs that could not record all their deliveries."""
    requests: int = 0
    acknowledged: int = 0
    """Acknowledged requests that wrote."""
    reads: int = 0


@dataclass(frozen=True)
class Rules:
    """Assumptions that traces do not record."""

    untraced_clients: bool = False
    """Whether some clients wrote no trace, or not all of it."""
    clock_skew_us: int = 100_000
    """The largest difference between the clocks of two client processes."""


@dataclass(frozen=True)
class Verdict:
    """The result of all checks."""

    counts: CheckedCounts
    findings: DataFrame
    """Rows of `FINDING`, with names of run and node instead of `run_id`. Valid until the `with` ends."""
    violations: dict[str, int]
    """The number of violations of each check that was made."""
    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The traces that are missing, for each check that was left out."""

    @property
    def fine(self) -> bool:
        """Whether no check has found a violation."""
        return not any(self.violations.values())


@contextmanager
def verified(
    deliveries: DataFrame | None, requests: DataFrame | None, rules: Rules | None = None
) -> Iterator[Verdict]:
    """Check traces of replicas, clients or both, as `wbkv_pipeline.traces` reads them."""
    if deliveries is None and requests is None:
        raise ValueError("nothing to check: give deliveries, requests or both")
    rules = rules or Rules()
    kept: list[DataFrame] = []

    def keep(rows: DataFrame) -> DataFrame:
        kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return rows

    try:
        counted = [Observation(), Observation()]
        together = by_timestamp = None
        if deliveries is not None:
            together = keep(messages.delivered(lines.followed(_counted_lines(deliveries, counted[0]))))
            together.count()
            by_timestamp = keep(messages.messages(together))
        if requests is not None:
            requests = keep(_counted_requests(requests, counted[1]))
            requests.count()
        counts, begins = _counts(counted, has_lines=deliveries is not None, has_requests=requests is not None)
        matches = keep(outcomes.matched(by_timestamp, requests))
        pairs = outcomes.paired(matches)
        parts = []
        if together is not None and by_timestamp is not None:
            acknowledged = None if requests is None else outcomes.unseen(pairs)
            several = keep(messages.several_timestamps(by_timestamp))
            parts += [
                messages.check_lines(together),
                messages.check_repeats(together),
                messages.check_timestamps(by_timestamp, several),
                gaps.check_gaps(together, gaps.elsewhere(by_timestamp), acknowledged),
            ]
            if not several.isEmpty():  # spares a shuffle of all copies of all messages
                parts.append(messages.check_twice(together, several))
            if requests is not None:
                parts.append(outcomes.check_validity(matches, untraced_clients=rules.untraced_clients))
        if requests is not None:
            parts.append(outcomes.check_once(pairs))
            doubts = keep(_doubtful_reads(requests, pairs, rules, begins))
            parts.append(reads.check_reads(doubts))
            if not doubts.isEmpty():
                allowed = rules.untraced_clients
                parts.append(reads.check_strange(doubts, by_timestamp, matches, untraced_clients=allowed))
        findings = parts[0]
        for part in parts[1:]:
            findings = findings.unionByName(part)
        findings = keep(findings)
        found = {row["check"]: row["count"] for row in findings.groupBy("check").count().collect()}
        given = {REPLICAS: deliveries is not None, CLIENTS: requests is not None}
        violations, left_out = {}, {}
        for check in CHECKS:
            missing = tuple(need for need in check.needs if not given[need])
            if missing:
                left_out[check.name] = missing
            else:
                violations[check.name] = found.get(check.name, 0)
        yield Verdict(counts, _named(findings, deliveries), violations, left_out)
    finally:
        for rows in reversed(kept):
            rows.unpersist()


def _doubtful_reads(requests: DataFrame, pairs: DataFrame, rules: Rules, begins: int | None) -> DataFrame:
    read = reads.reads_of(requests)
    written = versions.versions(requests, pairs, read.select("key").distinct())
    rows = reads.explained(read, written, clock_skew_us=rules.clock_skew_us)
    return reads.doubtful(
        rows, untraced_clients=rules.untraced_clients, begins=begins, clock_skew_us=rules.clock_skew_us
    )


def _counted_lines(deliveries: DataFrame, counted: Observation) -> DataFrame:
    kind = sql.col("kind")
    kinds = (lines.BEGIN, lines.MESSAGE, lines.JUMP)
    needed = [sql.col(name).isNull() for name in LINE_FIELDS]
    message = [sql.col(name).isNull() for name in (*messages.IDENTITY, "destinations")]
    incomplete = reduce(or_, needed) | ((kind == lines.MESSAGE) & reduce(or_, message))
    return deliveries.observe(
        counted,
        sql.count(sql.lit(1)).alias("lines"),
        sql.count_if(kind == lines.MESSAGE).alias("deliveries"),
        sql.count_if(kind == lines.STOPPED).alias("stopped"),
        sql.max(sql.when(~kind.isin(*kinds, lines.STOPPED), kind)).alias("strange"),
        sql.count_if((kind != lines.STOPPED) & incomplete).alias("incomplete"),
    ).where(kind != lines.STOPPED)


def _counted_requests(requests: DataFrame, counted: Observation) -> DataFrame:
    ok = sql.col("outcome") == "ok"
    wrote = ok & (sql.size("writes") > 0)
    return requests.observe(
        counted,
        sql.count(sql.lit(1)).alias("requests"),
        sql.count_if(wrote).alias("acknowledged"),
        sql.sum(sql.when(ok & sql.col("reads").isNotNull(), sql.size("reads"))).alias("reads"),
        sql.min(sql.when(wrote, sql.col("revision"))).alias("begins"),
    )


def _counts(
    counted: list[Observation], *, has_lines: bool, has_requests: bool
) -> tuple[CheckedCounts, int | None]:
    of_lines = counted[0].get if has_lines else {}
    strange, incomplete = of_lines.pop("strange", None), of_lines.pop("incomplete", 0)
    if strange is not None:
        raise PipelineError(f"deliveries: {strange!r} is not a known kind of line")
    if incomplete:
        raise PipelineError(
            f"deliveries: {incomplete:,} lines lack one of {', '.join(LINE_FIELDS)} or the message"
        )
    of_requests = counted[1].get if has_requests else {}
    begins = of_requests.pop("begins", None)
    return CheckedCounts(**{name: value or 0 for name, value in {**of_lines, **of_requests}.items()}), begins


def _named(findings: DataFrame, deliveries: DataFrame | None) -> DataFrame:
    """Add the names of runs and nodes. They are looked up only if there are findings."""
    if deliveries is None or findings.where(sql.col("run_id").isNotNull()).isEmpty():
        return findings.drop("run_id").withColumn("node", sql.lit(None).cast("string"))
    runs = deliveries.select("run", "node").distinct().select(lines.run_id().alias("run_id"), "run", "node")
    rows = findings.withColumnRenamed("run", "client_run").join(runs, "run_id", "left")
    return rows.withColumn("run", sql.coalesce("client_run", "run")).drop("run_id", "client_run")
