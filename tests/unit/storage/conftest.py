"""A new disk, and an open one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import storage
from kvstore.layout import Identity
from tests.unit.storage.disks import CLUSTER, NODE, Rig


@pytest.fixture
def path(tmp_path: Path) -> Path:
    storage.create(tmp_path / "disk", Identity.new(CLUSTER, NODE))
    return tmp_path / "disk"


@pytest.fixture
def rig(path: Path) -> Iterator[Rig]:
    rig = Rig(path)
    yield rig
    rig.disk.close()
