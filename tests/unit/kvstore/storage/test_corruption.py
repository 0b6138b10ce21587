"""Bits that flip in LMDB's own files: in keys, in values, in pages; and files that are cut short."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import pytest

from kvstore.storage import environment, keys, meta_page
from kvstore.storage.errors import DamagedLog, DamagedRow, DamagedState, StorageError
from multicast.durable import Promised
from multicast.types import GroupId
from tests.unit.kvstore.storage.disks import G0, G1, Rig, StoreRig, ballot, loaded

FLIP = 0x10
G2 = GroupId(2)


def flip(path: Path, found: bytes, at: int = 0) -> int:
    """Flip a bit in every copy of some bytes in an environment's file, as a bad disk would."""
    file = path / "data.mdb"
    data = bytearray(file.read_bytes())
    start, count = 0, 0
    while (start := data.find(found, start)) >= 0:
        data[start + at] ^= FLIP
        start += len(found)
        count += 1
    file.write_bytes(data)
    return count


def swap(path: Path, database: bytes, one: bytes, other: bytes) -> None:
    """Give two keys each other's values."""
    with lmdb.open(str(path), max_dbs=32, lock=False, create=False) as env:
        db = env.open_db(database, create=False)
        with env.begin(db, write=True) as transaction:
            first, second = transaction.get(one), transaction.get(other)
            assert first is not None
            assert second is not None
            transaction.put(one, second)
            transaction.put(other, first)


NAMES = [f"user-{number:03}".encode() for number in range(40)]
VALUES = {name: f"of {number}" for number, name in enumerate(NAMES)}


@pytest.fixture
def names(store: StoreRig) -> StoreRig:
    """A disk with a table of keys, closed."""
    for name in NAMES:
        store.map().put(name, VALUES[name])
    store.flush()
    store.disk.close()
    return store


def test_a_key_that_has_changed_is_noticed_by_every_scan(names: StoreRig) -> None:
    assert flip(names.path / "state", b"user-017") > 0
    rig = StoreRig(names.path)
    try:
        with pytest.raises(DamagedRow, match=f"{names.path}/state, group 0, table names"):
            list(rig.map().items(b"", None))
        with pytest.raises(DamagedRow):
            list(rig.map().items(b"", None, reverse=True))
    finally:
        rig.disk.close()


@pytest.mark.parametrize("damaged", NAMES)
@pytest.mark.parametrize("at", [0, 6])
def test_a_key_that_has_changed_does_not_just_go_missing(names: StoreRig, damaged: bytes, at: int) -> None:
    """Not by a get of that key, and none that the changed key leads astray."""
    assert flip(names.path / "state", damaged, at) > 0
    rig = StoreRig(names.path)
    try:
        for name in NAMES:
            try:
                found = rig.map().get(name)
            except DamagedRow:
                continue
            assert found == VALUES[name]
            assert name != damaged
    finally:
        rig.disk.close()


@pytest.mark.parametrize("damaged", NAMES)
@pytest.mark.parametrize("at", [0, 6])
def test_a_key_that_has_changed_does_not_shorten_a_range(names: StoreRig, damaged: bytes, at: int) -> None:
    """Wherever the range begins and ends: it is whole, or an error."""
    assert flip(names.path / "state", damaged, at) > 0
    rig = StoreRig(names.path)
    found = 0
    try:
        for first, last in [(0, 40), (3, 20), (17, 18), (20, 33), (38, 40)]:
            wanted = NAMES[first:last]
            end = wanted[-1] + b"\0"
            for reverse in (False, True):
                try:
                    keys_found = [key for key, _ in rig.map().items(wanted[0], end, reverse=reverse)]
                except DamagedRow:
                    found += 1
                    continue
                assert keys_found == (wanted[::-1] if reverse else wanted)
    finally:
        rig.disk.close()
    assert found


def test_a_missing_key_beside_sound_ones_is_simply_missing(names: StoreRig) -> None:
    rig = StoreRig(names.path)
    try:
        for group in (G0, G1):
            for name in (b"", b"a", b"user-0100", b"user-039", b"z"):
                found = rig.map(group=group).get(name)
                assert (found is not None) == (group == G0 and name in NAMES)
    finally:
        rig.disk.close()


