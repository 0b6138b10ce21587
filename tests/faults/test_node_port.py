"""The node port of real nodes: what strangers see of it, and which files nodes leave."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import wbkv
from wbkv_proto.link_pb2 import Answer, Introduction, Opening, Reason

from kvstore.local.cluster import LocalCluster
from kvstore.local.status import ask
from kvstore.wire.frames import PROTOCOL_VERSION


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    old = os.umask(0)  # the most careless of users
    try:
        made = LocalCluster(folder / "data", 3, 2, durability="os", restart=False, trace=folder / "traces")
    finally:
        os.umask(old)
    with made as running:
        running.wait_serving()
        yield running


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def answer(sock: socket.socket) -> Answer:
    with sock.makefile("rb") as file:
        return Answer.FromString(file.read(int.from_bytes(file.read(4), "big")))


def test_all_files_are_private(cluster: LocalCluster) -> None:
    found = [cluster.data, *cluster.data.rglob("*"), *(cluster.data.parent / "traces").rglob("*")]
    kinds = {path.name.partition(".")[2] or path.name for path in found if path.is_file()}
    assert {"toml", "lock", "mdb", "json", "log", "jsonl"} <= kinds, kinds
    open_to_others = [f"{path} {path.stat().st_mode:o}" for path in found if path.stat().st_mode & 0o077]
    assert not open_to_others


def test_a_stranger_learns_nothing_and_the_secret_is_nowhere(cluster: LocalCluster) -> None:
    config = cluster.config
    told = b""
    for address in config.addresses.values():
        with socket.create_connection(address, 10) as sock:
            sock.sendall(framed(Opening(version=PROTOCOL_VERSION, nonce=bytes(32)).SerializeToString()))
            challenge = answer(sock)
            guess = Introduction(hello=b"", proof=challenge.challenge.proof)
            sock.sendall(framed(guess.SerializeToString()))
            refused = answer(sock)
            assert refused.refusal.reason == Reason.WRONG_SECRET
            told += challenge.SerializeToString() + refused.SerializeToString()
    for word in (config.id.encode(), config.hash, config.hash.hex().encode()):
        assert word not in told
    status = [ask(config.status_socket(node)) or {} for node in cluster.nodes]
    counts = [node["transport"]["strangers"]["unproven"] for node in status]
    assert counts == [1, 1, 1]
    secret = config.secret.reveal()
    assert secret not in str(status)
    assert secret not in repr(config)
    for node in cluster.nodes:
        assert secret not in cluster.log(node).read_text()
        assert secret not in Path(f"/proc/{cluster.pid(node)}/cmdline").read_text()
        assert secret not in Path(f"/proc/{cluster.pid(node)}/environ").read_text()


def test_a_cluster_whose_nodes_authenticate_serves(cluster: LocalCluster) -> None:
    with wbkv.connect(cluster.addresses) as client:
        client.put("k", b"v")
        assert client.get("k") == b"v"
