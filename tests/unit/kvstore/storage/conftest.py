"""A new disk, and an open one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import storage
from kvstore.storage.identity import Identity
from tests.unit.kvstore.storage.disks import CLUSTER, NODE, Rig, StoreRig


@pytest.fixture
def path(tmp_path: Path) -> Path:
    storage.create(tmp_path / "disk", Identity.new(CLUSTER, NODE))
    return tmp_path / "disk"


@pytest.fixture
def rig(path: Path) -> Iterator[Rig]:
    rig = Rig(path)
    yield rig
    rig.disk.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreRig]:
    storage.create(tmp_path / "store", Identity.new(CLUSTER, NODE, "os", "store"))
    rig = StoreRig(tmp_path / "store")
    yield rig
    rig.disk.close()