def test_two_rows_that_were_swapped_are_both_wrong(names: StoreRig) -> None:
    group = keys.group_key(G0)
    swap(names.path / "state", keys.table_name("names"), group + NAMES[3], group + NAMES[4])
    rig = StoreRig(names.path)
    try:
        for name in NAMES[3:5]:
            with pytest.raises(DamagedRow, match="the checksum of"):
                rig.map().get(name)
    finally:
        rig.disk.close()


def test_a_row_of_another_table_or_group_is_wrong(store: StoreRig) -> None:
    store.map("names", G0).put(b"\0" * 8, "same")
    store.map("numbers", G0).put(0, "same")
    store.map("names", G1).put(b"\0" * 8, "same")
    store.flush(b"", G0, G1)
    tables = [keys.table_name(name) for name in ("names", "numbers")]
    rows = [dict(store.state._env.read().cursor(store.state._env[table])) for table in tables]
    values = [value for found in rows for value in found.values()]
    assert len(values) == len(set(values)) == 3


def test_a_long_key_that_has_changed_is_noticed(store: StoreRig) -> None:
    long = [b"x" * 600 + name for name in NAMES]
    for key in long:
        store.map().put(key, "long")
    store.flush()
    store.disk.close()
    assert flip(store.path / "state", b"user-021") > 0
    rig = StoreRig(store.path)
    try:
        with pytest.raises(DamagedRow):
            list(rig.map().items(b"", None))
    finally:
        rig.disk.close()


@pytest.mark.parametrize("damaged", NAMES[::8])
def test_a_long_key_that_has_changed_does_not_just_go_missing(store: StoreRig, damaged: bytes) -> None:
    long = {b"x" * 600 + name: VALUES[name] for name in NAMES}
    for key, value in long.items():
        store.map().put(key, value)
    store.flush()
    store.disk.close()
    assert flip(store.path / "state", damaged, 6) > 0
    rig = StoreRig(store.path)
    try:
        with pytest.raises(DamagedRow):
            rig.map().get(b"x" * 600 + damaged)
        for key, value in long.items():
            try:
                found = rig.map().get(key)
            except DamagedRow:
                continue
            assert found == value
    finally:
        rig.disk.close()


def test_the_way_to_a_long_key_does_not_just_go_missing(store: StoreRig) -> None:
    heads = [name + b"x" * 600 for name in NAMES]
    for head in heads:
        store.map().put(head, "long")
    store.flush()
    store.disk.close()
    assert flip(store.path / "state", NAMES[17], 6) > 0
    rig = StoreRig(store.path)
    try:
        with pytest.raises(DamagedRow):
            rig.map().get(heads[17])
    finally:
        rig.disk.close()


def test_a_long_key_that_has_changed_does_not_shorten_a_range(store: StoreRig) -> None:
    long = [b"x" * 600 + name for name in NAMES]
    for key in long:
        store.map().put(key, "long")
    store.flush()
    store.disk.close()
    assert flip(store.path / "state", NAMES[17], 6) > 0
    rig = StoreRig(store.path)
    try:
        with pytest.raises(DamagedRow):
            list(rig.map().items(long[17], long[18]))
        with pytest.raises(DamagedRow):
            list(rig.map().items(long[17], long[18], reverse=True))
    finally:
        rig.disk.close()


def test_a_missing_long_key_beside_sound_ones_is_simply_missing(store: StoreRig) -> None:
    for group in (G0, G1):
        for length in (0, 470, 480, 481, 600, 960, 961, 1100):
            for name in NAMES[:4]:
                store.map(group=group).put(b"x" * length + name, "v")
    store.flush(b"", G0, G1)
    for group in (G0, G1):
        for length in (0, 470, 480, 481, 600, 960, 961, 1100, 2000):
            for name in (b"", b"a", b"user-0010", b"z"):
                assert store.map(group=group).get(b"x" * length + name) is None
        assert len(list(store.map(group=group).items(b"", None))) == 8 * 4


# Several groups


