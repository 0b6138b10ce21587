"""Disks with little space: alarms before they are full, and commits that wait for space."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import lmdb
import pytest

from kvstore.storage import environment
from kvstore.storage.space import FULL_BYTES, LOOK_S, LOW_BYTES, Level, Space, free_bytes
from multicast.durable import Promised
from tests.unit.kvstore.storage.disks import Gate, Rig, StoreRig, ballot, loaded


class Measured:
    def __init__(self, free: int) -> None:
        self.free = free
        self.looked = 0

    def __call__(self, path: Path) -> int:
        self.looked += 1
        return self.free


def test_the_free_space_is_that_of_the_file_system(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0


def test_levels_have_bounds_and_do_not_flicker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    measured = Measured(LOW_BYTES)
    space = Space(tmp_path, measured)
    steps = [
        (LOW_BYTES, Level.ENOUGH), (LOW_BYTES - 1, Level.LOW), (LOW_BYTES + 1, Level.LOW),
        (FULL_BYTES, Level.LOW), (FULL_BYTES - 1, Level.FULL), (FULL_BYTES + 1, Level.FULL),
        (2 * FULL_BYTES, Level.LOW), (2 * LOW_BYTES, Level.ENOUGH), (0, Level.FULL),
        (LOW_BYTES + 1, Level.LOW),
    ]  # fmt: skip
    with caplog.at_level(logging.WARNING):
        for number, (free, level) in enumerate(steps):
            measured.free = free
            before = space.level
            assert space.look(number * LOOK_S) == (level is not before)
            assert (space.level, space.free) == (level, free)
            assert (space.refusal() is None) == (level is Level.ENOUGH)
    assert f"{tmp_path} is low on space: {LOW_BYTES - 1} bytes are free" in caplog.text
    assert "is full on space" in caplog.text
    assert "space is back" in caplog.text
    assert str(tmp_path) in str(space.refusal())
    assert str(LOW_BYTES) in str(space.refusal())


def test_the_file_system_is_asked_now_and_then_and_a_stalled_commit_counts_at_once(tmp_path: Path) -> None:
    measured = Measured(2 * LOW_BYTES)
    space = Space(tmp_path, measured)
    for now in (0.0, 0.1, 0.5 * LOOK_S):
        assert not space.look(now)
    assert measured.looked == 1
    assert space.look(0.6 * LOOK_S, stalled=True)
    assert space.level is Level.FULL
    assert not space.look(0.7 * LOOK_S, stalled=True)
    assert space.look(1.7 * LOOK_S)
    assert space.refusal() is None


NO_SPACE = lmdb.DiskError("mdb_txn_commit: No space left on device")
setattr(NO_SPACE, "code", errno.ENOSPC)  # noqa: B010 - as LMDB's own errors have it


@pytest.mark.parametrize("may_wait", [False, True])
def test_a_commit_without_space_is_repeated_and_nothing_is_durable_before(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, may_wait: bool
) -> None:
    rig.write([Promised(ballot(1))])
    durable = rig.log.durable
    monkeypatch.setattr(environment, "STALLED_S", 0.0)
    gate = Gate(monkeypatch)
    gate.error = NO_SPACE
    gate.tickets.release()
    number = rig.log.write({0: [Promised(ballot(2))]})  # type: ignore[dict-item]  # a group
    rig.log.pump(may_wait=may_wait)
    if not may_wait:
        rig.take()
    stalled = rig.log.stalled
    assert stalled
    assert rig.log.durable == durable
    assert rig.log.load(0).ballot == ballot(1)  # type: ignore[arg-type]  # reads go on
    assert rig.failures == []
    gate.tickets.release(9)
    rig.drain()
    while rig.log.durable < number:
        rig.log.pump(may_wait=may_wait)
    stalled = rig.log.stalled
    assert not stalled
    rig.disk.close()
    assert loaded(rig.path).ballot == ballot(2)


def test_a_state_without_space_goes_on_reading(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    store.map().put(b"k", "v")
    store.flush()
    gate = Gate(monkeypatch)
    gate.error = NO_SPACE
    gate.tickets.release(9)
    store.map().put(b"l", "w")
    store.commit()
    store.pump()
    store.state._env._idle.wait()
    store.pump()
    assert store.state.stalled
    assert store.state._env.busy
    assert dict(store.map().items(b"", None)) == {b"k": "v", b"l": "w"}
    assert store.committed == [{0: 0}]
    monkeypatch.setattr(store.state._env._job, "again_at", 1e-9)
    store.drain()
    assert store.committed == [{0: 0}, {0: 0}]
    assert not store.state.stalled


def test_a_disk_without_space_can_be_closed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    gate.error = NO_SPACE
    gate.tickets.release(9)
    rig.log.write({0: [Promised(ballot(2))]})  # type: ignore[dict-item]  # a group
    rig.log.pump()
    rig.take()
    rig.disk.close()
    assert loaded(rig.path).ballot.number == 0


def test_a_write_that_did_not_fit_as_a_whole_is_a_lack_of_space(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB reports it as an I/O error: which it is, if there is space."""
    failed = lmdb.Error("mdb_txn_commit: Input/output error")
    setattr(failed, "code", errno.EIO)  # noqa: B010 - as LMDB's own errors have it
    gate = Gate(monkeypatch)
    gate.error = failed
    gate.tickets.release(9)
    monkeypatch.setattr(environment, "free_bytes", lambda _: environment.SHORT_BYTES - 1)
    rig.log.write({0: [Promised(ballot(1))]})  # type: ignore[dict-item]  # a group
    rig.log.pump()
    rig.take()
    assert rig.log.stalled
    monkeypatch.setattr(rig.log._env._job, "again_at", 1e-9)
    rig.drain()
    gate.error = failed
    monkeypatch.setattr(environment, "free_bytes", lambda _: environment.SHORT_BYTES)
    rig.log.write({0: [Promised(ballot(2))]})  # type: ignore[dict-item]  # a group
    rig.log.pump()
    rig.take()
    assert len(rig.failures) == 1
