"""A changed key in the log: each group has all its records, or is known to be damaged.

A changed key does not only hide its own row. LMDB searches by halves, so it may mislead the searches for
other rows, too; and the row may turn up where no one looks for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import storage
from kvstore.storage import keys, log
from kvstore.storage.errors import DamagedLog
from kvstore.storage.identity import LOG, Identity, read_disk
from multicast.durable import Promised
from multicast.types import GroupId
from tests.unit.kvstore.storage.disks import CLUSTER, NODE, Rig, ballot

GROUPS = [GroupId(group) for group in range(4)]


def make(path: Path, *writes: GroupId, folded: tuple[GroupId, ...] = ()) -> None:
    """Make a disk with a log: one row for each of these groups, in turn; and bases for some."""
    storage.create(path, Identity.new(CLUSTER, NODE, "os"))
    rig = Rig(path)
    for number, group in enumerate(writes, 1):
        rig.write([Promised(ballot(number))], group=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "FOLD_BYTES", 0)
        for number, group in enumerate(folded, len(writes) + 1):
            rig.write([Promised(ballot(number))], group=group)
    rig.disk.close()


def promised(path: Path) -> dict[GroupId, int] | None:
    """Return the promises of the groups that are not damaged; None if no group can be read."""
    try:
        opened = log.LmdbLog(path / LOG, read_disk(path)[0], lambda _: None, lambda _: None)
    except DamagedLog:
        return None
    try:
        return {group: opened.load(group).ballot.number for group in GROUPS if group not in opened.damaged}
    finally:
        opened.close()


def changed(data: bytes, key: bytes, bits: range) -> Iterator[bytes]:
    """Return the file with each of these bits of a key changed, wherever the key is."""
    node = len(key).to_bytes(2, "little") + key
    assert node in data
    for bit in bits:
        other = bytearray(node)
        other[2 + bit // 8] ^= 1 << bit % 8
        yield data.replace(node, bytes(other))


def silent(path: Path, every: list[tuple[bytes, range]]) -> Iterator[str]:
    """Return the changes after which a group lacks records, and is not known to be damaged."""
    truth = promised(path)
    assert truth is not None
    assert truth.keys() == {*GROUPS}
    file = path / LOG / "data.mdb"
    data = file.read_bytes()
    for key, bits in every:
        for number, other in enumerate(changed(data, key, bits)):
            file.write_bytes(other)
            found = promised(path)
            if found is not None and found.items() - truth.items():
                yield f"bit {bits[number]} of {key.hex()}: {found}"
    file.write_bytes(data)


def test_a_changed_key_hides_no_rows_of_other_groups(tmp_path: Path) -> None:
    make(tmp_path / "disk", *GROUPS * 4)
    rows = [(keys.row_key(GROUPS[(number - 1) % 4], number), range(16)) for number in range(1, 17)]
    assert list(silent(tmp_path / "disk", rows)) == []


def test_a_last_row_is_not_taken_for_one_that_is_folded(tmp_path: Path) -> None:
    """Group 0 has made its last promise before group 1 has a base: its row would be one to delete."""
    zero, one = GROUPS[:2]
    make(tmp_path / "disk", zero, zero, one, one, folded=(one,))
    assert list(silent(tmp_path / "disk", [(keys.row_key(zero, 2), range(16))])) == []


def test_a_base_is_missed(tmp_path: Path) -> None:
    """After a fold, and in a log that has begun anew, groups have nothing but their bases."""
    make(tmp_path / "disk", folded=tuple(GROUPS))
    bases = [(keys.group_key(group), range(16)) for group in GROUPS]
    assert list(silent(tmp_path / "disk", bases)) == []


def test_a_row_that_lmdb_does_not_list_is_missed(tmp_path: Path) -> None:
    """The page says that it has fewer rows."""
    path = tmp_path / "disk"
    make(path, *GROUPS)
    file = path / LOG / "data.mdb"
    data = bytearray(file.read_bytes())
    node = (10).to_bytes(2, "little") + keys.row_key(GROUPS[3], 4)
    for page in range(0, len(data), 4096):
        if node in data[page : page + 4096]:
            lower = int.from_bytes(data[page + 12 : page + 14], "little")
            data[page + 12 : page + 14] = (lower - 2).to_bytes(2, "little")
    shutil.copytree(path, tmp_path / "copy")
    (tmp_path / "copy" / LOG / "data.mdb").write_bytes(data)
    assert promised(path) == {group: group + 1 for group in GROUPS}
    assert promised(tmp_path / "copy") is None
