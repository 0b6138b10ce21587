"""The disk as a whole: whose it is, how it was left, and what is damaged."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import lmdb
import pytest

from kvstore import storage
from kvstore.config.checks import Durability
from kvstore.storage import checksum, identity, keys, log
from kvstore.storage.errors import LostDisk, StorageError
from kvstore.storage.identity import Identity
from kvstore.storage.records import encode
from multicast.durable import Durable, Promised
from multicast.types import NO_TIMESTAMP
from tests.unit.kvstore.storage.disks import CLUSTER, G0, G1, NODE, Rig, ballot, loaded, traffic


def test_a_disk_is_created_once(tmp_path: Path) -> None:
    identity = Identity.new(CLUSTER, NODE)
    assert 0 < identity.incarnation < 2**63
    storage.create(tmp_path / "a" / "b", identity)
    with pytest.raises(StorageError, match=r"contains a disk already, or remains of one: disk\.json"):
        storage.create(tmp_path / "a" / "b", identity)
    rig = Rig(tmp_path / "a" / "b")
    assert rig.disk.identity == identity
    rig.disk.close()
    (tmp_path / "c" / "log").mkdir(parents=True)
    with pytest.raises(StorageError, match="remains of one: log"):
        storage.create(tmp_path / "c", identity)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be created: File exists"):
        storage.create(tmp_path / "file", identity)


@pytest.mark.parametrize(
    "wrong", [{"cluster": ""}, {"node": ""}, {"incarnation": 0}, {"incarnation": 2**63}, {"durability": "no"}]
)
def test_an_identity_makes_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        dataclasses.replace(Identity.new(CLUSTER, NODE), **wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cluster": "other"}, "is a disk of cluster 'other', not of 'test'"),
        ({"node": "n2"}, "is the disk of node 'n2', not of 'n1'"),
        ({"format": 1}, "has format 1, but this program knows only format 10"),
        ({"incarnation": "x"}, "incarnation must be in 1"),
        ({"clean": 1}, "clean and boot cannot be 1"),
        ({"extra": 1}, "unexpected keyword argument 'extra'"),
        ({"durability": "none"}, "durability must be"),
        ({"keeps": "none"}, "keeps must be"),
        ({"keeps": "store"}, "is a disk for 'store', not for 'deliveries'"),
        ({"incarnation": 5}, r"log is of incarnation [0-9a-f]+, but its disk of 5"),
    ],
)
def test_a_wrong_identity_is_rejected(path: Path, change: dict[str, Any], message: str) -> None:
    file = path / "disk.json"
    right = file.read_text()
    file.write_text(json.dumps(json.loads(right) | change))
    with pytest.raises(StorageError, match=message):
        Rig(path)
    file.write_text(right)
    Rig(path).disk.close()  # a rejected disk is let go


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"x"', "\x00\xff"])
def test_a_damaged_identity_is_rejected(path: Path, text: str) -> None:
    (path / "disk.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(StorageError, match=r"disk\.json"):
        Rig(path)


def test_a_missing_disk_is_rejected(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nothing has no disk: no such directory"):
        Rig(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match=r"empty has no disk: there is no disk\.json"):
        Rig(tmp_path / "empty")
    shutil.rmtree(path / "state")
    with pytest.raises(StorageError, match=r"state/data.mdb cannot be read: No such file"):
        Rig(path)
    (path / "state").mkdir()
    shutil.copy(path / "log" / "data.mdb", path / "state" / "data.mdb")
    with pytest.raises(StorageError, match="state is not a valid environment"):
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


def test_a_disk_records_how_it_was_left(rig: Rig, tmp_path: Path) -> None:
    assert identity.read_disk(rig.path)[1] == identity.Left(clean=False, boot=identity.boot_id())
    rig.disk.close()
    assert identity.read_disk(rig.path)[1].clean


@pytest.mark.parametrize(
    ("durability", "left", "boot", "lost"),
    [
        ("os", "in use", "another", True),
        ("os", "in use", identity.boot_id(), False),
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
    monkeypatch.setattr("kvstore.storage.disk.boot_id", lambda: boot)
    if lost:
        for _ in range(2):
            with pytest.raises(LostDisk, match="when its machine stopped"):
                Rig(copy)
    else:
        assert loaded(copy).ballot == ballot(1)


def test_a_log_that_was_rolled_back_is_lost_for_ever(path: Path) -> None:
    rig = Rig(path)
    rig.disk.log.distrust("g0r1 remembers more")
    rig.take()
    assert isinstance(rig.failures[0].__cause__, LostDisk)
    with pytest.raises(StorageError, match="remembers more"):
        rig.disk.log.write({G0: [Promised(ballot(1))]})
    rig.disk.close()
    for _ in range(2):
        with pytest.raises(LostDisk, match="is an old copy: g0r1 remembers more"):
            Rig(path)


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
    rig.flush()
    rig.disk.close()
    return path


@pytest.mark.parametrize(
    ("store", "database", "key", "where"),
    [
        ("log", keys.LOG_ROWS, None, "log, group 0, row 1: the checksum of"),
        ("log", keys.LOG_BASES, None, "log, group 1, base: the checksum of"),
        ("log", keys.LOG_BASES, b"x", "log, bases: 78 has 1 bytes, not 2"),
        ("log", keys.LOG_BASES, b"\xff\xff", "log, bases: the key ffff has the group 65535"),
        ("log", keys.LOG_ROWS, b"\0\0\0", "log, group 0, rows: 000000 has 3 bytes, not 10"),
        ("log", keys.META, None, "log, incarnation: the checksum of"),
        ("log", keys.META, b"x", "log, incarnation: the checksum of 0 bytes"),
        ("state", keys.STATE_POSITIONS, None, "state, group 0, position: the checksum of"),
        ("state", keys.STATE_CLIENTS, None, "state, group 0, clients: the checksum of"),
        ("state", keys.STATE_CLIENTS, b"\0\0x", "state, group 0, clients: 000078 has 3 bytes"),
        ("state", keys.STATE_ORDER, None, "state, group 0, order: the checksum of"),
        ("state", keys.STATE_ORDER, b"\0\0x", "state, group 0, order: 000078 has 3 bytes"),
        ("state", keys.STATE_DELIVERIES, None, "state, group 0, deliveries up to 20480: the checksum"),
        ("state", keys.STATE_DELIVERIES, b"\0\0\xff", "state, group 0, deliveries: 0000ff has 3 bytes"),
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


def test_a_row_whose_records_do_not_fit_is_rejected(filled: Path) -> None:
    """The checksums are right, but the log before it is not what it was written after."""
    _, delivered = traffic(1)
    rig = Rig(filled)
    rig.write([*delivered])
    rig.disk.close()
    with lmdb.open(str(filled / "log"), max_dbs=8, lock=False, create=False) as env:
        db = env.open_db(keys.LOG_ROWS, create=False)
        with env.begin(db, write=True) as transaction:
            key = keys.row_key(G0, 1)
            transaction.put(key, checksum.seal(encode([], Durable()), log.log_seed(key, 0)))
    with pytest.raises(
        StorageError, match=r"group 0, row 3: not a batch of records: message .* was not accepted"
    ) as found:
        Rig(filled)
    assert type(found.value) is StorageError  # no damage: the node must not begin anew
