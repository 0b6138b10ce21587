"""Which key is asked for: the distributions of requests over keys, by rank, the most popular being 0."""

from __future__ import annotations

import math
from random import Random
from typing import Final, Protocol

NAMES: Final = ("zipfian", "uniform", "latest")
"""`latest` is Zipfian, too, but counted from the key that was written last."""


class Distribution(Protocol):
    """A choice among so many ranks."""

    def draw(self, rng: Random, count: int) -> int:
        """From 0 to `count` - 1."""


class Uniform:
    """All alike."""

    def draw(self, rng: Random, count: int) -> int:
        """From 0 to `count` - 1."""
        return rng.randrange(count)


class Zipf:
    """Rank k (from 1) with a probability in proportion to 1 / k^skew, for any skew from 0 on.

    Exactly, without tables, and for a number of ranks that may grow: rejection-inversion (W. Hörmann and
    G. Derflinger, 1996). A point is drawn below a smooth curve over the histogram, by the inverse of the
    curve's integral, and rejected if it is not inside of the histogram's bars, which is rare.
    """

    def __init__(self, skew: float) -> None:
        if not (math.isfinite(skew) and skew >= 0):
            raise ValueError(f"a skew must be 0 or more, not {skew!r}")
        self._skew = skew
        self._first = self._integral(1.5) - 1.0
        self._sure = 2.0 - self._inverse(self._integral(2.5) - self._density(2.0))

    def draw(self, rng: Random, count: int) -> int:
        """From 0 to `count` - 1."""
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
        """Of the density from 1 to x: (x^(1 - skew) - 1) / (1 - skew), or log x."""
        log_x = math.log(x)
        power = (1.0 - self._skew) * log_x
        return log_x * (math.expm1(power) / power if abs(power) > 1e-8 else 1.0 + power / 2.0)

    def _inverse(self, area: float) -> float:
        power = max(area * (1.0 - self._skew), -1.0)
        return math.exp(area * (math.log1p(power) / power if abs(power) > 1e-8 else 1.0 - power / 2.0))


def distribution_of(name: str, skew: float) -> Distribution:
    """The distribution of this name."""
    return Uniform() if name == "uniform" else Zipf(skew)
