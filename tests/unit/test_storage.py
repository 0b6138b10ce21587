"""A node's disk, on real LMDB: what was durable comes back, nothing else, and the loop never waits for it."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import queue
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import layout, storage
from kvstore.layout import Durability, Identity, LostDisk, StorageError
from kvstore.ports import Log, NodeId, State
from kvstore.storage import BadSnapshot, LmdbLog, LmdbState, deliveries, environment, lazy, log, runs
from multicast.delivered import DeliveredIds
from multicast.durable import Accepted, Checkpoint, Dropped, Durable, Joined, Learned, Promised, Record
from multicast.errors import InvariantBroken
from multicast.messages import Delivery, EntryState
from multicast.protocol import Ready
from multicast.sim.clients import Workload
from multicast.sim.run import Scenario, Simulation
from multicast.types import (
    NO_TIMESTAMP,
    Ballot,
    ClientId,
    GroupId,
    MessageId,
    Phase,
    ReplicaId,
    Timestamp,
    timestamp,
)
from multicast.whitebox import WhiteBox

EXAMPLES = settings(deadline=None, derandomize=True, max_examples=40)

CLUSTER: Final = "test"
NODE: Final = NodeId("n1")
G0, G1 = GroupId(0), GroupId(1)
PATIENCE_S: Final = 20.0
"""Only a broken test waits so long."""


def ballot(number: int) -> Ballot:
    return Ballot(number, ReplicaId(G0, number % 3, 7), 0)


# A disk and its loop


class Rig:
    """An open disk, and the thread that uses it: callbacks come through a queue."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.threads: set[str] = set()
        self.durable: list[int] = []
        self.committed: list[Mapping[GroupId, Timestamp]] = []
        self.failures: list[StorageError] = []
        self.disk = storage.open(
            path, CLUSTER, NODE,
            on_durable=lambda number: self.tell("durable", number),
            on_committed=lambda positions: self.tell("committed", positions),
            on_failure=lambda error: self.tell("failed", error),
        )  # fmt: skip
        self.log, self.state = self.disk.log, self.disk.state

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

    def pump(self) -> None:
        self.log.pump()
        while self.state.pump():
            pass

    def settle(self) -> None:
        """Until nothing is under way."""
        self.pump()
        while self.log._env.busy or self.state._env.busy:
            self.take()
            self.pump()

    def write(self, *batches: Sequence[Record], group: GroupId = G0) -> None:
        for batch in batches:
            self.log.write({group: batch})
            self.settle()

    def commit(self, *groups: GroupId, after: int = 0) -> None:
        self.state.commit({g: self.state._group(g).position for g in groups or (G0,)}, after)

    def crash(self, to: Path) -> Rig:
        """Another process finds what this one has on its disk now."""
        shutil.copytree(self.path, to)
        return Rig(to)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    storage.create(tmp_path / "disk", Identity.new(CLUSTER, NODE))
    return tmp_path / "disk"


@pytest.fixture
def rig(path: Path) -> Iterator[Rig]:
    rig = Rig(path)
    yield rig
    rig.disk.close()


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
        accepted.append(Accepted((G0, G1), (mid,), (at,), (payload,), (ack_below,), number))
        delivered.append(Delivery(mid, (G0, G1), payload, ack_below, at, at, previous, mismatch=False))
    return accepted, delivered


def batch(number: int) -> list[Record]:
    """The n-th batch of a child process: ten messages."""
    accepted, delivered = traffic(10, 1 + 10 * (number - 1))
    return [*accepted, *delivered]


# The log


def test_it_is_the_log_and_the_state_that_a_node_needs(rig: Rig) -> None:
    log: Log = rig.log
    state: State = rig.state
    assert log.load(G0) == Durable()
    assert state.load(G0) == Checkpoint()


def test_what_was_written_comes_back(rig: Rig) -> None:
    accepted, delivered = traffic(5)
    history: list[list[Record]] = [
        [Promised(ballot(1)), Joined(ballot(1), 3, ())],
        [*accepted],
        [*delivered[:3]],
    ]
    rig.write(*history)
    rig.write([Promised(ballot(9))], group=G1)
    rig.disk.close()
    again = Rig(rig.path)
    assert same(again.log.load(G0), fold(*history))
    assert same(again.log.load(G1), fold([Promised(ballot(9))]))
    assert again.log.load(GroupId(2)) == Durable()
    again.write([*delivered[3:]])
    again.disk.close()
    assert same(loaded(rig.path), fold(*history, delivered[3:]))


