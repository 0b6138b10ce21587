"""Large transactions within the limits, on real processes: they complete, and small ones go on beside them.

Nothing here measures time: what counts is that everything completes, that no link is reset or loses its
queue, and how many small transactions complete beside the large ones.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import wbkv

from kvstore.local.cluster import LocalCluster
from kvstore.local.status import ask
from tests.faults.harness import PATIENCE_S

MIB = 1 << 20


def link_count(cluster: LocalCluster, name: str) -> int:
    """The sum of a counter over all links between nodes."""
    found = 0
    for node in cluster.config.nodes:
        status = ask(cluster.config.status_socket(node), PATIENCE_S)
        assert status is not None
        found += sum(peer[name] for peer in status["transport"]["peers"].values())
    return found


def large(client: wbkv.Client[bytes], tag: str, size: int, value: bytes) -> None:
    """Write keys of all partitions in one transaction, of about `size` bytes."""
    keys = (f"{tag}/{number:04}" for number in range(size // (len(value) + 64)))
    client.txn().then(*(wbkv.put(key, value) for key in keys)).commit(timeout=PATIENCE_S)


class SmallOnes:
    """A client of its own, in a thread, that puts small values until it is stopped."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.completed = 0
        self.failures: list[BaseException] = []
        self._stopped = threading.Event()
        self._cluster = cluster
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SmallOnes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive(), "a small transaction has not ended"

    def _run(self) -> None:
        try:
            with wbkv.connect(self._cluster.addresses) as client:
                for number in itertools.count():
                    if self._stopped.is_set():
                        return
                    client.put(f"small/{number % 64}", b"x", timeout=PATIENCE_S)
                    self.completed += 1
        except BaseException as error:  # noqa: BLE001 - the test reports it
            self.failures.append(error)


@contextmanager
def cluster_of(folder: Path, partitions: int) -> Iterator[LocalCluster]:
    with LocalCluster(folder / "cluster", 3, partitions, durability="os", restart=False) as cluster:
        assert cluster.wait_serving(PATIENCE_S)
        yield cluster


def test_a_transaction_at_the_limit_over_eight_partitions_completes(tmp_path: Path) -> None:
    """It stopped the cluster for good: its payload went to every replica of every group, again and again."""
    with cluster_of(tmp_path, 8) as cluster, wbkv.connect(cluster.addresses) as client:
        client.put("before", b"x", timeout=PATIENCE_S)
        large(client, "large", 8 * MIB - 200_000, bytes(100_000))
        client.put("after", b"x", timeout=PATIENCE_S)
        assert client.get("large/0080", timeout=PATIENCE_S) is not None
        assert link_count(cluster, "resets") == link_count(cluster, "epochs") == 0


def test_small_transactions_go_on_beside_large_ones(tmp_path: Path) -> None:
    """Two clients with 7 MiB transactions: no link is reset, and nothing fails."""
    with cluster_of(tmp_path, 4) as cluster, SmallOnes(cluster) as small:
        failures: list[BaseException] = []

        def run(number: int) -> None:
            try:
                with wbkv.connect(cluster.addresses) as client:
                    for count in range(3):
                        large(client, f"{number}/{count}", 7 * MIB, bytes(500_000))
            except BaseException as error:  # noqa: BLE001 - reported below
                failures.append(error)

        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * PATIENCE_S)
            assert not thread.is_alive(), f"a large transaction has not ended; {small.completed} small ones"
        assert not failures
        assert not small.failures
        assert link_count(cluster, "resets") == 0
        assert link_count(cluster, "epochs") == 0
        assert small.completed > 12, "large transactions have held small ones up"  # two for each large one