@pytest.fixture
def groups(store: StoreRig) -> StoreRig:
    """A disk with a table of three groups, closed."""
    for group in (G0, G1, G2):
        for name in NAMES:
            store.map(group=group).put(name, f"of group {group}, {VALUES[name]}.")
    store.flush(b"", G0, G1, G2)
    store.disk.close()
    return store


@pytest.mark.parametrize("number", [0, 39])
def test_a_bad_row_is_not_the_fault_of_the_group_beside_it(groups: StoreRig, number: int) -> None:
    assert flip(groups.path / "state", f"of group 1, of {number}.".encode(), 3) > 0
    rig = StoreRig(groups.path)
    try:
        for group in (G0, G2):
            for name in (b"", b"a", b"z"):
                assert rig.map(group=group).get(name) is None
            for reverse in (False, True):
                found = [key for key, _ in rig.map(group=group).items(b"", None, reverse=reverse)]
                assert found == (NAMES[::-1] if reverse else NAMES)
            rig.state.drop(group)
            rig.commit(b"", group)
            rig.drain()
            assert not rig.state.damaged
            assert not rig.state._group(group).suspect
            assert rig.map(group=group).get(NAMES[0]) is None
        with pytest.raises(DamagedRow):
            rig.map(group=G1).get(NAMES[number])
    finally:
        rig.disk.close()


@pytest.mark.parametrize("number", [0, 1, 20, 39])
@pytest.mark.parametrize("group", [G0, G1, G2])
def test_a_row_that_has_changed_its_group_is_missed_and_replaced(
    groups: StoreRig, group: GroupId, number: int
) -> None:
    assert flip(groups.path / "state", keys.group_key(group) + NAMES[number]) > 0
    rig = StoreRig(groups.path)
    try:
        with pytest.raises(DamagedRow):
            rig.map(group=group).get(NAMES[number])
        for reverse in (False, True):
            with pytest.raises(DamagedRow):
                list(rig.map(group=group).items(b"", None, reverse=reverse))
        rig.state.drop(group)
        rig.map(group=group).put(NAMES[number], "new")
        rig.commit(b"", group)
        rig.drain()
        assert not rig.state.damaged
        assert dict(rig.map(group=group).items(b"", None)) == {NAMES[number]: "new"}
        for other in {G0, G1, G2} - {group}:
            assert [key for key, _ in rig.map(group=other).items(b"", None)] == NAMES
            assert rig.map(group=other).get(b"a") is None
            assert rig.map(group=other).get(b"z") is None
    finally:
        rig.disk.close()


def test_a_checkpoint_that_has_changed_is_replaced_by_a_snapshot(names: StoreRig) -> None:
    rig = StoreRig(names.path)
    rig.flush(b"what the machine knows")
    good = list(rig.state.snapshot(G0, rig.image(b"what the machine knows")))
    rig.disk.close()
    assert flip(names.path / "state", b"what the machine knows", 3) > 0
    rig = StoreRig(names.path)
    try:
        with pytest.raises(DamagedRow):
            rig.state.load(G0)
        rig.state.drop(G0)
        installed = rig.state.install(G0, good)
        assert rig.state.open(G0)[0] is None, "the disk's is not of the state that is installed"
        rig.flush(installed.machine_state)
        saved, maps = rig.state.open(G0)
        assert saved is not None
        assert saved.machine_state == b"what the machine knows"
        assert dict(maps["names"].items(b"", None)) == VALUES
    finally:
        rig.disk.close()


def test_the_way_to_a_long_key_is_checked(store: StoreRig) -> None:
    """The rows that lead to long keys have checksums of their own places."""
    one, other = b"x" * 500, b"y" * 500
    store.map().put(one, "one")
    store.map().put(other, "other")
    store.flush()
    store.disk.close()
    group = keys.group_key(G0)
    marks = [group + key[:480] + b"\0" for key in (one, other)]
    swap(store.path / "state", keys.table_name("names"), *marks)
    rig = StoreRig(store.path)
    try:
        with pytest.raises(DamagedRow):
            rig.map().get(one)
    finally:
        rig.disk.close()


