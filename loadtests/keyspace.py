"""Keys by number, and choices of several at once: in one partition, or each in another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Final

from loadtests.distributions import Distribution
from loadtests.errors import LoadTestError

_DRAWS: Final = 64
"""So many are drawn for a key of some partition; then the next one that is in it will do."""
_LOOKED_AT: Final = 20_000
"""So many keys are looked at to see whether there are enough in every partition."""


class Keyspace:
    """Numbers from 0 to `count` - 1, each a key, and the partition that has it."""

    def __init__(self, partition_of: Callable[[int], int], partitions: Sequence[int], count: int) -> None:
        self._partition_of = partition_of
        self._partitions = tuple(partitions)
        self.count = count

    def check(self, spread: int, crossing_percent: float) -> None:
        """Raises `LoadTestError` if there are too few keys or partitions for such choices."""
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
                    f"and spread = {spread} are needed in each"
                )

    def choose(self, rng: Random, ranks: Distribution, size: int, *, crossing: bool) -> list[int]:
        """Several different keys: all in one partition, or each in another one. The first is as popular as
        the distribution says, and so are the others among the keys of their partitions.
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
