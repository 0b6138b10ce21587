"""Wrong clocks on real processes: a node a day ahead is elected, and a client carries invented revisions."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import wbkv
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import kv_pb2_grpc

from kvstore.commands.clock import command
from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from kvstore.local.folder import CONFIG
from kvstore.node.wall_clock import EPOCH_S, TEST_CLOCKS
from multicast.protocol import Timing
from multicast.types import TICKS_PER_S, Timestamp, time_of
from tests.faults.harness import leader_of, until

DAY_S = 86_400.0
NODES = [NodeId(f"n{number}") for number in (1, 2, 3)]


class Clocks:
    """The clocks of nodes, which a test sets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def set(self, node: NodeId, by_s: float) -> None:
        """Let a node's clock be wrong by this much."""
        new = self._folder / f"{node}.new"
        new.write_text(str(by_s))
        new.rename(self._folder / node)


@pytest.fixture
def clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    monkeypatch.setenv(TEST_CLOCKS, str(tmp_path / "clocks"))
    return Clocks(tmp_path / "clocks")


def started(tmp_path: Path, partitions: int = 1) -> LocalCluster:
    timing = Timing(give_back_s=0.5, anchor_s=1.0)
    return LocalCluster(tmp_path / "cluster", 3, partitions, timing=timing, durability="os", restart=False)


@contextmanager
def stub_of(cluster: LocalCluster, node: NodeId) -> Iterator[kv_pb2_grpc.KVStub]:
    """Calls to one node."""
    with grpc.insecure_channel(cluster.config.nodes[node].api or "") as channel:
        yield kv_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]  # generated


def ahead_s(revision: int) -> float:
    """By how many seconds a revision is ahead of this machine's clock."""
    return time_of(Timestamp(revision)) / TICKS_PER_S - (time.time() - EPOCH_S)


def leads(cluster: LocalCluster, node: NodeId) -> bool:
    return leader_of(cluster, 0) == node


def put(stub: kv_pb2_grpc.KVStub, request: kv.PutRequest) -> int:
    """Return the revision."""
    return int(stub.Put(request, timeout=20, wait_for_ready=True).header.transaction_revision)


def test_a_node_a_day_ahead_is_elected_and_nobody_notices(tmp_path: Path, clocks: Clocks) -> None:
    wrong, right = NODES[0], NODES[1]
    request = kv.PutRequest(key=b"k", value=b"1", id=kv.RequestId(client=77, sequence=1, ack_below=1))
    with ExitStack() as stack:
        cluster = stack.enter_context(started(tmp_path))
        near = stack.enter_context(stub_of(cluster, right))
        far = stack.enter_context(stub_of(cluster, wrong))
        put(near, kv.PutRequest(key=b"other", value=b""))
        cluster.stop(wrong)
        first = put(near, request)
        clocks.set(wrong, DAY_S)
        cluster.start(wrong)
        until(lambda: leads(cluster, wrong), lambda: "the node is not elected")
        assert put(far, request) == first, "the same request was executed twice"
        assert put(near, request) == first
        entry = far.Get(kv.GetRequest(key=b"k"), timeout=20).entry
        assert (entry.version, entry.mod_revision) == (1, first)
        later = put(far, kv.PutRequest(key=b"new", value=b""))
        assert abs(ahead_s(later)) < 60
        with wbkv.connect([cluster.config.nodes[node].api or "" for node in NODES]) as client:
            for number in range(20):
                client.put(b"key %d" % number, b"")
                assert client.get(b"key %d" % number, consistency="serializable") == b""
        until(
            lambda: "86400.0 s ahead of the time of its group" in cluster.log(wrong).read_text(),
            lambda: "the wrong clock is not in the log",
        )
        clocks.set(wrong, -DAY_S)
        assert abs(ahead_s(put(far, kv.PutRequest(key=b"behind", value=b"")))) < 60
        assert put(far, request) == first
        clocks.set(wrong, 0.0)
        for node in NODES:
            cluster.stop(node)
        cluster.start(*NODES)
        until(lambda: leads(cluster, wrong), lambda: "the node is not elected")
        assert put(near, request) == first
        again = put(near, kv.PutRequest(key=b"last", value=b""))
        assert again > later
        assert abs(ahead_s(again)) < 60


def test_a_client_cannot_ratchet_the_clocks(tmp_path: Path, clocks: Clocks) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(started(tmp_path, partitions=2))
        stubs = [stack.enter_context(stub_of(cluster, node)) for node in NODES]
        revision = put(stubs[0], kv.PutRequest(key=b"k", value=b""))
        for number in range(30):
            asked = wbkv.later(revision, 10 if number % 3 else 0.99)
            request = kv.PutRequest(key=b"k%d" % number, value=b"", min_revision=asked)
            revision = put(stubs[number % 3], request)
        assert ahead_s(revision) < 60
        with pytest.raises(grpc.RpcError, match="no partition has reached it"):
            stubs[0].Get(kv.GetRequest(key=b"k", revision=wbkv.later(revision, 3600)), timeout=20)
        other = put(stubs[2], kv.PutRequest(key=b"z", value=b"", min_revision=revision))
        assert other > revision, "what was told is confirmed"


def test_a_wrong_majority_is_not_believed_until_an_operator_accepts_it(
    tmp_path: Path, clocks: Clocks, capsys: pytest.CaptureFixture[str]
) -> None:
    timing = Timing(anchor_s=0.5, clock_step_s=100.0)
    folder = tmp_path / "cluster"
    parser = argparse.ArgumentParser()
    command.configure(parser)
    with ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(folder, 3, 1, timing=timing, durability="os", restart=False)
        )
        near = stack.enter_context(stub_of(cluster, NODES[0]))
        first = put(near, kv.PutRequest(key=b"k", value=b""))
        until(lambda: bool(anchor(cluster)), lambda: "the group has no anchor")
        for node in NODES:
            clocks.set(node, DAY_S)
        until(lambda: bool(leaders_time(cluster)["held"]), lambda: "the time is believed")
        second = put(near, kv.PutRequest(key=b"k", value=b""))
        assert first < second
        assert ahead_s(second) < 60, "it serves without the time of day"
        assert command.run(parser.parse_args(["show", "--config", str(folder / CONFIG)])) == 0
        assert "held back" in capsys.readouterr().out
        assert command.run(parser.parse_args(["accept", "--config", str(folder / CONFIG)])) == 0
        assert "follow the time of day now" in capsys.readouterr().out
        until(lambda: not leaders_time(cluster)["held"], lambda: "the time is not accepted")
        assert ahead_s(put(near, kv.PutRequest(key=b"k", value=b""))) > DAY_S - 60
    for what in ("show", "accept"):
        assert command.run(parser.parse_args([what, "--config", str(folder / CONFIG)])) == 1
        assert "no node of this configuration runs" in capsys.readouterr().err


def leaders_time(cluster: LocalCluster) -> Mapping[str, Any]:
    replicas = cluster.status()["groups"][0]["replicas"]
    return next((replica["time"] for replica in replicas if replica["time"]), {"held": None, "anchor": 0})


def anchor(cluster: LocalCluster) -> int:
    return int(leaders_time(cluster)["anchor"])
