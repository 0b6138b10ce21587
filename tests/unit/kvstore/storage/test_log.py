"""The log, on real LMDB: what was durable comes back, nothing else, and the loop never waits for it."""

from __future__ import annotations

import dataclasses
import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import storage
from kvstore.config.checks import Durability
from kvstore.node.ports import Log
from kvstore.storage import environment, identity, keys, log
from kvstore.storage.errors import DamagedLog, StorageError
from kvstore.storage.identity import Identity
from kvstore.storage.ports import DeliveryDisk
from multicast.durable import Accepted, Checkpoint, Dropped, Durable, Joined, Learned, Promised, Record
from multicast.messages import Delivery, EntryState
from multicast.protocol import Ready
from multicast.sim.clients import Workload
from multicast.sim.run import Scenario, Simulation
from multicast.types import (
    NO_TIMESTAMP,
    ClientId,
    GroupId,
    MessageId,
    Phase,
    ReplicaId,
    Timestamp,
    timestamp,
)
from multicast.whitebox import WhiteBox
from tests.tree import ROOT
from tests.unit.kvstore.storage.disks import (
    CLUSTER,
    G0,
    G1,
    NODE,
    PATIENCE_S,
    Gate,
    Rig,
    ballot,
    batch,
    fold,
    loaded,
    rows_of,
    rows_of_open,
    same,
    slices,
    traffic,
)

EXAMPLES = settings(deadline=None, derandomize=True, max_examples=40)


def test_it_is_the_log_and_the_state_that_a_node_needs(rig: Rig) -> None:
    log: Log = rig.log
    state: DeliveryDisk = rig.state
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
    rig.drain()
    assert rig.durable == [1, 4, 5], "one commit for all that had been gathered when it began"
    assert gate.commits == 3
    assert rig.threads == {f"commit {rig.path / 'log'}"}
    assert not gate.waited_in_vain, "the loop waited for the disk"


def test_a_batch_without_records_becomes_durable_in_its_turn(rig: Rig) -> None:
    assert rig.log.write({}) == 1
    rig.drain()
    assert rig.durable == [1]
    assert rig.log.write({G0: [Promised(ballot(1))]}) == 2
    assert rig.log.write({}) == 3
    rig.drain()
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


def test_other_threads_cannot_use_a_disk_that_is_being_closed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    calls: list[Callable[[], object]] = [rig.log.pump, lambda: rig.log.write({})]
    for call in calls:
        with pytest.raises(StorageError, match="is closed"):
            call()
    gate.tickets.release(5)
    thread.join(PATIENCE_S)
    assert rig.events.empty(), "no callback is called any more"
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
        Accepted(((G0,),), (mid,), (at,), (payload,), (1,), draw(TIMES)),
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
        gate = Gate(patch)  # else a commit may end, and the next one begin, before its end is taken

        def crash() -> None:
            number = rig.durable[-1] if rig.durable else 0
            found = rig.crash(Path(directory) / f"copy{len(rig.durable)}")
            for group in (G0, G1):
                durable = fold(*(batch.get(group, ()) for batch, _ in history[:number]))
                assert same(found.log.load(group), durable)
            found.disk.close()

        def finish() -> None:
            """One commit ends, and the machine stops before the next one begins."""
            gate.tickets.release()
            rig.take()
            crash()
            rig.log.pump()

        crash()
        for records, pause in history:
            rig.log.write(records)
            rig.log.pump()
            while pause and rig.log._env.busy:
                finish()
        while rig.log._env.busy:
            finish()
        assert not gate.waited_in_vain
        rig.disk.close()


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
    assert len(rows_of(path / "log", keys.LOG_ROWS)) < 200
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
    assert len(rows_of_open(rig.log, keys.LOG_ROWS)) == 7
    rig.disk.close()
    monkeypatch.setattr(log, "FOLD_BYTES", 1 << 20)
    again = Rig(path)
    assert again.log.load(G0).ballot == ballot(11)
    again.write([Promised(ballot(12))], [Promised(ballot(13))], [Promised(ballot(14))])
    assert len(rows_of_open(again.log, keys.LOG_ROWS)) == 3
    again.disk.close()
    assert loaded(path).ballot == ballot(14)


def test_records_that_make_no_sense_are_not_written_and_nothing_is_after_them(rig: Rig) -> None:
    rig.write([Promised(ballot(1))])
    rig.log.write({G1: [Promised(ballot(2))]})
    bare = Accepted(((G0,),), tuple(MIDS[:2]), (timestamp(1, G0),) * 2, (b"one only",), (0, 0), 1)
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
    rig.drain()
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
    rig.flush()
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
    rig.drain()
    assert rig.durable[1:] == [1, 2]
    gate.error = lmdb.MapFullError("commit")
    for delivery in delivered:
        rig.state.apply(G0, [delivery])
    rig.commit()
    gate.tickets.release(2)
    rig.pump()
    rig.state._env._idle.wait(PATIENCE_S)
    rig.drain()
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
    assert not identity.read_disk(rig.path)[1].clean
    assert rig.events.empty()
    assert loaded(rig.path).ballot == ballot(1)


