"""Bad and full disks of real nodes: what a node does about its own disk, and what clients notice."""

from __future__ import annotations

import argparse
import os
import random
import shutil
from pathlib import Path
from typing import Any

import grpc
import lmdb
import pytest
import wbkv
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import kv_pb2_grpc
from wbkv_proto.v1.error_pb2 import Error

from kvstore.api.errors import METADATA
from kvstore.commands.repair import RepairCommand
from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from kvstore.local.status import ReplicaStatus
from kvstore.storage import keys
from kvstore.storage.space import FULL_BYTES, LOW_BYTES
from tests.campaigns import CAMPAIGN
from tests.faults.harness import FaultyCluster, control, leader_of, until
from tests.unit.kvstore.storage.damaged_pages import damage

N1, N2, N3 = map(NodeId, ("n1", "n2", "n3"))


def space_of(cluster: LocalCluster, node: NodeId) -> str | None:
    return next(each["space"] for each in cluster.status()["nodes"] if each["id"] == node)


def leaders(cluster: LocalCluster) -> set[str | None]:
    return {group["leader"] for group in cluster.status()["groups"]}


def lags(cluster: LocalCluster) -> set[int | None]:
    return {replica["lag"] for group in cluster.status()["groups"] for replica in group["replicas"]}


def put_at(cluster: LocalCluster, node: NodeId) -> Error:
    """Put a key through one node only; return its error."""
    with grpc.insecure_channel(str(cluster.config.nodes[node].api)) as channel:
        try:
            stub: Any = kv_pb2_grpc.KVStub
            stub(channel).Put(kv.PutRequest(key=b"k", value=b"v"), timeout=10)
        except grpc.RpcError as error:
            call: Any = error
            raw: bytes = dict(call.trailing_metadata())[METADATA]
            return Error.FromString(raw)
    return Error()


