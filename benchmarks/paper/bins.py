"""Throughput and latency around a crash, in bins, from one row for each message.

Three series: messages to the group that lost its leader, those to other groups only, and all, which is what
clients see. Throughput counts messages by when they were answered, latency by when they began.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.load import Sample

BIN_S: Final = 0.3
"""The width of the paper's bins."""
ENOUGH: Final = 0.9
"""The share of the throughput before the crash that counts as recovered."""
STAYS_S: Final = 1.0
"""How long throughput has to stay that high."""
SERIES: Final = ("affected", "others", "clients")


def split(samples: Sequence[Sample], group: int) -> dict[str, list[Sample]]:
    """The messages of each series."""
    return {
        "affected": [sample for sample in samples if group in sample.groups],
        "others": [sample for sample in samples if group not in sample.groups],
        "clients": list(samples),
    }


def bins(samples: Sequence[Sample], crash_us: int, before_s: float, after_s: float) -> list[dict[str, Any]]:
    """Whole bins from `before_s` before the crash until `after_s` after it. One begins with the crash."""
    ends = sorted(sample.end_us for sample in samples)
    begun: dict[int, list[float]] = {}
    for sample in samples:
        number = int((sample.start_us - crash_us) // (BIN_S * 1e6))
        begun.setdefault(number, []).append((sample.end_us - sample.start_us) / 1e3)
    found = []
    for number in range(-int(before_s / BIN_S + 1e-9), int(after_s / BIN_S + 1e-9)):
        at_s = number * BIN_S
        latencies = begun.get(number)
        found.append({
            "at_s": round(at_s, 3),
            "throughput": _rate(ends, crash_us + at_s * 1e6, BIN_S),
            "mean_ms": None if latencies is None else statistics.fmean(latencies),
        })  # fmt: skip
    return found


def figures(
    samples: Sequence[Sample], crash_us: int, before_s: float, after_s: float, leader_s: float = 0.0
) -> dict[str, Any]:
    """The throughput before, the lowest bin after, the longest latency, and the time of recovery.

    `recovered_s` is when throughput is back at 90% of its mean before, and stays there for a second: the
    begin of the first bin, counted in tenths of a second from the crash, that has as much by itself and with
    the rest of the second that begins with it. 0 if it never was below in any bin; None if it does not come
    back. It is not before `leader_s`: what was held up is answered in a burst, and fills a bin that began
    before.
    """
    ends = sorted(sample.end_us for sample in samples)
    before = _rate(ends, crash_us - before_s * 1e6, before_s)
    around = bins(samples, crash_us, before_s, after_s)
    after = [each["throughput"] for each in around if each["at_s"] >= 0]
    later = [
        (sample.end_us - sample.start_us) / 1e3
        for sample in samples
        if sample.end_us >= crash_us and sample.start_us <= crash_us + after_s * 1e6
    ]
    return {
        "before": before,
        "lowest": min(after, default=None),
        "worst_ms": max(later, default=None),
        "recovered_s": _recovered(ends, crash_us, before, after_s, leader_s),
    }


def _recovered(
    ends: Sequence[int], crash_us: int, before: float, after_s: float, leader_s: float
) -> float | None:
    enough = ENOUGH * before
    steps = [round(tenth / 10, 1) for tenth in range(int((after_s - STAYS_S) * 10) + 1)]

    def low(at_s: float) -> bool:
        return _rate(ends, crash_us + at_s * 1e6, BIN_S) < enough

    first_low = next((at_s for at_s in steps if low(at_s)), None)
    if first_low is None:
        return 0.0
    for at_s in steps:
        steady = _rate(ends, crash_us + at_s * 1e6, STAYS_S) >= enough
        if at_s > first_low and at_s >= leader_s and steady and not low(at_s):
            return at_s
    return None


def _rate(ends: Sequence[int], from_us: float, seconds: float) -> float:
    """Messages answered per second within a span of time."""
    return (bisect_left(ends, from_us + seconds * 1e6) - bisect_left(ends, from_us)) / seconds
