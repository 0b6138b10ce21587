"""Files that only their owner may read, whatever the umask."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.config.private import make_private, open_private, tighten, warn_if_readable


@pytest.fixture(params=[0, 0o022, 0o077, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    old = os.umask(request.param)
    yield request.param
    os.umask(old)


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o777


def test_files_and_folders_are_private(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "a" / "b"
    make_private(folder)
    assert mode(folder) == mode(folder.parent) == 0o700
    os.close(open_private(folder / "file", os.O_WRONLY | os.O_CREAT))
    assert mode(folder / "file") & ~umask == 0o600 & ~umask
    (folder / "old").touch()
    (folder / "old").chmod(0o666)
    os.close(open_private(folder / "old", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    assert mode(folder / "old") == 0o600


def test_an_existing_folder_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert mode(tmp_path) == 0o755


def test_what_an_earlier_version_left_is_tightened_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "data.mdb").touch()
    outside = tmp_path.parent / "outside"
    outside.touch()
    outside.chmod(0o644)
    (tmp_path / "link").symlink_to(outside)
    for path in (tmp_path, tmp_path / "log", tmp_path / "log" / "data.mdb"):
        path.chmod(0o755)
    caplog.set_level(logging.INFO)
    tighten(tmp_path, tmp_path.rglob("*"))
    assert mode(tmp_path) == mode(tmp_path / "log") == 0o700
    assert mode(tmp_path / "log" / "data.mdb") == 0o600
    assert mode(outside) == 0o644  # a link leads to files that are not ours
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: took other users' access from 3 files and folders"
    ]
    tighten(tmp_path, [*tmp_path.rglob("*"), tmp_path / "gone"])
    assert len(caplog.records) == 1


def test_a_file_that_every_user_may_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "cluster.toml"
    file.touch()
    for readable in (0o600, 0o640):
        file.chmod(readable)
        warn_if_readable(file)
    assert not caplog.records
    file.chmod(0o644)
    warn_if_readable(file)
    assert f"chmod 600 {file}" in caplog.text
