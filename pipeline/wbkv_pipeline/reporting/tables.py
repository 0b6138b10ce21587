"""The tables of a report: functions from requests (`wbkv_pipeline.reporting.measurements`) to figures.

**Throughput counts a request where it ends**: only then has the store executed it, so no bin shows future
work. **Latency counts a request where it starts**: this is what a client experiences that asks then.
Counted at its end, an outage would show no latency while it lasts, and all of it afterwards.

Both count only requests with outcome "ok"; the others are in `outcomes`. A warm-up of `skip_us` is cut off
each stretch: throughput has the requests that end after it, latency those that start after it, and the time
of the warm-up does not count.

Percentiles are exact, with linear interpolation (numpy's default), or, for very many requests, approximate:
see `ACCURACY`. Latencies are in milliseconds, throughput is in requests per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from wbkv_pipeline.reporting.measurements import MEASUREMENT, PANEL, is_ok

ACCURACY: Final = 10_000
"""The rank of an approximate percentile errs by at most 1/10,000 of the requests: p99 lies between the exact
p98.99 and p99.01, p999 between p99.89 and p99.91."""

QUANTILES: Final[Mapping[str, float]] = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
_IN_BINS: Final[Mapping[str, float]] = {"p50": 0.5, "p99": 0.99}
_ERRORS_SHOWN: Final = 10


def summary(
    requests: DataFrame,
    times: DataFrame,
    keys: Sequence[str] = MEASUREMENT,
    *,
    skip_us: int = 0,
    exact: bool = True,
) -> DataFrame:
    """Return one row per measurement, or per other `keys`, from requests that are `in_stretches` by them.

    `seconds`: length of all stretches without their warm-ups. `completed`: requests that ended ok in them,
    and `throughput` = completed / seconds. `samples`: ok requests that started in them, of which are
    `mean_ms`, `stddev_ms`, `p10_ms` ... `p999_ms`, `max_ms`. `not_ok`: requests that ended otherwise.
    """
    measured = F.col("ended_us") >= skip_us
    sampled = is_ok() & (F.col("started_us") >= skip_us)
    figures = requests.groupBy(*keys).agg(
        F.count_if(is_ok() & measured).alias("completed"),
        F.count_if(~is_ok() & measured).alias("not_ok"),
        *latencies(QUANTILES, sampled, exact=exact),
    )
    return _with_throughput(unpacked(figures, QUANTILES), _measured_seconds(times, keys, skip_us), keys)


def by_destinations(
    requests: DataFrame, times: DataFrame, *, skip_us: int = 0, exact: bool = True
) -> DataFrame:
    """Return `summary` for each number of destination partitions: the points of latency-throughput curves.

    Each number of destinations is measured over its own stretches. So each experiment may use one number of
    destinations, as the paper's do, or several at once: then the throughputs of the panels add up to that of
    the measurement.
    """
    return summary(requests, times, PANEL, skip_us=skip_us, exact=exact)


def ratios(points: DataFrame) -> DataFrame:
    """Compare the protocols in pairs at equal scenario, destinations and number of clients.

    `throughput_ratio`: throughput divided by that of `against`. `latency_ratio`: mean latency of `against`
    divided by the protocol's. For both, above 1 is better.
    """
    columns = ("protocol", "throughput", "mean_ms")
    named = points.where((F.col("protocol") != "") & (F.col("clients") > 0))
    shared = ["scenario", "destinations", "clients"]
    other = named.select(*shared, *(F.col(name).alias(f"other_{name}") for name in columns))
    return (
        named.join(other, shared)
        .where(F.col("protocol") != F.col("other_protocol"))
        .select(
            *shared,
            "protocol",
            F.col("other_protocol").alias("against"),
            _share(F.col("throughput"), F.col("other_throughput")).alias("throughput_ratio"),
            _share(F.col("other_mean_ms"), F.col("mean_ms")).alias("latency_ratio"),
        )
    )


def ratios_over_panels(compared: DataFrame) -> DataFrame:
    """Return smallest, largest and mean of the `ratios` over the numbers of destinations, as in the paper."""
    figures: list[Column] = []
    for name in ("throughput_ratio", "latency_ratio"):
        figures += [
            F.min(name).alias(f"{name}_min"),
            F.max(name).alias(f"{name}_max"),
            F.mean(name).alias(name),
        ]
    keys = ("scenario", "clients", "protocol", "against")
    return compared.groupBy(*keys).agg(F.count("*").alias("panels"), *figures)


def outcomes(requests: DataFrame) -> DataFrame:
    """Return `count` and `share` of each outcome and error, per measurement, warm-up included.

    Each outcome has its ten most frequent errors; the rest have the error "(others)".
    """
    counted = requests.groupBy(*MEASUREMENT, "outcome", "error").agg(F.count("*").alias("count"))
    order = Window.partitionBy(*MEASUREMENT, "outcome").orderBy(F.desc("count"), "error")
    named = F.when(F.row_number().over(order) <= _ERRORS_SHOWN, F.col("error")).otherwise("(others)")
    total = F.sum("count").over(Window.partitionBy(*MEASUREMENT))
    return (
        counted.withColumn("error", named)
        .groupBy(*MEASUREMENT, "outcome", "error")
        .agg(F.sum("count").alias("count"))
        .withColumn("share", F.col("count") / total)
    )


def over_time(requests: DataFrame, times: DataFrame, bin_us: int, *, exact: bool = True) -> DataFrame:
    """Return one row for each time bin of each stretch, empty bins and the warm-up included.

    Bins are half-open, but the last one includes its end. `at_s`: its begin, relative to the stretch's.
    `seconds`: its length; the last one may be shorter. `completed` and `not_ok` count requests ending in it,
    `throughput` = completed / seconds. `samples`, `mean_ms`, `p50_ms`, `p99_ms` and `max_ms` are of ok
    requests that start in it, and null without any.
    """
    keys = (*MEASUREMENT, "stretch", "bin")
    length = F.col("end_us") - F.col("begin_us")
    bins = F.greatest(F.lit(1), F.ceil(length / bin_us))
    grid = times.select(
        *MEASUREMENT,
        "stretch",
        length.alias("length_us"),
        F.explode(F.sequence(F.lit(0), bins - 1)).alias("bin"),
    )
    last = F.greatest(F.lit(1), F.ceil((F.col("stretch_end_us") - F.col("begin_us")) / bin_us)) - 1
    ends = requests.withColumn("bin", F.least(F.floor(F.col("ended_us") / bin_us), last))
    starts = requests.where(is_ok()).withColumn("bin", F.least(F.floor(F.col("started_us") / bin_us), last))
    done = ends.groupBy(*keys).agg(
        F.count_if(is_ok()).alias("completed"), F.count_if(~is_ok()).alias("not_ok")
    )
    begun = unpacked(starts.groupBy(*keys).agg(*latencies(_IN_BINS, exact=exact)), _IN_BINS).drop("stddev_ms")
    seconds = F.least(F.lit(bin_us), F.col("length_us") - F.col("bin") * bin_us) / 1e6
    return (
        grid.join(done, list(keys), "left")
        .join(begun, list(keys), "left")
        .withColumn("at_s", F.col("bin") * bin_us / 1e6)
        .withColumn("seconds", seconds)
        .fillna(0, ["completed", "not_ok", "samples"])
        .withColumn("throughput", _share(F.col("completed"), F.col("seconds")))
        .drop("length_us")
    )


def latencies(
    quantiles: Mapping[str, float], sampled: Column | None = None, *, exact: bool = True
) -> list[Column]:
    """Return aggregates of latency over all rows, or `sampled` ones. `unpacked` splits the quantiles."""
    latency = F.col("latency_us") if sampled is None else F.when(sampled, F.col("latency_us"))
    wanted = F.array(*(F.lit(quantile) for quantile in quantiles.values()))
    found = F.percentile(latency, wanted) if exact else F.percentile_approx(latency, wanted, ACCURACY)
    return [
        F.count(latency).alias("samples"),
        (F.mean(latency) / 1e3).alias("mean_ms"),
        (F.stddev_pop(latency) / 1e3).alias("stddev_ms"),
        found.alias("quantiles"),
        (F.max(latency) / 1e3).alias("max_ms"),
    ]


def unpacked(figures: DataFrame, quantiles: Mapping[str, float]) -> DataFrame:
    """Replace the array of quantiles by a column for each, in milliseconds."""
    named = {f"{name}_ms": F.col("quantiles")[index] / 1e3 for index, name in enumerate(quantiles)}
    return figures.withColumns(named).drop("quantiles")


def _measured_seconds(times: DataFrame, keys: Sequence[str], skip_us: int) -> DataFrame:
    left = F.greatest(F.lit(0), F.col("end_us") - F.col("begin_us") - skip_us)
    return times.groupBy(*keys).agg(F.count("*").alias("stretches"), (F.sum(left) / 1e6).alias("seconds"))


def _with_throughput(figures: DataFrame, seconds: DataFrame, keys: Sequence[str]) -> DataFrame:
    return figures.join(F.broadcast(seconds), list(keys)).withColumn(
        "throughput", _share(F.col("completed"), F.col("seconds"))
    )


def _share(part: Column, whole: Column) -> Column:
    return F.when(whole > 0, part / whole)