def test_a_node_with_little_space_takes_no_writes_and_one_without_space_hands_over(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", 3, 2) as cluster, wbkv.connect(cluster.addresses) as client:
        client.put(b"before", b"1")
        control(cluster, N1, f"space {LOW_BYTES - 1}")
        until(lambda: space_of(cluster, N1) == "low")
        error = put_at(cluster, N1)
        assert error.kind == Error.OVERLOADED
        assert error.retryable
        assert str(cluster.config.data(N1)) in error.message
        assert f"{LOW_BYTES - 1} bytes are free, {LOW_BYTES} are needed" in error.message
        client.put(b"low", b"2")  # the client goes to another node
        assert put_at(cluster, N2) == Error()
        assert "is low on space" in cluster.log(N1).read_text()
        control(cluster, N1, f"space {FULL_BYTES - 1}")
        until(lambda: space_of(cluster, N1) == "full")
        until(lambda: leaders(cluster) <= {"n2", "n3"}, lambda: str(cluster.status()))
        client.put(b"full", b"3")
        with wbkv.connect(str(cluster.config.nodes[N1].api)) as near:
            assert near.get(b"low") == b"2"  # reads through this node go on
        control(cluster, N1, f"space {2 * LOW_BYTES}")
        until(lambda: space_of(cluster, N1) == "enough")
        until(lambda: put_at(cluster, N1) == Error())
        until(lambda: lags(cluster) == {0}, lambda: str(cluster.status()))


# Damaged states


def flip_key(file: Path, key: bytes) -> None:
    """Flip a bit in every copy of a key in a node's file."""
    data = bytearray(file.read_bytes())
    start, count = 0, 0
    while (start := data.find(key, start)) >= 0:
        data[start] ^= 0x04
        start += len(key)
        count += 1
    assert count
    file.write_bytes(data)


def statuses(cluster: LocalCluster, node: NodeId) -> list[str | None]:
    found = [each for group in cluster.status()["groups"] for each in group["replicas"]]
    return [each["status"] for each in found if each["node"] == node]


def restored(cluster: LocalCluster, node: NodeId) -> bool:
    """Whether the node takes part, and no change of members is under way: that needs the old ones, too."""
    replicas = [each for group in cluster.status()["groups"] for each in group["replicas"] if each["up"]]
    complete = all(each["settled"] for each in replicas)
    return complete and {*statuses(cluster, node)} <= {"leader", "follower"} and lags(cluster) == {0}


KEYS = {f"key-{number:04}".encode(): f"value {number}".encode() for number in range(300)}


def test_a_damaged_row_is_never_served_and_its_replica_is_restored(tmp_path: Path) -> None:
    """Also if it is the leader's: the replica steps aside, and others lead, vote and give it a snapshot."""
    with FaultyCluster(tmp_path / "cluster", 3, 1) as cluster, wbkv.connect(cluster.addresses) as client:
        for row in KEYS.items():
            client.put(*row)
        cluster.stop(N1)
        flip_key(cluster.config.data(N1) / "state" / "data.mdb", b"key-0123")
        cluster.start(N1)
        until(lambda: "leader" in statuses(cluster, N1), lambda: str(cluster.status()))
        assert {item.key: item.value for item in client.scan(wbkv.prefix(b"key-"))} == KEYS
        assert all(client.get(key) == value for key, value in KEYS.items())
        until(lambda: restored(cluster, N1), lambda: str(cluster.status()))
        log = cluster.log(N1).read_text()
        assert "has a damaged state, and steps aside until it is restored" in log
        assert "is restored, at" in log
        client.put(b"after", b"1")
        cluster.kill(N2)
        until(lambda: client.get(b"key-0123") == KEYS[b"key-0123"])


def damages(cluster: LocalCluster) -> list[str]:
    found = [each["damage"] for group in cluster.status()["groups"] for each in group["replicas"]]
    return [damage for damage in found if damage]


def test_a_damaged_row_that_no_client_reads_is_found_and_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FaultyCluster(tmp_path / "cluster", 3, 1) as cluster, wbkv.connect(cluster.addresses) as client:
        for row in KEYS.items():
            client.put(*row)
        cluster.stop(N2)
        flip_key(cluster.config.data(N2) / "state" / "data.mdb", b"key-0123")
        cluster.start(N2)
        until(lambda: restored(cluster, N2), lambda: str(cluster.status()))
        assert repair(cluster, N2, "--running") == 1
        out = capsys.readouterr().out
        assert "n2 has read" in out
        assert "DAMAGED" in out
        until(lambda: restored(cluster, N2) and not damages(cluster), lambda: str(cluster.status()))
        assert "the scrubber found damage in group 0" in cluster.log(N2).read_text()
        assert not list(cluster.config.data(N2).glob("aside-*"))
        cluster.kill(N1)
        until(lambda: client.get(b"key-0123") == KEYS[b"key-0123"])
        assert repair(cluster, N1, "--running") == 1
        assert "cannot be asked to read its rows: it does not answer" in capsys.readouterr().err


def test_a_truncated_state_is_restored_and_a_truncated_log_begins_anew(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", 3, 2) as cluster, wbkv.connect(cluster.addresses) as client:
        for row in KEYS.items():
            client.put(*row)
        cluster.stop(N1)
        file = cluster.config.data(N1) / "state" / "data.mdb"
        os.truncate(file, file.stat().st_size // 2)
        assert repair(cluster, N1) == 1
        cluster.start(N1)
        until(lambda: restored(cluster, N1), lambda: str(cluster.status()))
        log = cluster.log(N1).read_text()
        assert "data.mdb" in log
        assert [path for path in cluster.config.data(N1).iterdir() if path.name.startswith("state.damaged")]
        cluster.stop(N2)
        assert all(client.get(key) == value for key, value in KEYS.items())
        file = cluster.config.data(N2) / "log" / "data.mdb"
        os.truncate(file, file.stat().st_size // 2)
        assert repair(cluster, N2, "--drop-state") == 1
        cluster.start(N2)
        until(lambda: restored(cluster, N2), lambda: str(cluster.status()))
        assert "data.mdb was truncated" in cluster.log(N2).read_text()
        assert {group["configuration"] for group in groups_at(cluster, N2)} == {1}
        cluster.kill(N1)
        assert all(client.get(key) == value for key, value in KEYS.items())


def groups_at(cluster: LocalCluster, node: NodeId) -> list[ReplicaStatus]:
    found = [each for group in cluster.status()["groups"] for each in group["replicas"]]
    return [each for each in found if each["node"] == node]


def damage_log(cluster: LocalCluster, node: NodeId, group: int) -> None:
    """Change a bit in the last row of a group, in the log of a node that does not run."""
    with lmdb.open(str(cluster.config.data(node) / "log"), max_dbs=8, lock=False, create=False) as env:
        db = env.open_db(keys.LOG_ROWS, create=False)
        with env.begin(db, write=True) as transaction:
            rows = [
                (key, value) for key, value in transaction.cursor() if key[:2] == group.to_bytes(2, "big")
            ]
            key, value = rows[-1]
            transaction.put(key, value[:-1] + bytes([value[-1] ^ 1]))


def test_bad_logs_of_two_groups_on_two_nodes_destroy_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each replica begins anew for its own group; the other groups of both nodes keep their promises."""
    with FaultyCluster(tmp_path / "cluster", 3, 3) as cluster, wbkv.connect(cluster.addresses) as client:
        for row in KEYS.items():
            client.put(*row)
        cluster.stop(N1, N2)
        damage_log(cluster, N1, 0)
        damage_log(cluster, N2, 2)
        assert repair(cluster, N1) == 1
        out = capsys.readouterr().out
        assert "DAMAGED rows, group 0" in out
        assert "the log of partition 0 is damaged" in out
        cluster.start(N1, N2)
        until(lambda: restored(cluster, N1) and restored(cluster, N2), lambda: str(cluster.status()))
        for node, bad in ((N1, 0), (N2, 2)):
            log = cluster.log(node).read_text()
            assert f"The replicas of partitions {bad} have lost promises" in log
            until(lambda: "is restored, at" in cluster.log(node).read_text())  # noqa: B023 - called at once
            assert len(list(cluster.config.data(node).glob("log.damaged-*"))) == 1
        changes = {group["id"]: group["replicas"][0]["configuration"] for group in cluster.status()["groups"]}
        assert changes == {0: 1, 1: 0, 2: 1}
        assert all(client.get(key) == value for key, value in KEYS.items())
        cluster.kill(N3)
        assert all(client.get(key) == value for key, value in KEYS.items())
        client.put(b"after", b"1")
        cluster.stop(N1)
        assert repair(cluster, N1) == 0
        assert "partition 0 has begun anew once" in capsys.readouterr().out


def test_without_a_quorum_beside_it_a_bad_log_is_kept_and_the_other_groups_go_on(tmp_path: Path) -> None:
    with FaultyCluster(tmp_path / "cluster", 3, 2) as cluster, wbkv.connect(cluster.addresses) as client:
        for row in KEYS.items():
            client.put(*row)
        cluster.stop(N1, N2)
        damage_log(cluster, N1, 0)
        damage_log(cluster, N2, 0)
        cluster.start(N1, N2)
        until(lambda: leader_of(cluster, 1) is not None)
        at_1 = [key for key in KEYS if cluster.config.first_placement.group_of(key) == 1]
        assert at_1
        assert all(client.get(key) == KEYS[key] for key in at_1)
        client.put(at_1[0], b"new")
        for node in (N1, N2):
            until(lambda: "outsider" in statuses(cluster, node))  # noqa: B023 - called at once
            damage = next(r for r in groups_at(cluster, node) if r["status"] == "outsider")["damage"]
            assert "begins anew when its group admits it" in str(damage)
            assert len(list(cluster.config.data(node).glob("log.damaged-*"))) == 1
        until(lambda: leader_of(cluster, 0) is None)  # n3 leads until it notices that it is alone


def repair(cluster: LocalCluster, node: NodeId, *options: str) -> int:
    """Run `wbkv repair`."""
    command = RepairCommand()
    parser = argparse.ArgumentParser()
    command.configure(parser)
    file = cluster.config.data(node).parent / "cluster.toml"
    return command.run(parser.parse_args(["--config", str(file), "--node", node, *options]))


def test_an_operator_lets_a_node_fetch_its_damaged_state_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FaultyCluster(tmp_path / "cluster", 3, 2) as cluster, wbkv.connect(cluster.addresses) as client:
        for row in KEYS.items():
            client.put(*row)
        assert repair(cluster, N1) == 1
        assert "is in use by process" in capsys.readouterr().err
        cluster.stop(N1)
        assert repair(cluster, N1) == 0
        assert "the disk is sound" in capsys.readouterr().out
        flip_key(cluster.config.data(N1) / "state" / "data.mdb", b"key-0123")
        assert repair(cluster, N1) == 1
        out = capsys.readouterr().out
        assert "DAMAGED table latest" in out
        assert "--drop-state mends it" in out
        assert repair(cluster, N1, "--drop-state") == 0
        assert repair(cluster, N1) == 0
        cluster.start(N1)
        until(lambda: restored(cluster, N1), lambda: str(cluster.status()))
        cluster.kill(N2)
        assert all(client.get(key) == value for key, value in KEYS.items())


def no_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]


def test_a_node_whose_disk_is_an_old_copy_begins_anew(tmp_path: Path) -> None:
    """Its log is sound, and lacks promises that the others remember. So it gives up its identity."""
    with FaultyCluster(tmp_path / "cluster", 3, 2) as cluster, wbkv.connect(cluster.addresses) as client:
        client.put(b"before", b"1")
        data, copy = cluster.config.data(N1), tmp_path / "copy"
        cluster.stop(N1)
        shutil.copytree(data, copy, ignore=no_sockets)
        cluster.start(N1)
        until(lambda: restored(cluster, N1), lambda: str(cluster.status()))
        assert {group["configuration"] for group in groups_at(cluster, N1)} == {0}, "it is believed"
        for row in KEYS.items():
            client.put(*row)
        cluster.kill(N1)
        for _ in range(2):  # the second time, it is a replica that was replaced long ago
            shutil.rmtree(data)
            shutil.copytree(copy, data)
            cluster.start(N1)
            until(lambda: restored(cluster, N1), lambda: f"{cluster.status()} {cluster.log(N1).read_text()}")
            client.put(b"after", b"1")
            cluster.kill(N1)
        log = cluster.log(N1).read_text()
        assert "it was rolled back, and may lack promises" in log
        assert "was replaced by" in log
        assert len(list(data.parent.glob(f"{data.name}.lost-*"))) == 2
        cluster.start(N1)
        until(lambda: restored(cluster, N1), lambda: str(cluster.status()))
        assert {group["configuration"] for group in groups_at(cluster, N1)} == {2}
        cluster.kill(N2)
        assert all(client.get(key) == value for key, value in KEYS.items())


def spoil_pages(file: Path) -> None:
    """Change the kind of every page but the first two: LMDB cannot read any of them."""
    data = bytearray(file.read_bytes())
    for page in range(2, len(data) // 4096):
        data[4096 * page + 10] ^= 0x3F
    file.write_bytes(data)


def test_a_node_whose_pages_cannot_be_read_replaces_its_state(tmp_path: Path) -> None:
    """It dies a few times at most, and is started again."""
    with FaultyCluster(tmp_path / "cluster", 3, 2) as cluster, wbkv.connect(cluster.addresses) as client:
        for row in KEYS.items():
            client.put(*row)
        cluster.stop(N1)
        spoil_pages(cluster.config.data(N1) / "state" / "data.mdb")
        cluster.start(N1)
        until(lambda: restored(cluster, N1), lambda: f"{cluster.status()} {cluster.log(N1).read_text()}")
        assert "the old state is kept as state.damaged-" in cluster.log(N1).read_text()
        assert {item.key: item.value for item in client.scan(wbkv.prefix(b"key-"))} == KEYS
        cluster.kill(N2)
        until(lambda: client.get(b"key-0123") == KEYS[b"key-0123"])


def test_random_damage_of_pages_is_repaired_or_refused(tmp_path: Path) -> None:
    """Whatever the damage is, the cluster's answers are right, and the node ends with a sound disk.

    A node that dies is started again, as `wbkv up` does.
    """
    with LocalCluster(tmp_path / "cluster", 3, 2) as cluster, wbkv.connect(cluster.addresses) as client:
        for row in KEYS.items():
            client.put(*row)
        for seed in range(20 if CAMPAIGN else 1):
            cluster.stop(N1)
            file, rng = cluster.config.data(N1) / "state" / "data.mdb", random.Random(seed)
            what = [damage(file, rng) for _ in range(20)]
            cluster.start(N1)
            until(lambda: restored(cluster, N1), lambda: f"{cluster.status()} {cluster.log(N1).read_text()}")
            repair(cluster, N1, "--running")
            until(lambda: restored(cluster, N1) and not damages(cluster), lambda: str(cluster.status()))
            assert {item.key: item.value for item in client.scan(wbkv.prefix(b"key-"))} == KEYS, what
            client.put(b"seed", b"%d" % seed)
            cluster.stop(N1)
            assert repair(cluster, N1) == 0, (seed, what)
            cluster.start(N1)
            until(lambda: restored(cluster, N1), lambda: str(cluster.status()))
