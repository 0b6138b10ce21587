"""The Yahoo! Cloud Serving Benchmark: one table of records, and the operations of its workloads A to F.

A record's key is a hash of its number, since numbers are in the order of popularity: popular records are
spread over the order of keys, as in YCSB. A record's value begins with its number; a read that finds another
number, or none, is a violation. An operation over several partitions touches `spread` records at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final

import wbkv

from loadtests.checking import bounded
from loadtests.errors import Violation
from loadtests.workloads.base import Parameters, Put, Tally, Workload

_SCATTER: Final = 0x9E3779B97F4A7C15
"""Odd, so that multiplication by it modulo 2^64 is a bijection."""
_BLOCK: Final = 100
"""How many numbers a process reserves at a time for records that it will insert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class YcsbParameters(Parameters):
    """The parameters of YCSB."""

    scan_length: int = bounded(100, 1, 10_000)
    """Most records of a scan; lengths are uniform from 1."""


class Ycsb(Workload[YcsbParameters]):
    """The workload `ycsb`."""

    PARAMETERS: ClassVar[type[Parameters]] = YcsbParameters
    OPERATIONS: ClassVar[tuple[str, ...]] = ("read", "update", "insert", "scan", "read-modify-write")

    def __init__(self, client: wbkv.Client[bytes], prefix: str, parameters: YcsbParameters) -> None:
        super().__init__(client, prefix, parameters)
        self._table = f"{prefix}user/"
        self._inserted: list[int] = []
        """Numbers of records that this process has inserted."""
        self._reserved: list[int] = []
        self._lock = threading.Lock()
        self._latest = parameters.distribution == "latest"
        self._records = self.keyspace(lambda rank: self._key(self._number(rank)), parameters.keys)
        if parameters.multi_partition:
            self._records.check(parameters.spread, parameters.multi_partition)

    def _key(self, number: int) -> str:
        return f"{self._table}{number * _SCATTER % 2**64:020d}"

    def _value(self, number: int, rng: Random) -> bytes:
        return b"%d:%s" % (number, self.payload(rng))

    def _number(self, rank: int) -> int:
        """Return the number of a record that this process knows to exist: a loaded one, or one of its own."""
        own = len(self._inserted)
        if not self._latest:
            return rank if rank < self.parameters.keys else self._inserted[rank - self.parameters.keys]
        return self._inserted[own - 1 - rank] if rank < own else self.parameters.keys - 1 - (rank - own)

    def load(self) -> None:
        """Write the table."""
        self.write_all(self._loaded())

    def _loaded(self) -> Iterator[Put]:
        rng = Random(self.prefix)
        for number in range(self.parameters.keys):
            yield self._key(number), self._value(number, rng)

    def _chosen(self, rng: Random) -> list[int]:
        records = self._records
        if self.crosses(rng):
            ranks = records.choose(rng, self.ranks, self.parameters.spread, crossing=True)
            return [self._number(rank) for rank in ranks]
        return [self._number(self.ranks.draw(rng, records.count))]

    def _expect(self, number: int, value: bytes | None) -> None:
        expected = b"%d:" % number
        length = len(expected) + self.parameters.value_size
        if value is None or not value.startswith(expected) or len(value) != length:
            raise Violation(f"record {number} ({self._key(number)}) is {value!r}")

    def read(self, rng: Random) -> None:
        """Read a record, or several at one revision."""
        numbers = self._chosen(rng)
        keys = [self._key(number) for number in numbers]
        values = [self.client.get(keys[0])] if len(keys) == 1 else self.client.get_many(keys)
        for number, value in zip(numbers, values, strict=True):
            self._expect(number, value)

    def update(self, rng: Random) -> None:
        """Write a record, or several in one transaction."""
        numbers = self._chosen(rng)
        if len(numbers) == 1:
            self.client.put(self._key(numbers[0]), self._value(numbers[0], rng))
            return
        puts = [wbkv.put(self._key(number), self._value(number, rng)) for number in numbers]
        self.client.txn().then(*puts).commit()

    def insert(self, rng: Random) -> None:
        """Write a new record."""
        number = self._reserve()
        self.client.put(self._key(number), self._value(number, rng))
        with self._lock:
            self._inserted.append(number)
            self._records.count += 1

    def _reserve(self) -> int:
        """Return a number that is unique among processes: a counter in the store assigns blocks."""
        with self._lock:
            if self._reserved:
                return self._reserved.pop()
        end = self.parameters.keys + self.client.add(f"{self.prefix}reserved", _BLOCK)
        with self._lock:
            self._reserved += range(end - 1, end - _BLOCK, -1)
        return end - _BLOCK

    def scan(self, rng: Random) -> None:
        """Scan some records in the order of keys, from a given one on."""
        start = self._key(self._chosen(rng)[0])
        rest = wbkv.between(start, wbkv.prefix(self._table).end)
        found = [
            entry.name for entry in self.client.scan(rest, limit=rng.randint(1, self.parameters.scan_length))
        ]
        if not found or found[0] != start or found != sorted(set(found)):
            raise Violation(f"a scan from {start} found {found[:5]}...")

    def read_modify_write(self, rng: Random) -> None:
        """Read records and write values that depend on them, as an interactive transaction."""
        numbers = self._chosen(rng)
        _modify(self.client, [self._key(number) for number in numbers], rng.random())

    def check(self, tally: Tally) -> list[str]:
        """Check that every loaded record, and every one with an acknowledged insert, exists and is intact."""
        count = 0
        wrong: list[str] = []
        for entry in self.client.scan(self._table, timeout=60.0):
            count += 1
            number, colon, rest = entry.value.partition(b":")
            known = colon and number.isdigit() and self._key(int(number)) == entry.name
            if not known or len(rest) != self.parameters.value_size:
                wrong.append(f"the record {entry.name} is {entry.value[:40]!r}")
        least = self.parameters.keys + tally.ok["insert"]
        most = least + tally.unknown["insert"]
        if not least <= count <= most:
            wrong.append(f"there are {count} records, not {least}" + (f" to {most}" if most > least else ""))
        return wrong


@wbkv.transactional
def _modify(tx: wbkv.Transaction[bytes], keys: list[str], turn: float) -> None:
    for key, value in zip(keys, tx.get_many(keys), strict=True):
        if value is None:
            raise Violation(f"the record {key} is missing")
        number, _, rest = value.partition(b":")
        cut = int(turn * len(rest))
        tx.put(key, number + b":" + rest[cut:] + rest[:cut])
