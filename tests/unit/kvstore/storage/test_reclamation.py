"""A disk's files shrink to what is in use; a crash leaves the old file or the new one, whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest

from kvstore import storage
from kvstore.storage import reclamation
from kvstore.storage.errors import StorageError
from kvstore.storage.identity import LOG, STATE, Identity
from multicast.durable import Promised
from tests.unit.kvstore.storage.disks import CLUSTER, G0, NODE, StoreRig, ballot

KEPT: Final = {b"kept": "value", b"empty": ""}
LARGE: Final = "x" * 4000
MANY: Final = 1000


class Crash(BaseException):
    """The process ends here."""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A disk that has had far more than it has, in its state and in its log."""
    path = tmp_path / "disk"
    storage.create(path, Identity.new(CLUSTER, NODE, keeps="store"))
    rig = StoreRig(path)
    names = rig.map()
    for key, value in KEPT.items():
        names.put(key, value)
    for number in range(MANY):
        names.put(b"%d" % number, LARGE)
    rig.flush()
    for number in range(MANY):
        names.delete(b"%d" % number)
    rig.flush()
    rig.write([Promised(ballot(7))])
    rig.disk.close()
    return path


def contents(path: Path) -> tuple[dict[bytes, str], int]:
    """What the disk has, as its node finds it."""
    rig = StoreRig(path)
    try:
        return dict(rig.map().items(b"", None)), rig.log.load(G0).ballot.number
    finally:
        rig.disk.close()


def size(path: Path) -> int:
    return (path / STATE / "data.mdb").stat().st_size


def test_a_file_shrinks_to_what_is_in_use(disk: Path) -> None:
    rig = StoreRig(disk)
    before = rig.state.usage()
    rig.disk.close()
    assert before.file == size(disk) > MANY * len(LARGE)
    assert before.free > before.file * 0.9
    found = storage.reclaim(disk)
    assert found == {STATE: before}
    assert size(disk) < before.used + (1 << 16)
    assert contents(disk) == (KEPT, 7)
    rig = StoreRig(disk)
    assert rig.state.usage().file == size(disk)
    rig.disk.close()
    assert (disk / STATE / "data.mdb").stat().st_mode & 0o777 == 0o600
    assert storage.reclaim(disk) == {}, "there is nothing to give back"
    assert sorted(os.listdir(disk / STATE)) == ["data.mdb"]
    assert not (disk / reclamation.MARK).exists()


def test_the_log_shrinks_too(disk: Path) -> None:
    with lmdb.open(str(disk / LOG), max_dbs=8, lock=False, create=False) as env:
        env.set_mapsize(64 << 20)
        extra = env.open_db(b"extra")
        with env.begin(write=True) as transaction:
            for number in range(MANY):
                transaction.put(b"%d" % number, LARGE.encode(), db=extra)
        with env.begin(write=True) as transaction:
            transaction.drop(extra)
    assert set(storage.reclaim(disk)) == {STATE, LOG}
    assert contents(disk) == (KEPT, 7)


STEPS: Final = [
    (reclamation, "_copy", 0), (reclamation, "_copy", 1), (reclamation, "_swap", 0),
    (reclamation, "_swap", 1),
    (os, "fsync", 0), (os, "fsync", 1), (os, "replace", 0), (os, "replace", 1),
]  # fmt: skip
"""Where the process ends: before a step, or after it."""


@pytest.mark.parametrize(("module", "step", "after"), STEPS)
def test_a_crash_leaves_the_old_file_or_the_new_one(
    disk: Path, monkeypatch: pytest.MonkeyPatch, module: Any, step: str, after: int
) -> None:
    done: Callable[..., Any] = getattr(module, step)
    large = size(disk)

    def crash(*arguments: Any) -> None:
        if after:
            done(*arguments)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(module, step, crash)
        with pytest.raises(Crash):
            storage.reclaim(disk)
    assert size(disk) in (large, *range(large // 10))
    assert contents(disk) == (KEPT, 7)
    assert os.listdir(disk / STATE) == ["data.mdb"], "what is left of the copy is removed"
    if (disk / reclamation.MARK).exists():
        with pytest.raises(StorageError, match="the last attempt to reclaim space did not end"):
            storage.reclaim(disk)
    assert contents(disk) == (KEPT, 7)
    storage.reclaim(disk)
    assert size(disk) < large // 10
    assert sorted(os.listdir(disk / STATE)) == ["data.mdb"]
    assert contents(disk) == (KEPT, 7)


def test_the_copy_is_durable_before_it_takes_the_place(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(file: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        fsync(file)

    def replaced(source: Path, target: Path) -> None:
        done.append(f"{source.name} becomes {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    storage.reclaim(disk)
    assert done == ["disk", "data.mdb.copy", "state", "data.mdb.copy becomes data.mdb", "state"]


def test_half_a_copy_is_never_the_file(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends while it copies."""
    large = size(disk)

    def half(env: lmdb.Environment, new: Path) -> None:
        new.write_bytes((disk / STATE / "data.mdb").read_bytes()[: large // 2])
        raise Crash

    monkeypatch.setattr(reclamation, "_copy", half)
    with pytest.raises(Crash):
        storage.reclaim(disk)
    assert size(disk) == large
    assert contents(disk) == (KEPT, 7)


def test_without_room_for_the_copy_nothing_changes(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (disk / STATE / "data.mdb").read_bytes()
    monkeypatch.setattr(reclamation, "free_bytes", lambda _: 12_345)
    with pytest.raises(
        StorageError, match=r"to reclaim \d+ bytes, \d+ bytes must be free .* and 12345 are; free"
    ):
        storage.reclaim(disk)
    assert (disk / STATE / "data.mdb").read_bytes() == before
    monkeypatch.undo()
    assert set(storage.reclaim(disk)) == {STATE}, "it may be tried again"


def test_a_copy_that_fails_leaves_the_file(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (disk / STATE / "data.mdb").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            storage.reclaim(disk)
    with monkeypatch.context() as patch:
        patch.setattr(reclamation, "_swap", full)
        (disk / reclamation.MARK).unlink(missing_ok=True)
        with pytest.raises(StorageError, match=r"cannot be copied to reclaim its space: .*No space left"):
            storage.reclaim(disk)
    assert (disk / STATE / "data.mdb").read_bytes() == before
    assert sorted(os.listdir(disk / STATE)) == ["data.mdb"]
    assert contents(disk) == (KEPT, 7)


def test_a_copy_with_other_rows_is_not_taken(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = reclamation._copy

    def lossy(env: lmdb.Environment, new: Path) -> None:
        copy(env, new)
        other = lmdb.open(str(new), subdir=False, lock=False, max_dbs=8, map_size=1 << 26)
        with other, other.begin(write=True) as transaction:
            name, _ = next(iter(transaction.cursor()))
            transaction.put(b"more", b"", db=other.open_db(name, transaction, create=False))

    monkeypatch.setattr(reclamation, "_copy", lossy)
    with pytest.raises(StorageError, match="has other rows than"):
        storage.reclaim(disk)
    assert contents(disk) == (KEPT, 7)


def test_a_disk_in_use_is_left_alone(disk: Path) -> None:
    rig = StoreRig(disk)
    try:
        with pytest.raises(StorageError, match="is in use by process"):
            storage.reclaim(disk)
    finally:
        rig.disk.close()


def test_a_file_that_was_cut_short_is_left_to_the_start(disk: Path) -> None:
    os.truncate(disk / STATE / "data.mdb", size(disk) // 2)
    with pytest.raises(StorageError, match="was cut short"):
        storage.reclaim(disk)
    assert not (disk / reclamation.MARK).exists()
