"""Distributions of requests over keys, by rank: 0 is the most popular key."""

from __future__ import annotations

import math
from random import Random
from typing import Final, Protocol

NAMES: Final = ("zipfian", "uniform", "latest")
"""`latest` is Zipfian, too, but ranks start at the key that was inserted last."""


class Distribution(Protocol):
    """A distribution over ranks."""

    def draw(self, rng: Random, count: int) -> int:
        """Draw a rank from 0 to `count` - 1."""


class Uniform:
    """The uniform distribution."""

    def draw(self, rng: Random, count: int) -> int:
        """Draw a rank from 0 to `count` - 1."""
        return rng.randrange(count)


class Zipf:
    """Zipf's distribution: rank k (from 1) has a probability proportional to 1 / k^skew, for any skew >= 0.

    It is exact, needs no tables, and allows the number of ranks to grow: rejection-inversion (W. Hörmann and
    G. Derflinger, 1996). It draws a point below a smooth curve over the histogram, by the inverse of the
    curve's integral, and rejects the point if it is outside of the histogram's bars, which is rare.
    """

    def __init__(self, skew: float) -> None:
        if not (math.isfinite(skew) and skew >= 0):
            raise ValueError(f"skew must be a finite number of 0 or more, not {skew!r}")
        self._skew = skew
        self._first = self._integral(1.5) - 1.0
        self._sure = 2.0 - self._inverse(self._integral(2.5) - self._density(2.0))

    def draw(self, rng: Random, count: int) -> int:
        """Draw a rank from 0 to `count` - 1."""
        last = self._integral(count + 0.5)
        while True:
            area = last + rng.random() * (self._first - last)
            x = self._inverse(area)
            rank = min(max(int(x + 0.5), 1), count)
            if rank - x <= self._sure or area >= self._integral(rank + 0.5) - self._density(rank):
                return rank - 1

    def _density(self, x: float) -> float:
        return math.exp(-self._skew * math.log(x))

    def _integral(self, x: float) -> float:
        """Integrate the density from 1 to x: (x^(1 - skew) - 1) / (1 - skew), or log x."""
        log_x = math.log(x)
        power = (1.0 - self._skew) * log_x
        return log_x * (math.expm1(power) / power if abs(power) > 1e-8 else 1.0 + power / 2.0)

    def _inverse(self, area: float) -> float:
        power = max(area * (1.0 - self._skew), -1.0)
        return math.exp(area * (math.log1p(power) / power if abs(power) > 1e-8 else 1.0 - power / 2.0))


def distribution_of(name: str, skew: float) -> Distribution:
    """Return the distribution of this name."""
    return Uniform() if name == "uniform" else Zipf(skew)
