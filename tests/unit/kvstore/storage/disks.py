"""A disk and its loop, for tests: what passes through both."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import lmdb
import pytest

from kvstore import storage
from kvstore.config.addresses import NodeId
from kvstore.machine.ordered import OrderedMap, Table
from kvstore.storage import GroupCheckpoint, LmdbLog, LmdbState, StoreState, environment, lazy, runs
from kvstore.storage.errors import StorageError
from multicast.delivered import DeliveredIds
from multicast.durable import Accepted, Checkpoint, Durable, Record
from multicast.messages import Delivery
from multicast.types import (
    NO_TIMESTAMP,
    Ballot,
    ClientId,
    GroupId,
    MessageId,
    ReplicaId,
    Timestamp,
    timestamp,
)

CLUSTER: Final = "test"
NODE: Final = NodeId("n1")
G0, G1 = GroupId(0), GroupId(1)
PATIENCE_S: Final = 20.0
"""Only a broken test waits so long."""


def ballot(number: int) -> Ballot:
    return Ballot(number, ReplicaId(G0, number % 3, 7), 0)


# A disk and its loop


class Loop:
    """The thread that uses a disk: callbacks come through a queue."""

    log: LmdbLog
    state: LmdbState | StoreState

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.threads: set[str] = set()
        self.durable: list[int] = []
        self.committed: list[Mapping[GroupId, Timestamp]] = []
        self.failures: list[StorageError] = []
        kinds = ("durable", "committed", "failure")
        self.callbacks: dict[str, Any] = {f"on_{kind}": partial(self.tell, kind) for kind in kinds}

    def tell(self, kind: str, value: object) -> None:
        self.threads.add(threading.current_thread().name)
        self.events.put((kind, value))

    def take(self) -> None:
        """What the loop does with a callback, but for pumping."""
        kind, value = self.events.get(timeout=PATIENCE_S)
        if kind == "durable":
            self.durable.append(value)
            self.state.log_durable(value)
        elif kind == "committed":
            self.committed.append(value)
        else:
            self.failures.append(value)

    def crash(self, to: Path) -> Self:
        """Return the disk as another process finds it after a crash now."""
        shutil.copytree(self.path, to)
        return type(self)(to)

    def pump(self) -> None:
        self.log.pump()
        while self.state.pump():
            pass

    def drain(self) -> None:
        """Pump until no commit is under way."""
        self.pump()
        while self.log._env.busy or self.state._env.busy:
            self.take()
            self.pump()

    def write(self, *batches: Sequence[Record], group: GroupId = G0) -> None:
        for batch in batches:
            self.log.write({group: batch})
            self.drain()

    def commit(self, *arguments: Any, after: int = 0) -> None:
        raise NotImplementedError

    def flush(self, *arguments: Any) -> None:
        """Commit the state, durably."""
        self.commit(*arguments)
        self.drain()


class Rig(Loop):
    """An open disk for bare multicast."""

    state: LmdbState

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.disk = storage.open(path, CLUSTER, NODE, **self.callbacks)
        self.log, self.state = self.disk.log, self.disk.state

    def commit(self, *groups: GroupId, after: int = 0) -> None:
        self.state.commit({g: self.state._group(g).position for g in groups or (G0,)}, after)


NUMBERS: Final = Table[int, str](
    "numbers",
    lambda number: number.to_bytes(8, "big"),
    lambda data: int.from_bytes(data, "big"),
    str.encode,
    bytes.decode,
)
NAMES: Final = Table[bytes, str]("names", bytes, bytes, str.encode, bytes.decode)
TABLES: Final[dict[str, Table[Any, Any]]] = {"names": NAMES, "numbers": NUMBERS}


class StoreRig(Loop):
    """An open disk for a store with two tables."""

    state: StoreState

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.disk = storage.open(path, CLUSTER, NODE, tables=TABLES, **self.callbacks)
        self.log, self.state = self.disk.log, self.disk.state

    def map(self, name: str = "names", group: GroupId = G0) -> OrderedMap[Any, str]:
        return self.state.open(group)[1][name]

    def image(self, machine_state: bytes = b"", group: GroupId = G0) -> GroupCheckpoint:
        position = self.state._group(group).position
        return GroupCheckpoint(Checkpoint(position, executed=position), machine_state)

    def commit(self, machine_state: bytes = b"", *groups: GroupId, after: int = 0) -> None:
        self.state.commit({g: self.image(machine_state, g) for g in groups or (G0,)}, after)


def slices(patch: pytest.MonkeyPatch, length: int) -> None:
    """So much is done at once, and is one row."""
    patch.setattr(lazy, "SLICE", length)
    patch.setattr(runs, "RUN", length)


class Gate:
    """Commits wait here until they are let through; and one that is told to fail does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tickets = threading.Semaphore(0)
        self.waited_in_vain = False
        self.error: BaseException | None = None
        self.commits = 0
        monkeypatch.setattr(environment, "_commit", self)

    def __call__(self, transaction: environment.Transaction) -> None:
        if not self.tickets.acquire(timeout=PATIENCE_S):
            self.waited_in_vain = True
        self.commits += 1
        error, self.error = self.error, None
        if error is None:
            transaction.commit()
        else:
            transaction.abort()
            raise error


def loaded(path: Path, group: GroupId = G0) -> Durable:
    rig = Rig(path)
    try:
        return rig.log.load(group)
    finally:
        rig.disk.close()


def fold(*batches: Sequence[Record]) -> Durable:
    durable = Durable()
    for batch in batches:
        durable.apply(batch)
    return durable


def same(one: Durable, other: Durable) -> bool:
    return one == other and list(one.entries) == list(other.entries) and repr(one) == repr(other)


# What passes through a log: messages of three clients, each acknowledging what is well behind it


def traffic(count: int, first: int = 1, size: int = 20) -> tuple[list[Accepted], list[Delivery]]:
    accepted, delivered = [], []
    for number in range(first, first + count):
        mid = MessageId(ClientId(2**63 + number % 3), number, number * 0x9E3779B97F4A7C15 % 2**64)
        at, previous = timestamp(number, G0), timestamp(number - 1, G0) if number > 1 else NO_TIMESTAMP
        payload = bytes([number % 256]) * size
        ack_below = max(0, number - 6)
        accepted.append(Accepted(((G0, G1),), (mid,), (at,), (payload,), (ack_below,), number))
        delivered.append(Delivery(mid, (G0, G1), payload, ack_below, at, at, previous, mismatch=False))
    return accepted, delivered


def batch(number: int) -> list[Record]:
    """The n-th batch of a child process: ten messages."""
    accepted, delivered = traffic(10, 1 + 10 * (number - 1))
    return [*accepted, *delivered]


def rows_of(path: Path, database: bytes) -> list[tuple[bytes, bytes]]:
    """What an environment has, as another program sees it."""
    with lmdb.open(str(path), max_dbs=8, lock=False, create=False) as env:
        db = env.open_db(database, create=False)
        with env.begin() as transaction:
            return list(transaction.cursor(db))


def rows_of_open(store: LmdbLog | LmdbState | StoreState, database: bytes) -> list[tuple[bytes, bytes]]:
    return list(store._env.read().cursor(store._env[database]))


def table(delivered: Sequence[Delivery]) -> DeliveredIds:
    ids = DeliveredIds()
    for delivery in delivered:
        ids.add(delivery.mid, delivery.ack_below)
    return ids
