"""A histogram of latencies in constant memory: percentiles are exact to half a percent.

A bucket is as wide as 1/128 of the power of two below its values; up to 25 microseconds, it is one step.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from typing import Final

STEP_S: Final = 1e-7
BITS: Final = 7
WIDEST: Final = 33
"""Powers of two above the exact buckets: two hundred thousand seconds, and whatever takes longer."""
BUCKETS: Final = (WIDEST + 2) << BITS


class Histogram:
    """Latencies in seconds."""

    __slots__ = ("_buckets", "count", "max_s", "total_s")

    def __init__(self) -> None:
        self._buckets = array("Q", bytes(8 * BUCKETS))
        self.count = 0
        self.total_s = 0.0
        self.max_s = 0.0

    def add(self, latency_s: float) -> None:
        """Add a latency."""
        self.count += 1
        self.total_s += latency_s
        if latency_s > self.max_s:
            self.max_s = latency_s
        steps = int(latency_s / STEP_S) if latency_s > 0 else 0
        shift = steps.bit_length() - BITS - 1
        bucket = steps if shift <= 0 else (shift << BITS) + (steps >> shift)
        self._buckets[min(bucket, BUCKETS - 1)] += 1

    def merge(self, other: Histogram) -> None:
        """Add the latencies of another histogram."""
        self.count += other.count
        self.total_s += other.total_s
        self.max_s = max(self.max_s, other.max_s)
        for bucket, count in other._filled():
            self._buckets[bucket] += count

    @property
    def mean_s(self) -> float:
        """Exact; NaN if there is none."""
        return self.total_s / self.count if self.count else math.nan

    def percentile_s(self, percent: float) -> float:
        """The latency that so many percent do not exceed; NaN if there is none."""
        wanted = max(1, math.ceil(self.count * percent / 100 - 1e-9))
        for bucket, count in self._filled():
            wanted -= count
            if wanted <= 0:
                return min(_middle_s(bucket), self.max_s)
        return math.nan

    def _filled(self) -> Iterator[tuple[int, int]]:
        return ((bucket, count) for bucket, count in enumerate(self._buckets) if count)

    def dump(self) -> dict[str, float]:
        """The histogram as JSON data, for another process."""
        about = {"total_s": self.total_s, "max_s": self.max_s}
        return about | {str(bucket): count for bucket, count in self._filled()}

    @classmethod
    def load(cls, dumped: Mapping[str, float]) -> Histogram:
        """Restore what another process dumped."""
        found = cls()
        found.total_s, found.max_s = dumped["total_s"], dumped["max_s"]
        for bucket, count in dumped.items():
            if bucket.isdecimal():
                found._buckets[int(bucket)] = int(count)
                found.count += int(count)
        return found


def _middle_s(bucket: int) -> float:
    shift = max(0, (bucket >> BITS) - 1)
    steps = bucket if shift == 0 else ((bucket & ((1 << BITS) - 1)) + (1 << BITS)) << shift
    return (steps + (1 << shift) / 2) * STEP_S