def test_a_row_of_the_log_that_is_missing_is_noticed(path: Path) -> None:
    rig = Rig(path)
    for number in range(1, 5):
        rig.write([Promised(ballot(number))])
    rig.disk.close()
    with lmdb.open(str(path / "log"), max_dbs=8, lock=False, create=False) as env:
        db = env.open_db(keys.LOG_ROWS, create=False)
        with env.begin(db, write=True) as transaction:
            assert transaction.delete(keys.row_key(G0, 2))
    with pytest.raises(StorageError, match="log, group 0, row 3: the checksum of"):
        loaded(path)


def test_a_key_of_the_log_that_has_changed_is_noticed(path: Path) -> None:
    rig = Rig(path)
    rig.log._number = 0x123456789ABC
    rig.write([Promised(ballot(1))])
    rig.disk.close()
    assert flip(path / "log", keys.row_key(G0, 0x123456789ABD), at=9) > 0
    with pytest.raises(StorageError, match=f"log, group 0, row {0x123456789AAD}: the checksum of"):
        loaded(path)


# Files that were cut short


def cut(path: Path, pages: int) -> int:
    """Cut so many pages off an environment's file."""
    file = path / "data.mdb"
    size = file.stat().st_size - 4096 * pages
    os.truncate(file, size)
    return size


def test_the_meta_page_says_how_long_the_file_is(store: StoreRig) -> None:
    for number in range(1000):
        store.map().put(f"{number:06}".encode(), "v" * 100)
        if number % 100 == 0:
            store.flush()
    store.flush()
    store.disk.close()
    for name in ("log", "state"):
        path = store.path / name
        size = (path / "data.mdb").stat().st_size
        meta = meta_page.read_meta(path)
        assert meta.page_bytes == 4096
        assert meta.file_bytes <= size
        with lmdb.open(str(path), lock=False, readonly=True) as env:
            assert meta.last_page == env.info()["last_pgno"]
            assert meta.transaction == env.info()["last_txnid"]


@pytest.mark.parametrize(("name", "error"), [("log", DamagedLog), ("state", DamagedState)])
def test_a_file_that_was_cut_short_is_an_error_and_not_a_signal(
    names: StoreRig, name: str, error: type[StorageError]
) -> None:
    size = cut(names.path / name, 3)
    with pytest.raises(
        error, match=f"{names.path}/{name}/data.mdb was truncated: .* bytes are missing"
    ) as found:
        StoreRig(names.path)
    assert "wbkv repair" in str(found.value)
    assert type(found.value) is error
    assert (names.path / name / "data.mdb").stat().st_size >= size
    with pytest.raises(StorageError):
        StoreRig(names.path).map().get(NAMES[0])


@pytest.mark.parametrize("name", ["log", "state"])
def test_a_file_without_meta_pages_is_an_error(names: StoreRig, name: str) -> None:
    os.truncate(names.path / name / "data.mdb", 100)
    with pytest.raises(StorageError, match=f"{name}/data.mdb has no valid meta page"):
        StoreRig(names.path)


def test_pages_that_nothing_refers_to_may_be_missing(names: StoreRig) -> None:
    """As LMDB leaves them: a file may end before its last page."""
    file = names.path / "state" / "data.mdb"
    data = bytearray(file.read_bytes())
    for start in (0, 4096):
        last = start + 16 + 24 + 96
        data[last : last + 8] = (int.from_bytes(data[last : last + 8], "little") + 2).to_bytes(8, "little")
    file.write_bytes(data)
    rig = StoreRig(names.path)
    assert dict(rig.map().items(b"", None)) == VALUES
    rig.map().put(b"new", "v")
    rig.flush()
    rig.disk.close()


def test_a_file_that_is_cut_short_while_in_use_fails_the_disk(
    store: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "SIZE_S", 0.0)
    for number in range(3):
        store.map().put(b"k", f"{number}" * 100_000)
        store.flush()
    names = store.map()
    cut(store.path / "state", 30)
    names.put(b"k", "x")
    with pytest.raises(StorageError, match=r"state has failed: its file was truncated from .* while in use"):
        store.flush()
