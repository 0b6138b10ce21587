"""The clients of the comparison with etcd, briefly, on real nodes; and etcd itself where it is installed."""

from __future__ import annotations

import os
import shutil

import pytest

from benchmarks.comparison.calls import SYSTEMS
from benchmarks.comparison.measuring import Clients, clients
from benchmarks.comparison.rows import ETCD_ROWS, ROWS
from benchmarks.comparison.systems import System, etcd, wbkv
from benchmarks.load import LoadError


def check(load: Clients, row: str, in_flight: int) -> None:
    found = load.measure(row, in_flight, 0.1, 0.3)
    assert found.calls > 0
    assert found.per_second == pytest.approx(found.calls / 0.3)
    assert 0 < found.p50_ms <= found.p99_ms
    assert found.nodes_us >= 0
    assert found.clients_us >= 0


def ended(system: System) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in system.pids.values())


def test_every_row_of_ours() -> None:
    with wbkv() as system, clients(system, 2) as load:
        assert len(system.pids) == len(system.addresses) == 3
        for row in ROWS:
            check(load, row, 3)
        check(load, "put", 1)
    assert ended(system)


@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
def test_every_row_of_etcd() -> None:
    with etcd() as system, clients(system, 2) as load:
        assert len(system.pids) == len(system.addresses) == 3
        for row in set(ETCD_ROWS.values()):
            check(load, row, 3)
    assert ended(system)


def test_calls_that_fail_end_the_measurement() -> None:
    """No node listens there: the client process says why, and no figure comes of it."""
    assert SYSTEMS.keys() == {"etcd", "wbkv"}
    with pytest.raises(LoadError, match="has ended with 1"), clients(System("etcd", ["127.0.0.1:1"], {}), 1):
        pass
