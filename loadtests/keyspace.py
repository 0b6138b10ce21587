"""Chooses keys by number: several in one partition, or each in another partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Final

from loadtests.distributions import Distribution
from loadtests.errors import LoadTestError

_DRAWS: Final = 64
"""How often to draw a key of a given partition, before the next key of the partition is taken."""
_LOOKED_AT: Final = 20_000
"""How many keys `check` counts by partition."""


class Keyspace:
    """Keys with the numbers 0 to `count` - 1, and their partitions."""

    def __init__(self, partition_of: Callable[[int], int], partitions: Sequence[int], count: int) -> None:
        self._partition_of = partition_of
        self._partitions = tuple(partitions)
        self.count = count

    def check(self, spread: int, crossing_percent: float) -> None:
        """Raise `LoadTestError` if there are too few keys or partitions for such choices."""
        if crossing_percent and spread > len(self._partitions):
            raise LoadTestError(
                f"spread = {spread}, but the cluster has only {len(self._partitions)} partitions: "
                "set it lower, or multi_partition to 0"
            )
        found = Counter(self._partition_of(number) for number in range(min(self.count, _LOOKED_AT)))
        for partition in self._partitions:
            if found[partition] < spread:
                raise LoadTestError(
                    f"keys = {self.count} are too few: partition {partition} has {found[partition]} of them, "
                    f"but each needs spread = {spread}; set keys higher"
                )

    def choose(self, rng: Random, ranks: Distribution, size: int, *, crossing: bool) -> list[int]:
        """Choose different keys: all in one partition, or each in another one.

        The first follows the distribution, and so do the others among the keys of their partitions.
        """
        first = ranks.draw(rng, self.count)
        chosen = [first]
        home = self._partition_of(first)
        away = [partition for partition in self._partitions if partition != home]
        targets = rng.sample(away, size - 1) if crossing else [home] * (size - 1)
        for target in targets:
            chosen.append(self._one_of(rng, ranks, target, chosen))
        return chosen

    def _one_of(self, rng: Random, ranks: Distribution, partition: int, taken: Collection[int]) -> int:
        number = 0
        for _ in range(_DRAWS):
            number = ranks.draw(rng, self.count)
            if number not in taken and self._partition_of(number) == partition:
                return number
        for step in range(self.count):
            near = (number + step) % self.count
            if near not in taken and self._partition_of(near) == partition:
                return near
        raise LoadTestError(f"no other key of {self.count} is in partition {partition}")
