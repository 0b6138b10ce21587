"""A damaged log is set aside, and only the groups whose records it has lost begin anew."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest

from kvstore import storage
from kvstore.storage import environment, keys, renewal
from kvstore.storage.errors import DamagedLog, StorageError
from kvstore.storage.identity import LOG, Identity, read_disk, write_disk
from multicast.durable import Accepted, Promised
from multicast.types import BEGUN_MAX, DISK_BITS, ClientId, GroupId, MessageId, disk_of, timestamp
from tests.unit.kvstore.storage.disks import CLUSTER, G0, G1, NODE, Rig, ballot, loaded


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A disk whose log has three rows of two groups each."""
    path = tmp_path / "disk"
    storage.create(path, Identity.new(CLUSTER, NODE))
    rig = Rig(path)
    for number in (1, 2, 3):
        rig.write([Promised(ballot(number))], group=G0)
        rig.write([Promised(ballot(10 + number))], group=G1)
    rig.disk.close()
    return path


def last_row(path: Path, group: GroupId) -> bytes:
    with lmdb.open(str(path / LOG), max_dbs=8, lock=False, create=False) as env:
        db = env.open_db(keys.LOG_ROWS, create=False)
        with env.begin(db) as transaction:
            return max(key for key, _ in transaction.cursor() if key.startswith(keys.group_key(group)))


def damage(path: Path, group: GroupId) -> None:
    """Change a bit in a row of a group."""
    key = last_row(path, group)
    with lmdb.open(str(path / LOG), max_dbs=8, lock=False, create=False) as env:
        db = env.open_db(keys.LOG_ROWS, create=False)
        with env.begin(db, write=True) as transaction:
            value = bytearray(transaction.get(key) or b"")
            value[-1] ^= 1
            transaction.put(key, bytes(value))


def promised(path: Path, group: GroupId) -> int:
    rig = Rig(path)
    number = rig.log.load(group).ballot.number
    rig.disk.close()
    return number


def renew(path: Path) -> DamagedLog:
    """Let the groups begin anew whose records are damaged."""
    with pytest.raises(DamagedLog) as found:
        Rig(path)
    bad = found.value.groups
    storage.renew(path, bad or (G0, G1), readable=bad is not None)
    return found.value


def test_only_the_group_with_the_bad_row_begins_anew(disk: Path) -> None:
    before = (disk / LOG / "data.mdb").read_bytes()
    damage(disk, G1)
    changed = (disk / LOG / "data.mdb").read_bytes()
    assert changed != before
    first, _ = read_disk(disk)
    error = renew(disk)
    assert error.groups is not None
    assert [*error.groups] == [G1]
    assert "group 1, row 6: the checksum" in str(error)
    assert "wbkv repair" in str(error)
    identity, _ = read_disk(disk)
    assert identity == replace(first, begun={G1: 1})
    assert identity.incarnation_of(G0) == first.incarnation
    assert identity.incarnation_of(G1) == first.incarnation + (1 << DISK_BITS)
    assert disk_of(identity.incarnation_of(G1)) == disk_of(first.incarnation)
    assert promised(disk, G0) == 3
    assert promised(disk, G1) == 0
    (kept,) = renewal.kept_logs(disk)
    assert (kept / "data.mdb").read_bytes() == changed
    assert '"begun"' not in (kept / "disk.json").read_text()


def test_the_new_log_goes_on_and_can_be_damaged_again(disk: Path) -> None:
    damage(disk, G1)
    renew(disk)
    rig = Rig(disk)
    rig.write([Promised(ballot(4))], group=G0)
    rig.write([Promised(ballot(21))], group=G1)
    rig.disk.close()
    assert (promised(disk, G0), promised(disk, G1)) == (4, 21)
    damage(disk, G1)
    renew(disk)
    assert (promised(disk, G0), promised(disk, G1)) == (4, 0)
    assert read_disk(disk)[0].begun == {G1: 2}
    assert len(renewal.kept_logs(disk)) == 2


