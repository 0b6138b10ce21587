"""Recovery from crashes, as in the paper's last figure: latency and throughput around a crash, in bins.

Marks named "crash" record crashes. Marks within a second of each other are one crash, since their effects
cannot be separated. The groups that lost their leader are those of these marks or, if these have none, those
of the "leader" marks up to the next crash. All requests around the crash count, of any scenario, in three
series:

- "clients": all requests;
- "affected": requests to a partition that lost its leader;
- "others": all other requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import BooleanType, DoubleType, IntegerType, StringType, StructField, StructType

from wbkv_pipeline.reporting.measurements import is_ok
from wbkv_pipeline.reporting.tables import latencies, unpacked

Row = Mapping[str, Any]

ENOUGH: Final = 0.9
"""The share of the throughput before the crash that counts as recovered."""
STEADY_BINS: Final = 3
"""Throughput is judged by the mean of this many bins, so that a single outlier does not decide."""
_BEFORE_US: Final = 10_000_000
_AFTER_US: Final = 60_000_000
_ONE_CRASH_US: Final = 1_000_000
_QUANTILES: Final = {"p50": 0.5, "p99": 0.99}
FIGURES: Final = StructType(
    [
        StructField("crash", IntegerType()),
        StructField("series", StringType()),
        *(
            StructField(name, DoubleType())
            for name in ("before", "usual_ms", "lowest", "worst_ms", "leader_s", "recovered_s", "cleared_s")
        ),
        StructField("unsteady", BooleanType()),
    ]
)
"""The columns of `figures`."""
_CRASHES = "crash int, at_us bigint, groups array<int>, bins_before bigint, bins_after bigint"


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash, and the time around it that is measured."""

    number: int
    """1, 2, 3, ... in the order of time."""
    at_us: int
    leader_us: int | None
    """When all affected groups had a new leader; None without marks."""
    nodes: tuple[str, ...]
    groups: tuple[int, ...]
    """The groups that lost their leader; empty if unknown."""
    from_us: int
    """Ten seconds before the crash, but after the warm-up and an earlier crash."""
    to_us: int
    """A minute after the crash, or the end of the requests."""

    @property
    def leader_s(self) -> float | None:
        """Seconds from the crash to the last new leader."""
        return None if self.leader_us is None else (self.leader_us - self.at_us) / 1e6


def crashes(marks: Sequence[Row], times: Sequence[Row], skip_us: int = 0) -> list[Crash]:
    """Return the crashes during stretches."""
    found: list[Crash] = []
    gathered = list(_gathered(marks))
    for these, following in pairwise([*gathered, ()]):
        at = these[0]["at_us"]
        around = next((each for each in covered(times) if each[0] <= at <= each[1]), None)
        if around is None:
            continue
        until = following[0]["at_us"] if following else around[1]
        groups, leader = _new_leaders(these, [mark for mark in marks if at <= mark["at_us"] <= until])
        earliest = max([around[0] + skip_us, *(crash.leader_us or crash.at_us for crash in found)])
        found.append(
            Crash(
                number=len(found) + 1,
                at_us=at,
                leader_us=leader,
                nodes=tuple(sorted({mark["node"] for mark in these if mark["node"]})),
                groups=groups,
                from_us=min(at, max(at - _BEFORE_US, earliest)),
                to_us=min(at + _AFTER_US, around[1]),
            )
        )
    return found


def covered(times: Sequence[Row]) -> Iterator[tuple[int, int]]:
    """Yield the intervals that stretches cover together."""
    piece: tuple[int, int] | None = None
    for begin, end in sorted((each["begin_us"], each["end_us"]) for each in times):
        if piece is not None and begin <= piece[1]:
            piece = piece[0], max(piece[1], end)
            continue
        if piece is not None:
            yield piece
        piece = begin, end
    if piece is not None:
        yield piece


