"""All rows of a group are checked in steps, and a state that was set aside stays so across restarts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvstore.storage.errors import DamagedRow, StorageError
from kvstore.storage.marks import ASIDE, GroupMarks
from kvstore.storage.store import CHECK_ROWS
from tests.unit.kvstore.storage.disks import G0, G1, StoreRig
from tests.unit.kvstore.storage.test_corruption import NAMES, VALUES, flip, names

__all__ = ["names"]  # a fixture


def test_all_rows_are_checked_in_small_steps(store: StoreRig) -> None:
    keys = [f"{number:05}".encode() for number in range(3 * CHECK_ROWS)]
    for key in keys:
        store.map().put(key, "value")
    store.map().put(b"x" * 3000, "long")
    store.flush()
    steps = list(store.state.check_rows(G0))
    assert max(steps) <= CHECK_ROWS
    assert sum(steps) >= len(keys) + 1
    assert store.state.rows() >= len(keys) + 1


@pytest.mark.parametrize("part", [NAMES[0], NAMES[17], NAMES[-1], b"of 23", b"what is known"])
def test_a_check_finds_any_changed_row(names: StoreRig, part: bytes) -> None:
    rig = StoreRig(names.path)
    rig.flush(b"what is known")
    rig.disk.close()
    rig = StoreRig(names.path)
    assert sum(rig.state.check_rows(G0)) >= len(NAMES)
    rig.map()  # the group is loaded before its disk goes bad
    rig.disk.close()
    assert flip(names.path / "state", part, 2) > 0
    rig = StoreRig(names.path)
    try:
        with pytest.raises(DamagedRow):
            sum(rig.state.check_rows(G0))
    finally:
        rig.disk.close()


def test_a_state_that_is_about_to_be_replaced_is_not_checked(names: StoreRig) -> None:
    assert flip(names.path / "state", NAMES[3]) > 0
    rig = StoreRig(names.path)
    try:
        rig.state.drop(G0)
        assert sum(rig.state.check_rows(G0)) == 0
    finally:
        rig.disk.close()


def test_a_restart_does_not_forget_that_a_state_was_set_aside(names: StoreRig) -> None:
    """Even if all its rows can be read: what it has may be wrong in a way that no checksum shows."""
    rig = StoreRig(names.path)
    good = list(rig.state.snapshot(G0, rig.image(b"")))
    rig.state.drop(G0, "it differs from two others")
    rig.disk.close()
    for _ in range(2):
        rig = StoreRig(names.path)
        with pytest.raises(DamagedRow, match="set aside before a restart: it differs from two others"):
            rig.state.load(G0)
        with pytest.raises(DamagedRow):
            rig.state.open(G0)
        rig.state.load(G1)
        rig.disk.close()
    rig = StoreRig(names.path)
    rig.state.drop(G0, "again")
    rig.state.install(G0, good)
    assert (names.path / "aside-0").exists(), "removed before another state is durable"
    rig.flush()
    assert not (names.path / "aside-0").exists()
    rig.disk.close()
    rig = StoreRig(names.path)
    try:
        assert dict(rig.map().items(b"", None)) == VALUES
    finally:
        rig.disk.close()


def test_a_mark_is_the_file_whatever_its_bytes_are(tmp_path: Path) -> None:
    marks = GroupMarks(tmp_path, ASIDE)
    marks.put(G1, "reason")
    marks.put(G1, "another reason")
    (tmp_path / "aside-0").write_bytes(b"\xff\xfe" * 5000)
    (tmp_path / "aside-x").touch()
    (tmp_path / "new-aside-7").touch()
    found = GroupMarks(tmp_path, ASIDE)
    assert found.get(G1) == "another reason"
    assert found.get(G0) is not None
    assert (tmp_path / "aside-1").stat().st_mode & 0o077 == 0
    found.remove(G0)
    found.remove(G0)
    assert GroupMarks(tmp_path, ASIDE).get(G0) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_mark_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="aside-0 cannot be written"):
        GroupMarks(tmp_path, ASIDE).put(G0, "reason")