def test_commits_take_all_that_was_gathered_meanwhile(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    assert rig.log.write({G0: [Promised(ballot(1))]}) == 1
    rig.log.pump()
    for number in (2, 3, 4):
        assert rig.log.write({G0: [Promised(ballot(number))]}) == number
        rig.log.pump()
    assert rig.events.empty(), "nothing is durable before the disk says so"
    assert rig.log.load(G0) == Durable(), "what is on its way is not durable"
    one, other = rig.log._env.read(), rig.log._env.read()
    assert one is other, "no reader begins while the first page may be half written"
    gate.tickets.release()
    rig.take()
    assert rig.durable == [1]
    rig.log.pump()
    assert rig.log.write({G1: [Promised(ballot(5))]}) == 5
    gate.tickets.release(2)
    rig.settle()
    assert rig.durable == [1, 4, 5], "one commit for all that had been gathered when it began"
    assert gate.commits == 3
    assert rig.threads == {f"commit {rig.path / 'log'}"}
    assert not gate.waited_in_vain, "the loop waited for the disk"


def test_a_batch_without_records_becomes_durable_in_its_turn(rig: Rig) -> None:
    assert rig.log.write({}) == 1
    rig.settle()
    assert rig.durable == [1]
    assert rig.log.write({G0: [Promised(ballot(1))]}) == 2
    assert rig.log.write({}) == 3
    rig.settle()
    assert rig.durable == [1, 3]


def test_numbers_go_on_where_they_were(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "FOLD_BYTES", 1)
    rig.write([Promised(ballot(1))], group=G1)
    rig.write([Promised(ballot(2))], [Promised(ballot(3))])
    rig.disk.close()
    monkeypatch.undo()
    again = Rig(rig.path)
    assert again.log.durable == 3
    again.write([Promised(ballot(4))], group=G1)
    assert again.durable == [4]
    again.disk.close()
    assert loaded(rig.path, G1).ballot == ballot(4)


def test_closing_writes_what_was_gathered(rig: Rig) -> None:
    rig.log.write({G0: [Promised(ballot(1))]})
    rig.log.pump()
    rig.log.write({G0: [Promised(ballot(2))]})
    rig.disk.close()
    rig.disk.close()
    assert loaded(rig.path).ballot == ballot(2)
    for call in (rig.log.pump, rig.state.pump, lambda: rig.log.write({}), lambda: rig.log.load(G0)):
        with pytest.raises(StorageError, match="is closed"):
            call()


def test_nobody_else_uses_a_disk_that_is_being_closed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    rig.log.write({G0: [Promised(ballot(1))]})
    rig.log.pump()
    rig.log.write({G0: [Promised(ballot(2))]})
    closing = threading.Event()
    idle = rig.log._env._idle
    wait = idle.wait

    def announced(timeout: float | None = None) -> bool:
        closing.set()
        return wait(timeout)

    monkeypatch.setattr(idle, "wait", announced)
    thread = threading.Thread(target=rig.disk.close)
    thread.start()
    assert closing.wait(PATIENCE_S)
    for call in (rig.log.pump, lambda: rig.log.write({})):
        with pytest.raises(StorageError, match="is closed"):
            call()
    gate.tickets.release(5)
    thread.join(PATIENCE_S)
    assert rig.events.empty(), "nobody is told any more"
    monkeypatch.undo()
    assert loaded(rig.path).ballot == ballot(2)


MIDS = [MessageId(ClientId(1), sequence, 0) for sequence in range(1, 6)]
TIMES = st.integers(1, 30)


@st.composite
def any_record(draw: st.DrawFn) -> Record:
    mid = draw(st.sampled_from(MIDS))
    at = timestamp(draw(TIMES), G0)
    payload = draw(st.sampled_from([b"", b"a", b"bb"]))
    phase = draw(st.sampled_from([Phase.ACCEPTED, Phase.COMMITTED]))
    entry = EntryState(mid, (G0,), payload, 1, phase, at, at)
    records: list[Record] = [
        Promised(ballot(draw(TIMES))),
        Joined(ballot(draw(TIMES)), draw(TIMES), (entry,)),
        Learned(entry),
        Dropped((mid,)),
        Delivery(mid, (G0,), payload, 1, at, at, NO_TIMESTAMP, mismatch=False),
        Accepted((G0,), (mid,), (at,), (payload,), (1,), draw(TIMES)),
    ]
    return draw(st.sampled_from(records))


BATCHES = st.dictionaries(st.sampled_from([G0, G1]), st.lists(any_record(), max_size=5), max_size=2)


def small(patch: pytest.MonkeyPatch, fold_bytes: int) -> None:
    """Bounds that short histories reach."""
    patch.setattr(log, "FOLD_BYTES", fold_bytes)
    patch.setattr(log, "ROW_BYTES", 1)
    patch.setattr(log, "SLICE", 2)


@EXAMPLES
@given(st.lists(st.tuples(BATCHES, st.booleans()), max_size=12), st.sampled_from([1, 150, 1 << 20]))
def test_a_crash_leaves_what_was_durable(
    history: list[tuple[dict[GroupId, list[Record]], bool]], fold_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        small(patch, fold_bytes)
        storage.create(Path(directory) / "disk", Identity.new(CLUSTER, NODE, "os"))
        rig = Rig(Path(directory) / "disk")

        def crash() -> None:
            number = rig.durable[-1] if rig.durable else 0
            found = rig.crash(Path(directory) / f"copy{len(rig.durable)}")
            for group in (G0, G1):
                durable = fold(*(batch.get(group, ()) for batch, _ in history[:number]))
                assert same(found.log.load(group), durable)
            found.disk.close()

        crash()
        for records, pause in history:
            rig.log.write(records)
            rig.log.pump()
            while pause and rig.log._env.busy:
                rig.take()
                crash()
                rig.log.pump()
        while rig.log._env.busy:
            rig.take()
            crash()
            rig.log.pump()
        rig.disk.close()


def rows_of(path: Path, database: bytes) -> list[tuple[bytes, bytes]]:
    """What an environment has, as another program sees it."""
    with lmdb.open(str(path), max_dbs=8, lock=False, create=False) as env:
        db = env.open_db(database, create=False)
        with env.begin() as transaction:
            return list(transaction.cursor(db))


def test_the_log_does_not_grow_with_what_was_delivered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "FOLD_BYTES", 1 << 16)
    rig = Rig(path)
    sizes = []
    history: list[list[Record]] = []
    for number in range(1, 801):
        accepted, delivered = traffic(10, number * 10, size=100)
        records: list[Record] = [*accepted, *delivered]
        if number > 5:
            records.append(Dropped(tuple(d.mid for d in traffic(10, (number - 5) * 10)[1])))
        history.append(records)
        rig.write(records)
        sizes.append((path / "log" / "data.mdb").stat().st_size)
    rig.disk.close()
    assert len(rows_of(path / "log", layout.LOG_ROWS)) < 200
    assert sizes[-1] == sizes[400], "the file has its size after half of the messages"
    assert same(loaded(path), fold(*history))


def test_rows_that_were_folded_go_even_if_folding_was_the_last_thing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SLICE", 3)
    rig = Rig(path)
    rig.write(*[[Promised(ballot(n))] for n in range(1, 11)])
    monkeypatch.setattr(log, "FOLD_BYTES", 1)
    rig.write([Promised(ballot(11))])
    assert len(rows_of_open(rig.log, layout.LOG_ROWS)) == 7
    rig.disk.close()
    monkeypatch.setattr(log, "FOLD_BYTES", 1 << 20)
    again = Rig(path)
    assert again.log.load(G0).ballot == ballot(11)
    again.write([Promised(ballot(12))], [Promised(ballot(13))], [Promised(ballot(14))])
    assert len(rows_of_open(again.log, layout.LOG_ROWS)) == 3
    again.disk.close()
    assert loaded(path).ballot == ballot(14)


def rows_of_open(store: LmdbLog | LmdbState, database: bytes) -> list[tuple[bytes, bytes]]:
    return list(store._env.read().cursor(store._env[database]))


def test_records_that_make_no_sense_are_not_written_and_nothing_is_after_them(rig: Rig) -> None:
    rig.write([Promised(ballot(1))])
    rig.log.write({G1: [Promised(ballot(2))]})
    bare = Accepted((G0,), tuple(MIDS[:2]), (timestamp(1, G0),) * 2, (b"one only",), (0, 0), 1)
    rig.log.write({G0: [bare]})
    with pytest.raises(ValueError, match="is shorter than"):
        rig.log.pump()
    with pytest.raises(StorageError, match=r"log has failed: .* is shorter than"):
        rig.log.write({G0: [Promised(ballot(3))]})
    rig.disk.close()
    assert loaded(rig.path).ballot == ballot(1)
    assert loaded(rig.path, G1) == Durable()


def test_a_protocols_records_and_deliveries_come_back(tmp_path: Path) -> None:
    """What replicas of a simulated cluster emit, elections and crashes included."""
    written: dict[ReplicaId, list[Ready]] = {}

    class Recording(WhiteBox):
        def ready(self) -> Ready:
            ready = super().ready()
            if ready.persist or ready.deliver:
                written.setdefault(self.me, []).append(ready)
            return ready

    simulation = Simulation(
        Scenario(Recording, groups=2, workload=Workload(messages=60, think_s=0.02)), seed=3
    )
    simulation.start()
    simulation.run_until(lambda: False, 2.0)
    me = ReplicaId(G0, 1, 0)
    storage.create(tmp_path / "disk", Identity.new(CLUSTER, NODE, "os"))
    rig = Rig(tmp_path / "disk")
    for ready in written[me]:
        number = rig.log.write({G0: ready.persist})
        for delivery in ready.deliver:
            rig.state.apply(G0, [delivery])
        rig.commit(after=number)
        rig.pump()
    rig.settle()
    rig.disk.close()
    again = Rig(rig.path)
    replica = simulation.hosts[me].replica
    assert isinstance(replica, WhiteBox)
    checkpoint = dataclasses.replace(replica.checkpoint(), entries=(), membership=None, executed=NO_TIMESTAMP)
    assert len(simulation.hosts[me].log) > 20
    assert same(again.log.load(G0), fold(*(ready.persist for ready in written[me])))
    assert again.state.load(G0) == checkpoint
    assert again.state.deliveries(G0, NO_TIMESTAMP, 1000) == simulation.hosts[me].log
    again.disk.close()


# A map that is too small, and disks that fail


def test_the_map_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MAP_BYTES", 1 << 17)
    path = tmp_path / "disk"
    storage.create(path, Identity.new(CLUSTER, NODE))
    rig = Rig(path)
    accepted, delivered = traffic(40, size=1 << 16)
    for one, other in zip(accepted, delivered, strict=True):
        rig.write([one, other])
        rig.state.apply(G0, [other])
    rig.commit()
    rig.settle()
    rig.disk.close()
    again = Rig(path)
    assert same(again.log.load(G0), fold([*accepted, *delivered]))
    assert again.state.deliveries(G0, NO_TIMESTAMP, 100) == delivered
    again.disk.close()


def test_a_commit_that_does_not_fit_into_the_map_is_done_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, delivered = traffic(3)
    gate = Gate(monkeypatch)
    gate.error = lmdb.MapFullError("commit")
    rig.log.write({G0: [*delivered]})
    rig.log.pump()
    rig.log.write({G0: [Promised(ballot(1))]})
    gate.tickets.release(3)
    rig.take()
    assert rig.durable == [0], "nothing new, but the loop has to pump"
    rig.settle()
    assert rig.durable[1:] == [1, 2]
    gate.error = lmdb.MapFullError("commit")
    for delivery in delivered:
        rig.state.apply(G0, [delivery])
    rig.commit()
    gate.tickets.release(2)
    rig.pump()
    rig.state._env._idle.wait(PATIENCE_S)
    rig.settle()
    assert rig.committed == [{G0: delivered[-1].global_ts}]
    assert not rig.failures
    rig.disk.close()
    assert same(loaded(rig.path), fold([*delivered], [Promised(ballot(1))]))


ERRORS = [
    lmdb.DiskError("mdb_txn_commit", errno.EIO),
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    lmdb.Error("mdb_txn_commit", errno.EDQUOT),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_log_that_fails_says_so_and_stays_at_what_was_durable(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    rig.write([Promised(ballot(1))])
    gate = Gate(monkeypatch)
    gate.error = error
    rig.log.write({G0: [Promised(ballot(2))]})
    rig.log.pump()
    rig.log.write({G0: [Promised(ballot(3))]})
    gate.tickets.release(5)
    rig.take()
    assert [str(failure) for failure in rig.failures] == [f"{rig.path / 'log'} has failed: {error}"]
    for call in (rig.log.pump, lambda: rig.log.write({}), lambda: rig.log.load(G0)):
        with pytest.raises(StorageError, match=f"{rig.path / 'log'} has failed"):
            call()
    assert gate.commits == 1, "it is not tried again"
    assert rig.durable == [1]
    rig.disk.close()
    assert not layout.read_disk(rig.path)[1].clean
    assert rig.events.empty()
    assert loaded(rig.path).ballot == ballot(1)


def test_a_state_that_fails_says_so_and_the_log_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    _, delivered = traffic(2)
    gate = Gate(monkeypatch)
    rig.state.apply(G0, [delivered[0]])
    rig.commit()
    gate.error = ERRORS[0]
    gate.tickets.release(5)
    rig.pump()
    rig.take()
    assert len(rig.failures) == 1
    for call in (rig.state.pump, lambda: rig.state.apply(G0, [delivered[1]]), rig.commit):
        with pytest.raises(StorageError, match=f"{rig.path / 'state'} has failed"):
            call()
    rig.log.write({G0: [Promised(ballot(1))]})
    rig.log.pump()
    rig.take()
    assert rig.durable == [1]
    rig.disk.close()
    again = Rig(rig.path)
    assert again.state.load(G0) == Checkpoint()
    again.disk.close()


def test_half_a_transaction_is_never_committed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that cannot be: after it, nothing of its transaction may reach the disk."""
    slices(monkeypatch, 1)
    _, delivered = traffic(2)
    rig.state.apply(G0, [delivered[0]])
    impossible = delivered[1]._replace(global_ts=Timestamp(-1))
    rig.state.apply(G0, [impossible])
    rig.commit()
    with pytest.raises(struct.error):
        rig.pump()
    with pytest.raises(StorageError, match="has failed"):
        rig.pump()
    rig.disk.close()
    again = Rig(rig.path)
    assert again.state.load(G0) == Checkpoint()
    assert again.state.deliveries(G0, NO_TIMESTAMP, 9) == []
    again.disk.close()


# Processes that die, and a disk that is really full


def child(path: Path, full: int) -> None:
    """Write batch after batch, and say which are durable, until killed or until the disk is full."""
    rig = Rig(path)
    if full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, full))
    number = 0
    while not rig.failures:
        number += 1
        try:
            rig.log.write({G0: batch(number)})
            for delivery in traffic(10, 1 + 10 * (number - 1))[1]:
                rig.state.apply(G0, [delivery])
            rig.commit(after=number)
            rig.pump()
            rig.take()
        except StorageError:
            while not rig.failures:
                rig.take()
        print(rig.durable[-1] if rig.durable else 0, flush=True)  # noqa: T201 - to the parent
    print(*map(str, rig.failures), flush=True)  # noqa: T201 - to the parent
    rig.disk.close()


def start_child(path: Path, full: int = 0) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    command = [sys.executable, __file__, str(path), str(full)]
    environment = os.environ | {"PYTHONPATH": str(root)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)  # noqa: S603 - ourselves


def check_prefix(path: Path, told: int) -> None:
    """The log has at least what was told; the state, no more than the log."""
    rig = Rig(path)
    number = rig.log.durable
    assert number >= told > 0
    assert same(rig.log.load(G0), fold(*(batch(n) for n in range(1, number + 1))))
    position = rig.state.load(G0).position
    delivered = traffic(10 * number)[1]
    expected = [delivery for delivery in delivered if delivery.global_ts <= position]
    assert rig.state.deliveries(G0, NO_TIMESTAMP, 10**6) == expected
    assert position == (expected[-1].global_ts if expected else NO_TIMESTAMP)
    rig.disk.close()


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_killed_process_leaves_what_was_durable(tmp_path: Path, durability: Durability) -> None:
    storage.create(tmp_path / "disk", Identity.new(CLUSTER, NODE, durability))
    path = tmp_path / "disk"
    with start_child(path) as process:
        assert process.stdout is not None
        told = 0
        while told < 30:
            told = int(process.stdout.readline())
        with pytest.raises(StorageError, match=f"disk is in use by process {process.pid}"):
            Rig(path)
        process.send_signal(signal.SIGKILL)
        told = int([str(told), *process.stdout.read().split()][-1])
    assert not layout.read_disk(path)[1].clean
    check_prefix(path, told)


def test_a_full_disk_leaves_what_was_durable(path: Path) -> None:
    """The limit of a file's size is a real error of a real write."""
    size = (path / "log" / "data.mdb").stat().st_size
    with start_child(path, size + (1 << 18)) as process:
        said, _ = process.communicate(timeout=PATIENCE_S * 3)
    *numbers, failure = said.splitlines()
    assert process.returncode == 0
    assert f"{path}" in failure
    assert "has failed: " in failure
    assert any(text in failure for text in (os.strerror(errno.EFBIG), os.strerror(errno.EIO)))
    check_prefix(path, int(numbers[-1]))


# The disk


def test_a_disk_is_made_once(tmp_path: Path) -> None:
    identity = Identity.new(CLUSTER, NODE)
    assert 0 < identity.incarnation < 2**63
    storage.create(tmp_path / "a" / "b", identity)
    with pytest.raises(StorageError, match=r"has a disk already, or what was left of one: disk\.json"):
        storage.create(tmp_path / "a" / "b", identity)
    rig = Rig(tmp_path / "a" / "b")
    assert rig.disk.identity == identity
    rig.disk.close()
    (tmp_path / "c" / "log").mkdir(parents=True)
    with pytest.raises(StorageError, match="what was left of one: log"):
        storage.create(tmp_path / "c", identity)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be made: File exists"):
        storage.create(tmp_path / "file", identity)


@pytest.mark.parametrize(
    "wrong", [{"cluster": ""}, {"node": ""}, {"incarnation": 0}, {"incarnation": 2**63}, {"durability": "no"}]
)
def test_an_identity_makes_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        dataclasses.replace(Identity.new(CLUSTER, NODE), **wrong)


def test_a_disk_of_somebody_else_is_refused(path: Path) -> None:
    callbacks: dict[str, Any] = dict.fromkeys(("on_durable", "on_committed", "on_failure"), print)
    with pytest.raises(StorageError, match="is a disk of cluster 'test', not of 'other'"):
        storage.open(path, "other", NODE, **callbacks)
    with pytest.raises(StorageError, match="is the disk of node 'n1', not of 'n2'"):
        storage.open(path, CLUSTER, NodeId("n2"), **callbacks)
    Rig(path).disk.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "has format 1, but this program knows only format 4"),
        ({"incarnation": "x"}, "incarnation must be in 1"),
        ({"clean": 1}, "clean and boot cannot be 1"),
        ({"extra": 1}, "unexpected keyword argument 'extra'"),
        ({"durability": "none"}, "durability must be"),
        ({"keeps": "none"}, "keeps must be"),
        ({"keeps": "store"}, "is a disk for 'store', not for 'deliveries'"),
        ({"incarnation": 5}, r"log is of incarnation [0-9a-f]+, but its disk of 5"),
    ],
)
def test_an_identity_that_is_none_is_refused(path: Path, change: dict[str, Any], message: str) -> None:
    file = path / "disk.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(StorageError, match=message):
        Rig(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"x"', "\x00\xff"])
def test_a_damaged_identity_is_refused(path: Path, text: str) -> None:
    (path / "disk.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(StorageError, match=r"disk\.json"):
        Rig(path)


def test_a_disk_that_is_not_there_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nothing has no disk: there is no such directory"):
        Rig(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match=r"empty has no disk: there is no disk\.json"):
        Rig(tmp_path / "empty")
    shutil.rmtree(path / "state")
    with pytest.raises(StorageError, match="state cannot be opened"):
        Rig(path)
    (path / "state").mkdir()
    shutil.copy(path / "log" / "data.mdb", path / "state" / "data.mdb")
    with pytest.raises(StorageError, match="state is not what it should be"):
        Rig(path)


def test_a_disk_is_used_once_at_a_time(rig: Rig) -> None:
    with pytest.raises(StorageError, match=f"is in use by process {os.getpid()}"):
        Rig(rig.path)
    rig.write([Promised(ballot(1))])
    rig.disk.close()
    again = Rig(rig.path)
    again.disk.close()


def test_environments_of_two_disks_are_not_mixed(path: Path, tmp_path: Path) -> None:
    storage.create(tmp_path / "other", Identity.new(CLUSTER, NODE))
    shutil.rmtree(path / "state")
    shutil.copytree(tmp_path / "other" / "state", path / "state")
    with pytest.raises(StorageError, match="state is of incarnation"):
        Rig(path)


def test_how_a_disk_was_left_is_known(rig: Rig, tmp_path: Path) -> None:
    assert layout.read_disk(rig.path)[1] == layout.Left(clean=False, boot=layout.boot_id())
    rig.disk.close()
    assert layout.read_disk(rig.path)[1].clean


@pytest.mark.parametrize(
    ("durability", "left", "boot", "lost"),
    [
        ("os", "in use", "another", True),
        ("os", "in use", layout.boot_id(), False),
        ("os", "closed", "another", False),
        ("fsync", "in use", "another", False),
    ],
)
def test_a_disk_without_fsync_is_lost_when_its_machine_stops(
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    durability: Durability,
    left: str,
    boot: str,
    lost: bool,
) -> None:
    path, copy = tmp_path / "disk", tmp_path / "copy"
    storage.create(path, Identity.new(CLUSTER, NODE, durability))
    rig = Rig(path)
    rig.write([Promised(ballot(1))])
    if left == "in use":
        shutil.copytree(path, copy)
    rig.disk.close()
    if left == "closed":
        shutil.copytree(path, copy)
    monkeypatch.setattr(layout, "boot_id", lambda: boot)
    if lost:
        for _ in range(2):
            with pytest.raises(LostDisk, match="when its machine stopped"):
                Rig(copy)
    else:
        assert loaded(copy).ballot == ballot(1)


# Damage


def damage(path: Path, database: bytes, key: bytes | None = None) -> None:
    """Flip a bit in the first value of a sub-database; or, with another key, put it there."""
    with lmdb.open(str(path), max_dbs=8, lock=False, create=False) as env:
        db = env.open_db(database, create=False)
        with env.begin(db, write=True) as transaction:
            cursor = transaction.cursor()
            assert cursor.first()
            old, value = cursor.item()
            if key is None:
                transaction.put(old, value[:-1] + bytes([value[-1] ^ 1]))
            else:
                transaction.delete(old)
                transaction.put(key, value)


@pytest.fixture
def filled(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A disk that has some of everything."""
    rig = Rig(path)
    accepted, delivered = traffic(20)
    rig.write([*accepted])
    monkeypatch.setattr(log, "FOLD_BYTES", 1)
    rig.write([Promised(ballot(1))], group=G1)
    monkeypatch.undo()
    for delivery in delivered:
        rig.state.apply(G0, [delivery])
    rig.commit()
    rig.settle()
    rig.disk.close()
    return path


@pytest.mark.parametrize(
    ("store", "database", "key", "where"),
    [
        ("log", layout.LOG_ROWS, None, "log, group 0, row 1: the checksum of"),
        ("log", layout.LOG_BASES, None, "log, group 1, base: the checksum of"),
        ("log", layout.LOG_BASES, b"x", "log, bases: 78 has 1 bytes, not 2"),
        ("log", layout.LOG_BASES, b"\xff\xff", "log, bases: the key ffff has the group 65535"),
        ("log", layout.LOG_ROWS, b"\0\0\0", "log, group 0, rows: 000000 has 3 bytes, not 10"),
        ("log", layout.META, None, "log, incarnation: the checksum of"),
        ("log", layout.META, b"x", "log, incarnation: the checksum of 0 bytes"),
        ("state", layout.STATE_POSITIONS, None, "state, group 0, position: the checksum of"),
        ("state", layout.STATE_CLIENTS, None, "state, group 0, clients: the checksum of"),
        ("state", layout.STATE_CLIENTS, b"\0\0x", "state, group 0, clients: 000078 has 3 bytes"),
        ("state", layout.STATE_PLACES, None, "state, group 0, places: the checksum of"),
        ("state", layout.STATE_PLACES, b"\0\0x", "state, group 0, places: 000078 has 3 bytes"),
        ("state", layout.STATE_DELIVERIES, None, "state, group 0, deliveries up to 20480: the checksum"),
        ("state", layout.STATE_DELIVERIES, b"\0\0\xff", "state, group 0, deliveries: 0000ff has 3 bytes"),
    ],
)  # fmt: skip
def test_damage_is_found_and_named(
    filled: Path, store: str, database: bytes, key: bytes | None, where: str
) -> None:
    damage(filled / store, database, key)
    with pytest.raises(StorageError, match=f"{filled}/{where}"):
        read_all(filled)


def read_all(path: Path) -> None:
    rig = Rig(path)
    try:
        for group in (G0, G1):
            rig.log.load(group)
            rig.state.load(group)
            rig.state.deliveries(group, NO_TIMESTAMP, 100)
    finally:
        rig.disk.close()


def test_a_row_whose_records_do_not_fit_is_refused(filled: Path) -> None:
    """The checksum is right, but the log before it is not what it was written after."""
    _, delivered = traffic(1)
    rig = Rig(filled)
    rig.write([*delivered])
    rig.disk.close()
    with lmdb.open(str(filled / "log"), max_dbs=8, lock=False, create=False) as env:
        db = env.open_db(layout.LOG_ROWS, create=False)
        with env.begin(db, write=True) as transaction:
            assert transaction.delete(layout.row_key(G0, 1))
    rig = Rig(filled)
    with pytest.raises(StorageError, match="group 0, row 3: decided: no acceptance is known of the message"):
        rig.log.load(G0)
    rig.disk.close()


# The state


def test_what_was_applied_is_seen_at_once_and_kept_when_committed(rig: Rig) -> None:
    _, delivered = traffic(12)
    for delivery in delivered:
        rig.state.apply(G0, [delivery])
    assert rig.state.deliveries(G0, NO_TIMESTAMP, 100) == delivered
    assert rig.state.place(G0, delivered[-1].mid) == delivered[-1].global_ts
    assert rig.state.load(G0) == Checkpoint(), "nothing is committed yet"
    rig.commit()
    rig.settle()
    assert rig.committed == [{G0: delivered[-1].global_ts}]
    assert rig.state.load(G0).position == delivered[-1].global_ts
    assert rig.state.deliveries(G0, NO_TIMESTAMP, 100) == delivered
    assert rig.state.deliveries(G0, delivered[3].global_ts, 2) == delivered[4:6]
    assert rig.state.deliveries(G1, NO_TIMESTAMP, 100) == []
    more = traffic(3, 13)[1]
    rig.state.apply(G0, [more[0]])
    assert rig.state.deliveries(G0, delivered[10].global_ts, 100) == [delivered[11], more[0]]
    assert rig.state.deliveries(G0, delivered[10].global_ts, 1) == [delivered[11]]


def test_deliveries_are_told_in_bounded_runs_without_gaps(rig: Rig) -> None:
    _, delivered = traffic(12)
    rig.state.apply(G0, delivered[:8])
    rig.commit()
    rig.settle()
    rig.state.apply(G0, delivered[8:])
    size = max(len(delivery.payload) for delivery in delivered)
    for count, bytes_max in ((1, 10**6), (5, 10**6), (100, 1), (100, 3 * size)):
        told: list[Delivery] = []
        while run := rig.state.deliveries(G0, told[-1].global_ts if told else NO_TIMESTAMP, count, bytes_max):
            assert len(run) <= count
            assert len(run) == 1 or sum(len(d.payload) for d in run) <= bytes_max
            told += run
        assert told == delivered


def test_a_commit_waits_for_the_log(rig: Rig) -> None:
    _, delivered = traffic(3)
    for number, delivery in enumerate(delivered, 1):
        rig.state.apply(G0, [delivery])
        rig.commit(after=number)
    rig.settle()
    assert rig.committed == []
    rig.state.log_durable(2)
    rig.settle()
    assert rig.committed == [{G0: delivered[1].global_ts}], "two in one, but not the third"
    rig.state.log_durable(1)
    rig.settle()
    assert len(rig.committed) == 1
    rig.state.log_durable(3)
    rig.settle()
    assert rig.committed[1:] == [{G0: delivered[2].global_ts}]


def test_a_crash_between_the_log_and_the_state_loses_executions_only(rig: Rig, tmp_path: Path) -> None:
    accepted, delivered = traffic(4)
    records: list[Record] = [*accepted, *delivered]
    for delivery in delivered:
        rig.state.apply(G0, [delivery])
    number = rig.log.write({G0: records})
    rig.commit(after=number)
    assert rig.state.pump() is False
    before = rig.crash(tmp_path / "before")
    assert before.log.load(G0) == Durable()
    assert before.state.load(G0) == Checkpoint()
    before.disk.close()
    rig.log.pump()
    rig.take()
    between = rig.crash(tmp_path / "between")
    assert same(between.log.load(G0), fold(records))
    assert between.state.load(G0) == Checkpoint()
    for delivery in delivered:
        between.state.apply(G0, [delivery])
    between.disk.close()
    rig.settle()
    after = rig.crash(tmp_path / "after")
    assert after.state.load(G0).position == delivered[-1].global_ts
    after.disk.close()


def test_closing_does_the_commits_whose_records_are_in_the_log(rig: Rig) -> None:
    accepted, delivered = traffic(2)
    number = rig.log.write({G0: [*accepted]})
    rig.state.apply(G0, [delivered[0]])
    rig.commit(after=number)
    rig.state.apply(G0, [delivered[1]])
    rig.commit(after=number + 1)
    rig.disk.close()
    again = Rig(rig.path)
    assert again.state.load(G0).position == delivered[0].global_ts
    again.disk.close()


def test_the_loop_does_a_bounded_number_of_puts_at_a_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    slices(monkeypatch, 10)
    _, delivered = traffic(95)
    for delivery in delivered:
        rig.state.apply(G0, [delivery])
    rig.commit()
    turns = 0
    while rig.state.pump():
        turns += 1
        for _ in range(3):
            rig.state.apply(G0, traffic(1, 95 + rig.state._group(G0).position // 1024 - 94)[1])
    assert 95 // 10 < turns < 95 // 10 + 6
    assert not rig.state.pump(), "while the disk is at it there is nothing to do"
    gate.tickets.release(5)
    rig.settle()
    assert rig.committed == [{G0: delivered[-1].global_ts}], "what was applied meanwhile waits for the next"
    assert not gate.waited_in_vain, "the loop waited for the disk"


def test_a_commit_has_few_deliveries_left_to_find_places_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "PLACED_SLICE", 10)
    _, delivered = traffic(95)
    heard: list[int] = []
    add = deliveries._Places.add

    def count(places: Any, deliveries: Sequence[Delivery]) -> None:
        heard.append(len(deliveries))
        add(places, deliveries)

    monkeypatch.setattr(deliveries._Places, "add", count)
    for start in range(0, 95, 4):
        rig.state.apply(G0, delivered[start : start + 4])
    assert sum(heard) >= 95 - 10
    rig.commit()
    assert sum(heard) == 95
    assert max(heard) < 10 + 4
    assert rig.state.place(G0, delivered[-1].mid) == delivered[-1].global_ts
    assert rig.state.place(G0, delivered[50].mid) == NO_TIMESTAMP


def test_a_commit_writes_only_what_has_changed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    previous = NO_TIMESTAMP

    def deliver(client: int, sequence: int, ack_below: int) -> None:
        nonlocal previous
        at = Timestamp(previous + 1024)
        mid = MessageId(ClientId(client), sequence, 7)
        rig.state.apply(G0, [Delivery(mid, (G0,), b"", ack_below, at, at, previous, mismatch=False)])
        previous = at

    for client in range(300):
        deliver(client, 1, 1)
    rig.commit()
    rig.settle()
    slices(monkeypatch, 1)
    deliver(5, 2, 2)
    for sequence in range(2, 50):
        deliver(6, sequence, sequence)
    rig.commit()
    puts = 0
    while rig.state.pump():
        puts += 1
    rig.settle()
    assert puts == 1 + 49 + 4 + 2 + 1, "starting, deliveries, places put and deleted, watermarks, position"
    assert len(rows_of_open(rig.state, layout.STATE_PLACES)) == 300, "one for each client"
    assert rig.state.place(G0, MessageId(ClientId(6), 48, 7)) == NO_TIMESTAMP
    assert rig.state.place(G0, MessageId(ClientId(6), 49, 7)) == previous
    assert rig.state.place(G0, MessageId(ClientId(6), 49, 8)) == NO_TIMESTAMP


def test_deliveries_come_in_order(rig: Rig) -> None:
    _, delivered = traffic(3)
    rig.state.apply(G0, [delivered[0]])
    for wrong in (delivered[0], delivered[2]):
        with pytest.raises(InvariantBroken, match=r"follows .*, but group 0 is at 1024"):
            rig.state.apply(G0, [wrong])
    with pytest.raises(InvariantBroken, match="group 0 is to be committed at 2048, but is at 1024"):
        rig.state.commit({G0: delivered[1].global_ts}, 0)


# Any history of the state


@st.composite
def any_run(draw: st.DrawFn) -> list[Delivery]:
    """Of two clients that use numbers twice, acknowledge, and fall behind what they acknowledged."""
    delivered = []
    previous = NO_TIMESTAMP
    mids = st.builds(
        MessageId, st.sampled_from([ClientId(1), ClientId(2**64 - 1)]), st.integers(0, 6), st.integers(0, 1)
    )
    for mid in draw(st.lists(mids, max_size=20, unique=True)):
        at = Timestamp(previous + draw(st.integers(1, 3)))
        payload = draw(st.binary(max_size=30))
        delivered.append(
            Delivery(mid, (G0,), payload, draw(st.integers(0, 7)), at, at, previous, draw(st.booleans()))
        )
        previous = at
    return delivered  # fmt: skip


def table(delivered: Sequence[Delivery]) -> DeliveredIds:
    ids = DeliveredIds()
    for delivery in delivered:
        ids.add(delivery.mid, delivery.ack_below)
    return ids


def check_state(state: LmdbState, delivered: Sequence[Delivery], committed: int) -> None:
    assert state.deliveries(G0, NO_TIMESTAMP, 10**6) == delivered
    remembered = {
        (c, s, d) for c, _, above in table(delivered).rows() for s, digests in above for d in digests
    }
    for delivery in delivered:
        place = delivery.global_ts if delivery.mid in remembered else NO_TIMESTAMP
        assert state.place(G0, delivery.mid) == place
    position = delivered[committed - 1].global_ts if committed else NO_TIMESTAMP
    assert state.load(G0) == Checkpoint(position, table(delivered[:committed]))


@EXAMPLES
@given(
    any_run(),
    st.lists(st.sampled_from(["apply", "commit", "pump", "settle", "crash", "snapshot"]), max_size=30),
)
def test_any_history_leaves_the_state_it_should(delivered: list[Delivery], steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        slices(patch, 2)
        patch.setattr(deliveries, "PIECE_BYTES", 50)
        storage.create(Path(directory) / "0", Identity.new(CLUSTER, NODE, "os"))
        rig = Rig(Path(directory) / "0")
        applied = asked = committed = 0
        for index, step in enumerate([*steps, "commit", "settle", "crash"], 1):
            if step == "apply":
                for delivery in delivered[applied : applied + 3]:
                    rig.state.apply(G0, [delivery])
                applied = min(len(delivered), applied + 3)
            elif step == "commit":
                rig.commit()
                asked = applied
            elif step == "pump":
                rig.state.pump()
            elif step == "settle":
                rig.settle()
                committed = asked
            elif step == "snapshot":
                pieces = list(rig.state.snapshot(G0))
                assert max(map(len, pieces)) <= 50
                position = delivered[applied - 1].global_ts if applied else NO_TIMESTAMP
                rig.state.install(G0, pieces, Checkpoint(position, table(delivered[:applied])))
            elif not rig.state._env.busy or rig.state._env._job.filling:  # type: ignore[union-attr]
                found = rig.crash(Path(directory) / str(index))
                committed = len([d for d in delivered if d.global_ts <= found.state.load(G0).position])
                assert committed <= asked
                rig.disk.close()
                rig, applied, asked = found, committed, committed
            if not rig.state._env.busy:
                check_state(rig.state, delivered[:applied], len([
                    d for d in delivered if d.global_ts <= rig.state.load(G0).position
                ]))  # fmt: skip
        assert committed == applied
        rig.disk.close()


def test_commits_asked_for_while_others_run_do_not_mix(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    _, delivered = traffic(4)
    for count, delivery in enumerate(delivered[:3], 1):
        rig.state.apply(G0, [delivery])
        rig.commit()
        rig.pump()
        if count > 1:
            gate.tickets.release()
            rig.take()
            rig.pump()
        assert rig.state.deliveries(G0, NO_TIMESTAMP, 9) == delivered[:count]
    rig.state.apply(G0, [delivered[3]])
    gate.tickets.release()
    rig.settle()
    assert rig.committed == [{G0: d.global_ts} for d in delivered[:3]]
    check_state(rig.state, delivered, 3)


def test_the_order_of_two_messages_under_one_number_is_kept(rig: Rig) -> None:
    first, second = traffic(2)[1]
    second = second._replace(mid=first.mid._replace(digest=first.mid.digest - 1))
    for delivery in (first, second):
        rig.state.apply(G0, [delivery])
    rig.commit()
    rig.settle()
    rig.disk.close()
    again = Rig(rig.path)
    check_state(again.state, [first, second], 2)
    again.disk.close()


# Snapshots


def others(count: int) -> list[Delivery]:
    """Deliveries that have nothing in common with `traffic`."""
    found: list[Delivery] = []
    for delivery in traffic(count)[1]:
        mid = delivery.mid._replace(client=ClientId(delivery.mid.client % 1000))
        at = Timestamp(delivery.global_ts + 1)
        previous = found[-1].global_ts if found else NO_TIMESTAMP
        found.append(delivery._replace(mid=mid, global_ts=at, previous_ts=previous))
    return found


def snapshot_of(delivered: Sequence[Delivery]) -> tuple[list[bytes], Checkpoint]:
    places = deliveries._Places()
    places.add(delivered)
    position = delivered[-1].global_ts
    rows = [layout.snapshot_row(d.global_ts, layout.seal_run([d])) for d in delivered]
    return [layout.snapshot_head(position, places.ids()), *rows], Checkpoint(position, table(delivered))


def test_a_snapshot_is_of_the_time_it_was_taken(rig: Rig, tmp_path: Path) -> None:
    _, delivered = traffic(60, size=100_000)
    for delivery in delivered[:30]:
        rig.state.apply(G0, [delivery])
    rig.commit()
    rig.settle()
    for delivery in delivered[30:40]:
        rig.state.apply(G0, [delivery])
    pieces = rig.state.snapshot(G0)
    found = [next(pieces)]
    for delivery in delivered[40:]:
        rig.state.apply(G0, [delivery])
        found.append(next(pieces, b""))
        rig.commit()
        rig.settle()
        assert rig.state._env.read().id() == rig.state._env._env.info()["last_txnid"], "no old reader is kept"
    found += pieces
    assert max(map(len, found)) <= 1 << 20
    storage.create(tmp_path / "other", Identity.new(CLUSTER, NODE))
    other = Rig(tmp_path / "other")
    other.state.install(G0, found, Checkpoint(delivered[39].global_ts, table(delivered[:40])))
    assert other.state.deliveries(G0, NO_TIMESTAMP, 100) == delivered[:40]
    assert other.state.place(G0, delivered[39].mid) == delivered[39].global_ts
    other.disk.close()


def test_a_snapshot_goes_on_while_a_commit_runs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "PIECE_BYTES", 1000)
    _, delivered = traffic(40, size=100)
    for delivery in delivered[:20]:
        rig.state.apply(G0, [delivery])
    rig.commit()
    rig.settle()
    for delivery in delivered[20:]:
        rig.state.apply(G0, [delivery])
    gate = Gate(monkeypatch)
    rig.commit()
    rig.pump()
    pieces = rig.state.snapshot(G0)
    found = [next(pieces)]
    gate.tickets.release()
    rig.take()
    found.append(next(pieces))
    rig.settle()
    found += pieces
    assert layout.read_snapshot(found, "snapshot")[2] == delivered
    assert not gate.waited_in_vain


def test_a_snapshot_goes_on_while_another_one_is_installed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was installed has the same deliveries in other runs."""
    monkeypatch.setattr(deliveries, "PIECE_BYTES", 300)
    _, delivered = traffic(40)
    for start in range(0, 30, 10):
        rig.state.apply(G0, delivered[start : start + 10])
        rig.commit()
        rig.settle()
    pieces = rig.state.snapshot(G0)
    found = [next(pieces)]
    position = delivered[-1].global_ts
    places = deliveries._Places()
    places.add(delivered)
    runs = [delivered[:4], *(delivered[start : start + 12] for start in range(4, 40, 12))]
    rows = [layout.snapshot_row(run[-1].global_ts, layout.seal_run(run)) for run in runs]
    slices(monkeypatch, 7)
    head = layout.snapshot_head(position, places.ids())
    rig.state.install(G0, [head, *rows], Checkpoint(position, table(delivered)))
    rig.commit()
    rig.settle()
    found += pieces
    assert layout.read_snapshot(found, "snapshot")[2] == delivered[:30]
    assert rig.state.deliveries(G0, delivered[17].global_ts, 100) == delivered[18:]


def test_a_delivery_larger_than_a_piece_is_cut(rig: Rig) -> None:
    _, delivered = traffic(3, size=(5 << 20) // 2)
    for delivery in delivered:
        rig.state.apply(G0, [delivery])
    found = list(rig.state.snapshot(G0))
    assert [len(piece) for piece in found[:-1]] == [1 << 20] * 7
    assert len(layout.read_snapshot(found, "snapshot")[2]) == 3


def test_an_installed_snapshot_replaces_all_or_nothing(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices(monkeypatch, 3)
    old = traffic(10)[1]
    for delivery in old:
        rig.state.apply(G0, [delivery])
        rig.state.apply(G1, [delivery])
    rig.commit(G0, G1)
    rig.settle()
    new = others(25)
    rig.state.apply(G0, traffic(1, 11)[1])
    rig.state.install(G0, *snapshot_of(new))
    assert rig.state.deliveries(G0, NO_TIMESTAMP, 100) == new
    assert rig.state.place(G0, new[-1].mid) == new[-1].global_ts
    more = traffic(1, 26)[1][0]._replace(previous_ts=new[-1].global_ts)
    rig.state.apply(G0, [more])
    rig.commit()
    crashes = 0
    gate = Gate(monkeypatch)
    while rig.state.pump():
        crashes += 1
        found = rig.crash(tmp_path / f"crash{crashes}")
        assert found.state.deliveries(G0, NO_TIMESTAMP, 100) == old
        assert found.state.load(G0) == Checkpoint(old[-1].global_ts, table(old))
        found.disk.close()
    assert crashes > 10
    gate.tickets.release(9)
    rig.settle()
    found = rig.crash(tmp_path / "after")
    for state in (rig.state, found.state):
        assert state.deliveries(G0, NO_TIMESTAMP, 100) == [*new, more]
        assert state.load(G0) == Checkpoint(more.global_ts, table([*new, more]))
        assert state.deliveries(G1, NO_TIMESTAMP, 100) == old, "the other group is as it was"
        assert state.load(G1) == Checkpoint(old[-1].global_ts, table(old))
    found.disk.close()


def test_a_snapshot_replaces_what_was_not_yet_committed(rig: Rig) -> None:
    for delivery in traffic(12)[1]:
        rig.state.apply(G0, [delivery])
        rig.commit(after=1)
    new = others(9)
    rig.state.install(G0, *snapshot_of(new))
    rig.commit(after=2)
    rig.state.log_durable(2)
    rig.settle()
    assert rig.committed == [{G0: new[-1].global_ts}], "all in one"
    rig.disk.close()
    again = Rig(rig.path)
    check_state(again.state, new, 9)
    again.disk.close()


def test_a_commit_under_way_does_not_mix_with_a_snapshot(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    _, delivered = traffic(20)
    for delivery in delivered[:10]:
        rig.state.apply(G0, [delivery])
    whole = Checkpoint(delivered[9].global_ts, table(delivered[:10]))
    pieces = list(rig.state.snapshot(G0))
    gate = Gate(monkeypatch)
    rig.commit()
    rig.pump()
    rig.state.install(G0, pieces, whole)
    gate.tickets.release(5)
    rig.settle()
    assert rig.state.deliveries(G0, NO_TIMESTAMP, 100) == delivered[:10]
    for delivery in delivered[10:]:
        rig.state.apply(G0, [delivery])
    rig.commit()
    rig.settle()
    rig.disk.close()
    again = Rig(rig.path)
    check_state(again.state, delivered, 20)
    again.disk.close()


def test_a_snapshot_that_does_not_fit_is_refused_and_changes_nothing(rig: Rig) -> None:
    _, delivered = traffic(5)
    for delivery in delivered:
        rig.state.apply(G0, [delivery])
    pieces = list(rig.state.snapshot(G0))
    whole = Checkpoint(delivered[-1].global_ts, table(delivered))
    for wrong, checkpoint, message in [
        ([*pieces, b"x"], whole, "ends in the deliveries"),
        ([pieces[0][:-1]], whole, "ends in the deliveries"),
        (
            pieces,
            Checkpoint(delivered[3].global_ts, whole.delivered),
            "is of 5120, but its checkpoint of 4096",
        ),
        (pieces, Checkpoint(whole.position, table(delivered[:4])), "has other delivered ids"),
        ([], Checkpoint(), "0 bytes are no snapshot"),
    ]:
        with pytest.raises(BadSnapshot, match=f"the snapshot of group 1.*{message}"):
            rig.state.install(G1, wrong, checkpoint)
        assert rig.state.deliveries(G1, NO_TIMESTAMP, 9) == []
    rig.state.install(G1, pieces, whole)
    assert rig.state.deliveries(G1, NO_TIMESTAMP, 9) == delivered


def test_global_timestamps_follow_each_other() -> None:
    _, delivered = traffic(5)
    assert all(a.global_ts == b.previous_ts for a, b in pairwise(delivered))


if __name__ == "__main__":
    child(Path(sys.argv[1]), int(sys.argv[2]))