def _gathered(marks: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the marks of each crash."""
    together: list[Row] = []
    for mark in sorted((mark for mark in marks if mark["name"] == "crash"), key=lambda mark: mark["at_us"]):
        if together and mark["at_us"] - together[0]["at_us"] > _ONE_CRASH_US:
            yield together
            together = []
        together.append(mark)
    if together:
        yield together


def _new_leaders(crash: Sequence[Row], marks: Sequence[Row]) -> tuple[tuple[int, ...], int | None]:
    """Return the groups that lost their leader, and when the last of them had a new one."""
    first: dict[int | None, int] = {}
    for mark in sorted((mark for mark in marks if mark["name"] == "leader"), key=lambda mark: mark["at_us"]):
        first.setdefault(mark["group"], mark["at_us"])
    known = {mark["group"] for mark in crash if mark["group"] is not None}
    if not known:
        groups = {group for group in first if group is not None}
        return tuple(sorted(groups)), max(first.values(), default=None)
    times = [first.get(group, first.get(None)) for group in known]
    known_times = [at for at in times if at is not None]
    return tuple(sorted(known)), max(known_times) if len(known_times) == len(times) else None


def timeline(requests: DataFrame, found: Sequence[Crash], bin_us: int, *, exact: bool = True) -> DataFrame:
    """Return one row for each crash, series and bin, empty bins included, from requests that are `timed`.

    Bin 0 begins at the crash, and `at_s` counts from there. There are full bins only. The other columns are
    defined as in `wbkv_pipeline.reporting.tables.over_time`.
    """
    keys = ("crash", "series", "bin")
    known = _as_table(requests.sparkSession, found, bin_us)
    hit = F.arrays_overlap(F.coalesce("partitions", F.array().cast("array<int>")), F.col("groups"))
    side = F.when(F.size("groups") > 0, F.when(hit, "affected").otherwise("others"))
    last = F.col("at_us") + F.col("bins_after") * bin_us
    first = F.col("at_us") - F.col("bins_before") * bin_us
    around = (
        requests.join(F.broadcast(known), (F.col("start_us") < last) & (F.col("end_us") >= first))
        .withColumn("series", F.explode(F.array_compact(F.array(F.lit("clients"), side))))
        .withColumn("ends", F.floor((F.col("end_us") - F.col("at_us")) / bin_us))
        .withColumn("starts", F.floor((F.col("start_us") - F.col("at_us")) / bin_us))
    )
    done = (
        around.withColumnRenamed("ends", "bin")
        .groupBy(*keys)
        .agg(F.count_if(is_ok()).alias("completed"), F.count_if(~is_ok()).alias("not_ok"))
    )
    begun = (
        around.where(is_ok())
        .withColumnRenamed("starts", "bin")
        .groupBy(*keys)
        .agg(*latencies(_QUANTILES, exact=exact))
    )
    names = F.when(F.size("groups") > 0, F.array(*map(F.lit, ("clients", "affected", "others"))))
    bins = F.sequence(-F.col("bins_before"), F.col("bins_after") - 1)
    grid = (
        known.where(F.col("bins_after") > 0)
        .withColumn("series", F.explode(F.coalesce(names, F.array(F.lit("clients")))))
        .select("crash", "series", F.explode(bins).alias("bin"))
    )
    return (
        grid.join(done, list(keys), "left")
        .join(unpacked(begun, _QUANTILES).drop("stddev_ms"), list(keys), "left")
        .fillna(0, ["completed", "not_ok", "samples"])
        .withColumn("at_s", F.col("bin") * bin_us / 1e6)
        .withColumn("throughput", F.col("completed") * 1e6 / bin_us)
    )


def _as_table(spark: SparkSession, found: Sequence[Crash], bin_us: int) -> DataFrame:
    rows = [
        (
            crash.number,
            crash.at_us,
            list(crash.groups),
            (crash.at_us - crash.from_us) // bin_us,
            (crash.to_us - crash.at_us) // bin_us,
        )
        for crash in found
    ]
    return spark.createDataFrame(rows, _CRASHES)


def figures(found: Sequence[Crash], bins: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the figures of a `timeline`, for each crash and series.

    `before`: mean throughput of the bins before the crash. `usual_ms`: median of the median latencies of
    these bins; a mean would include the requests that start before the crash and are delayed by it.
    `lowest`: smallest throughput of a bin after the crash. `leader_s`: from the crash to the new leaders.
    `recovered_s`: from the crash to the first bin that has 90% of `before`, if the mean of it and the
    next two bins has 90%, too; 0 if no three bins after the crash had less, null if it never recovered.
    `cleared_s`: the part of `recovered_s` after the new leaders. `unsteady`: whether more than a twentieth of
    such means were below 90% even before the crash, so that `recovered_s` may be chance.
    """
    rows = []
    for crash in found:
        for series in ("affected", "others", "clients"):
            mine = [row for row in bins if row["crash"] == crash.number and row["series"] == series]
            mine.sort(key=lambda row: row["bin"])
            if mine:
                rows.append({"crash": crash.number, "series": series, **_seen(crash, mine)})
    return rows


def _seen(crash: Crash, bins: Sequence[Row]) -> dict[str, Any]:
    before = [row for row in bins if row["bin"] < 0]
    after = [row for row in bins if row["bin"] >= 0]
    usual = sum(row["throughput"] for row in before) / len(before) if before else None
    recovered = _recovered(after, ENOUGH * usual) if usual and len(before) >= STEADY_BINS else None
    leader = crash.leader_s
    cleared = None if recovered is None or leader is None else max(0.0, recovered - leader)
    low = [mean < ENOUGH * usual for mean in _means(before)] if usual else []
    return {
        "before": usual,
        "usual_ms": median([row["p50_ms"] for row in before if row["samples"]] or [None]),
        "lowest": min((row["throughput"] for row in after), default=None),
        "worst_ms": max((row["max_ms"] for row in after if row["samples"]), default=None),
        "leader_s": leader,
        "recovered_s": recovered,
        "cleared_s": cleared,
        "unsteady": sum(low) * 20 > len(low),
    }


def _recovered(after: Sequence[Row], enough: float) -> float | None:
    means = _means(after)
    fell = next((index for index, mean in enumerate(means) if mean < enough), None)
    if fell is None:
        return 0.0 if means else None
    for index in range(fell, len(means)):
        if means[index] >= enough and after[index]["throughput"] >= enough:
            return float(after[index]["at_s"])
    return None


def _means(bins: Sequence[Row]) -> list[float]:
    """Return the mean throughput of each bin and the next ones, `STEADY_BINS` together."""
    amounts = [row["throughput"] for row in bins]
    return [
        sum(amounts[index : index + STEADY_BINS]) / STEADY_BINS
        for index in range(len(bins) - STEADY_BINS + 1)
    ]
