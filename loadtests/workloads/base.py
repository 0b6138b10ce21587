"""What all workloads have: parameters, a choice of keys, operations that are counted, a check at the end."""

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
"""So many violations are told of."""

Put = tuple[str, bytes]
Operation = Callable[[Random], bool | None]
"""What a user does. False: it was refused, for reasons of the business, and nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Those of every workload."""

    keys: int = bounded(1_000, 1, 100_000_000)
    value_size: int = bounded(100, 0, 1_000_000)
    distribution: str = bounded("zipfian", one_of=NAMES)
    skew: float = bounded(0.99, 0, 10)
    """Of a Zipfian distribution: 0 is uniform, 0.99 is YCSB's."""
    multi_partition: float = bounded(0.0, 0, 100)
    """Percent of operations that touch several partitions."""
    spread: int = bounded(2, 2, 1_000)
    """How many partitions these touch."""
    think_time: tuple[float, float] = bounded((0.0, 0.0), 0, 3_600)
    """Seconds between a user's operations, or [from, to]."""
    rate: float = bounded(0.0, 0, 100_000)
    """Operations per second of each user, by a timetable; 0: after the think time."""
    timeout: float = bounded(10.0, 0.001, 3_600)
    consistency: str = bounded("strict", one_of=("strict", "serializable"))
    """Of single reads and scans."""


@dataclass(slots=True)
class Tally:
    """How operations have ended. What a process has counted can be added to what another has."""

    ok: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """Certainly not executed."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Executed or not: nobody knows."""
    errors: Counter[str] = field(default_factory=Counter)
    """What failed, or is unknown, by operation and the error's class."""
    violations: list[str] = field(default_factory=list)

    def add(self, other: Mapping[str, Any]) -> None:
        """What `as_json` gave elsewhere."""
        for name in _COUNTED:
            getattr(self, name).update(other[name])
        self.violations += other["violations"]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        counts = {name: dict(getattr(self, name)) for name in _COUNTED}
        return {**counts, "violations": self.violations[:_SHOWN]}


P = TypeVar("P", bound=Parameters)


class Workload(Generic[P]):
    """Keys under a prefix, and what is done with them. Any number of threads, or greenlets, may perform."""

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
        """Write what there is at the beginning."""
        raise NotImplementedError

    def check(self, tally: Tally) -> list[str]:
        """What is not as it must be, now that all users are done and have counted so much."""
        raise NotImplementedError

    def perform(self, name: str, rng: Random) -> None:
        """One operation, counted."""
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

    # For those who define workloads

    def keyspace(self, name_of: Callable[[int], str], count: int) -> Keyspace:
        """Keys that are chosen from."""
        partition_of = self.client.partition_of
        return Keyspace(lambda number: partition_of(name_of(number)), self.partitions, count)

    def crosses(self, rng: Random) -> bool:
        """Whether the next operation touches several partitions."""
        return rng.random() * 100 < self.parameters.multi_partition

    def payload(self, rng: Random) -> bytes:
        """A value of the size asked for."""
        return (
            rng.randbytes((self.parameters.value_size + 1) // 2).hex()[: self.parameters.value_size].encode()
        )

    def write_all(self, puts: Iterable[Put]) -> None:
        """Write many keys, some at a time."""
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
        """Everything under the prefix, as of one moment."""
        with self.client.snapshot(ttl=600.0, timeout=60.0) as moment:
            start = len(self.prefix)
            return {entry.name[start:]: entry.value for entry in moment.scan(self.prefix, timeout=60.0)}
