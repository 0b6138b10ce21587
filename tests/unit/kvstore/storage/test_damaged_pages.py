"""Damage in LMDB's pages: nothing wrong is read, and a process that dies of it does not do so for ever."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kvstore import storage
from kvstore.storage import lives
from kvstore.storage.errors import DamagedRow, DamagedState, NotChecked, StorageError
from tests.campaigns import CAMPAIGN
from tests.unit.kvstore.storage import damaged_pages
from tests.unit.kvstore.storage.disks import G0, StoreRig

SEEDS = 400 if CAMPAIGN else 25


def outcomes(template: Path, work: Path, seeds: int) -> Counter[str]:
    """Return how often each outcome is seen. A process that dies is followed by another."""
    found: Counter[str] = Counter()
    seed = 0
    while seed < seeds:
        arguments = [sys.executable, "-m", damaged_pages.__name__, *map(str, (template, work, seed, seeds))]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=600)  # noqa: S603
        lines = done.stdout.splitlines()
        for line in lines:
            number, what, how = line.split(" ", 2)
            if what == "ends:":
                assert not how.startswith("WRONG"), f"seed {number}: {how} after {lines[-2]}"
                found[how] += 1
                seed = int(number) + 1
        if seed < seeds:
            assert done.returncode < 0, f"seed {seed}: {done.stderr}"  # by a signal
            found["died"] += 1
            seed += 1
    return found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "disk"
    damaged_pages.fill(path)
    return path


def test_nothing_wrong_is_read_from_damaged_pages(template: Path, tmp_path: Path) -> None:
    """Each read by itself is right, or notices damage. Only what a page has lost without a trace, which needs
    luck, is missing until a check of all rows or a comparison of replicas finds it.

    Seeds 8, 49 and 155: a cursor came to a page without rows, and said that there was nothing before it; so
    thousands of keys of other pages were taken for missing.
    """
    found = outcomes(template, tmp_path / "disk", SEEDS)
    assert found["missing"] <= SEEDS // 50, found
    assert sum(found.values()) == SEEDS
    assert found["noticed"] + found["refused"] + found["died"] > SEEDS // 10, found


def test_a_node_that_dies_again_and_again_is_told_what_to_do(template: Path, tmp_path: Path) -> None:
    """It is not opened again by its process: the check does that in another."""
    path = tmp_path / "disk"
    shutil.copytree(template, path)
    file = path / "state" / "data.mdb"
    data = bytearray(file.read_bytes())
    for page in range(2, len(data) // 4096):
        data[4096 * page + 10] ^= 0x3F  # its flags, that is, its kind
    file.write_bytes(data)
    for _ in range(lives.DEATHS):
        lives.begin(path)
    with pytest.raises(DamagedState, match="`wbkv repair` says what can be done"):
        StoreRig(path)
    kept = storage.replace_state(path)
    assert kept.exists()
    rig = StoreRig(path)
    assert list(rig.map().items(b"", None)) == []
    rig.disk.close()
    assert lives.begin(path) == 0, "a life that has ended well"


def test_a_log_that_kills_its_node_is_refused(template: Path, tmp_path: Path) -> None:
    path = tmp_path / "disk"
    shutil.copytree(template, path)
    file = path / "log" / "data.mdb"
    data = bytearray(file.read_bytes())
    for page in range(2, len(data) // 4096):
        data[4096 * page + 10] ^= 0x3F
    file.write_bytes(data)
    for _ in range(lives.DEATHS):
        lives.begin(path)
    with pytest.raises(StorageError, match="log cannot be read safely") as refused:
        StoreRig(path)
    assert not isinstance(refused.value, DamagedState), "a log is not replaced"


def test_lives_are_counted_until_one_goes_well(tmp_path: Path) -> None:
    assert [lives.begin(tmp_path) for _ in range(4)] == [0, 1, 2, 3]
    lives.settle(tmp_path)
    assert lives.begin(tmp_path) == 0
    (tmp_path / lives.FILE).write_bytes(b"\xff not a number")
    assert lives.begin(tmp_path) == 0
    lives.suspect(tmp_path)
    assert lives.is_check_due(lives.begin(tmp_path))
    assert [n for n in range(20) if lives.is_check_due(n)] == [2, 4, 8, 16]


def test_a_sound_disk_passes_the_check(template: Path, tmp_path: Path) -> None:
    path = tmp_path / "disk"
    shutil.copytree(template, path)
    lives.suspect(path)
    rig = StoreRig(path)
    assert len(list(rig.map().items(b"", None))) == len(damaged_pages.ROWS)
    rig.disk.close()


@pytest.mark.parametrize("end", ["kill -9 $$", "kill -15 $$", "exit 1", "exit 127"])
def test_a_check_that_is_killed_proves_nothing(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Who kills nodes in their first minute, may kill their checks. Sound states must not go for that."""
    path = tmp_path / "disk"
    shutil.copytree(template, path)
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{end}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    for _ in range(10):
        lives.begin(path)
    lives.suspect(path)
    rig = StoreRig(path)
    assert len(list(rig.map().items(b"", None))) == len(damaged_pages.ROWS)
    rig.disk.close()


def test_a_file_cut_short_is_kept_if_its_check_is_killed(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "disk"
    shutil.copytree(template, path)
    file = path / "state" / "data.mdb"
    size = file.stat().st_size - 4096
    os.truncate(file, size)
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(NotChecked, match="state cannot be checked: exit status -9"):
        StoreRig(path)
    assert file.stat().st_size == size


def test_a_page_without_its_rows_is_noticed(template: Path, tmp_path: Path) -> None:
    """Its header is as it was; in place of keys it has nothing."""
    path = tmp_path / "disk"
    shutil.copytree(template, path)
    file = path / "state" / "data.mdb"
    data = bytearray(file.read_bytes())
    for page in range(2 * 4096, len(data), 4096):
        lower = int.from_bytes(data[page + 12 : page + 14], "little")
        if data[page + 10 : page + 12] == b"\2\0" and b"\0\0row-01500" in data[page : page + 4096]:
            data[page + lower : page + 4096] = bytes(4096 - lower)
    file.write_bytes(data)
    rig = StoreRig(path)
    names = rig.map(group=G0)
    for read in (
        lambda: names.get(b"row-01500"),
        lambda: list(names.items(b"", None)),
        lambda: list(names.items(b"", None, reverse=True)),
    ):
        with pytest.raises(DamagedRow):
            read()
    rig.disk.close()