# Commits that the loop waits for


def test_a_small_commit_is_made_at_once_if_the_caller_may_wait(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    committers: list[str] = []

    def noted(transaction: environment.Transaction) -> None:
        committers.append(_thread())
        transaction.commit()

    monkeypatch.setattr(environment, "_commit", noted)
    assert rig.log.write({G0: [Promised(ballot(1))]}) == 1
    assert rig.log.pump(may_wait=True)
    assert rig.log.durable == 1
    assert same(rig.log.load(G0), fold([Promised(ballot(1))])), "what is durable is seen"
    assert not rig.log.pump(may_wait=True), "there is no news"
    accepted, _ = traffic(3, size=log.AT_ONCE_BYTES["fsync"])
    assert rig.log.write({G0: [*accepted]}) == 2
    assert not rig.log.pump(may_wait=True), "much is committed by the thread"
    rig.drain()
    assert rig.durable == [2], "the thread tells only of its own commits"
    assert committers == [_thread(), f"commit {rig.path / 'log'}"]
    rig.disk.close()
    assert same(loaded(rig.path), fold([Promised(ballot(1))], [*accepted]))


def test_what_is_small_waits_for_what_the_thread_commits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    rig.log.write({G0: [Promised(ballot(1))]})
    rig.log.pump()
    rig.log.write({G0: [Promised(ballot(2))]})
    assert not rig.log.pump(may_wait=True)
    assert rig.log.durable == 0
    gate.tickets.release(2)
    rig.take()
    assert rig.log.pump(may_wait=True)
    assert rig.log.durable == 2
    assert gate.commits == 2
    assert rig.durable == [1]


def test_the_loop_does_not_wait_for_a_slow_disk(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    committers: list[str] = []

    def slow(transaction: environment.Transaction) -> None:
        nonlocal now
        now += 2 * log.SLOW_S
        committers.append(_thread())
        transaction.commit()

    monkeypatch.setattr(environment, "_commit", slow)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for number in (1, 2):
        rig.log.write({G0: [Promised(ballot(number))]})
        assert rig.log.pump(may_wait=True) == (number == 1)
        rig.drain()
    now += log.PATIENCE_S
    rig.log.write({G0: [Promised(ballot(3))]})
    assert rig.log.pump(may_wait=True), "it is tried again"
    assert committers == [_thread(), f"commit {rig.path / 'log'}", _thread()]


def test_a_small_commit_that_does_not_fit_into_the_map_is_done_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.error = lmdb.MapFullError("commit")
    gate.tickets.release(2)
    rig.log.write({G0: [Promised(ballot(1))]})
    assert rig.log.pump(may_wait=True)
    assert gate.commits == 2
    rig.disk.close()
    assert same(loaded(rig.path), fold([Promised(ballot(1))]))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_log_that_fails_in_the_loop_says_so_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    rig.write([Promised(ballot(1))])
    gate = Gate(monkeypatch)
    gate.error = error
    gate.tickets.release(5)
    rig.log.write({G0: [Promised(ballot(2))]})
    for _ in range(2):
        with pytest.raises(StorageError, match=f"{rig.path / 'log'} has failed"):
            rig.log.pump(may_wait=True)
    rig.take()
    assert len(rig.failures) == gate.commits == 1, "it is said once, and not tried again"
    assert rig.log.durable == 1
    rig.disk.close()
    assert loaded(rig.path).ballot == ballot(1)


def _thread() -> str:
    return threading.current_thread().name


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
    with pytest.raises(ValueError, match="out of range"):
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
    root = ROOT
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
    assert not identity.read_disk(path)[1].clean
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


if __name__ == "__main__":
    child(Path(sys.argv[1]), int(sys.argv[2]))


# Staged payloads

PAYLOAD = b"".join(number.to_bytes(4, "big") for number in range(3 * 4096))


def staged(rig: Rig, payload: bytes = PAYLOAD, pieces: int = 3) -> int:
    """A payload in the log, in pieces, to which records refer."""
    stage = rig.log.stage()
    length = -(-len(payload) // pieces)
    for start in range(0, len(payload), length):
        last = rig.log.stage_piece(stage, payload[start : start + length])
    rig.drain()
    assert rig.log.staged >= last
    rig.log.refer(stage, payload)
    return stage


def acceptance(payload: bytes, sequence: int = 1) -> Accepted:
    mid = MessageId(ClientId(5), sequence, 7)
    return Accepted(((G0,),), (mid,), (timestamp(sequence, G0),), (payload,), (0,), sequence)


def pieces_on_disk(rig: Rig) -> int:
    with rig.log._env._env.begin() as transaction:
        count: int = transaction.stat(rig.log._env[keys.LOG_STAGED])["entries"]
        return count


def test_a_record_refers_to_a_staged_payload(rig: Rig, tmp_path: Path) -> None:
    staged(rig)
    rig.write([acceptance(PAYLOAD)])
    with rig.log._env._env.begin() as transaction:
        [(_, value)] = transaction.cursor(rig.log._env[keys.LOG_ROWS])
    assert len(value) < 200
    after = rig.crash(tmp_path / "crash")
    assert after.log.load(G0) == fold([acceptance(PAYLOAD)])
    after.disk.close()


def test_an_equal_payload_that_was_not_staged_is_written(rig: Rig, tmp_path: Path) -> None:
    """Objects are compared, not bytes: that would take as long as to write them."""
    stage = staged(rig)
    rig.write([acceptance(bytes(bytearray(PAYLOAD)))])
    rig.log.unstage(stage)
    rig.write([acceptance(b"", 2)])
    assert not pieces_on_disk(rig)
    assert loaded_after_crash(rig, tmp_path) == fold([acceptance(PAYLOAD)], [acceptance(b"", 2)])


def loaded_after_crash(rig: Rig, tmp_path: Path) -> Durable:
    after = rig.crash(tmp_path / f"crash {time.monotonic_ns()}")
    try:
        return after.log.load(G0)
    finally:
        after.disk.close()


def test_a_staged_payload_stays_while_a_row_or_a_base_refers_to_it(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "FOLD_BYTES", 3 * log.ROW_BYTES)
    stage = staged(rig)
    accepted, mid = acceptance(PAYLOAD), acceptance(PAYLOAD).mids[0]
    rig.write([accepted])  # it counts with its payload, and so becomes a base
    rig.log.unstage(stage)
    others = [[acceptance(b"", number)] for number in range(2, 12)]
    rig.write(*others)
    assert pieces_on_disk(rig) == 3
    expected = [[accepted], *others]
    assert loaded_after_crash(rig, tmp_path) == fold(*expected)
    later: list[list[Record]] = [[Dropped((mid,))]]
    later += [[acceptance(b"", number)] for number in range(12, 22)]
    rig.write(*later)
    assert pieces_on_disk(rig) == 0
    assert loaded_after_crash(rig, tmp_path) == fold(*expected, *later)


def test_a_restart_keeps_what_records_refer_to_and_no_more(rig: Rig, tmp_path: Path) -> None:
    staged(rig)
    rig.write([acceptance(PAYLOAD)])
    staged(rig, b"never ordered" * 100)
    assert pieces_on_disk(rig) == 6
    after = rig.crash(tmp_path / "crash")
    after.write([acceptance(b"", 2)], group=G1)
    assert pieces_on_disk(after) == 3, "all groups were read at the start: nothing refers to the rest"
    assert after.log.load(G0) == fold([acceptance(PAYLOAD)])
    after.write([acceptance(b"", 3)])
    assert pieces_on_disk(after) == 3
    assert loaded_after_crash(after, tmp_path) == fold([acceptance(PAYLOAD)], [acceptance(b"", 3)])
    after.disk.close()


@pytest.mark.parametrize("index", range(3))
def test_a_missing_piece_is_noticed(rig: Rig, tmp_path: Path, index: int) -> None:
    stage = staged(rig)
    rig.write([acceptance(PAYLOAD)])
    rig.disk.close()
    with lmdb.open(str(rig.path / "log"), max_dbs=32, lock=False) as env:
        database = env.open_db(keys.LOG_STAGED)
        with env.begin(write=True) as transaction:
            assert transaction.delete(keys.piece_key(stage, index), db=database)
    with pytest.raises(DamagedLog, match="staged") as found:
        loaded(rig.path)
    assert [*(found.value.groups or ())] == [G0], "only the group that refers to it begins anew"


def test_small_batches_pass_pieces(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch waits for one piece at most, however many wait."""
    gate = Gate(monkeypatch)
    stage = rig.log.stage()
    for _ in range(10):
        rig.log.stage_piece(stage, bytes(10_000))
    rig.log.pump()
    number = rig.log.write({G0: [acceptance(b"")]})
    rig.log.pump()
    gate.tickets.release(2)
    while rig.log.durable < number:
        rig.take()
        rig.log.pump()
    assert gate.commits == 2
    assert rig.log.staged == 1
    gate.tickets.release(100)
    rig.drain()
    assert rig.log.staged == 10


def test_pieces_do_not_wait_for_ever_behind_batches(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PIECES", 2)
    gate = Gate(monkeypatch)
    rig.log.write({G0: [acceptance(b"", 1)]})
    rig.log.pump()
    rig.log.stage_piece(rig.log.stage(), bytes(10_000))
    for sequence in range(2, 10):
        gate.tickets.release()
        rig.log.write({G0: [acceptance(b"", sequence)]})
        rig.take()
        rig.log.pump()
    assert rig.log.staged == 1
    gate.tickets.release(100)
    rig.drain()