def test_an_unreadable_log_lets_all_groups_begin_anew(disk: Path) -> None:
    file = disk / LOG / "data.mdb"
    file.write_bytes(bytes(file.stat().st_size))
    error = renew(disk)
    assert error.groups is None
    assert "no valid meta page" in str(error)
    assert read_disk(disk)[0].begun == {G0: 1, G1: 1}
    assert (promised(disk, G0), promised(disk, G1)) == (0, 0)


@pytest.mark.parametrize("renames", [0, 1])
def test_a_crash_leaves_the_old_log_or_the_new_one(disk: Path, renames: int) -> None:
    """Never an old log under a new incarnation."""
    damage(disk, G1)
    done: list[Path] = []

    class Crash(Exception):
        pass

    rename = Path.rename

    def crashing(path: Path, target: Path) -> Path:
        if len(done) == renames:
            raise Crash
        done.append(path)
        return rename(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", crashing)
        with pytest.raises(Crash):
            renew(disk)
    assert read_disk(disk)[0].begun == {G1: 1}
    if not renames:
        error = renew(disk)
        assert error.groups is not None
        assert "its records are of 0, not 1" in error.groups[G1]
    assert (promised(disk, G0), promised(disk, G1)) == (3, 0)
    assert read_disk(disk)[0].begun == {G1: 2 - renames}


def test_a_sound_log_of_a_former_beginning_is_not_believed(disk: Path) -> None:
    """As when an operator puts back an old copy of the log."""
    shutil.copytree(disk / LOG, disk.parent / "copy")
    damage(disk, G1)
    renew(disk)
    shutil.rmtree(disk / LOG)
    shutil.copytree(disk.parent / "copy", disk / LOG)
    error = renew(disk)
    assert error.groups is not None
    assert [*error.groups] == [G1]


def test_a_last_row_that_is_found_elsewhere_is_missed(disk: Path) -> None:
    """A bit of its key's group has changed: both groups' records are damaged."""
    key = last_row(disk, G0)
    with lmdb.open(str(disk / LOG), max_dbs=8, lock=False, create=False) as env:
        db = env.open_db(keys.LOG_ROWS, create=False)
        with env.begin(db, write=True) as transaction:
            value = transaction.pop(key)
            transaction.put(keys.group_key(G1) + key[2:], value or b"")
    error = renew(disk)
    assert error.groups is not None
    assert sorted(error.groups) == [G0, G1]
    assert "its last row has the key" in error.groups[G0]


def test_a_replica_cannot_begin_anew_for_ever(disk: Path) -> None:
    damage(disk, G1)
    identity, left = read_disk(disk)
    write_disk(disk, replace(identity, begun={G1: BEGUN_MAX}), left)
    with pytest.raises(StorageError, match="the node needs a new disk"):
        storage.renew(disk, [G1], readable=True)
    with pytest.raises(ValueError, match="group 1 cannot have begun anew"):
        replace(identity, begun={G1: BEGUN_MAX + 1})


@pytest.mark.parametrize("is_staged", [False, True])
def test_sound_groups_keep_large_payloads(
    disk: Path, monkeypatch: pytest.MonkeyPatch, *, is_staged: bool
) -> None:
    """Also more than a new log has room for at first; the staged pieces stay in the old one."""
    payload = bytes(range(256)) * (8 << 10)
    accepted = Accepted(((G0,),), (MessageId(ClientId(5), 1, 7),), (timestamp(1, G0),), (payload,), (0,), 1)
    rig = Rig(disk)
    if is_staged:
        stage = rig.log.stage()
        rig.log.stage_piece(stage, payload)
        rig.drain()
        rig.log.refer(stage, payload)
    rig.write([accepted], group=G0)
    rig.disk.close()
    before = loaded(disk, G0)
    damage(disk, G1)
    monkeypatch.setattr(environment, "MAP_BYTES", 1 << 20)
    renew(disk)
    assert loaded(disk, G0) == before
    assert before.latest[accepted.mids[0]][1] == payload
