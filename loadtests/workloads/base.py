"""The base of workloads: parameters, a choice of keys, counted operations, a final check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Final, Generic, TypeVar

import wbkv

from loadtests.checking import bounded
from loadtests.distributions import NAMES, distribution_of
from loadtests.errors import Violation
from loadtests.keyspace import Keyspace

BATCH_BYTES: Final = 200_000
BATCH_KEYS: Final = 500
_COUNTED: Final = ("ok", "refused", "failed", "unknown", "errors")
_SHOWN: Final = 20
"""How many violations a process reports."""

Put = tuple[str, bytes]
Operation = Callable[[Random], bool | None]
"""An operation of a user. It returns False if business rules rejected it, and nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters of every workload."""

    keys: int = bounded(1_000, 1, 100_000_000)
    value_size: int = bounded(100, 0, 1_000_000)
    distribution: str = bounded("zipfian", one_of=NAMES)
    skew: float = bounded(0.99, 0, 10)
    """The exponent of the Zipfian distribution: 0 is uniform, 0.99 is YCSB's."""
    multi_partition: float = bounded(0.0, 0, 100)
    """Percentage of operations over several partitions."""
    spread: int = bounded(2, 2, 1_000)
    """How many partitions these touch."""
    think_time: tuple[float, float] = bounded((0.0, 0.0), 0, 3_600)
    """Seconds between a user's operations, or [from, to]."""
    rate: float = bounded(0.0, 0, 100_000)
    """Operations per second of each user, on a fixed schedule; 0: after the think time."""
    timeout: float = bounded(10.0, 0.001, 3_600)
    consistency: str = bounded("strict", one_of=("strict", "serializable"))
    """The consistency of single reads and scans."""


@dataclass(slots=True)
class Tally:
    """The outcomes of operations. Tallies of several processes can be added."""

    ok: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """Certainly not executed."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Operations with an unknown outcome."""
    errors: Counter[str] = field(default_factory=Counter)
    """Failed and unknown operations, by name and class of error."""
    violations: list[str] = field(default_factory=list)

    def add(self, other: Mapping[str, Any]) -> None:
        """Add the result of `as_json` of another process."""
        for name in _COUNTED:
            getattr(self, name).update(other[name])
        self.violations += other["violations"]

    def as_json(self) -> dict[str, Any]:
        """Return the tally as JSON values."""
        counts = {name: dict(getattr(self, name)) for name in _COUNTED}
        return {**counts, "violations": self.violations[:_SHOWN]}


P = TypeVar("P", bound=Parameters)


class Workload(Generic[P]):
    """Keys under a prefix, and operations on them. Any number of threads or greenlets may perform them."""

    PARAMETERS: ClassVar[type[Parameters]]
    OPERATIONS: ClassVar[tuple[str, ...]]

    def __init__(self, client: wbkv.Client[bytes], prefix: str, parameters: P) -> None:
        self.client = client
        self.prefix = prefix
        self.parameters = parameters
        self.partitions = tuple(sorted(partition.id for partition in client.topology().partitions))
        self.tally = Tally()
        self.ranks = distribution_of(parameters.distribution, parameters.skew)
        self.operations: dict[str, Operation] = {
            name: getattr(self, name.replace("-", "_")) for name in self.OPERATIONS
        }

    def load(self) -> None:
        """Write the initial keys."""
        raise NotImplementedError

    def check(self, tally: Tally) -> list[str]:
        """Return the violated invariants, after all users are done with these counts."""
        raise NotImplementedError

    def perform(self, name: str, rng: Random) -> None:
        """Perform one operation, and count its outcome."""
        tally = self.tally
        try:
            done = self.operations[name](rng)
        except Violation as violation:
            tally.violations.append(f"{name}: {violation}")
            raise
        except wbkv.Error as error:
            certain = error.retry_safe or isinstance(error, wbkv.InvalidRequest)
            (tally.failed if certain else tally.unknown)[name] += 1
            tally.errors[f"{name}: {type(error).__name__}"] += 1
            raise
        except BaseException:
            tally.unknown[name] += 1
            raise
        (tally.refused if done is False else tally.ok)[name] += 1

    # For subclasses

    def keyspace(self, name_of: Callable[[int], str], count: int) -> Keyspace:
        """Return a keyspace to choose keys from."""
        partition_of = self.client.partition_of
        return Keyspace(lambda number: partition_of(name_of(number)), self.partitions, count)

    def crosses(self, rng: Random) -> bool:
        """Draw whether the next operation touches several partitions."""
        return rng.random() * 100 < self.parameters.multi_partition

    def payload(self, rng: Random) -> bytes:
        """Return a random value of `value_size` bytes."""
        return (
            rng.randbytes((self.parameters.value_size + 1) // 2).hex()[: self.parameters.value_size].encode()
        )

    def write_all(self, puts: Iterable[Put]) -> None:
        """Write many keys, in transactions of bounded size."""
        batch: list[wbkv.Operation] = []
        size = 0
        for key, value in puts:
            batch.append(wbkv.put(key, value))
            size += len(key) + len(value)
            if size >= BATCH_BYTES or len(batch) >= BATCH_KEYS:
                self.client.txn().then(*batch).commit(timeout=60.0)
                batch, size = [], 0
        if batch:
            self.client.txn().then(*batch).commit(timeout=60.0)

    def snapshot(self) -> dict[str, bytes]:
        """Return everything under the prefix at one revision."""
        with self.client.snapshot(ttl=600.0, timeout=60.0) as moment:
            start = len(self.prefix)
            return {entry.name[start:]: entry.value for entry in moment.scan(self.prefix, timeout=60.0)}
